"""The hooks into PyTorch's loaders: at the iterators, in which each loader ends that is made of a `DataLoader`.

So one with an `__iter__` of its own, an iterator that is kept over the epochs and a `next()` by hand are seen alike.
What is around it and fetches a batch ahead has fetched one more in the end.
"""

# ruff: noqa: ANN401 - PyTorch is not imported here, and has no type

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

from tachograph.attach.evaluations import LoaderState
from tachograph.attach.in_place import in_place_of
from tachograph.attach.observer import Observer
from tachograph.integrations.loop import Loop


def hook_loaders(torch: Any, observer: Observer) -> None:
    """Have each batch that a script takes from a loader reported to `observer`."""
    loader_class = torch.utils.data.DataLoader
    iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
    start, make, fetch = loader_class._get_iterator, iterator_class.__init__, iterator_class.__next__
    batches = ObservedBatches(observer, torch.is_grad_enabled)

    @in_place_of(start)
    def started(loader: Any) -> Any:
        loop = observer.recording.here()
        if loop is None:
            return start(loader)
        with loop.recorder.phase(observer.starting(torch.is_grad_enabled())):
            return start(loader)  # its workers take their time

    @in_place_of(make)
    def made(iterator: Any, loader: Any, *arguments: Any, **named: Any) -> None:
        make(iterator, loader, *arguments, **named)
        batches.made(iterator, loader)

    @in_place_of(fetch)
    def fetched(iterator: Any) -> Any:
        return batches.next(iterator, fetch)

    loader_class._get_iterator, iterator_class.__init__, iterator_class.__next__ = started, made, fetched


class ObservedBatches:
    """Reports batches; one that is fetched for another one, inside of the same call, is that one's affair."""

    def __init__(self, observer: Observer, is_learning: Callable[[], bool]) -> None:
        self._observer = observer
        self._is_learning = is_learning
        self._loaders: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()
        self._states: WeakKeyDictionary[Any, LoaderState] = WeakKeyDictionary()
        self._met: WeakKeyDictionary[Any, tuple[Loop, LoaderState]] = WeakKeyDictionary()
        self._inside = False

    def made(self, iterator: Any, loader: Any) -> None:
        """Remember whose iterator it is; neither is kept alive."""
        self._loaders[iterator] = ref(loader)

    def next(self, iterator: Any, fetch: Callable[[Any], Any]) -> Any:
        """Return the iterator's next batch, as `fetch` does."""
        observer = self._observer
        loop = observer.recording.here()
        if loop is None:
            return fetch(iterator)
        state = self._state(iterator, loop)
        if self._inside:
            return fetch(iterator)
        self._inside = True
        try:
            training = observer.fetching(state, self._is_learning())
            try:
                if not training:
                    return fetch(iterator)
                with loop.recorder.phase("data"):
                    batch = fetch(iterator)
            except StopIteration:
                observer.exhausted(state)
                raise
            observer.delivered(state)
            return batch
        finally:
            self._inside = False

    def _state(self, iterator: Any, loop: Loop) -> LoaderState:
        """Return what is known of an iterator's loader; of itself where that is gone or was never seen."""
        met = self._met.get(iterator)
        if met is None or met[0] is not loop:
            found = self._loaders.get(iterator)
            loader = found() if found is not None else None
            state = self._states.setdefault(iterator if loader is None else loader, LoaderState())
            met = self._met[iterator] = loop, state
            loop.draws_from(state, iterator)
        return met[1]
