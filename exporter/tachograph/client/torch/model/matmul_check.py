"""A matrix product with a known result, computed repeatedly on the training device to detect wrong arithmetic.

Entries are -1, 0 and 1 and 256 of them meet, so that every sum on the way is an integer of at most 256: exact in
float32, TF32 and bfloat16, in whatever order a kernel adds. A device that computes correctly has error 0. The CUDA
way has not yet run on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.client.signals.invariants import Invariants
from tachograph.client.torch.loaded_torch import loaded_torch
from tachograph.client.torch.model.device_readings import DeviceReadings

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Optimizer, Tensor

NAME = "known_product"  # released: a name on the wire and a label value
INNER = 256
ANSWERS = {256: 13390, 2048: 369229}
"""Rows and columns of the product, and its checksum; the tests work them out in integers."""

CPU_SIDE, CUDA_SIDE = 256, 2048
"""On a GPU large enough for 256 tiles of 128 x 128, more than it has multiprocessors: 2.1 GFLOP, some 10 us, 20 MB."""


class MatmulCheck:
    """Makes the product after every Nth step; its error is the invariant."""

    def __init__(self, device: object, every: int, readings: DeviceReadings, invariants: Invariants) -> None:
        self._every = every
        self._readings = readings
        self._invariants = invariants
        torch: Any = loaded_torch()
        cuda = getattr(device, "type", "") == "cuda"
        self._side = CUDA_SIDE if cuda else CPU_SIDE
        dtype = torch.bfloat16 if cuda else torch.float32
        with torch.no_grad():
            self._left = _entries(torch, self._side, INNER, 7919, device).to(dtype)
            self._right = _entries(torch, INNER, self._side, 104729, device).to(dtype)
            self._weights = torch.arange(1, self._side + 1, device=device, dtype=torch.float64)

    def before(self, step: int, optimizer: Optimizer) -> None:
        """Do nothing before a step."""

    def after(self, step: int, optimizer: Optimizer) -> None:
        """Start the product, if the step just made is one to check."""
        if step % self._every == 0:
            torch: Any = loaded_torch()
            with torch.no_grad(), torch.autocast(self._left.device.type, enabled=False):
                product = torch.mm(self._left, self._right)
                rows, columns = (product.sum(side, dtype=torch.float64) for side in (1, 0))
                checksum = torch.dot(rows, self._weights) + 3 * torch.dot(columns, self._weights)
            self._readings.read(checksum.reshape(1), lambda values: self._set_invariant(values, step))

    def _set_invariant(self, values: list[float], step: int) -> None:
        error = values[0] - ANSWERS[self._side]
        # NaN is wrong as well, and cannot be an invariant.
        self._invariants.set(NAME, int(error) if abs(error) < 2**53 else 2**52, step)


def _entries(torch: Any, rows: int, columns: int, factor: int, device: object) -> Tensor:  # noqa: ANN401
    """Return a matrix of -1, 0 and 1 without pattern, made on the device by exact integer arithmetic."""
    position = torch.arange(rows * columns, device=device, dtype=torch.int64)
    matrix: Tensor = ((position * factor % 65521 >> 3) % 3 - 1).reshape(rows, columns)
    return matrix
