"""The timed loader."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tachograph.client.core.batches import LOADER_LIMIT, Batches, LoaderWatch
from tachograph.client.core.counters import Counter
from tachograph.client.core.phases import PhaseClock


@pytest.fixture
def clock() -> PhaseClock:
    """A clock."""
    return PhaseClock()


def batches(clock: PhaseClock, loader: object, counter: Counter | None = None) -> Batches[object]:
    """Wrap a loader."""
    return Batches(loader, clock.phases["data"], clock, counter or Counter(), LoaderWatch())  # type: ignore[arg-type]


def test_every_batch_passes_and_is_counted(clock: PhaseClock) -> None:
    """The loop sees what the loader gave; the wait is phase data, the loop's own work is not."""
    counter, seen = Counter(), []

    def loader() -> Iterator[int]:
        for item in range(3):
            seen.append(clock.current.name)
            yield item

    wrapped = batches(clock, loader(), counter)
    names = []
    for _ in wrapped:
        names.append(clock.current.name)
    assert (counter.count, set(seen), set(names)) == (3, {"data"}, {"init"})


def test_a_batch_belongs_to_evaluation_if_it_is_fetched_there(clock: PhaseClock) -> None:
    """Whether a batch is trained on is decided as it is fetched: an iterator may be made and drawn from anywhere."""
    counter = Counter()
    with clock.phases["eval"]:
        made_there = iter(batches(clock, [1, 2, 3], counter))
        assert next(made_there) == 1
    assert counter.count == 0
    assert next(made_there) == 2
    assert counter.count == 1
    with clock.phases["eval"]:
        assert list(made_there) == [3]
        assert list(batches(clock, [1], counter)) == [1]
    assert counter.count == 1


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
    """An exception of the loader reaches the loop unchanged, and the clock leaves phase data."""
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


class Workers:
    """An iterator with worker processes, as PyTorch's looks."""

    def __init__(self, ready: int) -> None:
        self._workers = ["process"]
        self._data_queue = self
        self._shutdown = False
        self.ready = ready

    def qsize(self) -> int:
        if self.ready < 0:
            raise NotImplementedError
        return self.ready


class Loader:
    """Something that can be referred to weakly, as a loader."""


def test_queue_depth_and_restarts() -> None:
    """Zero ready is a depth; each new set of workers of a loader is a restart, the first of another loader is none."""
    watch, loader, other = LoaderWatch(), Loader(), Loader()
    assert dict(watch.metrics()) == {}
    first = Workers(0)
    watch.began(loader, first)
    assert dict(watch.metrics()) == {"data_worker_restarts_total": 0, "data_queue_size": 0}
    first.ready = 3
    watch.began(loader, first)  # persistent_workers
    assert dict(watch.metrics()) == {"data_worker_restarts_total": 0, "data_queue_size": 3}
    evaluation, second = Workers(7), Workers(2)
    watch.began(other, evaluation)
    watch.began(loader, second)
    assert dict(watch.metrics()) == {"data_worker_restarts_total": 1, "data_queue_size": 2}


def test_queues_that_cannot_be_asked() -> None:
    """Shut down, gone, or on a system that cannot count: no depth, and the count of restarts stays."""
    watch, loader, batches = LoaderWatch(), Loader(), Workers(-1)
    watch.began(loader, batches)
    assert dict(watch.metrics()) == {"data_worker_restarts_total": 0}
    batches.ready, batches._shutdown = 4, True
    assert dict(watch.metrics()) == {"data_worker_restarts_total": 0}
    del batches
    gc.collect()
    assert dict(watch.metrics()) == {"data_worker_restarts_total": 0}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loader", ["plain", "wrapped"])
def test_a_loader_without_workers_says_so(clock: PhaseClock, loader: str) -> None:
    """tachograph_train_data_workers is 0: training itself makes the batches. Nothing is said of other loaders."""
    torch = pytest.importorskip("torch")
    batches = torch.utils.data.DataLoader(list(range(4)), num_workers=0)
    watch = LoaderWatch()
    list(Batches(batches if loader == "plain" else iter(batches), clock.phases["data"], clock, Counter(), watch))
    assert dict(watch.metrics()) == {"data_workers": 0}
    list(Batches([1, 2], clock.phases["data"], clock, Counter(), watch))
    assert dict(watch.metrics()) == {}


def test_loaders_without_workers_and_odd_ones() -> None:
    """A plain list has no queue depth; a loader without weak references, or that fails when asked, is left alone."""
    watch = LoaderWatch()

    class Odd:
        @property
        def _workers(self) -> Any:
            raise RuntimeError("no")

    for loader, batches in (([1], iter([1])), (Loader(), Odd()), (5, Workers(1))):
        watch.began(loader, batches)
    assert dict(watch.metrics()) == {}


def test_loaders_without_end_cost_no_memory() -> None:
    """A program that makes a loader per epoch is remembered for the last ones."""
    watch = LoaderWatch()
    kept = [(Loader(), Workers(1)) for _ in range(3 * LOADER_LIMIT)]
    for loader, batches in kept:
        watch.began(loader, batches)
    assert len(watch._loaders) == LOADER_LIMIT


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_real_workers(clock: PhaseClock) -> None:
    """Two workers fill their queue while training is busy, and again in a second epoch; then no depth is reported."""
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(list(range(8)), num_workers=2, prefetch_factor=2)
    watch, counter = LoaderWatch(), Counter()
    wrapped = Batches(loader, clock.phases["data"], clock, counter, watch)
    for epoch in range(2):
        for position, _ in enumerate(wrapped):
            if position == 0:  # of the four that are prefetched some may come out of turn, and wait elsewhere
                deadline = time.monotonic() + 90
                while dict(watch.metrics()).get("data_queue_size", 0) < 2 and time.monotonic() < deadline:  # type: ignore[operator]
                    time.sleep(0.01)
                assert dict(watch.metrics())["data_queue_size"] in (2, 3, 4)
                assert dict(watch.metrics())["data_worker_restarts_total"] == epoch
    assert (counter.count, dict(watch.metrics())) == (16, {"data_workers": 2, "data_worker_restarts_total": 1})


class Corrupt:
    """A loader of five batches, of which the third cannot be read, as PyTorch's: it goes on with the next one."""

    def __init__(self) -> None:
        self._position = 0

    def __iter__(self) -> Corrupt:
        return self

    def __next__(self) -> int:
        self._position += 1
        if self._position > 5:
            raise StopIteration
        if self._position == 3:
            raise ValueError("a corrupt sample")
        return self._position


def test_a_loop_may_go_on_after_a_batch_that_failed() -> None:
    """A generator would be over with its first exception, and the rest of the epoch lost without a word."""
    counter, clock = Counter(), PhaseClock()
    batches = iter(Batches(Corrupt(), clock.phases["data"], clock, counter, LoaderWatch()))
    seen = []
    while True:
        try:
            seen.append(next(batches))
        except ValueError:
            continue
        except StopIteration:
            break
    assert (seen, counter.count) == ([1, 2, 4, 5], 4)
    assert clock.current.name == "init"
