"""The parts of the landing page, each contained: one that cannot be drawn costs itself alone."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tachograph.node.clock import Clock
from tachograph.node.log import OncePerMinute

FAILED = '<p class="soft">This part could not be drawn: see the log of this exporter.</p>'

_log = logging.getLogger(__name__)


class Parts:
    """Draws parts by their name; the failure of each is logged once a minute, for the page renews itself."""

    def __init__(self, clock: Clock) -> None:
        self._lines = OncePerMinute(_log, clock.monotonic)

    def drawn(self, part: str, draw: Callable[[], str], failed: str = FAILED) -> str:
        """Return what `draw` returns, else `failed`."""
        try:
            return draw()
        except Exception as error:  # noqa: BLE001 - what one rank or driver says must not take the rest of the page
            self._lines.warning(f"a part of the landing page could not be drawn: {part}", error)
            return failed
