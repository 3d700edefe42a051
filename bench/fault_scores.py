"""Compares each job's alerts with those expected, and makes the tables of the fault bench."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fault_scenarios import BASIC, MARKED, PARALLELISMS, PLACES, STRAGGLER, UNEDITED, Scenario, Verdict
from fault_stack import Outcome, Told

INFO = "info"
LATE = ("50 %", "20 %", "10 %", "a node")
PLAYED = (*LATE, "in turn", "hangs", "healthy")
NO_PHASE, NOTHING, OTHER_ALERT = "no phase", "nothing", "other alert"
EMPTY = "·"


@dataclass(frozen=True)
class Judgement:
    """A judged outcome: the rank is right if the expected alert names it and no alert names another."""

    outcome: Outcome
    answer: Told | None
    surplus: tuple[Told, ...]
    right_rank: bool
    right: bool

    @property
    def scenario(self) -> Scenario:
        """The scenario of the job."""
        return self.outcome.scenario

    @property
    def delay(self) -> float | None:
        """The seconds from the onset to the alert, None without an alert."""
        return None if self.answer is None or self.outcome.onset is None else self.answer.first - self.outcome.onset

    @property
    def verdict(self) -> str:
        """The alerts in short form."""
        said = ([self.answer] if self.answer else []) + list(self.surplus)
        return " + ".join(named(one) for one in said) or NOTHING


def named(told: Told) -> str:
    """Return an alert in short form: its name, rank, phase, and its severity unless it is a page."""
    who = "" if told.rank is None else f" rank {told.rank}"
    who += f" {told.node}" if told.node else ""
    phase = f" ({told.phase})" if told.phase else ""
    return f"{told.alert}{who}{phase}"


def names(told: Told, expected: Verdict) -> bool:
    """Return whether an alert is the expected one and names the rank, or the node."""
    return (told.alert, told.rank) == (expected.alert, expected.rank) and expected.node in (None, told.node)


def judge(outcome: Outcome) -> Judgement:
    """Compare a job's alerts with those expected."""
    scenario, expected = outcome.scenario, outcome.scenario.expected
    loud = [one for one in outcome.told if one.severity != INFO]
    if expected is None:
        return Judgement(outcome, None, tuple(loud), not loud, not loud)
    since = outcome.onset or outcome.began
    answer = next(
        (one for one in outcome.told if names(one, expected) and one.first > since),
        None,
    )
    # The same alert again, as a page after a ticket, is not surplus; one that names another rank is.
    surplus = tuple(one for one in loud if not names(one, expected) and one.alert not in scenario.allowed)
    wrong_rank = any(one.rank is not None and one.rank != expected.rank for one in surplus)
    right_rank = answer is not None and not wrong_rank
    right = right_rank and not surplus and answer is not None and expected.phase in (None, answer.phase)
    return Judgement(outcome, answer, surplus, right_rank, right)


def summary(judged: Sequence[Judgement]) -> list[dict[str, Any]]:
    """Return a row for each kind of fault: how many were right, their delay, and surplus alerts."""
    tiers = ("delay 50%", "delay 20%", "delay 10%", "other faults", "healthy")
    rows = []
    for tier in tiers:
        ones = [one for one in judged if one.scenario.tier == tier]
        if not ones:
            continue
        delays = [one.delay for one in ones if one.delay is not None]
        rows.append(
            {
                "runs": tier,
                "number": len(ones),
                "rank right": sum(one.right_rank for one in ones),
                "cause too": sum(one.right for one in ones),
                "median delay s": f"{statistics.median(delays):.0f}" if delays else "–",
                "longest s": f"{max(delays):.0f}" if delays else "–",
                "false alarms": sum(len(one.surplus) for one in ones),
            }
        )
    return rows


def confusion(judged: Sequence[Judgement], rotating: bool) -> list[dict[str, Any]]:
    """Return the confusion matrix of places: the phase named if the rank was right, else the kind of error."""
    columns = (*PLACES.values(), NO_PHASE, "wrong rank", OTHER_ALERT, NOTHING)
    rows = []
    for place in PLACES:
        cells = dict.fromkeys(columns, 0)
        for one in judged:
            scenario = one.scenario
            if scenario.kind != "delay" or scenario.loop != MARKED:
                continue
            if scenario.place == place and scenario.rotating == rotating:
                cells[taken_for(one)] += 1
        rows.append({"delayed": place, **{column: count or EMPTY for column, count in cells.items()}})
    return rows if any(count != EMPTY for row in rows for count in list(row.values())[1:]) else []


def taken_for(one: Judgement) -> str:
    """Return the column of the confusion matrix that a job with a delay belongs in."""
    if one.right_rank and one.answer is not None:
        return one.answer.phase or NO_PHASE
    if not one.surplus:
        return NOTHING
    return "wrong rank" if any(told.alert == STRAGGLER for told in one.surplus) else OTHER_ALERT


def one_by_one(judged: Sequence[Judgement], *tiers: str) -> list[dict[str, Any]]:
    """Return a row for each job of these tiers."""
    rows = []
    for one in judged:
        if one.scenario.tier in tiers:
            said = one.outcome.fault or one.verdict
            delay = "–" if one.delay is None else f"{one.delay:.0f}"
            rows.append({"fault": one.scenario.name, "said": said, "after s": delay})
    return rows


def rows_of(judged: Sequence[Judgement], loop: str) -> Mapping[str, Mapping[str, list[Judgement]]]:
    """Return the jobs with such a loop by parallelism and by what was played: delays by size, hangs, healthy runs."""
    played = PLAYED if loop == BASIC else ("20 %", "hangs", "healthy")
    rows: dict[str, dict[str, list[Judgement]]] = {one: {kind: [] for kind in played} for one in PARALLELISMS}
    for one in judged:
        scenario = one.scenario
        if scenario.loop != loop:
            continue
        kind = "healthy" if scenario.kind == "healthy" else "hangs"
        if scenario.kind == "delay":
            kind = "in turn" if scenario.rotating else f"{100 * scenario.share:.0f} %"
            kind = "a node" if scenario.nodes > 1 else kind
        rows[scenario.parallelism][kind].append(one)
    return {name: kinds for name, kinds in rows.items() if any(kinds.values())}


def by_parallelism(judged: Sequence[Judgement], loop: str) -> list[dict[str, Any]]:
    """Return a row for each parallelism: of each kind the runs with the right rank; of delays those with the phase."""
    rows = []
    for parallelism, kinds in rows_of(judged, loop).items():
        cells = {kind: f"{sum(one.right_rank for one in ones)}/{len(ones)}" for kind, ones in kinds.items()}
        late = [one for kind in LATE for one in kinds.get(kind, ())]
        phase = f"{sum(one.right for one in late)}/{len(late)}"
        surplus = sum(len(one.surplus) for ones in kinds.values() for one in ones)
        rows.append({"parallelism": parallelism, **cells, "delays: phase too": phase, "false alarms": surplus})
    return rows


def slowest(judged: Sequence[Judgement], loop: str) -> list[dict[str, Any]]:
    """Return a row for each parallelism: of each kind the longest time from the fault to the alert."""
    rows = []
    for parallelism, kinds in rows_of(judged, loop).items():
        longest = {kind: max((one.delay for one in ones if one.delay), default=None) for kind, ones in kinds.items()}
        cells = {kind: "–" if seconds is None else f"{seconds:.0f}" for kind, seconds in longest.items()}
        rows.append({"parallelism": parallelism, **{kind: cells[kind] for kind in cells if kind != "healthy"}})
    return rows


def wrong(judged: Sequence[Judgement]) -> list[dict[str, Any]]:
    """Return every job with a wrong, missing or surplus alert."""
    return [
        {"run": one.scenario.run, "expected": one.scenario.expected or NOTHING, "said": one.verdict}
        for one in judged
        if not one.right
    ]


def tables(outcomes: Sequence[Outcome]) -> Mapping[str, list[dict[str, Any]]]:
    """Return every table by its title; jobs that failed in the bench are left out, except the long ones."""
    judged = [judge(one) for one in outcomes if not one.fault or one.scenario.long]
    counted = [one for one in judged if not one.outcome.fault]
    found = {
        "Right, late, false": summary(counted),
        "Delay on one rank: which phase was named": confusion(counted, rotating=False),
        "Delay on ranks in turn: which phase was named": confusion(counted, rotating=True),
        "Other faults": one_by_one(judged, "other faults"),
        "Basic loops, by parallelism": by_parallelism(counted, BASIC),
        "Basic loops: the longest delay, in seconds": slowest(counted, BASIC),
        "Unedited scripts, by parallelism": by_parallelism(counted, UNEDITED),
        "Unedited scripts: the longest delay, in seconds": slowest(counted, UNEDITED),
        "Not right": wrong(counted),
    }
    return {title: rows for title, rows in found.items() if rows}
