"""Checks that the parts of a scenario fit together: places, times, contradictions, and names that must exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from itertools import combinations
from typing import NamedTuple

from tachograph_lab import checkout
from tachograph_lab.scenario.definition import Scenario, Tolerated
from tachograph_lab.scenario.faults import (
    RUN,
    Fault,
    Finish,
    NoCheckpoint,
    PlannedRestart,
    RestartLoop,
    Sigterm,
    SlowCheckpoint,
    Stuck,
)

WATCHDOG = "watchdog"
"""The receiver of the watchdog alert, which always fires; `null` means that nobody is notified."""


_OF_NODES = ("collective", "reach", "link", "scrape failure", "discovery", "second target", "wall clock")
"""The quantities that are set for nodes."""


class ScenarioProblem(NamedTuple):
    """A mistake in a scenario: its part, the entry in it (None: the part itself), what is wrong, what is allowed."""

    part: str
    entry: int | None
    what: str
    allowed: str


def check(scenario: Scenario, faults: int | None = None) -> Iterator[ScenarioProblem]:
    """Yield everything that does not fit together; `faults` is their number, if not all of them could be read."""
    others = len(scenario.every_fault) - len(scenario.faults)
    faults = others + (len(scenario.faults) if faults is None else faults)
    yield from _shape(scenario)
    yield from _places(scenario)
    yield from _times(scenario)
    yield from _contradictions(scenario)
    yield from _shared_gpus(scenario)
    for part in ("expect", "may"):
        for index, entry in enumerate(getattr(scenario, part)):
            yield from _names(scenario, part, index, entry)
    for index, expected in enumerate(scenario.expect):
        if expected.of > max(faults, 1):
            yield ScenarioProblem(
                "expect", index, f"there is no fault {expected.of}", f"allowed: 0 to {max(faults, 1)}"
            )
            continue
        since = scenario.began(expected) if faults == len(scenario.every_fault) else 0.0
        if since + scenario.limit(expected) > scenario.lasts:
            what = f"the scenario ends after {scenario.lasts:g} s, before {expected.alert} is due"
            yield ScenarioProblem("expect", index, what, "give a longer `lasts` or a shorter `within`")


def _shape(scenario: Scenario) -> Iterator[ScenarioProblem]:
    """Yield what does not fit the number of ranks and stages, and intervals off the recording's grid."""
    fleet, stages = scenario.fleet, scenario.step.stages
    for name, parts in (("tensor_parallel", fleet.tensor_parallel), ("pipeline", fleet.pipeline)):
        if fleet.ranks % parts:
            allowed = f"a divisor of {fleet.ranks}, the number of ranks"
            yield ScenarioProblem("fleet", None, f"{name} is {parts}", allowed)
    if stages is not None and len(stages) != fleet.pipeline:
        allowed = f"as many as the fleet's `pipeline`: {fleet.pipeline}"
        yield ScenarioProblem("step", None, f"`stages` has {len(stages)} factors", allowed)
    if outside := [rank for rank in scenario.waits or () if rank >= fleet.ranks]:
        yield ScenarioProblem(
            "waits", None, f"rank {outside[0]} is outside the fleet", f"allowed: 0 to {fleet.ranks - 1}"
        )
    if scenario.scrape % 1:
        yield ScenarioProblem("scrape", None, f"`scrape` is {scenario.scrape:g} s", "allowed: whole seconds")


def _shared_gpus(scenario: Scenario) -> Iterator[ScenarioProblem]:
    """Yield runs of a cluster that sit on the same GPU."""
    for first, second in combinations([run.fleet for run in scenario.every_run], 2):
        node, gpu = max(first.first_node, second.first_node), max(first.first_gpu, second.first_gpu)
        if all(
            node < fleet.first_node + fleet.nodes and gpu < fleet.first_gpu + fleet.gpus_per_node
            for fleet in (first, second)
        ):
            what = f"two runs are on GPU {gpu} of {first.node_name(node - first.first_node)}"
            yield ScenarioProblem("runs", None, what, "give one of them another `first_node` or `first_gpu`")


def _places(scenario: Scenario) -> Iterator[ScenarioProblem]:
    fleet = scenario.fleet
    for index, fault in enumerate(scenario.faults):
        for part in fields(fault):
            if "place" not in part.metadata:
                continue
            by_rank = part.metadata["place"].startswith("rank")
            there = fleet.ranks if by_rank else fleet.nodes
            value = getattr(fault, part.name)
            outside = [place for place in (value if isinstance(value, tuple) else (value,)) if not 0 <= place < there]
            if outside:
                what = f"{'rank' if by_rank else 'node'} {outside[0]} is outside the fleet"
                yield ScenarioProblem("faults", index, what, f"allowed: 0 to {there - 1}")


def _times(scenario: Scenario) -> Iterator[ScenarioProblem]:
    finish = min((fault.at for fault in scenario.faults if isinstance(fault, Finish)), default=None)
    for index, fault in enumerate(scenario.faults):
        if fault.at >= scenario.lasts:
            what = f"`{fault.word}` begins at {fault.at:g} s, after the scenario's end"
            yield ScenarioProblem("faults", index, what, f"allowed: before {scenario.lasts:g} s")
        elif finish is not None and fault.at >= finish and not isinstance(fault, Finish):
            what = f"`{fault.word}` begins at {fault.at:g} s, after the run has finished"
            yield ScenarioProblem("faults", index, what, f"allowed: before {finish:g} s")
        saves = isinstance(fault, (SlowCheckpoint, NoCheckpoint)) or (
            isinstance(fault, Stuck) and fault.phase == "checkpoint"
        )
        if saves and scenario.checkpoint is None:
            allowed = "give the scenario `checkpoint: {every: …, takes: …}`"
            yield ScenarioProblem("faults", index, f"`{fault.word}` in a run that saves no checkpoints", allowed)


def _contradictions(scenario: Scenario) -> Iterator[ScenarioProblem]:
    """Yield faults that set the same quantity at the same place and time; a restart starts every process anew."""
    restarts = [fault.at for fault in scenario.faults if isinstance(fault, (PlannedRestart, RestartLoop, Sigterm))]
    finishes = [index for index, fault in enumerate(scenario.faults) if isinstance(fault, Finish)]
    for index in finishes[1:]:
        yield ScenarioProblem("faults", index, "the run finishes twice", "give one `finish`")

    def until(fault: Fault, quantity: str) -> float:
        if quantity != "process":
            return fault.until
        return min([fault.until, *(at for at in restarts if at > fault.at)])

    claims = [
        (index, fault, quantity, places)
        for index, fault in enumerate(scenario.faults)
        for quantity, places in fault.claims(scenario.fleet.gpus_per_node)
    ]
    for (_, first, quantity, places), (index, second, other, others) in combinations(claims, 2):
        if first is second or quantity != other or not _meet(places, others):
            continue
        early, late = sorted((first, second), key=lambda fault: fault.at)
        if late.at < until(early, quantity) or late.at == early.at:
            at = _where(quantity, places, others)
            what = f"`{second.word}` at {second.at:g} s contradicts `{first.word}` at {first.at:g} s: both set {at}"
            yield ScenarioProblem("faults", index, what, "end the first one earlier (`for:`), or remove one")


def _meet(places: frozenset[int], others: frozenset[int]) -> bool:
    return RUN in places or RUN in others or not places.isdisjoint(others)


def _where(quantity: str, places: frozenset[int], others: frozenset[int]) -> str:
    if RUN in places or RUN in others:
        return f"the run's {quantity}"
    kind = "node" if quantity in _OF_NODES else "rank"
    return f"the {quantity} of {kind} {min(places & others)}"


def _names(scenario: Scenario, part: str, index: int, entry: Tolerated) -> Iterator[ScenarioProblem]:
    fleets = [run.fleet for run in scenario.every_run]
    if entry.alert not in shipped_alerts():
        close = ", ".join(sorted(shipped_alerts()))
        yield ScenarioProblem(part, index, f"unknown alert `{entry.alert}`", f"the rules have: {close}")
    if entry.receiver not in shipped_receivers():
        allowed = "alertmanager.yml has: " + ", ".join(sorted(shipped_receivers()))
        yield ScenarioProblem(part, index, f"unknown receiver `{entry.receiver}`", allowed)
    rank = entry.labels.get("rank")
    ranks = max(fleet.ranks for fleet in fleets)
    if rank is not None and not (rank.isdigit() and int(rank) < ranks):
        yield ScenarioProblem(part, index, f"rank {rank} is outside the fleet", f"allowed: 0 to {ranks - 1}")
    node = entry.labels.get("instance")
    nodes = sorted({fleet.node_name(number) for fleet in fleets for number in range(fleet.nodes)})
    if node is not None and node not in nodes:
        yield ScenarioProblem(
            part, index, f"instance {node} is outside the fleet", f"allowed: {nodes[0]} to {nodes[-1]}"
        )
    runs = list(dict.fromkeys(fleet.shown_run for fleet in fleets))
    if entry.labels.get("run", runs[0]) not in runs:
        yield ScenarioProblem(part, index, f"unknown run `{entry.labels['run']}`", f"allowed: {', '.join(runs)}")


@cache
def shipped_alerts() -> frozenset[str]:
    """Return the names of all alerts in the shipped rules."""
    rules = (checkout.root() / "prometheus" / "rules").glob("*.yml")
    return frozenset(name for file in rules for name in re.findall(r"^ *-? *alert: *(\w+)", file.read_text(), re.M))


@cache
def shipped_receivers() -> frozenset[str]:
    """Return the names of the shipped receivers."""
    text = (checkout.root() / "alertmanager" / "alertmanager.yml").read_text()
    listed = text[text.index("\nreceivers:") :]
    return frozenset(re.findall(r'^ *- name: *"?([\w-]+)', listed, re.M)) - {WATCHDOG}
