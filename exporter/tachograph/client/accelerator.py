"""The GPU this rank computes on: its identity and PyTorch's own memory figures.

Nothing here synchronises: memory figures are the allocator's books, kept on the host. Not yet run on a GPU.
"""

from __future__ import annotations

from tachograph.client.loaded_torch import in_use

_MEMORY = (
    ("memory_allocated_bytes", "memory_allocated"),
    ("memory_reserved_bytes", "memory_reserved"),
    ("memory_peak_bytes", "max_memory_allocated"),
)
"""Wire key, and the function of `torch.cuda` that gives it."""


class Accelerator:
    """A rank's CUDA device, once it is known; until then every answer is None or empty."""

    def __init__(self) -> None:
        self._index: int | None = None
        self.uuid: str | None = None

    def locate(self) -> None:
        """Learn the device, once CUDA is in use; to be called by the training thread, whose current device counts."""
        if self._index is not None or (cuda := in_use("cuda")) is None:
            return
        try:
            index = int(cuda.current_device())
            uuid = getattr(cuda.get_device_properties(index), "uuid", None)
        except Exception:  # noqa: BLE001 - a broken driver is the training code's to meet
            return
        self._index = index
        if uuid is not None:
            self.uuid = f"GPU-{uuid}"

    def memory(self) -> dict[str, int]:
        """Return the memory gauges by wire key; empty without a located device."""
        cuda = in_use("cuda")
        if cuda is None or self._index is None:
            return {}
        try:
            return {key: int(getattr(cuda, function)(self._index)) for key, function in _MEMORY}
        except Exception:  # noqa: BLE001 - another allocator may not keep these books
            return {}
