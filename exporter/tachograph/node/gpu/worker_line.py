"""What passes from the worker that reads GPUs to the exporter: lines, and at last an exit status."""

from __future__ import annotations

from typing import TypedDict

STALE_INTERVALS = 3
"""How many intervals a value may be shown after the moment at which a newer one was due."""

SPENT_STATUS = 75
"""Exit status that asks for a fresh process, which can load the new driver's library (EX_TEMPFAIL)."""


class WorkerLine(TypedDict):
    """One collection, ready for JSON: what was read, of whom, what could not be read, and what to tell people once.

    `processes` are the pids on each GPU by its index; `collectors` maps gpu, gpm and xid to "" or one of
    COLLECTOR_REASONS; `reason` is the gpu collector's in a sentence.
    """

    samples: list[tuple[str, tuple[str, ...], float]]
    gpus: list[tuple[str, str, str]]
    processes: dict[str, list[int]]
    collectors: dict[str, str]
    duration: float
    ok: bool
    reason: str
    failures: dict[str, str]
    notes: dict[str, str]
