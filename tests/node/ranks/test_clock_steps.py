"""Clocks that are set at any moment change no conclusion of a node: it is compared with the same node left alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from tachograph.node.clock import Clock
from tachograph.node.ranks.frames import Bye, Hello, Peer, State
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.shown_ranks import ShownRanks

STEP = 2.0
BROKEN_AT = 14.3
"""At the end of a step, and between two frames."""
OFFSET = BROKEN_AT % STEP
LASTS = 44
LOOKED_AT = (14, 18, 24, 30, 38, 43)
"""The seconds at which what the node says is compared."""
JUDGED = {
    "run_overdue_seconds", "run_frozen_seconds", "run_first_end_seconds", "run_start_stalled_seconds",
    "run_ended_seconds", "run_progress_age_seconds", "run_unsaved_seconds", "run_excused_seconds",
    "run_hang_suspect_seconds", "run_checkpoint_saving_seconds", "run_ended_together", "run_step_seconds",
    "run_loss_nonfinite_seconds",
}  # fmt: skip
"""The families on which pages and tickets rest, without their prefix."""

PHASES = {"hang": "data", "save": "checkpoint", "evaluation": "eval"}
STORIES = ("healthy", "hang", "death", "failure", "raised", "save", "evaluation", "frozen", "nan")
SET_BY = (-3600.0, -120.0, -1.0, 1.0, 120.0, 3600.0)
MOMENTS = (BROKEN_AT - 0.4, BROKEN_AT + 0.4, BROKEN_AT + 2.5, BROKEN_AT + 21.0)
CLIENTS = ("ages", "read", "counted")
"""One that tells ages; one that reads the clock of the day when something happens; one that counts back from now."""


@dataclass
class World:
    """Two ranks and their exporter on one node, whose clock of the day is set by `step` at a moment."""

    gpus: Any
    story: str
    client: str
    step: float = 0.0
    set_at: float = math.inf
    time: float = 0.0
    seq: int = 0
    gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        clock = Clock(lambda: 1000.0 + self.time, lambda: self.read(self.time))
        self.table = RankTable(Limits(), clock, self.gpus)
        for rank in range(2):
            self.table.hello(rank, Hello(v=1, run="r", rank=rank, world_size=2, pid=10 + rank), Peer(1000, 10 + rank))

    def read(self, time: float) -> float:
        """Return what the clock of the day shows at a time."""
        return 1.7e9 + time + (self.step if time >= self.set_at else 0.0)

    def told(self, time: float) -> float:
        """Return what a rank says that the clock of the day showed at a time."""
        return self.read(time) if self.client == "read" else self.read(self.time) - (self.time - time)

    def frame(self, rank: int) -> State:
        """Return what a rank says now."""
        broken = self.time >= BROKEN_AT
        stands = broken and self.story != "healthy"
        last = ((BROKEN_AT if stands else self.time) - OFFSET + 1e-6) // STEP * STEP + OFFSET
        begun = BROKEN_AT if stands else last
        own = PHASES.get(self.story, "forward") if stands else "backward"
        steps = (last - OFFSET) / STEP
        metrics: dict[str, object] = {
            "steps_total": steps,
            "phase_seconds_total": {"forward": steps * STEP},
            "checkpoint_timestamp_seconds": self.read(4.0),
        }
        if self.client == "ages":
            metrics |= {"ordinary_steps_total": steps, "ordinary_step_seconds_total": steps * STEP}
        if broken and self.story == "nan":
            metrics |= {"loss": "NaN", "loss_nonfinite_timestamp_seconds": self.read(BROKEN_AT)}
        failed = broken and self.story == "raised" and rank == 0
        raised = {"category": "data", "message": "FileNotFoundError: shard 7", "time": self.told(BROKEN_AT)}
        has_ages = self.client == "ages"
        return State(
            v=1,
            seq=self.seq,
            time=self.read(self.time),
            step=int(steps),
            phase=own if rank == 0 or self.story in ("save", "evaluation") else "backward",
            phase_since=self.told(begun),
            phase_seconds=self.time - begun if has_ages else None,
            progress_time=self.told(last),
            progress_seconds=self.time - last if has_ages else None,
            metrics=metrics,
            raised=raised if failed else None,
        )

    def second(self) -> None:
        """Let a second pass: every rank speaks that can, and the exporter ticks."""
        self.time += 1.0
        self.seq += 1
        for rank in sorted({0, 1} - self.gone):
            if self.story == "frozen" and rank == 0 and self.time >= BROKEN_AT:
                continue
            self.table.heard(rank)
            self.table.state(rank, self.frame(rank))
        if self.time >= BROKEN_AT and self.story in ("death", "failure") and not self.gone:
            self.gone.add(0)
            if self.story == "death":
                self.table.lost(0)
            else:
                self.table.bye(0, Bye(v=1, outcome="failed", category="oom", message="CUDA out of memory"))
        self.table.tick()

    def says(self) -> dict[str, float]:
        """Return the conclusions now, by series."""
        return {
            json.dumps((sample.metric.name[11:], *sample.labels)): float(getattr(sample, "value", 0.0))
            for sample in ShownRanks(self.table).samples()
            if sample.metric.name[11:] in JUDGED
        }


def played(world: World, stopped_at: float = math.inf, stop: float = 0.0) -> Iterator[dict[str, float]]:
    """Yield what the node says now and then; at a moment its monotonic clock runs on by `stop` while nobody does."""
    for second in range(LASTS):
        if stop and world.time + 1.0 > stopped_at:
            world.time, stop = world.time + stop, 0.0
        world.second()
        if second in LOOKED_AT:
            yield world.says()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("story", STORIES)
def test_a_clock_that_is_set_changes_nothing(two_gpus: Any, story: str, client: str) -> None:
    """By a second, two minutes or an hour, before, at, and within whatever happens; ages differ by those of a frame.

    Every second of these pairs for each client; two clients that follow each other have all.
    """
    expected = list(played(World(two_gpus, story, client)))
    shown = {json.loads(series)[0] for series, value in expected[-1].items() if value}
    named = {"frozen": "run_frozen_seconds", "nan": "run_loss_nonfinite_seconds", "healthy": "run_step_seconds"}
    ends = dict.fromkeys(("death", "failure", "raised"), "run_first_end_seconds")
    assert {**named, **ends}.get(story, "run_overdue_seconds") in shown, "the story shows what it is"
    for (place, step), (moment, at) in product(enumerate(SET_BY), enumerate(MOMENTS)):
        if (place + moment + CLIENTS.index(client)) % 2:
            continue
        for number, said in enumerate(played(World(two_gpus, story, client, step, at))):
            where = (step, at, LOOKED_AT[number])
            assert said.keys() == expected[number].keys(), where
            for series, value in said.items():
                assert math.isclose(value, expected[number][series], rel_tol=0.0, abs_tol=2.0), (*where, series)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("at", MOMENTS)
def test_a_suspended_machine_does_not_hang(two_gpus: Any, client: str, at: float) -> None:
    """Whether its monotonic clock stood still or ran on, and whatever the clock of the day was set to."""
    for stop, step in ((0.0, 3600.0), (3600.0, 0.0), (3600.0, 3600.0)):
        world = World(two_gpus, "healthy", client, step, at + stop if step else math.inf)
        for said in played(world, at, stop):
            late = [series for series, value in said.items() if value and ("overdue" in series or "frozen" in series)]
            assert not late, (stop, step)
