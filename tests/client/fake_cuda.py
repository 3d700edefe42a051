"""The border to a GPU that the machine does not have: copies that take time, and scalars that are copied."""

from __future__ import annotations

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

    def Event(self) -> Any:  # noqa: N802 - PyTorch's name
        """Make an event that is over once its number is in `done`."""
        self.events += 1
        mine = self.events

        def query() -> bool:
            if self.broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return self.all_done or mine in self.done

        return SimpleNamespace(record=lambda stream: None, query=query)

    def current_stream(self, device: object) -> object:
        """Return any stream."""
        return object()

    def is_current_stream_capturing(self) -> bool:
        """Tell whether a graph is being captured."""
        return self.capturing


class Tensor:
    """A CUDA scalar: reading it directly is the fault that the client must never commit."""

    __module__ = "torch"
    is_cpu, is_cuda, device = False, True, "cuda:0"

    def __init__(self, value: float) -> None:
        self._value = value

    def numel(self) -> int:
        """Count the elements."""
        return 1

    def item(self) -> float:
        """Synchronise: forbidden."""
        raise AssertionError("the training thread waited for the GPU")

    def detach(self) -> Tensor:
        """Leave the graph."""
        return self

    def to(self, device: str, *, non_blocking: bool) -> Any:
        """Copy asynchronously, or fail the test."""
        assert (device, non_blocking) == ("cpu", True)
        return SimpleNamespace(item=lambda: self._value)
