"""The past as Prometheus has recorded it: incidents with their culprits, failures of runs, and events before them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tachograph.findings.kinds import KINDS
from tachograph.servers.prometheus_api import Prometheus, quoted

STEP = 60
"""Seconds between samples: an event is known to a minute at least."""
CHUNK = 3 * 86_400
"""Seconds that one query asks for: Prometheus answers with 11,000 samples of a series at most, and reads 50 million in
all, enough for 2,000 nodes."""
SAME_FAILURE = 900.0
"""Alerts of a run that follow each other within so many seconds are one failure."""
SAME_INCIDENT = 3600.0
"""An incident of a node is recorded for its first minutes, and the next one an hour after it at the earliest."""
LATELY = 300.0
"""An incident of a node is one of a run that was there within so many seconds before: a dead node shows no run."""
SAME_EVENT = 180.0
JUMP = 1.2
"""A learning rate that changes by this factor within a minute changes by more than a schedule does."""

BLAMED = "node:blamed_timestamp_seconds:min"
FAILURES = "|".join(kind.alert for kind in KINDS if kind.failure)
EVENTS = ("save", "evaluation", "learning rate", "batch", "restart", "hardware")

Samples = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class NodeIncident:
    """An incident that a node was blamed for: when it began, by which alert, and the GPU and rank that it named."""

    at: float
    alert: str
    node: str
    gpu: str
    uuid: str
    run: str
    rank: str


@dataclass(frozen=True)
class RunFailure:
    """When a run failed, and the alert that said so first."""

    at: float
    alert: str


@dataclass
class RunPast:
    """A run's minutes in which it could fail, its failures, when it began anew, and events by kind; all sorted."""

    minutes: list[float] = field(default_factory=list)
    failures: list[RunFailure] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    events: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """The past from `start` to `end`; `first` is when recording began, None if there is nothing at all."""

    start: float
    end: float
    first: float | None
    nodes: int
    incidents: Sequence[NodeIncident]
    runs: Mapping[str, RunPast]


def read(prometheus: Prometheus, start: float, end: float, run: str = "") -> Recorded:
    """Return what is recorded between two Unix times, of one run or of all; raise PrometheusError."""
    of_run = f"run={quoted(run)}" if run else 'run!=""'
    start = end - STEP * -(-(end - start) // STEP)
    runs = _runs(prometheus, start, end, of_run)
    return Recorded(
        start=start,
        end=end,
        first=_first(prometheus, start, end),
        nodes=len(prometheus.values("instance", "node:exporter_up:max", start, end)),
        incidents=list(_incidents(prometheus, start, end, of_run if run else "")),
        runs=runs,
    )


def _first(prometheus: Prometheus, start: float, end: float) -> float | None:
    """Return when recording began, to 15 s, or None if nothing is recorded."""
    expression = "count(node:exporter_up:max)"
    half_hours = [at for _, samples in _asked(prometheus, expression, start, end, 1800) for at, _ in samples]
    known = min(half_hours, default=end)
    close = _asked(prometheus, expression, max(start, known - 1800), known + 15, 15)  # it answers in milliseconds
    return min((at for _, samples in close for at, _ in samples), default=None)


def _incidents(prometheus: Prometheus, start: float, end: float, selector: str) -> Iterator[NodeIncident]:
    """Yield the incidents of nodes; of a run, those of its nodes while it was there, whichever run was named."""
    last: dict[str, float] = {}
    was_there = _nodes_of(prometheus, start, end, selector) if selector else None
    found = prometheus.samples(BLAMED, end - start, end)
    for at, began, labels in sorted(
        ((at, began, series.labels) for series in found for at, began in series.samples), key=lambda one: one[:2]
    ):
        alert, node, *others = (
            labels.get(name, "") for name in ("alertname", "instance", "gpu", "uuid", "run", "rank")
        )
        if at - last.get(node, float("-inf")) >= SAME_INCIDENT:
            last[node] = at
            if was_there is None or was_there(node, began):
                yield NodeIncident(began, alert, node, *others)


def _nodes_of(prometheus: Prometheus, start: float, end: float, selector: str) -> Callable[[str, float], bool]:
    """Return whether a run was on a node at a time, or up to five minutes before."""
    found = _asked(prometheus, f"group by (instance) (node:run:info{{{selector}}})", start, end)
    times = {labels.get("instance", ""): [at for at, _ in samples] for labels, samples in found}

    def was_there(node: str, at: float) -> bool:
        known = times.get(node, [])
        place = bisect_left(known, at - LATELY)
        return place < len(known) and known[place] <= at + STEP

    return was_there


def _runs(prometheus: Prometheus, start: float, end: float, of_run: str) -> dict[str, RunPast]:
    runs: dict[str, RunPast] = {}
    for name, samples in _of_runs(prometheus, f"run:alive_timestamp_seconds:max{{{of_run}}}", start, end):
        runs.setdefault(name, RunPast()).minutes += [at for at, alive in samples if at - alive <= STEP]
    failing: dict[str, list[tuple[float, float, str]]] = {}
    alerts = f'alertname=~"{FAILURES}",{of_run}'
    asked = (
        f"min by (run, alertname) (max_over_time(ALERTS_FOR_STATE{{{alerts}}}[1m])"
        f' and ignoring (alertstate) max_over_time(ALERTS{{alertstate="firing",{alerts}}}[1m]))'
    )
    for labels, samples in _asked(prometheus, asked, start, end):
        rows = [(at, began, labels.get("alertname", "")) for at, began in samples]
        failing.setdefault(labels.get("run", ""), []).extend(rows)
    for name, past in runs.items():
        past.failures = list(_failures(sorted(failing.get(name, []))))
        fired = {at for at, _, _ in failing.get(name, [])}
        past.starts = list(_edges(past.minutes))
        past.minutes = [at for at in past.minutes if at not in fired]
        past.events = {kind: [] for kind in EVENTS}
    for kind, expression, events_of in _sources(of_run):
        for name, samples in _of_runs(prometheus, expression, start, end):
            if name in runs:
                runs[name].events[kind] += events_of(samples)
    for past in runs.values():
        past.starts = merged([*past.starts, *past.events["restart"]])
        past.events = {kind: [at for at in merged(times) if _while(past, at)] for kind, times in past.events.items()}
    return runs


def _failures(rows: Iterable[tuple[float, float, str]]) -> Iterator[RunFailure]:
    """Yield the failures among alerts that fire: each with the time, the beginning and the alert."""
    last = float("-inf")
    for at, began, alert in rows:
        if at - last > SAME_FAILURE:
            yield RunFailure(min(began, at), alert)
        last = at


def _sources(of_run: str) -> Iterator[tuple[str, str, Callable[[Samples], Iterable[float]]]]:
    """Yield where events are seen: their kind, an expression by run, and what makes times of its samples."""
    saved, rate = f"run:checkpoint_timestamp_seconds:max{{{of_run}}}", f"run:learning_rate:max{{{of_run}}}"
    on_nodes = f"* on (instance) group_right () node:run:info{{{of_run}}}"
    yield "save", saved, _values
    yield "save", f'run:lost_seconds:rate2m{{cause="checkpoint",{of_run}}} > 0', _begins
    yield "evaluation", f'run:lost_seconds:rate2m{{cause="eval",{of_run}}} > 0', _begins
    yield "learning rate", rate, _jumps
    yield "batch", f"time() - min by (run) (tachograph_run_batch_changed_seconds{{{of_run}}})", _values
    yield "restart", f"run:restarts:max{{{of_run}}}", _rises
    yield "hardware", f"max by (run) (max by (instance) (tachograph_gpu_xid_timestamp_seconds) {on_nodes})", _values
    message = "max by (instance) (time() - tachograph_node_kernel_message_age_seconds)"
    yield "hardware", f"max by (run) ({message} {on_nodes})", _values
    yield "hardware", f"max by (run) (max by (instance) (time() - node:nic_down_seconds:max) {on_nodes})", _values


def _values(samples: Samples) -> Iterator[float]:
    """Yield times that are the values themselves, each when it is first seen."""
    before = None
    for _, value in samples:
        if before is None or abs(value - before) > STEP:
            yield value
        before = value


def _begins(samples: Samples) -> Iterator[float]:
    return _edges([at for at, _ in samples])


def _edges(times: Sequence[float]) -> Iterator[float]:
    """Yield when what has these samples began, a step before the first of each row: some time within that step."""
    for before, at in zip([float("-inf"), *times], times, strict=False):
        if at - before > 1.5 * STEP:
            yield at - STEP


def _rises(samples: Samples) -> Iterator[float]:
    for (_, before), (at, value) in pairwise(samples):
        if value > before:
            yield at - STEP


def _jumps(samples: Samples) -> Iterator[float]:
    for (began, before), (at, value) in pairwise(samples):
        if at - began <= SAME_EVENT and before > 0 and value > 0 and max(value / before, before / value) >= JUMP:
            yield at - STEP


def merged(times: Iterable[float], apart: float = SAME_EVENT) -> list[float]:
    """Return times in their order, without those that follow another within so many seconds."""
    found: list[float] = []
    last = float("-inf")
    for at in sorted(times):
        if at - last > apart:
            found.append(at)
        last = at
    return found


def _while(past: RunPast, at: float) -> bool:
    """Return whether the run ran at a time, or within two steps of it."""
    place = bisect_left(past.minutes, at - 2 * STEP)
    return place < len(past.minutes) and past.minutes[place] <= at + 2 * STEP


def _of_runs(prometheus: Prometheus, expression: str, start: float, end: float) -> Iterator[tuple[str, Samples]]:
    for labels, samples in _asked(prometheus, expression, start, end):
        yield labels.get("run", ""), samples


def _asked(
    prometheus: Prometheus, expression: str, start: float, end: float, step: float = STEP
) -> Iterator[tuple[Mapping[str, str], Samples]]:
    """Yield each series of an expression with all of its samples, asked for in pieces."""
    joined: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    begin = start
    while begin <= end:
        last = min(begin + CHUNK - step, end)
        for series in prometheus.range(expression, begin, last, step):
            joined.setdefault(frozenset(series.labels.items()), []).extend(series.samples)
        begin = last + step
    return ((dict(labels), samples) for labels, samples in joined.items())
