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
    SlowCheckpoint,
)

WATCHDOG = "watchdog"
"""The receiver of the watchdog alert, which always fires; `null` means that nobody is notified."""


class ScenarioProblem(NamedTuple):
    """A mistake in a scenario: its part, the entry in it (None: the part itself), what is wrong, what is allowed."""

    part: str
    entry: int | None
    what: str
    allowed: str


def check(scenario: Scenario, faults: int | None = None) -> Iterator[ScenarioProblem]:
    """Yield everything that does not fit together; `faults` is their number, if not all of them could be read."""
    faults = len(scenario.faults) if faults is None else faults
    fleet = scenario.fleet
    if fleet.ranks % fleet.tensor_parallel:
        allowed = f"a divisor of {fleet.ranks}, the number of ranks"
        yield ScenarioProblem("fleet", None, f"tensor_parallel is {fleet.tensor_parallel}", allowed)
    yield from _places(scenario)
    yield from _times(scenario)
    yield from _contradictions(scenario)
    for part in ("expect", "may"):
        for index, entry in enumerate(getattr(scenario, part)):
            yield from _names(scenario, part, index, entry)
    for index, expected in enumerate(scenario.expect):
        if expected.of > max(faults, 1):
            yield ScenarioProblem(
                "expect", index, f"there is no fault {expected.of}", f"allowed: 1 to {max(faults, 1)}"
            )
            continue
        since = scenario.faults[expected.of - 1].at if faults == len(scenario.faults) > 0 else 0.0
        if since + expected.within > scenario.lasts:
            what = f"the scenario ends after {scenario.lasts:g} s, before {expected.alert} is due"
            yield ScenarioProblem("expect", index, what, "give a longer `lasts` or a shorter `within`")


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
        if isinstance(fault, (SlowCheckpoint, NoCheckpoint)) and scenario.checkpoint is None:
            allowed = "give the scenario `checkpoint: {every: …, takes: …}`"
            yield ScenarioProblem("faults", index, f"`{fault.word}` in a run that saves no checkpoints", allowed)


def _contradictions(scenario: Scenario) -> Iterator[ScenarioProblem]:
    """Yield faults that set the same quantity at the same place and time; a restart starts every process anew."""
    restarts = [fault.at for fault in scenario.faults if isinstance(fault, (PlannedRestart, RestartLoop))]
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
    kind = "node" if quantity in ("collective", "reach", "link", "scrape failure") else "rank"
    return f"the {quantity} of {kind} {min(places & others)}"


def _names(scenario: Scenario, part: str, index: int, entry: Tolerated) -> Iterator[ScenarioProblem]:
    fleet = scenario.fleet
    if entry.alert not in shipped_alerts():
        close = ", ".join(sorted(shipped_alerts()))
        yield ScenarioProblem(part, index, f"unknown alert `{entry.alert}`", f"the rules have: {close}")
    if entry.receiver not in shipped_receivers():
        allowed = "alertmanager.yml has: " + ", ".join(sorted(shipped_receivers()))
        yield ScenarioProblem(part, index, f"unknown receiver `{entry.receiver}`", allowed)
    rank = entry.labels.get("rank")
    if rank is not None and not (rank.isdigit() and int(rank) < fleet.ranks):
        yield ScenarioProblem(part, index, f"rank {rank} is outside the fleet", f"allowed: 0 to {fleet.ranks - 1}")
    node = entry.labels.get("instance")
    if node is not None and node not in {fleet.node_name(number) for number in range(fleet.nodes)}:
        allowed = f"allowed: {fleet.node_name(0)} to {fleet.node_name(fleet.nodes - 1)}"
        yield ScenarioProblem(part, index, f"instance {node} is outside the fleet", allowed)
    if entry.labels.get("run", fleet.run) != fleet.run:
        yield ScenarioProblem(part, index, f"unknown run `{entry.labels['run']}`", f"allowed: {fleet.run}")


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
