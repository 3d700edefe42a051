"""Small tensors on their way to the host, handed on once they are there. The CUDA way has not yet run on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tachograph.client.core.counters import Counter
from tachograph.client.core.scalars import Copy

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Tensor

PENDING_LIMIT = 64
"""Copies that may be under way; a GPU further behind than this loses readings, never memory."""

Taker = Callable[[list[float]], None]


class _Copies(Copy):
    """Several numbers on their way, as `Copy` is one."""

    __slots__ = ()

    def values(self) -> list[float] | None:
        """Return the numbers, once `ready()`; None if the copy failed."""
        return None if self._place is None else self._place.host.tolist()


class DeviceReadings:
    """Belongs to the training thread: a CUDA call from another one would break a graph capture."""

    def __init__(self, dropped: Counter) -> None:
        self._dropped = dropped
        self._pending: deque[tuple[_Copies, Taker]] = deque()

    def read(self, tensor: Tensor, take: Taker) -> None:
        """Call `take` with the numbers of a one-dimensional tensor: at once on CPU, from a later `poll` on CUDA."""
        if tensor.is_cpu:
            take(tensor.detach().tolist())
        elif len(self._pending) < PENDING_LIMIT:
            self._pending.append((_Copies(tensor), take))
        else:
            self._dropped.count += 1

    def poll(self) -> None:
        """Hand on what has arrived, in order; never waits."""
        pending = self._pending
        while pending and pending[0][0].ready():
            copies, take = pending.popleft()
            values = copies.values()
            if values is not None:
                take(values)
            else:
                self._dropped.count += 1
