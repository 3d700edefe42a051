"""Peak GPU memory while each layer runs forward, on sampled steps.

PyTorch keeps one peak. To see a layer's, the peak is set back as the layer begins: training code that reports
`max_memory_allocated()` itself sees, on these steps, the peak since then. Therefore only where asked for.
CUDA only; not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tachograph.client.torch.loaded_torch import in_use
from tachograph.client.torch.model.layers import ModelHook, modules_by_layer

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Module, Optimizer, Removable

LAYER_LIMIT = 128


class LayerMemory:
    """Peak memory of one model's layers: figures of the allocator's books, kept on the host."""

    def __init__(self, model: Module) -> None:
        self._modules = modules_by_layer(model, LAYER_LIMIT)
        self._hooks: list[Removable] = []
        self._seen: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self.seconds = 0.0

    def arm(self) -> None:
        """Register the hooks, for the next step."""
        self.seconds = 0.0
        for layer, module in self._modules.items():
            if in_use("cuda") is not None and (one := module()) is not None:
                self._hooks.append(one.register_forward_pre_hook(ModelHook(self._begin)))
                self._hooks.append(one.register_forward_hook(ModelHook(partial(self._end, layer))))

    def look(self, optimizer: Optimizer) -> None:
        """Take the hooks off."""
        while self._hooks:
            self._hooks.pop().remove()
        if self._seen:
            self._latest, self._seen = self._seen, {}

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield the peaks by wire key."""
        if self._latest:
            yield "layer_memory_peak_bytes", self._latest

    def _begin(self, module: Module, arguments: object) -> None:
        began = perf_counter()
        try:
            cuda: Any = in_use("cuda")
            cuda.reset_peak_memory_stats()
        except Exception:  # noqa: BLE001 - another allocator may not keep these books
            self._modules = {}
        self.seconds += perf_counter() - began

    def _end(self, layer: str, module: Module, arguments: object, output: object) -> None:
        began = perf_counter()
        try:
            cuda: Any = in_use("cuda")
            peak = int(cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"])
            self._seen[layer] = max(self._seen.get(layer, 0), peak)
        except Exception:  # noqa: BLE001 - as above
            self._modules = {}
        self.seconds += perf_counter() - began
