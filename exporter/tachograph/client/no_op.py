"""The implementation of a recorder's calls that does nothing, and the interface of the one that records."""

# ruff: noqa: D102 - `Recorder` documents the calls

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

from tachograph.client.core.compiled import NOTHING
from tachograph.client.core.counters import Counter
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step
from tachograph.client.hello.identity import Identity, discover

if TYPE_CHECKING:
    from tachograph.client.transport.interfaces import MetricSource


class NoOpStep(Step):
    """A step that records nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(PhaseClock(), Counter())

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def log(self, /, *excess: NoReturn, **values: object) -> None:
        """Do nothing."""


class NoOpPhases(dict[str, AbstractContextManager[None]]):
    """A context manager that does nothing, under any name."""

    def __missing__(self, name: object) -> AbstractContextManager[None]:
        return NOTHING


class NoOpCalls:
    """Does nothing: the calls of a recorder that is disabled, could not start, or is the copy in a forked child.

    `step`, `phases` and `clock` are read by the recorder itself; `dropped` counts what could not be recorded.
    """

    records = False

    def __init__(self) -> None:
        self.step: Step = NoOpStep()
        self.phases: dict[str, AbstractContextManager[None]] = NoOpPhases()
        self.clock = PhaseClock()
        self.dropped = Counter()

    @property
    def last_step(self) -> int | None:
        return None

    @property
    def identity(self) -> Identity:
        return discover({}, os.environ)

    @property
    def received(self) -> bool:
        return False

    @property
    def bucket_reductions(self) -> int:
        return 0

    def position(self) -> tuple[int, str]:
        return 0, "other"

    def prepare_step(self, number: object, tag: object, accumulating: object) -> None:
        """Take over the arguments of `step()`."""

    def tag(self, name: str) -> None: ...

    def draws_from(self, loader: object, iterator: object) -> None: ...

    def count_batches(self, number: int) -> None: ...

    def trains_here(self) -> None: ...

    def data(self, loader: Iterable[Any]) -> Any:  # noqa: ANN401 - Batches, or the loader itself
        return loader

    def collective(self, operation: str, payload: int) -> AbstractContextManager[None]:
        return NOTHING

    def watch(self, model: object, optimizer: object, **wanted: object) -> None: ...

    def invariant(self, name: str, value: float, step: int | None) -> None: ...

    def threshold(self, name: str, value: float) -> None: ...

    def count_flops(self) -> AbstractContextManager[None]:
        return NOTHING

    def checkpoint_saved(self, step: int, bytes: int | None, path: object) -> None: ...

    def checkpoint_failed(self) -> None: ...

    def resumed(self, step: int, seconds: float | None) -> None: ...

    def add_source(self, source: MetricSource) -> None: ...

    def ignored(self, call: str, names: Iterable[object], takes: tuple[str, ...]) -> None:
        """Note arguments that a call does not take: of these names, or one too many where there is none."""

    def close(self, error: BaseException | None) -> None: ...

    def release(self, *, close: bool) -> None:
        """Stop listening; `close` the outputs, or leave them to the parent process of this forked child."""

    def drop(self, what: str, wrong: object = None, right: tuple[str, ...] = ()) -> None:
        """Count something that cannot be recorded, and log it once: an unknown word with the known ones beside it."""


NO_OP = NoOpCalls()
