"""The values that a training loop logs per step, and the signals derived from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from time import monotonic, time
from weakref import ref

from tachograph.catalog.train import LOGGABLE, WORK
from tachograph.client.core.misuse import WORD_LENGTH, Misuse, named
from tachograph.client.core.scalars import SPREAD, Copy, Reading, number, read
from tachograph.client.core.steps import VOID, Step
from tachograph.client.signals.grad_norm import GradNormWatch
from tachograph.client.signals.learning_rate import LearningRateWatch
from tachograph.client.signals.loss_spikes import RATE_JUMP_GRACE, RESUME_GRACE, LossWatch, NonfiniteWatch
from tachograph.client.signals.work import WHOLE_RUN_STEPS, WorkCounters

_NO_NUMBER = "is dropped: the value is not a number"
_SPREAD = "is dropped: no rank has all of this DTensor; log its full_tensor()"
_NO_AMOUNT = "is dropped: what a step is worth must be finite, and not below 0"
_WHOLE_RUN = (
    f"has been for {WHOLE_RUN_STEPS} steps what was given for a step of the whole run, and is counted on each rank: "
    "log what this rank alone does"
)


class Logged:
    """The last values that the loop logged, and the watches over them; the sender thread reads.

    `refused` counts values that are not numbers or have a name that cannot be logged. `optimizer` gives the learning
    rate of its first parameter group if the loop logs none; `resumed` is set once after a resume. `own` are the names
    that the run declared itself; `work` takes what steps are worth. `follow`, if set, gets each step's values, too.
    """

    def __init__(
        self, step: Step, misuse: Misuse, own: Collection[str] = (), work: WorkCounters | None = None, *,
        clock: Callable[[], float] = monotonic, unix: Callable[[], float] = time,
    ) -> None:  # fmt: skip
        self.refused = 0
        self.optimizer: ref[object] | None = None
        self.resumed = False
        self.follow: Callable[[int, Mapping[str, float]], None] | None = None
        self._step = step
        self._misuse = misuse
        self._own = own
        self._work = work or WorkCounters(step)
        self._for_all: set[str] = set()
        self._own_values: dict[str, float] = {}
        self._values: dict[str, float] = {}
        self._rate: float | None = None
        self._loss = LossWatch(clock)
        self._val_loss = LossWatch(clock)
        self._evaluations = 0
        self._grad_norm = GradNormWatch(clock)
        self._learning_rate = LearningRateWatch()
        self._nonfinite = NonfiniteWatch(unix)
        self._watches: tuple[tuple[str, Callable[[int, float], None]], ...] = (
            ("learning_rate", self._observe_rate),  # before the loss, which may jump with it
            ("loss", self._loss.observe),
            ("val_loss", self._observe_val_loss),
            ("grad_norm", self._grad_norm.observe),
        )

    def read(self) -> None:
        """Take over what the training thread logged since the last time, step by step in order."""
        if self.resumed:
            self.resumed = False
            self._loss.grace(RESUME_GRACE)
        self._rate = None if "learning_rate" in self._values else self._rate_of_optimizer()
        if self._rate is not None:
            self._observe_rate(self._step.next, self._rate)  # before the losses, which may have jumped with it
        ring = self._step.logged
        for _ in range(len(ring)):
            step, readings = ring.popleft()
            if readings is VOID:
                self._work.discard(step)
                continue
            values = self._take(step, readings)
            self._values.update(values)
            if self.follow is not None:
                self.follow(step, values)
            self._nonfinite.observe(step, values)
            for key, observe in self._watches:
                if key in values:
                    observe(step, values[key])
        for key in self._work.logged_for_all():
            if key not in self._for_all:
                self._for_all.add(key)
                self._misuse.note("wrong_type", named("step.log", key.removesuffix("_total")), _WHOLE_RUN)

    def _take(self, step: int, readings: Mapping[str, Reading]) -> dict[str, float]:
        """Return the values of the catalog's gauges; pass on what the step is worth, keep the run's own values."""
        values: dict[str, float] = {}
        work: dict[str, float] = {}
        for key, reading in readings.items():
            value = number(reading)
            if key not in LOGGABLE and key not in WORK and key not in self._own:
                self._refuse_name(key)
            elif value is None:
                self._refuse_value(key, _SPREAD if reading is SPREAD else _NO_NUMBER)
            elif key in self._own:
                self._own_values = {**self._own_values, key: value}
            elif key not in WORK:
                values[key] = value
            elif 0 <= value < inf:
                work[WORK[key]] = value
            else:
                self._refuse_value(key, _NO_AMOUNT)
        if work:
            self._work.take(step, work, late=Copy in map(type, readings.values()))
        return values

    def metrics(self) -> dict[str, object]:
        """Return the logged values and the signals derived from them."""
        metrics: dict[str, object] = {} if self._rate is None else {"learning_rate": self._rate}
        if self._own_values:
            metrics["custom"] = self._own_values
        if spiked := self._val_loss.spike.steps:
            metrics["val_loss_spike_evaluations"] = spiked
        return {
            **metrics, **self._values, **self._loss.metrics(), **self._grad_norm.metrics(), **self._nonfinite.metrics()
        }  # fmt: skip

    def _observe_rate(self, step: int, rate: float) -> None:
        if self._learning_rate.observe(step, rate):
            self._loss.grace(RATE_JUMP_GRACE)

    def _observe_val_loss(self, step: int, loss: float) -> None:
        """Take the loss of one evaluation: they are counted, as thousands of steps may lie between two."""
        self._evaluations += 1
        self._val_loss.observe(self._evaluations, loss)

    def _refuse_value(self, key: str, why: str) -> None:
        self.refused += 1
        self._misuse.note("wrong_type", named("step.log", key), why)

    def _refuse_name(self, key: str) -> None:
        self.refused += 1
        declare = f'no such name: see docs/metrics.md, or declare it: Recorder(metrics={{"{key[:WORD_LENGTH]}": "…"}})'
        right = (*sorted(LOGGABLE), *WORK, *self._own)
        self._misuse.note("unknown_name", named("step.log", key), wrong=key, right=right, other=declare)

    def _rate_of_optimizer(self) -> float | None:
        optimizer = self.optimizer() if self.optimizer is not None else None
        try:
            rate = optimizer.param_groups[0]["lr"]  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - no optimizer, or one that keeps its rate elsewhere
            return None
        return None if getattr(rate, "is_cuda", False) else number(read(rate))
