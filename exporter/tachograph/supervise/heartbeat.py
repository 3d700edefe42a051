"""Tells the exporter that a run is supervised, how, and what was done: as a frame on the ranks' socket.

Each frame has all totals (docs/protocol.md), goes over a connection of its own, and is not waited for: without an
exporter, or with one that is busy, it is lost, and the next one makes up for it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType

from tachograph.client.hello.batch_job import batch_job
from tachograph.supervise.ledger import Ledger
from tachograph.supervise.memory import EVER, HOUR
from tachograph.supervise.policy import Policy
from tachograph.wire import VERSION

LEAST_SECONDS = 1.0
"""Between two frames."""

FAILED = "failed"
"""The mode of a supervisor that does nothing any more by a fault of its own."""

Facts = Mapping[str, object]


def facts_of(ledger: Ledger, policy: Policy, blind_seconds: float, now: float) -> Facts:
    """Return what a frame says: the mode, for how long nothing has been known, totals, and what waits or is skipped."""
    memory, totals = ledger.memory, ledger.memory.totals
    actions: dict[str, dict[str, int]] = {}
    for (action, outcome), count in totals.actions.items():
        actions.setdefault(action, {})[outcome] = count
    left = min(
        policy.restarts.per_hour - memory.cost(now, HOUR), policy.restarts.per_run - memory.cost(now, EVER),
    )  # fmt: skip
    asked = [
        {"id": one["id"], "action": one["action"], "seconds": round(max(now - one["time"], 0.0), 1)}
        for one in memory.unfinished.asked.values()
    ]
    skipped = memory.plan.most_often
    return {
        "mode": FAILED if ledger.has_failed else ledger.mode, "blind_seconds": round(blind_seconds, 1),
        "restarts_left": max(left, 0), "actions": actions, "recovery_seconds": totals.recovery_seconds,
        "lost_steps": totals.lost_steps, "saved_gpu_seconds": round(totals.saved_gpu_seconds, 1), "questions": asked,
        "skipped": skipped and {"first": skipped.begin, "last": skipped.end - 1, "times": skipped.times},
    }  # fmt: skip


class Heartbeat:
    """The reports about one run to the exporter at a socket; a context manager that says when it is over."""

    def __init__(self, path: str, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._who = {"v": VERSION, "type": "supervisor", "run": run, "job": batch_job(os.environ)}
        self._sent: float | None = None
        self._last: Facts = {}

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._last:
            return
        with suppress(Exception):  # the same
            self._send({**self._last, "ended": True})

    def tell(self, facts: Callable[[], Facts]) -> None:
        """Send what `facts` returns, unless something was sent within the last second."""
        now = self._clock()
        with suppress(Exception):  # nothing that is only shown may end, or hold up, what supervises a training
            self._last = facts()
            if self._sent is None or now - self._sent >= LEAST_SECONDS:
                self._sent = now
                self._send(self._last)

    def _send(self, facts: Facts) -> None:
        line = json.dumps({**self._who, **facts}, separators=(",", ":")).encode() + b"\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
            to.setblocking(False)  # where there is no exporter, or its queue is full, this raises OSError
            to.connect(self._path)
            to.send(line)
