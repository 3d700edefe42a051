"""The parts of the landing page, each contained: one that cannot be drawn costs itself alone."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tachograph.node.clock import Clock

LOGGED_EVERY = 60.0
"""Seconds between two log lines about one part: the page asks for itself every few seconds."""
FAILED = '<p class="soft">This part could not be drawn: see the log of this exporter.</p>'

_log = logging.getLogger(__name__)


class Parts:
    """Draws parts by their name, and remembers when the failure of each was last logged."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[str, float] = {}

    def drawn(self, part: str, draw: Callable[[], str], failed: str = FAILED) -> str:
        """Return what `draw` returns, else `failed`."""
        try:
            return draw()
        except Exception:  # noqa: BLE001 - what one rank or driver says must not take the rest of the page
            now = self._clock.monotonic()
            if now - self._logged.get(part, -LOGGED_EVERY) >= LOGGED_EVERY:
                self._logged[part] = now
                _log.exception("a part of the landing page could not be drawn", extra={"part": part})
            return failed
