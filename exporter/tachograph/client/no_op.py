"""The recorder that does nothing: chosen once at start, so that no call asks again whether recording is wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from tachograph.client.core.batches import Batches
from tachograph.client.core.compiled import NOTHING, UnseenStep
from tachograph.client.core.contained import contained
from tachograph.client.core.counters import Tally
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step
from tachograph.client.hello.identity import Identity, discover
from tachograph.client.recorder import Recorder

if TYPE_CHECKING:
    from tachograph.client.transport.source import Source

T = TypeVar("T")


class SilentStep(Step):
    """A step that notes nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(PhaseClock(), Tally())

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def log(self, /, *excess: NoReturn, **values: object) -> None:
        """Do nothing."""


_STEP = SilentStep()


def _step_in_graph(recorder: object, *given: object, **named: object) -> UnseenStep:
    return UnseenStep()


class SilentRecorder(Recorder):
    """A recorder of which every method does nothing."""

    last_step = None

    def __init__(self, *excess: NoReturn, **given: object) -> None:
        pass

    @property
    def identity(self) -> Identity:
        """Who this would be by its environment."""
        return discover({}, os.environ)

    def position(self, *excess: NoReturn, **unknown: NoReturn) -> tuple[int, str]:
        """Return a place that never changes."""
        return 0, "other"

    def step(
        self,
        number: int | None = None,
        *excess: NoReturn,
        tag: str | None = None,
        accumulating: bool = False,
        **unknown: NoReturn,
    ) -> Step:
        """Return a step that notes nothing."""
        return _STEP

    step._torchdynamo_inline = _step_in_graph  # type: ignore[attr-defined]  # see `compiled`

    @contained
    def tag(self, name: str) -> None:
        """Do nothing."""

    def phase(self, name: str = "", *excess: NoReturn, **unknown: NoReturn) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return NOTHING

    def data(self, loader: Iterable[T], *excess: NoReturn, **unknown: NoReturn) -> Batches[T]:
        """Return the loader itself."""
        return cast("Batches[T]", loader)

    def collective(
        self, operation: str = "", bytes: int = 0, *excess: NoReturn, **unknown: NoReturn
    ) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return NOTHING

    @contained
    def watch(self, model: object = None, optimizer: object = None, **wanted: object) -> None:
        """Do nothing."""

    @contained
    def invariant(self, name: str, value: float, step: int | None = None) -> None:
        """Do nothing."""

    @contained
    def threshold(self, name: str, value: float) -> None:
        """Do nothing."""

    def count_flops(self, *excess: NoReturn, **unknown: NoReturn) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return NOTHING

    @contained
    def checkpoint_saved(self, step: int, bytes: int | None = None) -> None:
        """Do nothing."""

    @contained
    def checkpoint_failed(self) -> None:
        """Do nothing."""

    @contained
    def resumed(self, step: int, seconds: float | None = None) -> None:
        """Do nothing."""

    @contained
    def add_source(self, source: Source) -> None:
        """Do nothing."""

    @contained
    def close(self, error: BaseException | None = None) -> None:
        """Do nothing."""
