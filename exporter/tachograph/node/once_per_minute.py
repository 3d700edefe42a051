"""One log line per cause and minute, for what others can make happen as often as they like."""

from __future__ import annotations

import logging
from collections.abc import Callable

EVERY_SECONDS = 60.0
_MOST_CAUSES = 64


class OncePerMinute:
    """Logs the first line of a cause, and the next one a minute later with how many there were between."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._causes: dict[str, tuple[float, int]] = {}
        """When each cause was last logged, and how often it came since."""

    def warning(self, cause: str, fault: BaseException | None = None, **fields: object) -> None:
        """Log a cause, with the traceback of what is a fault of ours."""
        now = self._clock()
        last, unsaid = self._causes.get(cause, (-EVERY_SECONDS, 0))
        if now - last < EVERY_SECONDS and cause in self._causes:
            self._causes[cause] = (last, unsaid + 1)
            return
        if cause not in self._causes and len(self._causes) >= _MOST_CAUSES:
            self._causes.pop(min(self._causes, key=lambda each: self._causes[each][0]))
        self._causes[cause] = (now, 0)
        more: dict[str, object] = {"not_logged": unsaid} if unsaid else {}
        self._log.warning(cause, exc_info=fault, extra={**fields, **more})
