"""A training loop driven by hooks: steps and phases that begin in one call and end in another."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from tachograph.catalog.rank import PhaseName
from tachograph.client.core.steps import Step
from tachograph.client.recorder import Recorder, calls_of


class Abandoned(Exception):  # noqa: N818 - never raised: it marks a step as void for its context manager
    """A step that began and was not completed."""


class Loop:
    """The open step and the open phases of one recorder, entered and left by separate calls.

    Calls that do not fit (leaving a phase that is not open, beginning a step twice) are corrected and raise nothing.
    """

    __slots__ = ("_loss", "_open", "_step", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._step: Step | None = None
        self._open: list[tuple[str, AbstractContextManager[None]]] = []
        self._loss: Any = None

    @property
    def stepping(self) -> bool:
        """Whether a step is open."""
        return self._step is not None

    def begin(self, number: int | None = None) -> None:
        """Begin a step, or a micro-batch of one; one that is open is void, phases outside end."""
        if self._step is not None:
            self.abandon()
        self._close(0)
        step = self.recorder.step(number)
        step.__enter__()
        self._step = step

    def end(self, **values: object) -> None:
        """Complete the open step and log its values."""
        step = self._step
        if step is None:
            return
        self._close(0)
        if self._loss is not None:
            values["loss"] = self._loss
            self._loss = None
        if values:
            step.log(**values)
        self._step = None
        step.__exit__(None, None, None)

    def end_accumulating(self) -> None:
        """End it as a micro-batch: its loss is kept for the step that completes."""
        if self._step is not None:
            self._close(0)
            self.recorder.step(accumulating=True)
            step, self._step = self._step, None
            step.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leave the open step, if there is one, without counting it."""
        if self._step is not None:
            self._close(0)
            step, self._step = self._step, None
            step.__exit__(Abandoned, None, None)
        self._loss = None

    def enter(self, phase: PhaseName) -> None:
        """Enter a phase; do nothing if it is the innermost open one."""
        if not self._open or self._open[-1][0] != phase:
            manager = self.recorder.phase(phase)
            manager.__enter__()
            self._open.append((phase, manager))

    def leave(
        self, phase: PhaseName, error: BaseException | None = None, traceback: TracebackType | None = None
    ) -> None:
        """Leave a phase and what is open inside it, with the error that ended it; do nothing if it is not open."""
        for index in range(len(self._open) - 1, -1, -1):
            if self._open[index][0] == phase:
                self._close(index, error, traceback)
                return

    def in_phase(self, phase: PhaseName) -> bool:
        """Whether a phase is open."""
        return any(name == phase for name, _ in self._open)

    def draws_from(self, loader: object, iterator: object) -> None:
        """Watch the worker processes of an iterator over a loader."""
        calls_of(self.recorder).draws_from(loader, iterator)

    def count_batches(self, number: int) -> None:
        """Count batches that were trained on and did not come through `Recorder.data`."""
        calls_of(self.recorder).count_batches(number)

    def trains_here(self) -> None:
        """Take the thread that calls for the one that trains."""
        calls_of(self.recorder).trains_here()

    @property
    def bucket_reductions(self) -> int:
        """All-reduces of DistributedDataParallel models that were seen."""
        return calls_of(self.recorder).bucket_reductions

    def claim(self, phase: PhaseName) -> None:
        """Count the time since the last change of phase as this one's, though another was entered."""
        calls_of(self.recorder).clock.claim(phase)

    def add_loss(self, loss: object, share: float = 1.0) -> None:
        """Add `share` of a micro-batch's loss to the step's: a number, or a tensor, which is not read here.

        A tensor of any class but PyTorch's own is passed over: adding up a `DTensor` could start a collective.
        """
        if type(loss) not in (int, float) and f"{type(loss).__module__}.{type(loss).__name__}" != "torch.Tensor":
            return
        detach = getattr(loss, "detach", None)
        value: Any = loss if detach is None else detach()
        if share != 1.0:
            value = value * share
        self._loss = value if self._loss is None else self._loss + value

    def _close(self, depth: int, error: BaseException | None = None, traceback: TracebackType | None = None) -> None:
        while len(self._open) > depth:
            self._open.pop()[1].__exit__(None if error is None else type(error), error, traceback)
