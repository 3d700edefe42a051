"""The GPU this rank computes on: its identity and PyTorch's own memory figures.

Nothing here synchronises: memory figures are the allocator's own statistics, kept on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from tachograph.client.torch.loaded_torch import in_use

MEMORY_SECONDS = 5.0
"""The allocator's statistics are read at most this often: it holds its lock, and Python's, for tens of
microseconds. A scrape asks no more often."""

PEAK = "memory_peak_bytes"
_BYTES = (
    ("memory_allocated_bytes", "allocated_bytes", "current"),
    ("memory_reserved_bytes", "reserved_bytes", "current"),
    (PEAK, "allocated_bytes", "peak"),
    ("memory_inactive_bytes", "inactive_split_bytes", "current"),
)
"""Wire key, and where `torch.cuda.memory_stats_as_nested_dict` has it, for small and large pools together."""

_COUNTS = (("memory_retries_total", "num_alloc_retries"), ("memory_ooms_total", "num_ooms"))
"""Wire key and field; reported once they are above 0."""


class Accelerator:
    """A rank's CUDA device, once it is known; until then every answer is None or empty."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._index: int | None = None
        self.uuid: str | None = None
        self._due = 0.0
        self._peak = 0
        self._memory: dict[str, int] = {}

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
        """Return the memory figures by wire key, at most 5 s old; empty without a located device."""
        cuda = in_use("cuda")
        if cuda is None or self._index is None:
            return {}
        now = self._clock()
        if now >= self._due:
            self._due = now + MEMORY_SECONDS
            try:
                # Not memory_stats(): it flattens and sorts 122 figures on top, which takes 50 µs.
                self._memory = self._figures(cuda.memory_stats_as_nested_dict(self._index))
            except Exception:  # noqa: BLE001 - another allocator may not keep these statistics
                self._memory = {}
        return self._memory

    def _figures(self, stats: dict[str, Any]) -> dict[str, int]:
        found = {key: int(stats[field]["all"][which]) for key, field, which in _BYTES if field in stats}
        if PEAK in found:  # training code may reset PyTorch's peak; ours is of the whole process
            self._peak = found[PEAK] = max(self._peak, found[PEAK])
        return found | {key: count for key, field in _COUNTS if (count := int(stats.get(field, 0))) > 0}
