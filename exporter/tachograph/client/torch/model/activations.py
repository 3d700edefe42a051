"""The output of each layer on a sampled step: its root mean square, and the share that is exactly zero.

Hooks hang on the layers for that step's forward passes alone, and only in training mode. The last forward pass counts:
under activation checkpointing it is the repeated one. The CUDA way has not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tachograph.client.torch.loaded_torch import loaded_torch
from tachograph.client.torch.model.device_readings import DeviceReadings
from tachograph.client.torch.model.layers import ModelHook, local, modules_by_layer

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Module, Optimizer, Removable, Tensor

LAYER_LIMIT = 128
"""Of more layers an even selection is shown: 128 take a fifth of a frame."""


class Activations:
    """Activation statistics of one model's layers."""

    def __init__(self, model: Module, readings: DeviceReadings) -> None:
        self._readings = readings
        self._modules = modules_by_layer(model, LAYER_LIMIT)
        self._hooks: list[Removable] = []
        self._seen: dict[str, tuple[Tensor, int]] = {}
        self._latest: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self.seconds = 0.0  # spent in hooks: it belongs to the look

    def arm(self) -> None:
        """Register the hooks, for the next step; to be called by the hook after the optimizer's step."""
        self.seconds = 0.0
        for layer, module in self._modules.items():
            if (one := module()) is not None:
                self._hooks.append(one.register_forward_hook(ModelHook(partial(self._observe, layer))))

    def look(self, optimizer: Optimizer) -> None:
        """Take the hooks off and send what they saw on its way."""
        while self._hooks:
            self._hooks.pop().remove()
        seen, self._seen = self._seen, {}
        if not seen:
            return
        torch: Any = loaded_torch()
        home = next(iter(seen.values()))[0].device
        layers = [(layer, count) for layer, (_, count) in seen.items()]
        vector = torch.stack([numbers.to(home, non_blocking=True) for numbers, _ in seen.values()]).reshape(-1)
        self._readings.read(vector, lambda values: self._take(layers, values))

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield both families by wire key; nothing before the first look."""
        for key, values in zip(("layer_activation_rms", "layer_activation_zero_ratio"), self._latest, strict=True):
            if values:
                yield key, values

    def _observe(self, layer: str, module: Module, arguments: object, output: object) -> None:
        began = perf_counter()
        try:
            tensor = first_tensor(output)
            if module.training and tensor is not None:
                torch: Any = loaded_torch()
                norm = torch.linalg.vector_norm
                # The norm of order 0 counts what is not zero. Neither makes a copy of the activation.
                numbers = torch.stack([norm(tensor, order, dtype=torch.float32) for order in (2, 0)])
                self._seen[layer] = (numbers, tensor.numel())
        except Exception:  # noqa: BLE001 - a layer's odd output costs its statistics, never the forward pass
            self._seen.pop(layer, None)
        self.seconds += perf_counter() - began

    def _take(self, layers: list[tuple[str, int]], values: list[float]) -> None:
        pairs = zip(layers, values[::2], values[1::2], strict=True)
        rms, zeros = {}, {}
        for (layer, count), norm, nonzero in pairs:
            rms[layer] = float(f"{norm / count**0.5:.5g}")
            zeros[layer] = min(max(round(1 - nonzero / count, 6), 0.0), 1.0)
        self._latest = (rms, zeros)


def first_tensor(output: object) -> Tensor | None:
    """Return the first floating-point tensor of a layer's output: itself, or in a tuple, list or mapping."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((found for one in output if (found := first_tensor(one)) is not None), None)
    if not hasattr(output, "is_floating_point") or not hasattr(output, "numel"):
        return None
    tensor = local(output)
    return tensor if tensor.is_floating_point() and tensor.numel() else None
