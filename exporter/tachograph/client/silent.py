"""The recorder that does nothing: chosen once at start, so that no call asks again whether recording is wanted."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar, cast

from tachograph.client.batches import Batches
from tachograph.client.recorder import Recorder
from tachograph.client.steps import Step

T = TypeVar("T")
_NOTHING = nullcontext()


class SilentStep(Step):
    """A step that notes nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self.number = 0

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

    def step(self, number: int | None = None) -> Step:
        """Return a step that notes nothing."""
        return _STEP

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return _NOTHING

    def data(self, loader: Iterable[T]) -> Batches[T]:
        """Return the loader itself."""
        return cast("Batches[T]", loader)

    def collective(self, operation: str, bytes: int = 0) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return _NOTHING

    def watch(self, model: object = None, optimizer: object = None) -> None:
        """Do nothing."""

    def checkpoint_saved(self, step: int, bytes: int | None = None) -> None:
        """Do nothing."""

    def close(self, error: BaseException | None = None) -> None:
        """Do nothing."""
