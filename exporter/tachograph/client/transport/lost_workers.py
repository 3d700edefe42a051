"""The ends of workers of a PyTorch DataLoader whose loss is all that an exception says.

A worker that a signal ends closes its sockets before it can be waited for. If the training is about to take a tensor
from it, that fails first, with an EOFError; and whoever waits for the worker then, has its exit code. PyTorch's own
handler of SIGCHLD, which would say which signal it was, finds nothing more.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

LOADER = f"{os.sep}torch{os.sep}utils{os.sep}data{os.sep}"
"""Part of the path of PyTorch's files that load."""

LONGEST_SECONDS = 0.2
"""From the end of a worker's connections until it can be waited for, on a busy node; it is a millisecond else."""

_UNEXPLAINED = "exited unexpectedly"


def lost_worker(chain: Iterable[BaseException]) -> str:
    """Return `DataLoader worker (pid 4242) was killed by SIGTERM`, empty where no signal ended one.

    `chain` is an exception with those behind it. Waits for 0.2 s at most, and only where a connection to one broke.
    """
    for error in chain:
        broken = isinstance(error, (EOFError, ConnectionError))
        workers = list(_workers(error.__traceback__)) if broken or _is_unexplained(error) else []
        if not workers:
            continue
        deadline = time.monotonic() + (LONGEST_SECONDS if broken else 0.0)
        while not (ended := [one for one in workers if one.exitcode is not None]) and time.monotonic() < deadline:
            time.sleep(0.002)
        for one in ended:
            if one.exitcode < 0:
                return f"DataLoader worker (pid {one.pid}) was killed by {signal.Signals(-one.exitcode).name}"
    return ""


def _is_unexplained(error: BaseException) -> bool:
    text = error.args[0] if type(error) is RuntimeError and error.args else ""
    return isinstance(text, str) and _UNEXPLAINED in text


def _workers(trace: TracebackType | None) -> Iterator[Any]:
    """Yield the workers of each loader that an exception came through."""
    while trace is not None:
        if LOADER in trace.tb_frame.f_code.co_filename:
            yield from getattr(trace.tb_frame.f_locals.get("self"), "_workers", ())
        trace = trace.tb_next
