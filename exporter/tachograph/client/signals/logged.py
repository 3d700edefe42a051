"""The values that a training loop logs per step, and the signals derived from them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic, time
from weakref import ref

from tachograph.catalog.rank import LOGGABLE
from tachograph.client.core.misuse import WORD_LENGTH, Misuse, named
from tachograph.client.core.scalars import SPREAD, number, read
from tachograph.client.core.steps import Step
from tachograph.client.signals.grad_norm import GradNormWatch
from tachograph.client.signals.learning_rate import LearningRateWatch
from tachograph.client.signals.loss_spikes import RATE_JUMP_GRACE, RESUME_GRACE, LossWatch, NonfiniteWatch

_NO_NUMBER = "is dropped: the value is not a number"
_SPREAD = "is dropped: no rank has all of this DTensor; log its full_tensor()"


class Logged:
    """The last values that the loop logged, and the watches over them; the sender thread reads.

    `refused` counts values that are not numbers or have a name that cannot be logged. `optimizer` gives the learning
    rate of its first parameter group if the loop logs none; `resumed` is set once after a resume. `own` are the names
    that the run declared itself.
    """

    def __init__(
        self, step: Step, misuse: Misuse, own: Collection[str] = (),
        clock: Callable[[], float] = monotonic, unix: Callable[[], float] = time,
    ) -> None:  # fmt: skip
        self.refused = 0
        self.optimizer: ref[object] | None = None
        self.resumed = False
        self._step = step
        self._misuse = misuse
        self._own = own
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
            values: dict[str, float] = {}
            for key, reading in readings.items():
                value = number(reading)
                if key not in LOGGABLE and key not in self._own:
                    self._refuse_name(key)
                elif value is None:
                    self.refused += 1
                    why = _SPREAD if reading is SPREAD else _NO_NUMBER
                    self._misuse.note("wrong_type", named("step.log", key), why)
                elif key in self._own:
                    self._own_values = {**self._own_values, key: value}
                else:
                    values[key] = value
            self._values.update(values)
            self._nonfinite.observe(step, values)
            for key, observe in self._watches:
                if key in values:
                    observe(step, values[key])

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

    def _refuse_name(self, key: str) -> None:
        self.refused += 1
        declare = f'no such name: see docs/metrics.md, or declare it: Recorder(metrics={{"{key[:WORD_LENGTH]}": "…"}})'
        right = (*sorted(LOGGABLE), *self._own)
        self._misuse.note("unknown_name", named("step.log", key), wrong=key, right=right, other=declare)

    def _rate_of_optimizer(self) -> float | None:
        optimizer = self.optimizer() if self.optimizer is not None else None
        try:
            rate = optimizer.param_groups[0]["lr"]  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - no optimizer, or one that keeps its rate elsewhere
            return None
        return None if getattr(rate, "is_cuda", False) else number(read(rate))
