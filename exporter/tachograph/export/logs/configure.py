"""Sets up structured logging for one process."""

from __future__ import annotations

import logging
import os
import sys
from logging.handlers import WatchedFileHandler
from types import TracebackType
from typing import TextIO

from tachograph.client.blackbox import log_lines
from tachograph.client.blackbox.environment import environment_summary
from tachograph.client.hello.identity import discover
from tachograph.export.logs.json_lines import JsonLines, RunPosition
from tachograph.export.logs.rank_filter import RankFilter

_installed: logging.Handler | None = None


def configure(
    recorder: RunPosition | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    stream: TextIO | None = None,
    level: int | str = logging.INFO,
) -> logging.Handler:
    """Send the root logger's records, and unhandled exceptions, to one JSON line each; return the handler.

    To `path` (appended to, opened again after a rotation), else to `stream`, else to standard error. Without a recorder
    the rank is found in the environment, and lines carry neither step nor phase. Called again, it replaces what it set
    up; other handlers stay. Rank 0 logs `environment`. Raises OSError where `path` cannot be opened, ValueError for an
    unknown level: this runs at start, where a fault is better seen than lost.
    """
    global _installed
    logging.getLogger().setLevel(level)
    identity = getattr(recorder, "identity", None) or discover({}, os.environ)
    handler: logging.Handler
    if path is not None:
        handler = WatchedFileHandler(os.fspath(path), encoding="utf-8")
    else:
        handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    place = recorder if hasattr(recorder, "position") else None
    handler.setFormatter(JsonLines(place, identity, log_lines.kept))
    handler.addFilter(RankFilter(identity.rank))
    root = logging.getLogger()
    if _installed is not None:
        root.removeHandler(_installed)
        _installed.close()
    else:
        _log_exceptions()
    root.addHandler(handler)
    _installed = handler
    if identity.rank == 0:
        root.info("environment", extra={"event": "environment", "fields": environment_summary()})
    return handler


def _log_exceptions() -> None:
    """Log what ends the process, then let it end as it would have."""
    previous = sys.excepthook

    def log(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if not issubclass(kind, KeyboardInterrupt):
                logging.getLogger().critical(
                    "%s: %s", kind.__name__, error, exc_info=(kind, error, trace), extra={"event": "exception"}
                )
        finally:  # another handler of the program may raise
            previous(kind, error, trace)

    sys.excepthook = log
