"""The duration of each rank's steps, phase by phase, with what the scenario's faults add."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import (
    BatchChange,
    Fault,
    HungGpu,
    LinkDown,
    LostGpu,
    SlowCollective,
    Slowing,
    SlowLoader,
    SlowPhase,
    Stuck,
    TakingTurns,
    ThrottledGpus,
)

Seconds: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

PARTS = ("data", "copy", "forward", "backward", "optimizer")
"""The phases of a step, in order. The wait for the all-reduce of gradients is the end of backward, as with DDP."""

COMPUTE = (PARTS.index("forward"), PARTS.index("backward"), PARTS.index("optimizer"))
_DATA, _FORWARD, _BACKWARD, _OPTIMIZER = (PARTS.index(name) for name in ("data", "forward", "backward", "optimizer"))

LEAST_FACTOR = 0.2
"""Noise never shortens a phase to less than this share."""

WARM_UP_FACTOR = 4.0
"""How much longer compiling and allocating make the first forward."""

_BLOCK = 64


def token_factor(changes: Iterable[BatchChange], began: float) -> float:
    """Return how many times the configured tokens a step that began at a second has."""
    return math.prod(change.factor for change in changes if change.at <= began)


def batch_factor(changes: Iterable[BatchChange], began: float) -> float:
    """Return how many times the configured batch a step that began at a second has."""
    return token_factor((change for change in changes if change.of == "batch"), began)


class Pace:
    """Draws the durations of steps; the same seed gives the same durations."""

    def __init__(self, scenario: Scenario) -> None:
        self._step = scenario.step
        self._ranks = np.arange(scenario.fleet.ranks)
        self._per_node = scenario.fleet.gpus_per_node
        self._random = np.random.default_rng([scenario.seed, 1])
        self._noise: Seconds = np.empty((0, len(PARTS), scenario.fleet.ranks))
        self._drawn = 0
        self._base = np.array([[getattr(scenario.step, part)] for part in PARTS])
        if scenario.step.stages is not None:
            stages = np.array([scenario.step.stages[scenario.fleet.stage_of(rank)] for rank in range(len(self._ranks))])
            self._base = np.where(np.isin(np.arange(len(PARTS)), COMPUTE)[:, None], self._base * stages, self._base)
        self._faults = [each for each in scenario.faults if isinstance(each, _TIMED) and _is_in_step(each)]
        self._changes = [each for each in scenario.faults if isinstance(each, BatchChange)]
        self._masks = {fault: self._concerned(fault) for fault in self._faults}
        self._collectives = [each for each in scenario.faults if isinstance(each, (SlowCollective, LinkDown))]

    def step(self, number: int, begins: Seconds, *, first: bool) -> Seconds:
        """Return the seconds of each part of one step for each rank, given when it begins; inf: it never ends."""
        if self._step.formula:
            compute = 0.50 + 0.01 * ((7 * self._ranks + number) % 5)
            seconds: Seconds = self._base / self._base.sum() * compute
        else:
            seconds = self._base * np.maximum(LEAST_FACTOR, 1 + self._step.noise * self._next_noise())
            if first and self._step.first is not None:
                seconds[_FORWARD] = self._step.first
            elif first:
                seconds[_FORWARD] *= WARM_UP_FACTOR
        earliest, latest = float(begins.min()), float(begins.max())
        for row in (_FORWARD, _BACKWARD):
            seconds[row] *= token_factor(self._changes, earliest)
        for fault in self._faults:
            if fault.at <= latest and earliest < fault.until:
                active = self._masks[fault] & (begins >= fault.at) & (begins < fault.until)
                if isinstance(fault, TakingTurns):
                    active &= self._ranks == number % len(self._ranks)
                if active.any():
                    self._apply(fault, seconds, active, begins)
        return seconds

    def collective(self, at: float) -> float:
        """Return the seconds that the all-reduce takes once the last rank has entered it; inf: it never ends."""
        seconds = 0.0 if self._step.formula else self._step.collective
        slowest = seconds
        for fault in self._collectives:
            if fault.at <= at < fault.until:
                if isinstance(fault, LinkDown):
                    slowest = max(slowest, fault.until - at + seconds)
                else:
                    slowest = max(slowest, seconds * fault.factor + fault.adds)
        return slowest

    def _next_noise(self) -> Seconds:
        if self._drawn == len(self._noise):
            self._noise = self._random.standard_normal((_BLOCK, len(PARTS), len(self._ranks)))
            self._drawn = 0
        self._drawn += 1
        return np.asarray(self._noise[self._drawn - 1])

    def _concerned(self, fault: Fault) -> Any:  # noqa: ANN401 - an array of truths
        if isinstance(fault, (SlowPhase, ThrottledGpus)):
            return np.isin(self._ranks, fault.ranks)
        if isinstance(fault, (Stuck, LostGpu, HungGpu)):
            return self._ranks == fault.rank
        return np.ones(len(self._ranks), dtype=bool)

    def _apply(self, fault: Fault, seconds: Seconds, active: Any, begins: Seconds) -> None:  # noqa: ANN401
        if isinstance(fault, TakingTurns):
            row = _row(fault.phase)
            seconds[row] = np.where(active, seconds[row] + fault.adds, seconds[row])
        elif isinstance(fault, Slowing):
            minutes = np.maximum(0.0, begins - fault.at) / 60
            seconds *= np.where(active, 1 + fault.per_minute * minutes, 1.0)
        elif isinstance(fault, SlowPhase):
            row = _row(fault.phase)
            if fault.takes is not None:
                missing = fault.takes - seconds.sum(0)
                seconds[row] = np.where(active, np.maximum(0.0, seconds[row] + missing), seconds[row])
            else:
                seconds[row] = np.where(active, seconds[row] * fault.factor + fault.adds, seconds[row])
        elif isinstance(fault, ThrottledGpus):
            for row in COMPUTE:
                seconds[row] = np.where(active, seconds[row] / fault.to, seconds[row])
        elif isinstance(fault, SlowLoader):
            rest = seconds.sum(0) - seconds[_DATA] + self._step.collective
            wait = rest * fault.share / (1 - fault.share) if fault.share else seconds[_DATA] + fault.adds
            seconds[_DATA] = np.where(active, wait, seconds[_DATA])
        else:
            row = _row(fault.phase) if isinstance(fault, Stuck) else _FORWARD
            entered = begins + seconds[:row].sum(0)
            held = fault.until - entered if math.isfinite(fault.until) else np.full_like(entered, math.inf)
            seconds[row] = np.where(active, seconds[row] + np.maximum(0.0, held), seconds[row])


_TIMED = (SlowPhase, TakingTurns, Slowing, ThrottledGpus, SlowLoader, Stuck, LostGpu, HungGpu)


def _is_in_step(fault: Fault) -> bool:
    """Return whether a fault is within a step: a rank that is stuck in a checkpoint is not."""
    return not (isinstance(fault, Stuck) and fault.phase == "checkpoint")


def _row(phase: str) -> int:
    """Return the row of a phase; what a rank does right before the all-reduce is part of backward."""
    return PARTS.index("backward" if phase == "collective" else phase)
