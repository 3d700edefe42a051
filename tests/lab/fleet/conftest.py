"""A small fleet, played in simulated time into real exporters."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.catalog.metric import ALL
from tachograph.node.samples import Sample
from tachograph_lab.fleet import EPOCH, RankMessage, VirtualNode, simulate
from tachograph_lab.scenario import Fleet, Pause, Scenario
from tachograph_lab.scenario.faults import (
    BatchChange,
    ExporterDown,
    Fault,
    Kill,
    Leak,
    LossSpike,
    PlannedRestart,
    SkipBatches,
    SlowPhase,
    ThrottledGpus,
)

Series = dict[tuple[str, ...], float]


def scenario(*faults: Fault, **given: Any) -> Scenario:
    """Two nodes of four GPUs with steps of about a second; a checkpoint every 50 s, an evaluation every 90 s."""
    told = {
        "title": "test", "story": "test", "lasts": 200.0, "seed": 7,
        "fleet": Fleet(run="llama", nodes=2, gpus_per_node=4),
        "checkpoint": Pause(every=50, takes=6), "eval": Pause(every=90, takes=5), **given,
    }  # fmt: skip
    return Scenario(faults=faults, **told)


class Played:
    """A scenario as far as it was played: all messages, and each node's exporter, which shows all that ranks say."""

    def __init__(self, story: Scenario, series: str = ALL) -> None:
        self._flags = (f"--rank.series={series}",)
        self.simulation = simulate(story)
        self.messages: list[RankMessage] = []
        self._exporters: dict[str, VirtualNode | None] = {node.name: None for node in self.simulation.nodes}
        self.until(0.0)

    def until(self, second: float, every: float = 2.0) -> Played:
        """Advance to a second, passing on the ranks' messages every `every` seconds."""
        while True:
            self._hear()
            if self.simulation.now >= second:
                return self
            self.simulation.advance(min(second, self.simulation.now + every))

    def _hear(self) -> None:
        for node in self.simulation.nodes:
            if not node.exporter_up:
                self._exporters[node.name] = None
            elif self._exporters[node.name] is None:
                self._exporters[node.name] = VirtualNode(node, lambda: EPOCH + self.simulation.now, flags=self._flags)
        for message in self.simulation.messages():
            self.messages.append(message)
            exporter = self._exporters[message.node]
            assert exporter is not None, "messages for a node without an exporter"
            exporter.receive(message)

    def samples(self, node: int = 0) -> list[Sample]:
        """Return the samples of a node's scrape, without histograms."""
        exporter = self._exporters[self.simulation.nodes[node].name]
        assert exporter is not None
        return [sample for sample in exporter.samples() if isinstance(sample, Sample)]

    def series(self, name: str, node: int = 0) -> Series:
        """Return a family by its label values, without `run`."""
        return {
            sample.labels[1:] if sample.metric.labels[:1] == ("run",) else sample.labels: float(sample.value)
            for sample in self.samples(node)
            if sample.metric.name == f"tachograph_{name}"
        }

    def rank(self, name: str, rank: int) -> Any:
        """Return a family of one rank: its only value, or its values by label; None if there are none."""
        found = {labels[1:]: value for labels, value in self.series(name, rank // 4).items() if labels[0] == str(rank)}
        return found.get((), found or None)

    def frames(self, kind: str = "state", rank: int | None = None) -> list[dict[str, Any]]:
        """Return the frames of a kind that were sent, by one rank or by all."""
        lines = [
            json.loads(message.frame) | {"connection": message.connection}
            for message in self.messages
            if message.frame is not None and rank in (None, message.connection[1])
        ]
        return [frame for frame in lines if frame["type"] == kind]

    def said(self, key: str, rank: int) -> Any:
        """Return what a rank's last frame says under a key, None if nothing: exporters do not show all of it."""
        return self.frames(rank=rank)[-1]["metrics"].get(key)

    def host(self, name: str, node: int = 0) -> list[tuple[dict[str, str], float]]:
        """Return a family of node_exporter."""
        samples = self.simulation.nodes[node].host_samples()
        return [(dict(labels), value) for found, labels, value in samples if found == name]


@pytest.fixture
def play() -> Callable[..., Played]:
    """Return a function that plays faults to `until`, into exporters at one of SERIES_LEVELS."""

    def played(*faults: Fault, until: float = 60.0, series: str = ALL, **given: Any) -> Played:
        return Played(scenario(*faults, **given), series).until(until)

    return played


BUSY_DAY = (
    SlowPhase(at=30, lasts=10, ranks=(5,), phase="data", adds=0.5),
    SkipBatches(at=20, rank=2),
    LossSpike(at=40, by=1.9, steps=2),
    Leak(at=10, ranks=(1,), bytes_per_hour=1e8),
    ThrottledGpus(at=50, ranks=(6,), to=0.7),
    ExporterDown(at=70, lasts=8, node=1),
    BatchChange(at=80, factor=2),
    PlannedRestart(at=120, takes=10),
    Kill(at=180, rank=3, others="end"),
)


@pytest.fixture(scope="session")
def busy_day() -> Played:
    """Return 200 seconds in which much happens; no test may advance it further."""
    return Played(scenario(*BUSY_DAY)).until(200)
