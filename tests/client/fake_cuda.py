"""The border to a GPU that the machine does not have: scalars, and copies of them that take time."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any


class Cuda:
    """A `torch.cuda` whose copies end when the test says so: by number, or `all_done`."""

    def __init__(self) -> None:
        self.done: set[int] = set()
        self.all_done = False
        self.events = 0
        self.capturing = False
        self.broken = False
        self.hosts: list[weakref.ref[Pinned]] = []

    def empty(self, shape: tuple[int, ...], *, dtype: object, device: str, pin_memory: bool) -> Pinned:
        """Take pinned memory, as `torch.empty` does."""
        assert (device, pin_memory) == ("cpu", True)
        host = Pinned()
        self.hosts.append(weakref.ref(host))
        return host

    def Event(self) -> Any:  # noqa: N802 - PyTorch's name
        """Make an event that is over once the number of its last record is in `done`."""
        mine = 0

        def record(stream: object) -> None:
            nonlocal mine
            self.events += 1
            mine = self.events

        def query() -> bool:
            if self.broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return self.all_done or mine in self.done

        return SimpleNamespace(record=record, query=query)

    def current_stream(self, device: object) -> object:
        """Return any stream."""
        return object()

    def is_current_stream_capturing(self) -> bool:
        """Tell whether a graph is being captured."""
        return self.capturing


class Tensor:
    """A CUDA scalar, or a row of numbers: reading it directly is the fault that the client must never commit."""

    __module__ = "torch"
    is_cpu, is_cuda, device, dtype = False, True, "cuda:0", "float32"

    def __init__(self, value: Any, shape: tuple[int, ...] = ()) -> None:
        self.value, self.shape = value, shape

    def numel(self) -> int:
        """Count the elements."""
        return 1

    def item(self) -> float:
        """Synchronise: forbidden."""
        raise AssertionError("the training thread waited for the GPU")

    def detach(self) -> Tensor:
        """Leave the graph."""
        return self


class Pinned:
    """A tensor in pinned host memory: freed after an error of a kernel, it would end the process."""

    def __init__(self) -> None:
        self._value: Any = None

    def copy_(self, tensor: Tensor, *, non_blocking: bool) -> None:
        """Copy asynchronously, or fail the test."""
        assert non_blocking
        self._value = tensor.value

    def item(self) -> Any:
        """Read what was copied."""
        return self._value

    tolist = item
