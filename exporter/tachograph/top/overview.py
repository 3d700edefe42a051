"""Everything `top` shows at one moment: runs, ranks, GPUs and firing alerts; None is what nobody reported."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Protocol, TypeVar

from tachograph import diagnosis
from tachograph.catalog import index as c
from tachograph.command_line import versioned_json
from tachograph.diagnosis import POWER_CAP
from tachograph.findings.limits import applied
from tachograph.text.humanize import count
from tachograph.text.printable import printable
from tachograph.wire import jsonable

T = TypeVar("T")

WEIGHTS: Mapping[str, int] = MappingProxyType(
    {
        "died first": 9, "failed first": 9, "culprit": 9, "NaN first": 8, "frozen": 7, "dead": 6, "failed": 6,
        "straggler": 5, "NaN loss": 5, "behind": 4, "off step": 4, "late": 2, "stalled": 2, "running": 1, "finished": 0,
    }
)  # fmt: skip
"""How urgent a rank's state or mark is; a cause stands above its victims."""
IMPLIED_BY = {"behind": "culprit", "late": "straggler"}
"""Marks that add nothing beside another."""
ALERT_WEIGHT = 3
"""Of a rank that an alert names and nothing else marks."""
DATA_LIMIT = applied({}, {})["data_stall_ratio"].value
"""The limit of the wait for data where none is shown: of exporters and rules of an older release."""
LONGEST_SECONDS = 1e9
"""Seconds beyond which nothing is longer than anything else: 30 years."""
CONDITIONS = (*diagnosis.STATES, "unseen")
"""The conditions of a run, worst first: the first that holds for any rank holds for the run."""


class SourceError(Exception):
    """Nothing could be read; the text says why, and what to do, in one line."""


@dataclass(frozen=True)
class FiringAlert:
    """An alert that fires, and what it names."""

    name: str
    severity: str
    seconds: float
    rank: str = ""
    node: str = ""
    gpu: str = ""
    uuid: str = ""


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong, in a sentence: of a run, or of a GPU where `run` is empty; and what usually helps.

    `urgent` is whether something does not work, `seconds` for how long, None where that is not known.
    """

    kind: str
    text: str
    run: str = ""
    urgent: bool = False
    seconds: float | None = None
    remedy: str = ""


@dataclass(frozen=True)
class RankRow:
    """One rank; `marks` say what is wrong with it, `lag_ratio` is its lag as a share of a step.

    `mean_lag_seconds` is its lag over all its steps, where its node says so; `where` the line at which it stands still,
    "" while it does not.
    """

    run: str
    rank: int
    node: str = ""
    gpu: str = ""
    uuid: str = ""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    state: str = ""
    phase: str = ""
    phase_seconds: float | None = None
    pid: str = ""
    where: str = ""
    step: float | None = None
    lag_seconds: float | None = None
    lag_ratio: float | None = None
    mean_lag_seconds: float | None = None
    wait_seconds: float | None = None
    data_seconds: float | None = None
    progress_seconds: float | None = None
    loss: float | None = None
    marks: tuple[str, ...] = ()
    cause: str = ""
    alerts: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The one word for its condition: its worst mark, else its state."""
        return max((*self.marks, self.state), key=lambda word: WEIGHTS.get(word, -1))

    @property
    def weight(self) -> int:
        """How urgent it is: 1 or less is healthy."""
        return max(WEIGHTS.get(self.word, 1), ALERT_WEIGHT if self.alerts else 0)

    def standing(self) -> RankRow:
        """Return the row of a rank whose run makes no step: one that only runs is stalled."""
        return replace(self, marks=("stalled",)) if self.word == "running" else self

    @property
    def badness(self) -> tuple[float, ...]:
        """The sort key, highest for the worst; healthy ranks do not differ in it, so that rows stay put."""
        late = self.lag_seconds or 0.0 if "late" in self.marks else 0.0
        stuck = math.floor(math.log2(min(LONGEST_SECONDS, max(10.0, self.phase_seconds or 0.0)) / 10.0))
        return (self.weight, len(self.alerts), late, stuck, -self.rank)

    def holds(self, term: str) -> bool:
        """Return whether a term of a filter fits: a number is a rank, else a part of any word of the row."""
        if term.isascii() and term.isdigit():
            return int(term) == self.rank
        own = (self.run, self.node, self.state, self.phase, self.uuid, self.cause, *self.marks, *self.alerts)
        return any(term in word.casefold() for word in own)


def coordinates(labels: Mapping[str, str]) -> dict[str, int]:
    """Return a rank's coordinates by dimension, given the labels of rank_coordinates_info."""
    return {name: int(labels[name]) for name in c.DIMENSIONS if labels.get(name, "").isdecimal()}


@dataclass(frozen=True)
class GpuRow:
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
    def slowdown(self) -> float:
        """Share of time lost to heat or to a power brake; a power cap is normal at full load."""
        return max((share for cause, share in self.throttling.items() if cause != POWER_CAP), default=0.0)

    @property
    def weight(self) -> int:
        """How urgent it is, on the scale of `RankRow.weight`."""
        slow = 5 if self.slowdown > diagnosis.SLOWDOWN_RATIO else 1
        return 9 if self.trouble else max(slow, ALERT_WEIGHT if self.alerts else 1)

    @property
    def badness(self) -> tuple[float, ...]:
        """The sort key, highest for the worst: trouble, alerts, throttling, then idleness under a rank, in fifths."""
        active = None if self.activity is None else min(1.0, max(0.0, self.activity))  # NaN counts as idle
        idle = 5 - math.ceil(5 * active) if self.ranks and active is not None else 0
        return (self.weight, len(self.alerts), round(self.slowdown, 1), idle, *(-each for each in self.ranks[:1]))

    def holds(self, term: str) -> bool:
        """Return whether a term of a filter fits, as for a rank."""
        if term.isascii() and term.isdigit():
            return int(term) in self.ranks
        own = (self.node, self.name, self.uuid, *self.throttling, *self.trouble, *self.alerts)
        return any(term in word.casefold() for word in own)


@dataclass(frozen=True)
class LayerRow:
    """A layer of the model: its gradient norm, that over its usual one, and what its output and its memory are like."""

    layer: str
    grad_norm: float | None = None
    grad_ratio: float | None = None
    activation_rms: float | None = None
    zero_ratio: float | None = None
    memory_peak_bytes: float | None = None


@dataclass(frozen=True)
class RunSummary:
    """One run as a whole, or the part of it that a node sees; `why` is what a node says of one without a step.

    `wait_seconds` and `data_seconds` are what a rank waits in each step for the others and for data; more than the
    share `data_limit` of the step is a problem. `parts_seconds` is what a step goes into where the loop generates
    (`diagnosis.step_parts`). `saving_seconds` is for how long a save has been under way.
    """

    name: str
    state: str
    state_seconds: float | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    world_size: int | None = None
    restarts: float | None = None
    step: float | None = None
    step_seconds: float | None = None
    wait_seconds: float | None = None
    data_seconds: float | None = None
    data_limit: float = DATA_LIMIT
    parts_seconds: Mapping[str, float] = field(default_factory=dict)
    saving_seconds: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    mfu_baseline: float | None = None
    loss: float | None = None
    nonfinite_ranks: int = 0
    progress_seconds: float | None = None
    checkpoint_seconds: float | None = None
    checkpoint_step: float | None = None
    goodput: float | None = None
    loss_history: tuple[float, ...] = ()
    mfu_history: tuple[float, ...] = ()
    why: str = ""
    layers: tuple[LayerRow, ...] = ()


@dataclass(frozen=True)
class Overview:
    """All of it; `at` is Unix time; `ranks`, `gpus` and `problems` have the worst first, and perhaps only the worst."""

    view: str
    source: str
    at: float
    runs: tuple[RunSummary, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    gpus: tuple[GpuRow, ...] = ()
    alerts: tuple[FiringAlert, ...] | None = None
    ranks_in_all: int = 0
    notes: tuple[str, ...] = ()
    problems: tuple[Trouble, ...] = ()

    def as_json(self) -> str:
        """Return it as one JSON object; NaN and infinities are strings, as in the frames of a rank."""
        return versioned_json({name: jsonable(value) for name, value in asdict(self).items()})


class OverviewSource(Protocol):
    """Where overviews come from."""

    view: str
    fetches_needed: int

    def fetch(self, wanted: str = "") -> Overview:
        """Return the present state; raise SourceError."""
        ...


def condition(states: Mapping[str, int]) -> str:
    """Return the condition of a run from the number of its ranks in each state."""
    return next((state for state in CONDITIONS if states.get(state)), "unseen")


def misuse_note(run: str, counts: Mapping[str, float]) -> str:
    """Return a line on what a run's script gets wrong with its recorder, from the counts by kind; empty for none."""
    kinds = ", ".join(f"{count(number)} {kind.replace('_', ' ')}" for kind, number in sorted(counts.items()) if number)
    return kinds and f"run {run} misuses its recorder ({kinds}): its log and the exporter's status page say how"


def in_order(marks: Collection[str]) -> tuple[str, ...]:
    """Return the marks, the worst first, without those that another one implies."""
    return tuple(mark for mark in WEIGHTS if mark in marks and IMPLIED_BY.get(mark) not in marks)


def fault(name: str, labels: Mapping[str, str], value: float) -> str:
    """Return the fault of a GPU that a sample reports, empty for none: unreadable, needs a recovery action, an Xid."""
    if name == c.GPU_UNAVAILABLE.name:
        return labels["reason"].replace("_", " ")
    if name == c.GPU_RECOVERY_ACTION.name and value == 1 and labels["action"] != "none":
        return f"needs {labels['action'].replace('_', ' ')}"
    if name == c.GPU_XID_INFO.name and labels["action"] not in diagnosis.XID_OF_PROGRAM:
        return f"Xid {labels['xid']}"
    return ""


def harmless(value: T) -> T:
    """Return the same with every text in it printable: names that others chose cannot steer the terminal."""
    if isinstance(value, str):
        return printable(value)  # type: ignore[return-value]  # a str is a T
    if isinstance(value, tuple):
        return tuple(map(harmless, value))  # type: ignore[return-value]
    if isinstance(value, Mapping):
        return {harmless(key): each for key, each in value.items()}  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: harmless(getattr(value, each.name)) for each in fields(value)})
    return value
