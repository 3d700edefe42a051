"""At which clocks the GPUs here work for each run, for rules that compare nodes: the usual one, and who is slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from tachograph.catalog import index as catalog
from tachograph.diagnosis import BUSY_GPU_RATIO, SLOW_CLOCK_RATIO
from tachograph.node.gpu.conclusions.readings import Readings
from tachograph.node.samples import Sample
from tachograph.node.windows import Mean

WINDOW_SECONDS = 30.0
NOISE_RATIO = 0.02
"""Of clocks that differ by less, the same GPU is named each time: each name is a series of its own."""


class SmClock:
    """Remembers the SM clock of one GPU, and whether it worked: an idle one clocks down. Waiting for others is work."""

    def __init__(self) -> None:
        self._hertz, self._utilization = Mean(WINDOW_SECONDS), Mean(WINDOW_SECONDS)

    def look(self, gpu: Readings) -> None:
        """Note both."""
        for (domain,), hertz in gpu.each(catalog.GPU_CLOCK):
            if domain == "sm":
                self._hertz.note(gpu.now, hertz)
        if (utilization := gpu.value(catalog.GPU_UTILIZATION)) is not None:
            self._utilization.note(gpu.now, utilization)

    def working(self, now: float) -> float | None:
        """Return its mean clock; None if it does not work."""
        return self._hertz.value(now) if (self._utilization.value(now) or 0.0) > BUSY_GPU_RATIO else None


def clocks_of_runs(clocks: Mapping[str, float], on_gpus: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the median clock of each run and model and, each with its rank, the slowest and those far below the median.

    `clocks` are those of working GPUs by UUID, `on_gpus` the samples of the ranks on GPUs. One on a GPU that is shared,
    or that has ended, does not count.
    """
    ranks = [sample for sample in on_gpus if sample.metric is catalog.RANK_ON_GPU and sample.value]
    claims = [sample.labels[3] for sample in ranks]
    parts: dict[tuple[str, str], dict[tuple[str, ...], float]] = {}
    for run, rank, gpu, uuid, name in (sample.labels for sample in ranks):
        if uuid in clocks and claims.count(uuid) == 1:
            parts.setdefault((run, name), {})[run, rank, gpu, uuid, name] = clocks[uuid]
    for (run, name), hertz in parts.items():
        usual = median(hertz.values())
        slowest = min(hertz, key=lambda labels: (round(hertz[labels] / usual / NOISE_RATIO) if usual else 0, labels))
        yield Sample(catalog.RUN_GPU_CLOCK, (run, name), usual)
        yield Sample(catalog.RUN_WORKING_GPUS, (run, name), len(hertz))
        for labels, value in hertz.items():
            if labels == slowest or value < SLOW_CLOCK_RATIO * usual:
                yield Sample(catalog.RUN_SLOW_GPU_CLOCK, labels, value)
