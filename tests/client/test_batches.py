"""The timed loader."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from tachograph.client.batches import Batches
from tachograph.client.phases import PhaseClock
from tachograph.client.tally import Tally


@pytest.fixture
def clock() -> PhaseClock:
    """A clock."""
    return PhaseClock()


def batches(clock: PhaseClock, loader: object, tally: Tally | None = None) -> Batches[object]:
    """Wrap a loader."""
    return Batches(loader, clock.phases["data"], tally or Tally())  # type: ignore[arg-type]


def test_every_batch_passes_and_is_counted(clock: PhaseClock) -> None:
    """The loop sees what the loader gave; the wait is phase data, the loop's own work is not."""
    tally, seen = Tally(), []

    def loader() -> Iterator[int]:
        for item in range(3):
            seen.append(clock.current.name)
            yield item

    wrapped = batches(clock, loader(), tally)
    names = []
    for _ in wrapped:
        names.append(clock.current.name)
    assert (tally.count, set(seen), set(names)) == (3, {"data"}, {"init"})


def test_length_and_attributes_are_the_loaders(clock: PhaseClock) -> None:
    """`len`, truth, `loader.sampler.set_epoch` and the like work as before."""

    class Loader(list[int]):
        sampler = "the sampler"

    wrapped = batches(clock, Loader([1, 2]))
    assert (len(wrapped), wrapped.sampler, bool(wrapped), list(wrapped)) == (2, "the sampler", True, [1, 2])
    assert not batches(clock, [])
    with pytest.raises(AttributeError):
        _ = wrapped.nothing


def test_a_loader_without_length(clock: PhaseClock) -> None:
    """An endless stream has no length, and is iterated all the same."""
    wrapped = batches(clock, iter([1, 2]))
    with pytest.raises(TypeError):
        len(wrapped)
    assert list(wrapped) == [1, 2]


def test_a_loaders_exception_passes_untouched(clock: PhaseClock) -> None:
    """What the loader raises reaches the loop as it is, and the clock leaves phase data."""
    error = ValueError("corrupt file")

    def loader() -> Iterator[int]:
        yield 1
        raise error

    with pytest.raises(ValueError, match="corrupt") as caught:
        list(batches(clock, loader()))
    assert caught.value is error
    assert clock.current.name == "init"


def test_leaving_the_loop_early_ends_the_loader(clock: PhaseClock) -> None:
    """A break closes the generator; the clock is where it was, and a second epoch starts anew."""
    wrapped = batches(clock, [1, 2, 3])
    for _ in wrapped:
        break
    assert clock.current.name == "init"
    assert list(wrapped) == [1, 2, 3]


def test_what_is_no_loader_fails_as_without_us(clock: PhaseClock) -> None:
    """Iterating over a number is the loop's own TypeError."""
    with pytest.raises(TypeError, match="not iterable"):
        list(batches(clock, 5))


def test_copies_do_not_recurse(clock: PhaseClock) -> None:
    """Copying asks for attributes before there are any."""
    assert list(copy.copy(batches(clock, [1]))) == [1]
