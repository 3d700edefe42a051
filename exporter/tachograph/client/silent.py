"""The recorder that does nothing: chosen once at start, so that no call asks again whether recording is wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar, cast

from tachograph.client.batches import Batches
from tachograph.client.identity import Identity, discover
from tachograph.client.phases import PhaseClock
from tachograph.client.recorder import Recorder
from tachograph.client.steps import Step
from tachograph.client.tally import Tally

if TYPE_CHECKING:
    from tachograph.client.source import Source

T = TypeVar("T")
_NOTHING = nullcontext()


class SilentStep(Step):
    """A step that notes nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(PhaseClock(), Tally())

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def log(self, /, **values: object) -> None:
        """Do nothing."""


_STEP = SilentStep()


class SilentRecorder(Recorder):
    """A recorder of which every method does nothing."""

    last_step = None

    def __init__(self, **given: object) -> None:
        pass

    @property
    def identity(self) -> Identity:
        """Who this would be by its environment."""
        return discover({}, os.environ)

    def position(self) -> tuple[int, str]:
        """Return a place that never changes."""
        return 0, "other"

    def step(self, number: int | None = None, *, tag: str | None = None, accumulating: bool = False) -> Step:
        """Return a step that notes nothing."""
        return _STEP

    def tag(self, name: str) -> None:
        """Do nothing."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return _NOTHING

    def data(self, loader: Iterable[T]) -> Batches[T]:
        """Return the loader itself."""
        return cast("Batches[T]", loader)

    def collective(self, operation: str, bytes: int = 0) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return _NOTHING

    def watch(self, model: object = None, optimizer: object = None, **wanted: object) -> None:
        """Do nothing."""

    def invariant(self, name: str, value: float, step: int | None = None) -> None:
        """Do nothing."""

    def threshold(self, name: str, value: float) -> None:
        """Do nothing."""

    def count_flops(self) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return _NOTHING

    def checkpoint_saved(self, step: int, bytes: int | None = None) -> None:
        """Do nothing."""

    def checkpoint_failed(self) -> None:
        """Do nothing."""

    def resumed(self, step: int, seconds: float | None = None) -> None:
        """Do nothing."""

    def add_source(self, source: Source) -> None:
        """Do nothing."""

    def close(self, error: BaseException | None = None) -> None:
        """Do nothing."""
