"""One line per cause and minute of what HTTP clients and the event loop complain about."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

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


class HttpErrors(logging.Logger):
    """What aiohttp takes for its logger: a request that is not HTTP is a line without traceback."""

    def __init__(self, lines: OncePerMinute) -> None:
        super().__init__("aiohttp.server", logging.ERROR)
        self._lines = lines

    def exception(self, msg: object, *args: object, exc_info: object = None, **_: object) -> None:
        """Log an error of a request."""
        if isinstance(exc_info, HttpProcessingError):
            where = args[0] if args else ""
            self._lines.warning("malformed HTTP request", peer=where, error=_first_line(exc_info))
        elif isinstance(exc_info, BaseException):
            self._lines.warning(f"HTTP request failed: {type(exc_info).__name__}", exc_info)
        else:
            self._lines.warning(f"HTTP request failed: {msg}")


def quiet_loop(lines: OncePerMinute) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return a handler for what no task of the event loop caught."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Without the objects that asyncio names in it: their addresses would make each time a cause of its own.
        message = re.split(r"[(<]", str(context.get("message", "")), maxsplit=1)[0].strip() or "error in the event loop"
        if isinstance(error, OSError):
            lines.warning(f"{message}: {error.strerror or error}")
        elif isinstance(error, BaseException):
            lines.warning(f"{message}: {type(error).__name__}", error)
        else:
            lines.warning(message)

    return handle


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
