"""A data loader whose waits are timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from tachograph.client.phases import Phase
from tachograph.client.tally import Tally

T_co = TypeVar("T_co", covariant=True)


class Batches(Generic[T_co]):
    """The loader it was given, with the wait for each batch booked as phase `data`; everything else is the loader's."""

    __slots__ = ("_loader", "_phase", "_tally")

    def __init__(self, loader: Iterable[T_co], phase: Phase, tally: Tally) -> None:
        self._loader = loader
        self._phase = phase
        self._tally = tally

    def __iter__(self) -> Iterator[T_co]:
        phase, tally = self._phase, self._tally
        with phase:  # starting the workers is waiting for data, too
            batches = iter(self._loader)
        while True:
            with phase:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            tally.count += 1
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the loader holds
        if name.startswith("__") or name in Batches.__slots__:  # half-made by copy or pickle
            raise AttributeError(name)
        return getattr(self._loader, name)
