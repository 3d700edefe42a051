"""What the exporter shows of a training, figure by figure, beside what the program itself counted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

RECENT_SECONDS = 20.0
EXACT = 1e-6
"""Values are the framework's own, by way of a text with all digits of a float."""

LATE = 60
"""A rank that ended shows no gauges: the last ones that a page showed may be some steps old, which all differ."""

STEPS_TO_LEARN = 2
"""Of a loss in chunks: until it is known which of them is their total."""

OURS = "tachograph run: "


@dataclass(frozen=True)
class Training:
    """One training that has ended: what an exporter showed of it (see `Done`), its folder, and each rank's truth."""

    done: Any
    run: str
    folder: Path

    def truth(self, rank: int) -> Mapping[str, Any]:
        """What a rank counted by itself."""
        path = self.folder / f"{rank}.json"
        assert path.exists(), self.done.errors
        counted: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return counted

    def shown(self, name: str, rank: int, **labels: object) -> float | None:
        """The last value of a rank's series."""
        value: float | None = self.done.value(name, run=self.run, rank=rank, **labels)
        return value

    def state(self, rank: int) -> str | None:
        """The last state of a rank that was 1: a page has only that one."""
        states = {
            dict(labels)["state"]: value
            for (name, labels), value in self.done.series.items()
            if name == "tachograph_rank_state" and {("run", self.run), ("rank", str(rank))} <= labels
        }
        ended = [state for state in ("finished", "failed", "dead") if states.get(state)]
        return ended[-1] if ended else None

    def summary(self) -> tuple[str, str]:
        """What `tachograph run` says it recorded, and what it says was not seen."""
        said = [line.partition(OURS)[2] for line in self.done.errors.splitlines() if OURS in line]
        recorded = [line for line in said if line.startswith("recorded")]
        unseen = [line for line in said if line.startswith("not seen:")]
        assert len(recorded) == len(unseen) == 1, said
        return recorded[0], unseen[0]


def step_seconds(training: Training, rank: int) -> tuple[Any, Any]:
    """The usual time from one step's end to the next over the last 20 s; saves and evaluations are the exception."""
    moments = training.truth(rank)["moments"]
    moments = [moment for moment in moments if moment > moments[-1] - RECENT_SECONDS]
    usual = median(later - earlier for earlier, later in pairwise(moments))
    return training.shown("recent_step_seconds", rank), pytest.approx(usual, rel=0.2, abs=0.01)


def spent(phase: str, besides: float = 0.6) -> Callable[[Training, int], tuple[Any, Any]]:
    """Return the figure of the seconds in a phase; `besides` is the most that a framework does there, as a share."""

    def figure(training: Training, rank: int) -> tuple[Any, Any]:
        seconds = training.truth(rank)["seconds"].get(phase, 0.0)
        shown = training.shown("phase_seconds_total", rank, phase=phase) or 0.0
        return shown, Between(0.85 * seconds, (1 + besides) * seconds + 0.2 if seconds else 0.0)

    return figure


@dataclass(frozen=True, eq=False)
class Between:
    """Equals each number from one to another."""

    __hash__ = None  # type: ignore[assignment]
    least: float
    most: float

    def __eq__(self, shown: object) -> bool:
        return isinstance(shown, float) and self.least <= shown <= self.most

    def __repr__(self) -> str:
        return f"{self.least:.3f} to {self.most:.3f}"


class OneOf:
    """Equals each of some numbers, to the digit."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def __eq__(self, shown: object) -> bool:
        return any(shown == pytest.approx(value, rel=EXACT) for value in self.values)

    def __repr__(self) -> str:
        return f"{self.values[-1]} or one before"


def last(counted: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return the last of the values that the program kept."""
    return lambda truth: OneOf(truth[counted][-LATE:])


def same(name: str, right: Callable[[Mapping[str, Any]], Any]) -> Callable[[Training, int], tuple[Any, Any]]:
    """Return the figure of a series whose right value is known from the truth."""
    return lambda training, rank: (training.shown(name, rank), right(training.truth(rank)))


FIGURES: Mapping[str, Callable[[Training, int], tuple[Any, Any]]] = {
    "end": lambda training, rank: (training.state(rank), "finished"),
    "failed": lambda training, rank: (training.state(rank), "failed"),
    "steps": same("steps_total", lambda truth: truth["steps"]),
    "step": same("step", lambda truth: truth["steps"]),
    "step time": step_seconds,
    "loss": same("loss", last("losses")),
    "learning rate": same("learning_rate", last("rates")),
    "gradient norm": same("grad_norm", last("norms")),
    "batches": same("batches_total", lambda truth: truth["batches"]),
    "data": spent("data"),
    "forward": spent("forward"),
    "backward": spent("backward"),
    "optimizer": spent("optimizer"),
    "evaluation": spent("eval", besides=1.0),  # until it trains again
    "saving": spent("checkpoint"),
    "checkpoints": same("checkpoints_total", lambda truth: len(truth["checkpoints"]) or None),
    "checkpoint step": same("checkpoint_step", lambda truth: truth["checkpoints"][-1]),
}
"""Figure -> what is shown of a rank, and what is right."""

LOOP = ("end", "steps", "step", "step time", "loss", "learning rate", "batches", "forward")
"""What every loop that PyTorch trains has."""

CLAIMS: Mapping[str, tuple[str, str, Callable[[Mapping[str, Any]], int]]] = {
    "step": ("steps_total", "", lambda truth: truth["steps"]),
    "batch": ("batches_total", "the wait for data", lambda truth: truth["batches"]),
    "loss": ("loss", "the loss", lambda truth: len(truth["losses"])),
    "gradient norm": ("grad_norm", "the gradient norm", lambda truth: truth["steps"]),
    "checkpoint": ("checkpoints_total", "checkpoints", lambda truth: len(truth["checkpoints"])),
    "evaluation": ("phase_seconds_total", "evaluations", lambda truth: truth["evaluations"]),
}
"""What the summary may claim with its number -> the series that has a value then, how it is put where it was not seen,
and the right number, where there is a value."""


def false_claims(training: Training) -> list[str]:
    """Return what the summary says against the truth: what has a value is recorded so often, all else not seen."""
    recorded, unseen = training.summary()
    found = []
    for claim, (series, absent, right) in CLAIMS.items():
        labels = {"phase": "eval"} if claim == "evaluation" else {}
        value = training.shown(series, 0, **labels)
        has_value = value is not None and (value > 0 or not series.endswith("_total"))
        claimed = re.search(rf"([\d,]+) {claim}(s|es)?\b", recorded)
        number = int(claimed[1].replace(",", "")) if claimed else 0
        wanted = right(training.truth(0)) if has_value else 0
        first = STEPS_TO_LEARN if claim == "loss" else 0
        if not wanted - first <= number <= wanted:
            found.append(f"{claim}: {number}, right {wanted}, has a value: {has_value}")
        if absent and bool(re.search(rf"(: |; ){absent}\b", unseen)) == has_value:
            found.append(f"{claim}: has a value: {has_value}, {unseen}")
    return found
