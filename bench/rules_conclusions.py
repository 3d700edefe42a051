"""What nodes conclude of a run that is healthy or has a fault: the lines that real exporters show then.

The lab's simulated ranks send their frames to real exporters, two nodes of 8 ranks: the first has the culprit, the
second stands for every other node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.node.exposition import TEXT, render
from tachograph_lab.fleet.simulation import EPOCH, Simulation
from tachograph_lab.fleet.virtual_node import VirtualNode
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.definition import Fleet, StepTimes, Work
from tachograph_lab.scenario.faults import Fault, Kill, Nan, SlowPhase, Stuck

STEP_SECONDS = 2.0
CULPRIT = 1
"""The culprit's rank, on the first node."""

LAG_SECONDS = 0.5
ONSET_SECONDS, SETTLED_SECONDS, APART_SECONDS = 600.0, 90.0, 20
"""When a fault begins; how long after it the lines are taken; and how far apart the two looks at them are, from which
the speed of what moves is taken: in whole steps."""

FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "healthy": (),
    "straggler": (SlowPhase(at=ONSET_SECONDS, ranks=(CULPRIT,), phase="forward", adds=LAG_SECONDS),),
    "hang": (Stuck(at=ONSET_SECONDS, rank=CULPRIT, phase="data"),),
    "nan": (Nan(at=ONSET_SECONDS, rank=CULPRIT),),
    "killed": (Kill(at=ONSET_SECONDS, rank=CULPRIT, others="hang"),),
}


@dataclass(frozen=True)
class Line:
    """A sample of a node's page: its name and labels, its value at first, and what it grows by in a second."""

    sample: str
    value: float
    per_second: float


def conclusions(state: str) -> tuple[list[Line], list[Line]]:
    """Return the lines `tachograph_run_…` of the culprit's node and of another one; timestamps count from the look."""
    taken = ONSET_SECONDS + SETTLED_SECONDS
    scenario = Scenario(
        title=state, story=state, lasts=taken + APART_SECONDS, faults=FAULTS[state],
        fleet=Fleet(run="bench", nodes=2),
        step=StepTimes(data=0.04, copy=0.02, forward=0.5, backward=0.7, optimizer=0.12, collective=0.6, noise=0.01),
        work=Work(tokens=131072, flops_per_token=4.6e10, global_batch=2048),
    )  # fmt: skip
    simulation = Simulation(scenario, EPOCH)
    exporters = {node.name: VirtualNode(node, lambda: EPOCH + simulation.now) for node in simulation.nodes}
    looks: list[list[dict[str, float]]] = []
    for second in range(int(taken) + APART_SECONDS + 1):
        simulation.advance(float(second))
        for message in simulation.messages():
            exporters[message.node].receive(message)
        for exporter in exporters.values():
            exporter.tick()
        if second in (int(taken), int(taken) + APART_SECONDS):
            looks.append([_run_lines(exporter) for exporter in exporters.values()])
    culprits, others = (_moving(first, second, EPOCH + taken) for first, second in zip(*looks, strict=True))
    return culprits, others


def _run_lines(exporter: VirtualNode) -> dict[str, float]:
    """Return what a node concludes about its run, by name and labels."""
    lines = render(exporter.samples(), TEXT).decode().splitlines()
    concluded = (line.rpartition(" ") for line in lines if line.startswith("tachograph_run_"))
    return {sample: float(value) for sample, _, value in concluded}


def _moving(first: Mapping[str, float], second: Mapping[str, float], moment: float) -> list[Line]:
    """Return the lines of the first look, each with its speed up to the second; one that is gone then stands still."""
    speeds = {name: (second.get(name, value) - value) / APART_SECONDS for name, value in first.items()}
    since = {name: moment if "_timestamp_seconds{" in name else 0.0 for name in first}
    return [Line(name, value - since[name], speeds[name]) for name, value in first.items()]
