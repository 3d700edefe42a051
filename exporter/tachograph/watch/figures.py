"""Figures of a run for the summary, from what an exporter answered, the first time to the last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tachograph.attach.summary import Figures
from tachograph.catalog import index as c
from tachograph.catalog.metric import Metric
from tachograph.top.exporter_page import ExporterPage
from tachograph.top.overview import RankRow

KEPT = (
    c.RANK_INFO, c.RANK_PEAK_FLOPS, c.TRAIN_STEPS, c.TRAIN_PHASE_SECONDS, c.TRAIN_TOKENS,
    c.TRAIN_SAMPLES, c.TRAIN_FLOPS, c.TRAIN_MEMORY_PEAK, c.TRAIN_HOST_MEMORY, c.TRAIN_PRODUCTIVE, c.TRAIN_LOST,
    c.TRAIN_ORDINARY_STEPS, c.TRAIN_ORDINARY_SECONDS, c.TRAIN_ORDINARY_WAIT, c.TRAIN_ORDINARY_PHASES,
)  # fmt: skip

Labels = Mapping[str, str]


class LastValues:
    """The last value of each series, since gauges of a rank leave the page as it ends, or while it is out of sight."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, frozenset[tuple[str, str]]], tuple[Labels, float]] = {}
        self._lags: dict[str, dict[int, float]] = defaultdict(dict)

    def add(self, page: ExporterPage, ranks: Iterable[RankRow]) -> None:
        """Take over a page, and what the exporter concluded about the ranks."""
        for metric in KEPT:
            for sample in page.of(metric):
                self._last[metric.name, frozenset(sample.labels.items())] = sample.labels, sample.value
        for rank in ranks:
            if rank.mean_lag_seconds is not None:
                self._lags[rank.run][rank.rank] = rank.mean_lag_seconds

    def figures(self) -> list[Figures]:
        """Return the figures of each run, by name."""
        return [self._run(run) for run in sorted({labels["run"] for labels, _ in self._of(c.RANK_INFO)})]

    def _of(self, metric: Metric) -> Iterator[tuple[Labels, float]]:
        return (found for (name, _), found in self._last.items() if name == metric.name)

    def _run(self, run: str) -> Figures:
        steps, peaks = self._by_rank(run, c.TRAIN_STEPS), self._by_rank(run, c.RANK_PEAK_FLOPS)
        phases: dict[str, float] = defaultdict(float)
        training: dict[int, float] = defaultdict(float)
        for labels, seconds in self._of(c.TRAIN_PHASE_SECONDS):
            if labels["run"] == run and labels["phase"] != "init":
                phases[labels["phase"]] += seconds
                training[int(labels["rank"])] += seconds
        ranks = len({labels["rank"] for labels, _ in self._of(c.RANK_INFO) if labels["run"] == run})
        spent = sum(training.values())
        flops = self._by_rank(run, c.TRAIN_FLOPS)
        attainable = sum(peak * training.get(rank, 0.0) for rank, peak in peaks.items())
        ordinary = sum(self._by_rank(run, c.TRAIN_ORDINARY_STEPS).values())
        own: dict[str, float] = defaultdict(float)
        for labels, seconds in self._of(c.TRAIN_ORDINARY_PHASES):
            if labels["run"] == run and ordinary:
                own[labels["phase"]] += seconds / ordinary
        waits = self._by_rank(run, c.TRAIN_ORDINARY_WAIT)
        whole = sum(self._by_rank(run, c.TRAIN_ORDINARY_SECONDS).values())
        lost = {labels["cause"]: value for labels, value in self._of(c.TRAIN_LOST) if labels["run"] == run and value}
        return Figures(
            run=run,
            ranks=ranks,
            steps=max(steps.values(), default=0.0),
            seconds=max(training.values(), default=0.0),
            phases={phase: seconds / spent for phase, seconds in phases.items() if seconds},
            step=whole / ordinary if ordinary else None,
            own={phase: seconds for phase, seconds in own.items() if seconds},
            wait=sum(waits.values()) / ordinary if waits and ordinary else None,
            tokens=sum(self._by_rank(run, c.TRAIN_TOKENS).values()),
            samples=sum(self._by_rank(run, c.TRAIN_SAMPLES).values()),
            flops=sum(flops.values()),
            mfu=sum(flops.values()) / attainable if flops and attainable else None,
            lags=self._lags[run],
            gpu_memory=self._by_rank(run, c.TRAIN_MEMORY_PEAK),
            host_memory=self._by_rank(run, c.TRAIN_HOST_MEMORY),
            productive=sum(value for labels, value in self._of(c.TRAIN_PRODUCTIVE) if labels["run"] == run),
            lost=lost,
        )

    def _by_rank(self, run: str, metric: Metric) -> dict[int, float]:
        """Return the values of a run's ranks, added up over other labels."""
        found: dict[int, float] = defaultdict(float)
        for labels, value in self._of(metric):
            if labels["run"] == run:
                found[int(labels["rank"])] += value
        return found
