"""A node whose ranks a test speaks for, by a clock that it turns, on a server that answers as its exporter would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tachograph._version import __version__
from tachograph.catalog import index as catalog
from tachograph.node.api.answer import NodeAnswer
from tachograph.node.exposition import TEXT, render
from tachograph.node.ranks.limits import Limits
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample
from tests.node.conftest import HandClock, Table, TwoGpus


class Played:
    """It has no rank yet, and answers nothing before `serve`."""

    def __init__(self, pages: Any) -> None:
        self.pages, self.hand = pages, HandClock()
        self.table = Table(Limits(ranks=64), self.hand.clock, TwoGpus())

    def serve(self, gpus: Sequence[GpuIdentity] = (), samples: Iterable[Sample] = ()) -> None:
        """Answer with the node as it is now, and with readings of GPUs."""
        about = Sample(catalog.EXPORTER_INFO, (__version__, "3.11"), 1)
        self.pages.text = render([about, *self.table.samples()], TEXT).decode()
        snapshot = GpuSnapshot(tuple(samples), 0.01, self.hand.now, True, "")
        self.pages.judged = NodeAnswer("n", self.table, gpus, snapshot, self.hand.clock).as_json()

    def one_slow_load(self, seconds: float) -> None:
        """Have one rank, whose steps take 0.05 s, be in its loader for so long."""
        wall = self.hand.clock.wall()
        self.table.greet("a")
        metrics = {"steps_total": 100, "tokens_total": 5000, "phase_seconds_total": {"forward": 5.0}}
        said = {"time": wall, "phase": "data", "phase_since": wall, "progress_time": wall, "step": 100}
        self.table.tell("a", metrics=metrics, **said)
        self.hand.turn(seconds)
        self.table.heard("a")
        self.serve()
