"""Log lines for errors of HTTP clients and of the event loop, one per cause and minute."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

from tachograph.node.log import OncePerMinute


class HttpErrors(logging.Logger):
    """The logger given to aiohttp: what clients do is one line, without a traceback."""

    def __init__(self, lines: OncePerMinute) -> None:
        super().__init__("aiohttp.server", logging.ERROR)
        self._lines = lines

    def exception(self, msg: object, *args: object, exc_info: object = None, **_: object) -> None:
        """Log an error of a request."""
        if isinstance(exc_info, HttpProcessingError):
            where = args[0] if args else ""
            self._lines.warning("malformed HTTP request", peer=where, error=_first_line(exc_info))
        elif isinstance(exc_info, ConnectionError):
            self._lines.warning("HTTP client gone before its answer", error=_first_line(exc_info))
        elif isinstance(exc_info, BaseException):
            self._lines.warning(f"HTTP request failed: {type(exc_info).__name__}", exc_info)
        else:
            self._lines.warning(f"HTTP request failed: {msg}")


def quiet_loop(lines: OncePerMinute) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return a handler for exceptions that no task of the event loop caught."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Without the objects that asyncio names: their addresses would make every message a new cause.
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
