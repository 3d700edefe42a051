"""Numbers out of whatever a training loop logs, without ever waiting for a GPU.

Tensors are known by their type's name, so torch is never imported. Only plain tensors are read, and the plain one
inside a `DTensor` that is the same on all ranks: another `DTensor` would start a collective in `.item()`, and an
`AsyncCollectiveTensor` would wait for one.

The CUDA way is tested against stand-ins, and by `make test-gpu`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from tachograph.client.core.arguments import of_numpy
from tachograph.client.core.notice import raised_by_signal
from tachograph.client.core.pinned import take_place

if TYPE_CHECKING:
    from typing import SupportsFloat

    from tachograph.client.core.torch_types import Tensor

_PLAIN_TENSORS = frozenset({
    ("torch", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch.nn.parameter", "Buffer"),
})  # fmt: skip

_DISTRIBUTED_TENSOR = "DTensor", "torch.distributed"


class Copy:
    """A CUDA scalar on its way to pinned host memory; `ready()` asks without waiting."""

    __slots__ = ("_place", "_settled")

    def __init__(self, tensor: Tensor) -> None:
        self._settled, self._place = False, None
        self._place = take_place(tensor)
        if self._place is not None:
            self._place.host.copy_(tensor.detach(), non_blocking=True)
            self._place.event.record(sys.modules["torch"].cuda.current_stream(tensor.device))

    def ready(self) -> bool:
        """Return whether the copy is done; True also for one that failed, whose value then reads as None."""
        if self._place is None:
            return True
        try:
            self._settled = bool(self._place.event.query())
        except Exception:  # noqa: BLE001 - a CUDA error is the training code's to meet, not ours to raise
            self._place = None
            return True
        return self._settled

    def value(self) -> float | None:
        """Return the number, once `ready()`."""
        return None if self._place is None else self._place.host.item()

    def __del__(self) -> None:
        if self._place is not None:
            self._place.leave(settled=self._settled)


class Spread(Enum):
    """A DTensor of which each rank has a part."""

    SPREAD = "spread"


SPREAD = Spread.SPREAD
Reading = float | Copy | Spread | None
"""A number, one that is still being copied from the device, or None for a value that is not a number."""


def read(value: object) -> Reading:
    """Return what `value` says as a number; never raises, never waits for a device."""
    try:
        return (_readers.get(value.__class__) or _reader(value.__class__))(value)
    except Exception as error:
        if raised_by_signal(error):
            raise
        return None


def number(reading: object) -> float | None:
    """Return a reading as the float to send, or None if there is none."""
    try:
        if isinstance(reading, Copy):
            reading = reading.value()
        if isinstance(reading, (int, float)) and not isinstance(reading, bool):
            return float(reading)
        if of_numpy(type(reading), "int", "uint", "float"):
            return float(reading)  # type: ignore[arg-type]
    except Exception as error:
        if raised_by_signal(error):
            raise
    return None


def _as_is(value: float) -> Reading:
    return value


def _convert(value: SupportsFloat) -> Reading:
    return float(value)


def _refuse(value: object) -> Reading:
    return None


def _tensor(tensor: Tensor) -> Reading:
    if tensor.numel() != 1:
        return None
    if tensor.is_cpu:
        return tensor.item()
    if tensor.is_cuda and not sys.modules["torch"].cuda.is_current_stream_capturing():
        return Copy(tensor)
    return None


def _distributed_tensor(tensor: Any) -> Reading:  # noqa: ANN401 - a DTensor
    """Read this rank's part where it is the whole: as in the norm that FSDP2's gradients were clipped by."""
    if all(placement.is_replicate() for placement in tensor.placements):
        part = tensor._local_tensor
        return _tensor(part) if _is_plain(part.__class__) else None
    return SPREAD


def _is_plain(kind: type) -> bool:
    return (kind.__module__, kind.__name__) in _PLAIN_TENSORS


def _reader(kind: type) -> Callable[[Any], Reading]:
    """Choose the reader for a type seen for the first time, and keep it."""
    reader: Callable[[Any], Reading] = _refuse
    name, package = _DISTRIBUTED_TENSOR
    if _is_plain(kind):
        reader = _tensor
    elif kind.__name__ == name and kind.__module__.startswith(package):
        reader = _distributed_tensor
    elif hasattr(kind, "__float__") and not hasattr(kind, "__torch_function__"):
        reader = _convert  # numpy scalars, Decimal, Fraction
    if len(_readers) < _READERS_LIMIT:  # a program that makes types without end costs speed, not memory
        _readers[kind] = reader
    return reader


_READERS_LIMIT = 64
_readers: dict[type, Callable[[Any], Reading]] = {float: _as_is, int: _as_is, bool: _refuse}
