"""Mixed precision's loss scale and the steps it skipped, without asking the GPU.

`GradScaler.get_scale()` waits for the GPU. But each `update()` changes the scale tensor in place, once a step, and
PyTorch counts such changes on the host (`Tensor._version`): updates less optimizer steps are the steps skipped, exact
at any moment, also while every step is skipped and no hook is called. A fused optimizer is called for skipped steps,
too, and skips on the device: there its `found_inf` is added up on the device. The scale is copied asynchronously about
once a second; skips counted since then have backed it off by a known factor. The CUDA way has not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import ref

from tachograph.client.torch.loaded_torch import loaded_torch
from tachograph.client.torch.model.device_readings import DeviceReadings

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Optimizer, Tensor

COPY_SECONDS = 1.0


class ScalerWatch:
    """Watches one `torch.amp.GradScaler` over the steps of one optimizer."""

    def __init__(self, scaler: object, readings: DeviceReadings, clock: Callable[[], float] = monotonic) -> None:
        self._scaler = ref(scaler)
        self._readings = readings
        self._clock = clock
        self._due = 0.0
        self._found: Tensor | None = None
        self._fused_skips = 0
        self._copied: tuple[float, int] | None = None  # the scale, and the skips counted when it was copied
        self._reported = 0
        scale = self._scale()
        # Skips up to the last step, and the version of the scale then: one object, for the sender thread.
        self._counted = (0, (0 if scale is None else scale._version) - 1)

    def before(self, step: int, optimizer: Optimizer) -> None:
        """Look at the scaler as the optimizer is about to step; to be called by its hook."""
        scale = self._scale()
        if scale is None:
            return
        skipped, version = self._skips(scale), scale._version
        self._counted = (skipped, version)
        if (found := getattr(optimizer, "found_inf", None)) is not None:
            found = found.detach()
            if self._found is None:
                self._found = found.clone()
            else:
                self._found += found
        now = self._clock()
        if now >= self._due:
            self._due = now + COPY_SECONDS
            torch: Any = loaded_torch()
            numbers = [scale] if self._found is None else [scale, self._found]
            together = torch.cat([number.detach().reshape(1) for number in numbers])
            self._readings.read(together, lambda values: self._take(values, skipped))

    def after(self, step: int, optimizer: Optimizer) -> None:
        """Do nothing after a step."""

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield scale and skipped steps by wire key; nothing for a scaler that is off, or gone."""
        scale = self._scale()
        if scale is None:
            return
        skips = self._skips(scale)
        self._reported = max(self._reported, skips + self._fused_skips)
        yield "amp_skipped_steps_total", self._reported
        if self._copied is not None:
            copied, then = self._copied
            backoff = getattr(self._scaler(), "_backoff_factor", 0.5)
            yield "amp_loss_scale", copied * backoff ** max(skips - then, 0)

    def _skips(self, scale: Tensor) -> int:
        """Return skips known on the host: since its last step, each update of the scale but one is a skipped step."""
        skipped, version = self._counted
        return skipped + max(0, scale._version - version - 1)

    def _take(self, values: list[float], skipped: int) -> None:
        self._copied = (values[0], skipped)
        if len(values) > 1:
            self._fused_skips = int(values[1])

    def _scale(self) -> Tensor | None:
        """Return the scale tensor, or None: made at the first `scale()`, and never by a scaler that is off."""
        scaler = self._scaler()
        scale: Tensor | None = getattr(scaler, "_scale", None) if getattr(scaler, "_enabled", False) else None
        return scale
