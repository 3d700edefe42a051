"""A run on NCCL as its ranks' Flight Recorders see it: a small simulation that writes dumps in torch 2.13's format.

A collective begins on a rank when its GPU gets there, and ends on all ranks of its group at once, a transfer after the
last of them. Its length is known when the watchdog, which looks every 100 ms, has seen its end.
"""

from __future__ import annotations

import pickle
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tachograph.catalog.rank import PHASES
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.ordinary_totals import OrdinaryTotals
from tachograph.client.signals.wait_by_lengths import WaitByLengths
from tachograph.client.torch.flight_recorder import FlightRecorderPoll
from tachograph.client.torch.recorders import parse_pickle

UNIX = 1_795_262_155.0
"""What Unix time is when the clock of the steps shows 0."""

AHEAD = 0.003
"""How far the host is ahead of its GPU."""

WATCHDOG = 0.1

RANKS = 4
ALL = (tuple(range(RANKS)),)


@dataclass(frozen=True)
class Collective:
    """One operation of every step: who takes part in each group of its kind, and how long its transfer takes.

    `aside` runs on a stream of its own, and is waited for at the step's end. `batch` is a coalesced send and receive.
    """

    name: str = "all_reduce"
    group: str = "0"
    members: tuple[tuple[int, ...], ...] = ALL
    transfer: float = 0.004
    compute: float = 0.05
    aside: bool = False
    batch: bool = False


PLAIN = (Collective(), Collective("_all_gather_base"), Collective("_reduce_scatter_base"))
"""50 ms of work before each of three collectives of all ranks: 162 ms a step, 12 ms of them transfer."""


@dataclass
class Ring:
    """The recorder of one rank."""

    size: int
    timed: bool = True

    def __post_init__(self) -> None:
        self._entries: deque[tuple[float, float | None, dict[str, Any]]] = deque(maxlen=self.size)
        self._next = 0
        self._sequence: dict[tuple[str, bool], int] = defaultdict(int)

    def record(self, what: Collective, began: float, ended: float) -> None:
        """Add the entries of one collective."""
        self._sequence[what.group, what.batch] += 1
        if what.batch:
            for part in ("send 0->1", "recv 0<-1"):
                self._add(what, part, began, None, began)
        self._add(what, "coalesced" if what.batch else what.name, began, ended, began)

    def _add(self, what: Collective, name: str, began: float, ended: float | None, started: float) -> None:
        made = {
            "record_id": self._next, "pg_id": 0, "process_group": (what.group, "default_pg"),
            "thread_name": "python", "thread_id": "140", "collective_seq_id": self._sequence[what.group, False],
            "p2p_seq_id": self._sequence[what.group, True], "op_id": self._next, "profiling_name": f"nccl:{name}",
            "time_created_ns": int((UNIX + started - AHEAD) * 1e9), "input_sizes": [[1000, 250]],
            "input_dtypes": ["Float"], "output_sizes": [[1000, 250]], "output_dtypes": ["Float"],
            "state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            "retired": False, "timeout_ms": 600000, "is_p2p": what.batch,
        }  # fmt: skip
        self._next += 1
        self._entries.append((began, ended, made))

    def dump(self, at: float) -> Mapping[str, Any]:
        """Return what the process would get at that moment, read back from pickle's format."""
        entries = []
        for began, ended, made in self._entries:
            if began - AHEAD > at:
                continue
            shown = dict(made)
            if ended is not None and ended + WATCHDOG <= at:
                noticed = int((UNIX + ended + WATCHDOG) * 1e9)
                shown |= {"state": "completed", "retired": True, "time_discovered_started_ns": noticed,
                          "time_discovered_completed_ns": noticed}  # fmt: skip
                if self.timed:
                    shown["duration_ms"] = (ended - began) * 1000
            entries.append(shown)
        configuration = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
        status = {0: {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": 9}}
        whole = {"version": "2.10", "pg_config": configuration, "comm_lib_version": "2.27.7", "pg_status": status}
        return parse_pickle(pickle.dumps({**whole, "entries": entries}))


class Rank:
    """One rank's recorder, and what the client makes of it."""

    def __init__(self, size: int, looks_every: float, first_look: float, *, timed: bool) -> None:
        self.now = 0.0
        self.ring = Ring(size, timed)
        self.waits = WaitByLengths(lambda: True, lambda: self.now, lambda: UNIX + self.now)
        self.ordinary = OrdinaryTotals(self.waits)
        self.poll = FlightRecorderPoll(lambda: self.now, self.waits)
        self._every = looks_every
        self._due = first_look
        self._steps = 0

    def frame(self, at: float) -> float | None:
        """Return the wait that the frame of this moment shows, after a look at the recorder if one is due."""
        self.now = at
        if at >= self._due:
            self._due = at + self._every
            self.poll.read({"nccl": self.ring.dump(at)}, lambda operation, group: False)
        wait = self.ordinary.metrics().get("recent_wait_seconds")
        assert wait is None or isinstance(wait, float)
        return wait

    def stepped(self, began: float, ended: float) -> None:
        """Complete a step; the wait is no part of what the host measured."""
        self.ordinary.observe(StepRecord(self._steps, began, ended, None, (0.0,) * len(PHASES), 0.0))
        self._steps += 1


def figures(
    late: Callable[[int, float], float],
    collectives: Sequence[Collective] = PLAIN,
    *,
    seconds: float = 80.0,
    size: int = 400,
    untimed: Sequence[int] = (),
    looks_every: float = 24.0,
) -> list[list[float | None]]:
    """Return, for each rank, the wait per step that its frames show, every second.

    `late(rank, time)` is by how much longer a rank works in the step that begins then, before its first collective.
    """
    ranks = [
        Rank(size, looks_every, number * looks_every / RANKS, timed=number not in untimed) for number in range(RANKS)
    ]
    shown: list[list[float | None]] = [[] for _ in ranks]
    moment = 0.0
    while moment < seconds:
        ended = _step(ranks, collectives, moment, [late(number, moment) for number in range(RANKS)])
        for second in range(int(moment) + 1, int(ended) + 1):
            for rank, own in zip(ranks, shown, strict=True):
                own.append(rank.frame(second))
        for rank in ranks:
            rank.stepped(moment, ended)
        moment = ended
    return shown


def _step(ranks: Sequence[Rank], collectives: Sequence[Collective], began: float, late: Sequence[float]) -> float:
    """Let all ranks make a step; return when it ends, which is at the same time on all."""
    gpu = [began + more for more in late]
    aside: dict[tuple[int, str], float] = {}
    for what in collectives:
        for group in what.members:
            starts = {}
            for number in group:
                gpu[number] += what.compute
                starts[number] = max(gpu[number], aside.get((number, what.group), 0.0))
            end = max(starts.values()) + what.transfer
            for number, start in starts.items():
                ranks[number].ring.record(what, start, end)
                if what.aside:
                    aside[number, what.group] = end
                else:
                    gpu[number] = end
    return max(*gpu, *aside.values(), began)
