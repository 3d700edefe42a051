"""The thresholds of the alert rules and their order of reasoning: what is wrong with a run, and which rank causes it.

For views of a single node, which have no Prometheus to ask: the status page and `tachograph top`. The numbers are those
of prometheus/rules/; tests/test_diagnosis.py compares each with the rule that it comes from.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from statistics import median
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

HANG_SECONDS, HANG_STEPS = 15.0, 3
"""A run hangs without a step for longer than its threshold and three of its usual steps: run:hang_limit_seconds:min."""
FIRST_STEPS_SECONDS = 1800.0
"""The same for a run whose usual step is not known yet: run:patience_seconds:max."""
PAUSE_SECONDS = 300.0
"""The same, with the three steps, where ranks pause: run:patience_seconds:max."""
QUIET_PHASES = frozenset({"init", "checkpoint", "eval"})
"""Phases in which a rank makes no step for good reason: run:excused_timestamp_seconds:max."""
WAITING_PHASES = frozenset({"backward", "collective"})
"""Phases in which a rank may be waiting for the others: rank:hung_elsewhere_seconds:max."""
CROWD = 8
"""More suspects than this, or than half of the ranks, are no culprit: rank:hang_culprit:behind."""

LAG_WINDOW_SECONDS = 20.0
"""The window of the mean wait, as of a rank's own figures: tachograph_train_recent_wait_seconds."""
LAG_SECONDS, LAG_RATIO = 0.005, 0.06
"""A smaller lag, in seconds and as a share of the step, is noise: rank:lag:ratio."""
STRAGGLER_RATIO = 0.2
"""A lag, as a share of the step, from which on a rank holds its run up: run:straggler_threshold:ratio."""
STRAGGLER_WAIT = 0.4
"""A straggler's lag is more than this share of the usual wait: rank:late_ratio:mean."""

THERMAL, POWER_BRAKE, POWER_CAP = "thermal", "power brake", "power cap"
SLOWDOWN_RATIO = 0.05
"""Share of the time with clocks held down from which on it explains why a rank is late: node:gpu_slow:info."""
READINGS_STALE_SECONDS = 30.0
"""Older readings of GPUs say nothing about now: NvmlCollectorStale."""
XID_OF_PROGRAM = frozenset({"application", "ignore"})
"""Actions of Xids that say nothing about the GPU: GpuLost."""

STATES = ("dead", "failed", "frozen", "running", "finished")
"""The states of a rank, the worst first."""


def is_pause(phases: Collection[str | None]) -> bool:
    """Return whether ranks without a step may be pausing: one is outside a step's phases, or none waits."""
    return not QUIET_PHASES.isdisjoint(phases) or "other" in phases or WAITING_PHASES.isdisjoint(phases)


def hang_limit(step_seconds: float | None, thresholds: Iterable[float] = (), *, pauses: bool = False) -> float:
    """Return how long a run may go without a step, given its usual step and the thresholds that its ranks set."""
    own = max((threshold for threshold in thresholds if threshold > 0), default=HANG_SECONDS)
    own = max(own, PAUSE_SECONDS) if pauses else own
    return max(own, FIRST_STEPS_SECONDS) if step_seconds is None else own + HANG_STEPS * step_seconds


def usual_wait(waits: Collection[float]) -> float | None:
    """Return the wait that lag is measured from, the median; of two ranks the longer wait, of one none."""
    return None if len(waits) < 2 else max(waits) if len(waits) == 2 else median(waits)


def is_straggler(lag: float, wait: float, thresholds: Iterable[float] = ()) -> bool:
    """Return whether a rank holds its run up; lag and wait are shares of the step."""
    limit = max((threshold for threshold in thresholds if threshold > 0), default=STRAGGLER_RATIO)
    return lag > limit and lag > STRAGGLER_WAIT * (wait + lag)


def collectives_behind(entered: Mapping[K, Mapping[str, float]]) -> dict[K, float]:
    """Return how many collectives each rank is behind, given the last one it entered by process group."""
    furthest: dict[str, float] = {}
    for groups in entered.values():
        for group, number in groups.items():
            furthest[group] = max(number, furthest.get(group, number))
    gaps = {
        rank: max((furthest[group] - number for group, number in groups.items()), default=0.0)
        for rank, groups in entered.items()
    }
    return {rank: gap for rank, gap in gaps.items() if gap > 0}


def stopped_first(entered: Mapping[K, Mapping[str, float]]) -> dict[K, float]:
    """Return how many collectives those are behind who stopped first: rank:stopped_first:behind.

    All ranks enter their collectives in the order of one program. So whoever is behind in one group and ahead of
    somebody in another waits itself, for that one. If everybody behind is ahead somewhere, a rank has left out a
    collective and gone on: those behind in a group in which most are not, else all.
    """
    behind = collectives_behind(entered)
    numbers: dict[str, list[float]] = {}
    for groups in entered.values():
        for group, number in groups.items():
            numbers.setdefault(group, []).append(number)
    last = {group: min(each) for group, each in numbers.items()}
    most_came = {group for group, each in numbers.items() if 2 * sum(number < max(each) for number in each) < len(each)}
    first = {
        rank: gap
        for rank, gap in behind.items()
        if all(number == last[group] for group, number in entered[rank].items())
    }
    odd = {
        rank: gap
        for rank, gap in behind.items()
        if any(number < max(numbers[group]) for group, number in entered[rank].items() if group in most_came)
    }
    return first or odd or behind


def hang_suspects(entered: Mapping[K, Mapping[str, float]], phases: Mapping[K, str | None]) -> dict[K, float]:
    """Return who may hold a hung run up, with how many collectives they are behind: as rank:hang_suspect:behind.

    Of those not waiting, who stopped first, else who is behind; else who stopped first; else those not waiting while
    others are.
    """
    behind, first = collectives_behind(entered), stopped_first(entered)
    elsewhere = [rank for rank, phase in phases.items() if phase and phase not in WAITING_PHASES]
    alone = elsewhere if len(elsewhere) < len(phases) else []
    return (
        {rank: first[rank] for rank in elsewhere if rank in first}
        or {rank: behind[rank] for rank in elsewhere if rank in behind}
        or first
        or dict.fromkeys(alone, 0.0)
    )


def is_crowd(suspects: int, ranks: int) -> bool:
    """Return whether so many suspects of so many ranks are too many to blame."""
    return suspects > CROWD or 2 * suspects > max(ranks, 2)


def slowdown_cause(reason: str) -> str:
    """Return why a GPU's clocks are held down, from NVML's reason; empty where that is none of the three."""
    if "thermal" in reason:
        return THERMAL
    return POWER_CAP if reason == "sw_power_cap" else POWER_BRAKE if reason.startswith("hw_power_") else ""
