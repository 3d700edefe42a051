"""The failure reason in a bye frame: one of a fixed set of categories, and one line of text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from tachograph.client.core import batches

MESSAGE_LIMIT = 512

_LOADER_FILES = (f"{os.sep}torch{os.sep}utils{os.sep}data{os.sep}", batches.__file__)
_COLLECTIVE = r"\bNCCL\b|nccl[A-Z]\w+Error|\b[Gg]loo\b|ProcessGroup|Connection closed by peer"
_NONFINITE = r"(?i)\b(nan|nans|inf|infinite|non-?finite)\b"

_CATEGORIES: tuple[tuple[str, Callable[[BaseException, str], bool]], ...] = (
    ("interrupted", lambda error, text: isinstance(error, KeyboardInterrupt)),
    ("data", lambda error, text: "DataLoader worker" in text or _came_through_loader(error)),
    ("oom", lambda error, text: isinstance(error, MemoryError) or "out of memory" in text.lower()),
    ("collective", lambda error, text: type(error).__name__.startswith("Dist") or bool(re.search(_COLLECTIVE, text))),
    ("nonfinite", lambda error, text: bool(re.search(_NONFINITE, text))),
)
"""First match wins. A loader that runs out of memory is a data fault: that is where to look."""


def describe(error: BaseException) -> tuple[str, str]:
    """Return the category of an exception, and its type and first line in at most 512 characters; never raises."""
    try:
        return _describe(error, str.strip(str(error)))
    except Exception:  # noqa: BLE001 - a user's exception may do anything, and a process may be out of stack
        return "exception", type(error).__name__[:MESSAGE_LIMIT]


def _describe(error: BaseException, text: str) -> tuple[str, str]:
    line = text.splitlines()[0].rstrip() if text else ""
    message = (f"{type(error).__name__}: {line}" if line else type(error).__name__)[:MESSAGE_LIMIT]
    return next((category for category, matches in _CATEGORIES if matches(error, text)), "exception"), message


def _came_through_loader(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if any(part in trace.tb_frame.f_code.co_filename for part in _LOADER_FILES):
            return True
        trace = trace.tb_next
    return False
