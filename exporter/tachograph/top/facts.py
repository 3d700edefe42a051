"""What `top` knows at one moment: a run or a node, its ranks and GPUs, what fires; None is what nobody reported."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from tachograph.top.gpu_words import POWER_CAP

WEIGHTS: Mapping[str, int] = MappingProxyType(
    {
        "died first": 9, "failed first": 9, "culprit": 9, "NaN first": 8, "frozen": 7, "dead": 6, "failed": 6,
        "straggler": 5, "NaN loss": 5, "behind": 4, "off step": 4, "late": 2, "running": 1, "finished": 0,
    }
)  # fmt: skip
"""How much a rank's state or mark matters to whoever looks for the culprit; a cause stands above its victims."""

LATE_SECONDS, LATE_RATIO = 0.005, 0.06
"""From where on a lag is more than noise: as in rank:lag:ratio, which is recorded from there on."""

SAID_BY = {"behind": "culprit", "late": "straggler"}
"""Marks that say nothing more beside another."""

ALERT_WEIGHT = 3
"""Of a rank that an alert names and nothing else marks."""

AGES = 1e9
"""Seconds beyond which nothing is longer than anything else: 30 years."""

CONDITIONS = ("hung", "dead", "failed", "frozen", "running", "finished")
"""What a run can be in, worst first; the first that holds for any rank stands for the run."""


@dataclass(frozen=True)
class Alert:
    """An alert that fires, and whom it names."""

    name: str
    severity: str
    seconds: float
    rank: str = ""
    node: str = ""
    gpu: str = ""
    uuid: str = ""


@dataclass(frozen=True)
class Rank:
    """One rank; `marks` say what is wrong with it, `lag_ratio` is its lag as a share of a step."""

    run: str
    rank: int
    node: str = ""
    gpu: str = ""
    uuid: str = ""
    state: str = ""
    phase: str = ""
    phase_seconds: float | None = None
    step: float | None = None
    lag_seconds: float | None = None
    lag_ratio: float | None = None
    wait_seconds: float | None = None
    progress_seconds: float | None = None
    loss: float | None = None
    marks: tuple[str, ...] = ()
    cause: str = ""
    alerts: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The one word for how it is: its worst mark, else its state."""
        return max((*self.marks, self.state), key=lambda word: WEIGHTS.get(word, -1))

    @property
    def weight(self) -> int:
        """How much it needs to be looked at: 1 and less is well."""
        return max(WEIGHTS.get(self.word, 1), ALERT_WEIGHT if self.alerts else 0)

    @property
    def badness(self) -> tuple[float, ...]:
        """What the worst rank has most of; what differs between healthy ranks does not count, or they would dance."""
        late = self.lag_seconds or 0.0 if "late" in self.marks else 0.0
        stuck = math.floor(math.log2(min(AGES, max(10.0, self.phase_seconds or 0.0)) / 10.0))
        return (self.weight, len(self.alerts), late, stuck, -self.rank)


@dataclass(frozen=True)
class Gpu:
    """One GPU; `throttling` is the share of time for which its clocks were held down, by cause."""

    node: str
    gpu: str
    uuid: str
    name: str = ""
    ranks: tuple[int, ...] = ()
    sm_active: float | None = None
    tensor_active: float | None = None
    utilization: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    throttling: Mapping[str, float] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()

    @property
    def activity(self) -> float | None:
        """SM activity, else what the driver calls utilization."""
        return self.utilization if self.sm_active is None else self.sm_active

    @property
    def harm(self) -> float:
        """Share of time lost to heat or to a power brake; a power cap is how a full load looks."""
        return max((share for cause, share in self.throttling.items() if cause != POWER_CAP), default=0.0)

    @property
    def weight(self) -> int:
        """How much it needs to be looked at, on the scale of `Rank.weight`."""
        return 9 if self.trouble else 5 if self.harm > 0.05 else ALERT_WEIGHT if self.alerts else 1

    @property
    def badness(self) -> tuple[float, ...]:
        """What the worst GPU has most of: trouble, alerts, throttling, and then idleness under a rank, in fifths."""
        active = None if self.activity is None else min(1.0, max(0.0, self.activity))  # NaN counts as idle
        idle = 5 - math.ceil(5 * active) if self.ranks and active is not None else 0
        return (self.weight, len(self.alerts), round(self.harm, 1), idle, *(-each for each in self.ranks[:1]))


@dataclass(frozen=True)
class Run:
    """One run as a whole, or the part of it that a node sees."""

    name: str
    state: str
    state_seconds: float | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    world_size: int | None = None
    restarts: float | None = None
    step: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    mfu_baseline: float | None = None
    loss: float | None = None
    nonfinite_ranks: int = 0
    progress_seconds: float | None = None
    checkpoint_seconds: float | None = None
    goodput: float | None = None
    loss_history: tuple[float, ...] = ()
    mfu_history: tuple[float, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All of it; `at` is Unix time, `ranks` and `gpus` the worst ones first where not all were asked for."""

    view: str
    source: str
    at: float
    runs: tuple[Run, ...] = ()
    ranks: tuple[Rank, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    alerts: tuple[Alert, ...] | None = None
    ranks_in_all: int = 0
    notes: tuple[str, ...] = ()

    def as_json(self) -> str:
        """Return it as one JSON object; NaN and infinities are strings, as in the frames of a rank."""
        return json.dumps(_plain(asdict(self)), indent=2, allow_nan=False)


def condition(states: Mapping[str, int]) -> str:
    """Return what a run is in whose ranks are in these states."""
    return next((state for state in CONDITIONS if states.get(state)), "unseen")


def _plain(value: Any) -> Any:  # noqa: ANN401  (JSON)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return value


def in_order(marks: Collection[str]) -> tuple[str, ...]:
    """Return the marks, the worst first, without those that another one says already."""
    return tuple(mark for mark in WEIGHTS if mark in marks and SAID_BY.get(mark) not in marks)


class SourceError(Exception):
    """Nothing could be learned; the text says why, and what to do, in one line."""
