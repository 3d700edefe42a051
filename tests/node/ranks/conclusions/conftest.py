"""A run on one node, told by frames: what its node concludes is read like a scrape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tachograph.node.ranks.frames import Hello, Peer, State

Told = dict[tuple[str, ...], float]


@dataclass
class RunOnNode:
    """Ranks of run r: each speaks when it is told to, and the clock is turned by hand with a tick each second."""

    table: Any
    hand: Any
    _seq: dict[int, int] = field(default_factory=dict)

    @property
    def wall(self) -> float:
        return float(self.hand.clock.wall())

    def says(self, rank: int, phase: str | None = None, since: float = 0.0, **facts: Any) -> None:
        """Send a frame: in `phase` for so many seconds; `made` is how long ago it made a step.

        `where` is the line at which it stands still, `still` for how long it does nothing in a save, and the rest, but
        for `step` and `checkpoint_path`, are metrics.
        """
        if rank not in self._seq:
            self.table.hello(rank, Hello(v=1, run="r", rank=rank, world_size=16, pid=10 + rank), Peer(1000, rank + 1))
        self._seq[rank] = self._seq.get(rank, 0) + 1
        self.table.heard(rank)
        made = facts.pop("made", None)
        said = {name: facts.pop(name) for name in ("where", "still", "step", "checkpoint_path") if name in facts}
        told = {
            "phase_since": None if phase is None else self.wall - since,
            "phase_seconds": None if phase is None else since,
            "progress_time": None if made is None else self.wall - made,
            "progress_seconds": made,
        }
        moment = {"seq": self._seq[rank], "time": self.wall, "phase": phase, **said, **told}
        self.table.state(rank, State(v=1, metrics=facts, **moment))

    def turn(self, seconds: float, *talkers: int) -> None:
        """Let time pass; these ranks go on where they are, and say so."""
        for _ in range(int(seconds)):
            for rank in talkers:
                self.table.heard(rank)
            self.hand.turn(1.0, self.table.tick)

    def told(self, *names: str) -> Told:
        """Return the series of the run by name without its prefix and by labels other than the run's."""
        found = {
            (sample.metric.name.removeprefix("tachograph_run_"), *sample.labels[1:]): float(sample.value)
            for sample in self.table.samples()
            if sample.metric.name.startswith("tachograph_run_")
        }
        return {key: value for key, value in found.items() if not names or key[0] in names}

    def value(self, name: str) -> float | None:
        """Return a series that has no other label; None if it is not there."""
        return self.told().get((name,))


@pytest.fixture
def node(table: Any, hand: Any) -> RunOnNode:
    """A node without ranks."""
    return RunOnNode(table, hand)
