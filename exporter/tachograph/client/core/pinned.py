"""Places in pinned host memory, used again and again and never given back.

After an error of a kernel, PyTorch throws from the destructor of a pinned tensor. That ends the process with SIGABRT,
and the program's own exception, with its traceback, is lost, as was seen on an H200 with PyTorch 2.11. Therefore a
place outlives even the interpreter's last collection.
"""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Tensor

PLACES_LIMIT = 4096
"""Of one process; a GPU that is further behind than this loses values, never memory."""


class PinnedPlace:
    """A pinned tensor of one shape and type, and the event that is recorded behind each copy to it."""

    __slots__ = ("_free", "_late", "event", "host")

    def __init__(self, host: Any, event: Any, free: list[PinnedPlace], late: deque[PinnedPlace]) -> None:  # noqa: ANN401 - torch's
        self.host, self.event = host, event
        self._free, self._late = free, late

    def leave(self, *, settled: bool) -> None:
        """Let it be used again: at once if its copy is known to be done. Any thread may call it; CUDA is not asked."""
        (self._free if settled else self._late).append(self)


def take_place(tensor: Tensor) -> PinnedPlace | None:
    """Return a place of the tensor's shape, type and device that no copy is under way to; None if there are too many.

    Called by the training thread, outside a capture; raises what PyTorch raises.
    """
    free, late = _places.setdefault((tensor.device, tensor.dtype, tensor.shape), ([], deque()))
    with suppress(IndexError):
        return free.pop()
    if late and late[0].event.query():
        return late.popleft()
    return _new_place(tensor, free, late)


def _new_place(tensor: Tensor, free: list[PinnedPlace], late: deque[PinnedPlace]) -> PinnedPlace | None:
    global _made
    if _made >= PLACES_LIMIT:
        return None
    from ctypes import py_object, pythonapi  # late: only a process with a GPU needs it

    torch = sys.modules["torch"]
    with torch.inference_mode(False):  # what is made in it cannot be written to outside of it
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    place = PinnedPlace(host, torch.cuda.Event(), free, late)
    pythonapi.Py_IncRef(py_object(place))
    _made += 1
    return place


_made = 0
_places: dict[tuple[Any, Any, Any], tuple[list[PinnedPlace], deque[PinnedPlace]]] = {}
