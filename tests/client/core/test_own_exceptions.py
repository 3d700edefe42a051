"""An exception of the training code in a step, a phase or a loader passes through: the same object, unchanged."""

from __future__ import annotations

import gc
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tachograph.catalog.rank import OPERATIONS, PHASES
from tachograph.client.recorder import Recorder

Make = Callable[..., Recorder]


class Unshowable(BaseException):
    """Not even an Exception."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


ERRORS = (
    ValueError("bad"), KeyError("k"), TypeError("t"), IndexError(), AttributeError(), MemoryError(), RecursionError(),
    KeyboardInterrupt(), SystemExit(3), GeneratorExit(), StopIteration(7), StopAsyncIteration(), Unshowable(),
)  # fmt: skip

INSIDE: dict[str, Callable[[Recorder], Any]] = {
    "step": lambda recorder: recorder.step(),
    "accumulating": lambda recorder: recorder.step(accumulating=True),
    "flops": lambda recorder: recorder.count_flops(),
    "unknown phase": lambda recorder: recorder.phase("?"),
    **{name: lambda recorder, name=name: recorder.phase(name) for name in PHASES},
    **{name: lambda recorder, name=name: recorder.collective(name, 8) for name in OPERATIONS},
}


def fail(error: BaseException) -> None:
    raise error


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_leaves_every_context_as_it_came(error: BaseException, enabled: bool, record: Make) -> None:
    """Nothing is swallowed or wrapped, nothing is added to its traceback, its context or its cause."""
    recorder = record(enabled=enabled)
    for name, inside in INSIDE.items():
        error.__traceback__ = error.__context__ = error.__cause__ = None
        with pytest.raises(type(error)) as caught, recorder.step(), inside(recorder):
            fail(error)
        assert caught.value is error, name
        assert frames(error) == ["test_an_exception_leaves_every_context_as_it_came", "fail"], name
        assert (error.__context__, error.__cause__) == (None, None), name


class Loader:
    """Two batches, an error, another batch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.asked = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.asked += 1
        if self.asked == 3:
            raise self.error
        if self.asked > 4:
            raise StopIteration
        return self.asked


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_loaders_exception_passes_through(error: BaseException, enabled: bool, record: Make) -> None:
    """Also a StopIteration with a value, when asked by `next`; and the loader goes on afterwards if it can."""
    batches = iter(record(enabled=enabled).data(Loader(error)))
    assert (next(batches), next(batches)) == (1, 2)
    with pytest.raises(type(error)) as caught:
        next(batches)
    assert caught.value is error
    assert frames(error)[0] == "test_a_loaders_exception_passes_through"
    assert error.__context__ is None
    assert next(batches) == 4
    assert next(batches, "end") == "end"


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), Unshowable()])
def test_a_loader_that_cannot_begin(error: BaseException, record: Make) -> None:
    """An exception of `iter` is the loader's own."""

    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise error

        __len__ = __bool__ = __iter__  # type: ignore[assignment]

    loader: Any = record().data(Broken())
    for ask in (iter, len, bool):
        with pytest.raises(type(error)) as caught:
            ask(loader)
        assert caught.value is error


def test_what_a_signal_handler_raises_is_the_programs_own(record: Make) -> None:
    """A watchdog's TimeoutError interrupts wherever it strikes, also inside a call of ours: none is swallowed.

    But by Python: what strikes in a callback of its garbage collector, anybody's, it ignores; hence no collection here.
    """
    recorder = record()
    gc.disable()
    state = {"armed": False, "raised": 0}

    def watchdog(number: int, frame: Any) -> None:
        if state["armed"]:
            state["armed"] = False
            state["raised"] += 1
            raise TimeoutError

    class Slow:
        def __float__(self) -> float:
            return float(sum(range(200)))

        def __hash__(self) -> int:
            return sum(range(200))

    def train() -> None:
        with recorder.step(accumulating=Slow()) as step, recorder.phase("forward"):
            step.log(loss=Slow())
            recorder.phase(Slow())
            recorder.invariant("x", Slow())
            recorder.tag("eval")
            recorder.checkpoint_saved(4)

    train()  # imports and logging, which catch exceptions of their own, have been done after that
    previous = signal.signal(signal.SIGALRM, watchdog)
    caught = 0
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
        while caught < 100:
            try:
                state["armed"] = True
                while state["armed"]:
                    train()
                pytest.fail("an exception of the program was swallowed")
            except TimeoutError:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        gc.enable()
    assert state["raised"] == caught
