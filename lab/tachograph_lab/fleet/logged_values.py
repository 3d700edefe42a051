"""The values that the training loop logs: curves with noise and the scenario's faults, judged by the client's own code.

The loss is the mean over ranks, as most loops log it, and the gradient norm is the same on all ranks anyway. So ranks
share one `LoggedValues` until a fault makes one of them differ.
"""

from __future__ import annotations

import copy
import math

import numpy as np

from tachograph.client.core.counters import Counter
from tachograph.client.core.misuse import Misuse
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step
from tachograph.client.signals.invariants import Invariants
from tachograph.client.signals.logged import Logged
from tachograph.client.torch.model.checksum import NAME as CHECKSUM
from tachograph.client.torch.model.matmul_check import NAME as KNOWN_PRODUCT
from tachograph.client.torch.model.model_watch import OPTIMIZER_STEP, OPTIMIZER_STEP_EVERY
from tachograph_lab.fleet.messages import encoded
from tachograph_lab.fleet.pace import batch_factor
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import (
    CHECKSUM_EVERY,
    BatchChange,
    LossClimb,
    LossSpike,
    Nan,
    StaleOptimizer,
    WrongChecksum,
    WrongGlobalBatch,
)

WARM_UP_STEPS = 200
"""Steps over which the learning rate rises."""

SCALE = 65536.0
"""Where a scaler of mixed precision begins; each step that it skips halves it."""

_BLOCK = 1024


class TrainingCurves:
    """Loss, gradient norm and learning rate of a step; faults that make them NaN are applied later, per rank."""

    def __init__(self, scenario: Scenario) -> None:
        self._learning = scenario.learning
        self._spikes = [each for each in scenario.faults if isinstance(each, LossSpike)]
        self._climbs = [each for each in scenario.faults if isinstance(each, LossClimb)]
        self._spiked_from: dict[LossSpike, int] = {}
        self._random = np.random.default_rng([scenario.seed, 2])
        self._noise: list[tuple[float, float]] = []

    def values(self, step: int, now: float) -> dict[str, float]:
        """Return the values logged for a step that began at second `now`."""
        learning = self._learning
        if learning.formula:
            loss = 3.0 * math.exp(-0.18 * step) + 0.20
            norm = 0.9 + 0.05 * math.sin(step)
            rate = learning.rate
        else:
            noise = self._next_noise()
            curve = learning.loss
            loss = (curve.end + (curve.start - curve.end) * 0.5 ** (step / curve.halves)) * (1 + curve.noise * noise[0])
            norm = learning.gradient_norm.mean * max(0.05, 1 + learning.gradient_norm.noise * noise[1])
            rate = learning.rate * min(1.0, (step + 1) / WARM_UP_STEPS)
        for climb in self._climbs:
            if now >= climb.at:
                loss *= (1 + climb.per_minute) ** ((min(now, climb.until) - climb.at) / 60)
        for spike in self._spikes:
            if now >= spike.at:
                since = step - self._spiked_from.setdefault(spike, step)
                if since >= 0 and (since < spike.steps or not spike.recovers):
                    loss += spike.by
                    norm *= spike.gradient_factor
        return {"loss": loss, "grad_norm": norm, "learning_rate": rate}

    def _next_noise(self) -> tuple[float, float]:
        if not self._noise:
            self._noise = [(a, b) for a, b in self._random.standard_normal((_BLOCK, 2)).tolist()]
        return self._noise.pop()


class LoggedValues:
    """Logged values and invariants of one rank, or of all ranks that agree."""

    def __init__(self, scenario: Scenario, epoch: float) -> None:
        self._epoch = epoch
        self._now = 0.0
        self._step = Step(PhaseClock(), Counter())
        self._logged = Logged(self._step, Misuse(), clock=self._clock, unix=self._unix)
        self._invariants = Invariants(self._clock)
        self._shown: dict[str, object] | None = None

    def resumed(self) -> None:
        """Note that this attempt resumed from a checkpoint."""
        self._logged.resumed = True

    def observe(self, step: int, now: float, values: dict[str, float], numbers: dict[str, int]) -> None:
        """Observe the values of one completed step."""
        self._now = now
        self._step.next = step + 1
        self._step.logged.append((step, dict(values)))
        self._logged.read()
        for name, number in numbers.items():
            self._invariants.set(name, number, None if name == "global_batch" else step)
        self._shown = None

    def metrics(self) -> dict[str, object]:
        """Return the metrics, encoded for a frame."""
        if self._shown is None:
            self._shown = {key: encoded(value) for key, value in self._logged.metrics().items()}
            self._shown |= {key: encoded(value) for key, value in self._invariants.metrics()}
        return self._shown

    def _clock(self) -> float:
        return self._now

    def _unix(self) -> float:
        return self._epoch + self._now


class LoggedByRank:
    """The logged values of all ranks of an attempt: one object for all that agree, one for each that differs."""

    def __init__(self, scenario: Scenario, epoch: float, curves: TrainingCurves, resumed: bool) -> None:
        self._curves = curves
        self._seed = scenario.seed
        self._batch = scenario.work.global_batch
        self._odd = [each for each in scenario.faults if isinstance(each, (Nan, StaleOptimizer, WrongChecksum))]
        self._changes = [each for each in scenario.faults if isinstance(each, BatchChange)]
        self._wrong = [each for each in scenario.faults if isinstance(each, WrongGlobalBatch)]
        self._spread: set[str] = set()
        self.scaler: dict[str, object] = {}
        """What every rank reports of mixed precision's scaler, in runs that have one."""
        self._skips = 0
        if any(isinstance(each, Nan) and each.skipped for each in self._odd):
            self._scale()
        self._leaves_out = any(isinstance(each, Nan) and each.unlogged for each in self._odd)
        self._own: dict[int, LoggedValues] = {}
        self._all = LoggedValues(scenario, epoch)
        if resumed:
            self._all.resumed()

    def of(self, rank: int) -> LoggedValues:
        """Return a rank's values."""
        return self._own.get(rank, self._all)

    def observe(self, step: int, now: float) -> None:
        """Observe a completed step that began at second `now`."""
        values = self._curves.values(step, now)
        numbers = self._numbers(step, now)
        broken = [fault for fault in self._odd if fault.at <= now < fault.until]
        spread = set(self._spread)
        for fault in broken:
            if fault.rank not in self._own:
                self._own[fault.rank] = copy.deepcopy(self._all)
            if isinstance(fault, Nan) and fault.what == "loss":
                # A loss that is NaN makes all gradients NaN by the all-reduce, and those every rank's next loss.
                values["grad_norm"] = math.nan
                if not fault.skipped:
                    self._spread |= {"loss", "grad_norm"}
        if any(isinstance(fault, Nan) and fault.skipped for fault in broken):
            self._skips += 1
            self._scale()
        values |= dict.fromkeys(spread, math.nan)
        if self._leaves_out and math.isnan(values["loss"]):
            del values["loss"]
        self._all.observe(step, now, values, numbers)
        for rank, learned in self._own.items():
            mine, my_numbers = dict(values), dict(numbers)
            for fault in broken:
                if fault.rank == rank:
                    _apply(fault, mine, my_numbers)
            learned.observe(step, now, mine, my_numbers)

    def _scale(self) -> None:
        self.scaler = {"amp_skipped_steps_total": self._skips, "amp_loss_scale": SCALE * 0.5**self._skips}

    def _numbers(self, step: int, now: float) -> dict[str, int]:
        batch = self._batch * batch_factor(self._changes, now)
        if any(fault.at <= now < fault.until for fault in self._wrong):
            batch /= 2
        numbers = {"global_batch": round(batch)}
        if step % CHECKSUM_EVERY == 0:
            numbers |= {CHECKSUM: (self._seed + 1) * 1_000_003 + step * 0x9E3779B97F4A7C15, KNOWN_PRODUCT: 0}
        if step % OPTIMIZER_STEP_EVERY == 0:
            numbers[OPTIMIZER_STEP] = step + 1
        return numbers


def _apply(fault: Nan | StaleOptimizer | WrongChecksum, values: dict[str, float], numbers: dict[str, int]) -> None:
    if isinstance(fault, Nan):
        values[fault.what] = math.nan
        if fault.unlogged:
            del values[fault.what]
    else:
        name, by = (OPTIMIZER_STEP, -100) if isinstance(fault, StaleOptimizer) else (CHECKSUM, 1)
        if name in numbers:
            numbers[name] += by
