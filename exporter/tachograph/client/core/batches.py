"""A data loader whose waits are timed, and the state of its worker processes.

Each batch that is fetched during phase `eval` belongs to the evaluation: its wait stays there, and it is not counted,
since one rank that evaluates alone has not drifted from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar
from weakref import ref

from tachograph.client.core.counters import Counter
from tachograph.client.core.notice import raised_by_signal
from tachograph.client.core.phases import Phase, PhaseClock

T_co = TypeVar("T_co", covariant=True)

LOADER_LIMIT = 16
"""Loaders remembered to tell workers that start again from those that start for the first time."""


class LoaderWatch:
    """The number of workers of a PyTorch loader, their queue and their restarts; for any other loader nothing."""

    def __init__(self) -> None:
        self._workers: int | None = None
        self._iterator: ref[Any] | None = None
        self._loaders: list[tuple[ref[Any], ref[Any]]] = []
        self._restarts = 0

    def began(self, loader: object, batches: object) -> None:
        """Note an iterator that training begins to draw from; called once an epoch, never raises."""
        try:
            workers = getattr(batches, "_num_workers", None)
            self._workers = workers if type(workers) is int else None
            if not getattr(batches, "_workers", None):
                return
            before = [entry for entry in self._loaders if entry[0]() is loader]
            if before and before[0][1]() is not batches:  # with persistent_workers it is the same one every epoch
                self._restarts += 1
            others = [entry for entry in self._loaders if entry[0]() not in (None, loader)]
            self._loaders = [*others, (ref(loader), ref(batches))][-LOADER_LIMIT:]
            self._iterator = ref(batches)
        except Exception as error:
            self._iterator = None
            if raised_by_signal(error):
                raise

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield the workers of the loader, queue depth and worker restarts by wire key; without workers the first."""
        if self._workers is not None:
            yield "data_workers", self._workers
        if self._loaders:
            yield "data_worker_restarts_total", self._restarts
        batches = self._iterator() if self._iterator is not None else None
        if batches is None or getattr(batches, "_shutdown", False):
            return
        try:
            yield "data_queue_size", max(int(batches._data_queue.qsize()), 0)
        except Exception:  # noqa: BLE001 - private, closed in between, or a system that cannot count (macOS)
            return


class _Waits(Iterator[T_co]):
    """An iterator with its waits booked. No generator: that would be over with the first batch that raises."""

    __slots__ = ("_batches", "_clock", "_counter", "_phase")

    def __init__(self, batches: Iterator[T_co], phase: Phase, clock: PhaseClock, counter: Counter) -> None:
        self._batches = batches
        self._phase = phase
        self._clock = clock
        self._counter = counter

    def __next__(self) -> T_co:
        if self._clock.current.name == "eval":
            return next(self._batches)
        self._phase.__enter__()  # by name: `with` needs memory for what it calls
        try:
            batch = next(self._batches)
        except BaseException as error:
            if not isinstance(error, StopIteration):
                self._clock.leave_by(error)
            raise
        else:
            self._counter.count += 1
            return batch
        finally:
            self._phase.__exit__(None, None, None)


class Batches(Generic[T_co]):
    """The loader it was given, with the wait for each batch of training booked as `phase`; the rest is the loader's.

    So are exceptions; and a copy or a pickle of it is one of the loader.
    """

    __slots__ = ("_clock", "_counter", "_loader", "_phase", "_watch")

    def __init__(
        self, loader: Iterable[T_co], phase: Phase, clock: PhaseClock, counter: Counter, watch: LoaderWatch
    ) -> None:
        self._loader = loader
        self._phase = phase
        self._clock = clock
        self._counter = counter
        self._watch = watch

    def __iter__(self) -> Iterator[T_co]:
        if self._clock.current.name == "eval":
            batches = iter(self._loader)
        else:
            with self._phase:  # starting the workers is waiting for data, too
                batches = iter(self._loader)
            self._watch.began(self._loader, batches)
        return _Waits(batches, self._phase, self._clock, self._counter)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __deepcopy__(self, memo: dict[int, Any]) -> Iterable[T_co]:
        import copy  # late: few copy a loader

        return copy.deepcopy(self._loader, memo)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Iterable[T_co]]]:
        return _itself, (self._loader,)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the loader holds
        if name.startswith("__") or name in Batches.__slots__:  # half-made by copy or pickle
            raise AttributeError(name)
        return getattr(self._loader, name)


def _itself(loader: Any) -> Any:  # noqa: ANN401 - whatever the loader is
    return loader
