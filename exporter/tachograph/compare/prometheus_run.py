"""A recording of a run between two times, as Prometheus has it.

Step times are exact means over a few scrapes, of all ranks; the other series are what the rules record, over the minute
or two that each says.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tachograph.compare.measures import HOST, MFU, PEAK, PHASE, RESERVED, SAMPLES, STEP, TOKENS, WAIT
from tachograph.compare.recording import RecordedRun, RecordingError, Sample
from tachograph.servers.prometheus_api import Prometheus, PrometheusError, TimeSeries, quoted
from tachograph.text.humanize import span, utc

POINTS = 720
"""Samples of a series at most: two hours at 10 s."""

SCRAPES = 3
"""Scrapes that one sample of the step time rests on."""

SHORTEST = 60.0
LOOK_BACK, LOOK_STEP = 15 * 86400.0, 600.0
"""How long ago a run may have been to be found without --since, and how exactly that is looked for."""

GAP = 1800.0
"""A run that was not seen for so long has begun anew."""

RATE = "sum(rate(tachograph_train_step_seconds_{}{{$run}}[$w]))"
RANKS = "max(run:ranks:count{$run})"

SERIES: Mapping[str, str] = {
    STEP: f"{RATE.format('sum')} / ({RATE.format('count')} > 0)",
    WAIT: "max(run:collective_wait_per_step_seconds:median{$run})",
    TOKENS: f"(max(run:tokens:rate1m{{$run}}) > 0) / {RANKS}",
    SAMPLES: f'(sum(max by (instance) (tachograph_run_work_per_second{{$run,unit="samples"}})) > 0) / {RANKS}',
    MFU: "max(run:step_mfu:ratio{$run})",
    "loss": "max(run:loss:median{$run})",
    "step": "max(run:train_step:max{$run})",
}
LEVELS: Mapping[str, str] = {
    name: f"max(tachograph_train_{name}{{$run}})" for name in (PEAK, RESERVED, HOST)
}  # fmt: skip
"""Read at a tenth of the points: each is a series of every rank."""

PHASES = 'max by (phase) (run:phase_seconds:median{$run,phase!="collective"})'
ALONE = "avg by (phase) (tachograph_train_recent_phase_seconds{$run})"
"""Where ranks have nobody to wait for, and nodes conclude nothing of phases: one rank, as a rule."""

PER_STEP: Mapping[str, str] = {
    f"{unit}_per_step": f"{RANKS} * {SERIES[series]} / (max(rate(tachograph_run_steps_total{{$run}}[$rated])) > 0)"
    for unit, series in (("tokens", TOKENS), ("samples", SAMPLES))
}
WORDS: Mapping[str, tuple[str, str]] = {
    "precision": ("precision", "tachograph_train_config_info"),
    "flops_convention": ("flops_convention", "tachograph_train_config_info"),
    "device": ("name", "tachograph_rank_on_gpu"),
}
"""Facts in words: the label and the family that has it."""


@dataclass
class _Queries:
    """The queries on one run; one that Prometheus refuses costs its own measure."""

    prometheus: Prometheus
    run: str
    start: float
    end: float
    scrape: float
    refused: list[PrometheusError] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Return the seconds between samples."""
        return math.ceil(max(SCRAPES * self.scrape, (self.end - self.start) / POINTS))

    def range(self, template: str, times: int = 1) -> list[TimeSeries]:
        """Return the series of an expression, a sample every `times` steps, the first about what is in the window."""
        try:
            return self.prometheus.range(self._filled(template), self.start + self.step, self.end, self.step * times)
        except PrometheusError as error:
            self.refused.append(error)
            return []

    def line(self, template: str, times: int = 1) -> tuple[Sample, ...]:
        """Return the finite samples of an expression with one series."""
        return tuple(sample for one in self.range(template, times)[:1] for sample in one.samples if _is_number(sample))

    def at_end(self, template: str) -> list[TimeSeries]:
        """Return the vector of an expression at the end."""
        try:
            return self.prometheus.instant(self._filled(template), self.end)
        except PrometheusError as error:
            self.refused.append(error)
            return []

    def _filled(self, template: str) -> str:
        window = f"{self.step}s"
        rated = f"{max(self.step, 60)}s"
        whole = f"{math.ceil(self.end - self.start)}s"
        filled = template.replace("$w", window).replace("$rated", rated).replace("$all", whole)
        return filled.replace("$run", f"run={quoted(self.run)}")


def window(prometheus: Prometheus, run: str, now: float) -> tuple[float, float]:
    """Return when a run was there last: the time since its last gap of half an hour. Raise PrometheusError."""
    ranks = f"run:ranks:count{{run={quoted(run)}}}"
    expression = f"count(last_over_time({ranks}[{LOOK_STEP:.0f}s]))"
    found = prometheus.range(expression, now - LOOK_BACK, now, LOOK_STEP)
    times = [at for one in found for at, _ in one.samples]
    if not times:
        prometheus.known(run)
        raise PrometheusError(f"run {run!r} was not seen in {span(LOOK_BACK)}: give --since and --until")
    begin = times[0]
    for earlier, later in pairwise(times):
        if later - earlier > GAP:
            begin = later
    end = min(times[-1] + LOOK_STEP, now)
    last = prometheus.instant(f"max(max_over_time(timestamp({ranks})[{2 * LOOK_STEP:.0f}s:15s]))", end)
    return begin - LOOK_STEP, last[0].value if last else end


def recording(prometheus: Prometheus, run: str, start: float, end: float) -> RecordedRun:
    """Return what Prometheus knows of a run between two Unix times; raise PrometheusError or RecordingError."""
    if end - start < SHORTEST:
        raise RecordingError(f"{span(max(0.0, end - start))} of {run} are too short to compare: a minute at least")
    queries = _Queries(prometheus, run, start, end, _scrape_interval(prometheus, run, end))
    lines = {name: queries.line(template) for name, template in SERIES.items()}
    if not lines[STEP] and not any(lines.values()):
        if queries.refused:
            raise queries.refused[0]
        prometheus.known(run)
        form = "%Y-%m-%dT%H:%M:%SZ"
        raise RecordingError(f"run {run!r} has no data from {utc(start, form)} to {utc(end, form)}")
    losses, steps = dict(lines.pop("loss")), dict(lines.pop("step"))
    for one in queries.range(PHASES) or queries.range(ALONE):
        lines[PHASE + one.labels["phase"]] = tuple(filter(_is_number, one.samples))
    lines |= {name: queries.line(template, 10) for name, template in LEVELS.items()}
    loss = tuple((steps[at], value) for at, value in losses.items() if at in steps)
    measures = {name: samples for name, samples in lines.items() if samples}
    times = [at for at, _ in measures.get(STEP, ())] or [start, end]
    seen = max(start, min(times) - queries.step), min(end, max(times) + queries.step)
    return RecordedRun(run, "Prometheus", *seen, dict(_facts(queries)), measures, loss)


def _facts(queries: _Queries) -> Iterator[tuple[str, float | str]]:
    for name, template in {"ranks": RANKS, **PER_STEP}.items():
        if samples := queries.line(template):
            yield name, statistics.median(value for _, value in samples)
    for name, (label, family) in WORDS.items():
        found = queries.at_end(f"group by ({label}) (last_over_time({family}{{$run}}[$all]))")
        if words := sorted({one.labels[label] for one in found if one.labels.get(label)}):
            yield name, ", ".join(words)


def _scrape_interval(prometheus: Prometheus, run: str, end: float) -> float:
    """Return the seconds between scrapes of the run's nodes; 15 where no rule has recorded them."""
    found = prometheus.instant(f"max(last_over_time(run:scrape_interval_seconds:max{{run={quoted(run)}}}[1h]))", end)
    return next((one.value for one in found if 0 < one.value <= 600), 15.0)


def _is_number(sample: Sample) -> bool:
    return math.isfinite(sample[1])
