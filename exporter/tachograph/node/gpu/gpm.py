"""GPM, by which GPUs from Hopper on measure how busy their parts are.

tachograph_gpu_sm_active_cycles_total{gpu="0",uuid="GPU-…"} 8.1e+15
tachograph_gpu_dram_active_ratio{gpu="0",uuid="GPU-…"} 0.53

A GPM metric lies between two samples: the ratios cover the time between the last two collections, whatever it was, and
the cycle counters run since the reboot. DCGM reads the same. GPM takes no lock from profilers, needs no root, and
leaves out GPUs before Hopper and, but for its instances, a GPU under MIG.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tachograph.node.driver.nvml import (
    WHOLE,
    InvalidArgument,
    NoPermission,
    NotFound,
    NotSupported,
    Nvml,
    NvmlFailure,
    NvmlGpu,
    Untyped,
)
from tachograph.node.gpu.reading_table import RETRY_SECONDS, Activity, Value


class GpmWindow:
    """The activity of a GPU, or of one GPU instance, since it was last read."""

    def __init__(
        self, nvml: Nvml, gpu: NvmlGpu, activities: Sequence[Activity], gpu_instance: int | None = None
    ) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._all = self._asked = activities
        self._query: Untyped = None  # for what is asked
        self._gpu_instance = gpu_instance
        self._before: Untyped = None
        self._spare: Untyped = None
        self._counted_at = 0.0

    def read(self, now: float, failures: dict[str, str]) -> list[tuple[Value, float]]:
        """Return the numbers since the last call, none on the first; raise NvmlFailure if there can be none.

        Metrics that the part lacks are left out; those that fail go to `failures`.
        """
        after = self._sample()
        before, self._before = self._before, after
        if before is None:
            return []
        self._spare = before
        return self._judge(self._values(before, after, now), failures)

    def close(self) -> None:
        """Free the memory of the samples."""
        for sample in (self._before, self._spare):
            if sample is not None:
                self._nvml.free_gpm_sample(sample)
        self._before = self._spare = None

    def _sample(self) -> Untyped:
        sample, self._spare = self._spare, None
        if sample is None:
            sample = self._nvml.gpm_sample()
        try:
            self._gpu.sample_gpm(sample, self._gpu_instance)
        except NvmlFailure:
            self._spare = sample
            raise
        return sample

    def _values(self, before: Untyped, after: Untyped, now: float) -> list[float | NvmlFailure]:
        """Ask for everything at once; a driver that refuses the list because of the counters is asked without them."""
        if now >= self._counted_at and self._asked is not self._all:
            self._asked, self._query = self._all, None
        try:
            return self._ask(before, after)
        except (NotSupported, InvalidArgument):  # the counters came with driver 595; 580 calls them an invalid argument
            sampled = [activity for activity in self._asked if not activity.counted]
            if len(sampled) == len(self._asked):
                raise
            self._asked, self._query = sampled, None
            numbers = self._ask(before, after)
            self._counted_at = now + RETRY_SECONDS
            return numbers

    def _ask(self, before: Untyped, after: Untyped) -> list[float | NvmlFailure]:
        if self._query is None:
            self._query = self._nvml.gpm_query([activity.id for activity in self._asked])
        return self._nvml.gpm_values(self._query, before, after)

    def _judge(self, numbers: Sequence[float | NvmlFailure], failures: dict[str, str]) -> list[tuple[Value, float]]:
        given = []
        for activity, number in zip(self._asked, numbers, strict=True):
            if not isinstance(number, NvmlFailure):
                if not math.isnan(number):  # NaN is GPM's word for "nothing was measured"
                    given.append((activity.value, number))
            elif not isinstance(number, (NotSupported, NoPermission)):
                failures[activity.value.metric.name] = str(number)
        return given


class Gpm:
    """Whether a GPU has GPM: if not, `word` is one of COLLECTOR_REASONS and `reason` a sentence, else both are ""."""

    def __init__(self, gpu: NvmlGpu) -> None:
        self.word = self.reason = ""
        self._gpu = gpu
        self._known = False
        self._ask_at = 0.0

    def read(self, window: GpmWindow, now: float, failures: dict[str, str]) -> list[tuple[Value, float]]:
        """Return the numbers of a window, none where there is no GPM.

        Raise what fails the GPU as a whole, and NotFound for an instance that is no longer there.
        """
        if now < self._ask_at:
            return []
        try:
            if not self._known and not self._gpu.has_gpm():
                raise NotSupported("it needs a GPU of the Hopper generation or newer")
            self._known = True
            numbers = window.read(now, failures)
        except (*WHOLE, NotFound):
            raise
        except NvmlFailure as failure:
            self._refused(failure, now)
            return []
        self.word = self.reason = ""
        return numbers

    def _refused(self, failure: NvmlFailure, now: float) -> None:
        self.word = next((word for kind, word in _LASTING if isinstance(failure, kind)), "error")
        self.reason = f"no GPM: {failure}"
        self._known = False
        if self.word != "error":
            self._ask_at = now + RETRY_SECONDS


_LASTING = ((NotSupported, "not_supported"), (NoPermission, "no_permission"))
