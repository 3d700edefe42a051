"""Gradient norm per layer: which layers stand out against their own past, and which are dead.

One pass over the gradients as the optimizer is about to step, clipped if they were clipped, unscaled if they are still
scaled. Of a sharded model it is this rank's shard. The CUDA way has not yet run on a GPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tachograph.client.torch.loaded_torch import loaded_torch
from tachograph.client.torch.model.device_readings import DeviceReadings
from tachograph.client.torch.model.layers import local, parameters_by_layer

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Module, Optimizer, Tensor

WINDOW = 64
"""Looks that make up a layer's usual norm."""

LEAST_LOOKS = 8
"""Before so many there is no usual norm, and layers are ranked by norm alone."""

RING_LIMIT = 64
MOST_SHOWN = 64


class LayerNorms:
    """The `top` layers by gradient norm over the median of their own recent ones."""

    def __init__(self, model: Module, top: int, readings: DeviceReadings) -> None:
        self._top = min(top, MOST_SHOWN)
        self._readings = readings
        self._parameters = parameters_by_layer(model)
        self._looks: deque[dict[str, float]] = deque(maxlen=RING_LIMIT)  # filled by training, emptied by the sender
        self._past: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name, _ in self._parameters}
        self._shown: list[tuple[str, float, float | None]] = []
        self._dead: int | None = None

    def arm(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def look(self, optimizer: Optimizer) -> None:
        """Start a pass over the gradients; to be called by the hook before the optimizer's step."""
        torch: Any = loaded_torch()
        groups: dict[object, tuple[list[str], list[Tensor]]] = {}
        for layer, parameter in self._parameters:
            if (one := parameter()) is None or one.grad is None or one.grad.is_sparse:
                continue
            gradient = local(one.grad)
            names, tensors = groups.setdefault((gradient.device, gradient.dtype), ([], []))
            names.append(layer)
            tensors.append(gradient)
        norms: list[Tensor] = []
        order: list[str] = []
        for names, tensors in groups.values():
            # In single precision: a norm of half-precision gradients may not fit into their own type.
            norms += torch._foreach_norm(tensors, 2, dtype=torch.float32)
            order += names
        if not norms:
            self._take([], [])
            return
        home = norms[0].device
        vector = torch.stack([norm.to(home, non_blocking=True) for norm in norms])
        if (scale := getattr(optimizer, "grad_scale", None)) is not None:  # a fused optimizer unscales by itself
            vector = vector / scale.to(home, non_blocking=True)
        self._readings.read(vector, lambda values: self._take(order, values))

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield norms and ratios of the layers that stand out, and how many are dead; by wire key."""
        while self._looks:
            self._judge(self._looks.popleft())
        if self._dead is not None:
            yield "dead_layers", self._dead
        if self._shown:
            yield "layer_grad_norm", {layer: norm for layer, norm, _ in self._shown}
        if ratios := {layer: ratio for layer, _, ratio in self._shown if ratio is not None}:
            yield "layer_grad_ratio", ratios

    def _take(self, order: list[str], values: list[float]) -> None:
        squares = dict.fromkeys(self._past, 0.0)  # a layer without any gradient is as dead as one whose are all zero
        for layer, norm in zip(order, values, strict=True):
            squares[layer] += norm * norm
        self._looks.append({layer: math.sqrt(square) for layer, square in squares.items()})

    def _judge(self, norms: dict[str, float]) -> None:
        """Rank one look against the looks before it; what is not finite comes first and enters no past.

        A norm is zero, too, where every gradient is below 1e-22 and its square no longer a number: that is dead enough.
        """
        self._dead = sum(norm == 0 for norm in norms.values())
        ranked: list[tuple[str, float, float | None]] = []
        for layer, norm in norms.items():
            past = self._past[layer]
            usual = sorted(past)[len(past) // 2] if len(past) >= LEAST_LOOKS else 0.0
            ranked.append((layer, norm, norm / usual if usual > 0 else None))
            if math.isfinite(norm):
                past.append(norm)
        ranked.sort(key=_prominence, reverse=True)
        self._shown = ranked[: self._top]


def _prominence(entry: tuple[str, float, float | None]) -> tuple[bool, float, float]:
    _, norm, ratio = entry
    return (True, 0.0, 0.0) if not math.isfinite(norm) else (False, ratio or 0.0, norm)
