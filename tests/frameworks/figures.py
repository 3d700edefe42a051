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

LATE = 30
"""A rank that ended shows no gauges: the last ones that a page showed may be some steps old, which all differ."""

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


def spent(phase: str) -> Callable[[Training, int], tuple[Any, Any]]:
    """Return the figure of the seconds in a phase; what else a loop does there is less than a third of it."""

    def figure(training: Training, rank: int) -> tuple[Any, Any]:
        seconds = training.truth(rank)["seconds"].get(phase, 0.0)
        shown = training.shown("phase_seconds_total", rank, phase=phase) or 0.0
        return shown, pytest.approx(seconds * 1.1, rel=0.25, abs=0.15 if seconds else 0.0)

    return figure


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
    "evaluation": spent("eval"),
    "saving": spent("checkpoint"),
    "checkpoints": same("checkpoints_total", lambda truth: len(truth["checkpoints"]) or None),
    "checkpoint step": same("checkpoint_step", lambda truth: truth["checkpoints"][-1]),
}
"""Figure -> what is shown of a rank, and what is right."""

LOOP = ("end", "steps", "step", "step time", "loss", "learning rate", "batches", "forward")
"""What every loop that PyTorch trains has."""

CLAIMS: Mapping[str, tuple[str, str]] = {
    "the loss": ("loss", r"\bloss\b(?! scale)"),
    "the learning rate": ("learning_rate", r"\blearning rate\b"),
    "the gradient norm": ("grad_norm", r"\bgradient norm\b"),
    "the wait for data": ("batches_total", r"\bwait for data\b"),
    "saves": ("checkpoints_total", r"\b(saves|checkpoints?)\b"),
}
"""What the summary may claim -> the series that must then have a value, and how it is put into words."""


def false_claims(training: Training) -> dict[str, str]:
    """Return what the summary says against what rank 0 shows, by claim: recorded with a value, or not seen."""
    recorded, unseen = training.summary()
    found: dict[str, str] = {}
    for claim, (series, words) in CLAIMS.items():
        value = training.shown(series, 0)
        has_value = value is not None and (value > 0 or not series.endswith("_total"))
        if bool(re.search(words, recorded)) != has_value:
            found[claim] = f"{'claimed' if not has_value else 'not claimed'}: {recorded}"
        elif bool(re.search(words, unseen)) == has_value:
            found[claim] = f"{'not seen' if has_value else 'missing'}: {unseen}"
    evaluated = bool(training.shown("phase_seconds_total", 0, phase="eval"))
    if bool(re.search(r"\bevaluations?\b", recorded)) != evaluated:
        found["evaluation"] = recorded
    return found
