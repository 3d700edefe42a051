"""The relative size of an optimizer step: norm of the update over norm of the parameters, of a sample.

Near 1e-3 is usual; far below, nothing is learned, far above, the step is too large. A step that mixed precision skips
on the device reads as 0. The CUDA way has not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tachograph.client.torch.loaded_torch import loaded_torch
from tachograph.client.torch.model.device_readings import DeviceReadings
from tachograph.client.torch.model.layers import local

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Optimizer, Tensor

TENSORS = 8
"""Sampled, evenly over the optimizer's parameters; matrices where there are any."""

ELEMENTS = 1 << 17
"""The first ones of each: together at most 4 MiB are cloned."""


class UpdateRatio:
    """Compares a sample of an optimizer's parameters before and after every Nth step."""

    def __init__(self, every: int, readings: DeviceReadings) -> None:
        self._every = every
        self._readings = readings
        self._sample: list[tuple[Tensor, Tensor]] = []
        self._ratio: float | None = None

    def before(self, step: int, optimizer: Optimizer) -> None:
        """Clone the sample, if the step about to be made is one to look at."""
        self._sample = []
        if (step + 1) % self._every == 0:
            torch: Any = loaded_torch()
            for parameter in _choose(optimizer):
                now = local(parameter).reshape(-1)[:ELEMENTS]
                self._sample.append((now, now.to(dtype=torch.float32, copy=True)))

    def after(self, step: int, optimizer: Optimizer) -> None:
        """Compare with the clones."""
        sample, self._sample = self._sample, []
        if not sample:
            return
        torch: Any = loaded_torch()
        before = [old for _, old in sample]
        change = torch._foreach_sub([now.to(dtype=torch.float32) for now, _ in sample], before)
        norm = torch.linalg.vector_norm
        sums = [norm(torch.stack(torch._foreach_norm(tensors, 2))) for tensors in (change, before)]
        self._readings.read(torch.stack(sums), self._take)

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield `update_ratio` once it is known; absent where all sampled parameters are zero."""
        if self._ratio is not None:
            yield "update_ratio", self._ratio

    def _take(self, values: list[float]) -> None:
        change, size = values
        self._ratio = None if size == 0 else change / size


def _choose(optimizer: Optimizer) -> list[Tensor]:
    """Return up to `TENSORS` parameters that have a gradient, all on the device of the first.

    Contiguous ones: of others, `reshape` would give a copy, in which no step could be seen.
    """
    usable: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            inside = local(parameter)
            if parameter.grad is not None and inside.numel() and inside.is_floating_point() and inside.is_contiguous():
                usable.append(parameter)
    usable = [one for one in usable if one.ndim > 1] or usable
    usable = [one for one in usable if one.device == usable[0].device]
    if len(usable) <= TENSORS:
        return usable
    return [usable[position * len(usable) // TENSORS] for position in range(TENSORS)]
