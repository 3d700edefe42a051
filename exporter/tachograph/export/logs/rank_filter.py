"""A filter by rank, so that 1,024 ranks do not write 1,024 copies of one line.

| record                                             | written by                                        |
|----------------------------------------------------|---------------------------------------------------|
| error and above                                    | every rank                                        |
| warnings of communicators (torch.distributed, …)   | every rank, one a minute per kind, rest counted   |
| other warnings                                     | every rank, three a minute per kind, rest counted |
| below warning                                      | rank 0, and one rank in 64                        |
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tachograph.export.logs.json_lines import text

SAMPLED_RANKS = 64
WINDOW_SECONDS = 60.0
COMMUNICATORS = ("torch.distributed", "torch.nn.parallel", "c10d", "nccl", "gloo")
"""Loggers whose diagnostics are written by all ranks at once."""

COMMUNICATOR_BURST, BURST = 1, 3
KINDS_LIMIT = 256
"""Kinds of warning remembered; a program that makes new texts without end forgets the oldest."""


class RankFilter(logging.Filter):
    """Lets a record through by the table above; the first after a suppression carries `suppressed`, their number.

    `kind` is the logger with the text before its arguments are put in, so that a changing number does not make it new.
    """

    def __init__(self, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._tells_progress = rank % SAMPLED_RANKS == 0
        self._clock = clock
        self._lock = threading.RLock()  # a signal handler may log while this thread does
        self._kinds: dict[tuple[str, str], list[float]] = {}  # window's start, written in it, held back since

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this rank writes the record."""
        if record.levelno >= logging.ERROR:
            return True
        if record.levelno < logging.WARNING:
            return self._tells_progress
        return self._throttle(record)

    def _throttle(self, record: logging.LogRecord) -> bool:
        burst = COMMUNICATOR_BURST if record.name.startswith(COMMUNICATORS) else BURST
        now = self._clock()
        kind_of = text(record.msg)[:256]
        with self._lock:
            kind = (record.name, kind_of)
            state = self._kinds.pop(kind, None) or [now, 0, 0]
            if now - state[0] >= WINDOW_SECONDS:
                state[:2] = [now, 0]
            written = state[1] < burst
            if written:
                if state[2]:
                    record.suppressed = int(state[2])
                state[1] += 1
                state[2] = 0
            else:
                state[2] += 1
            self._kinds[kind] = state  # last in the dict: the oldest is first
            if len(self._kinds) > KINDS_LIMIT:
                del self._kinds[next(iter(self._kinds))]
        return written
