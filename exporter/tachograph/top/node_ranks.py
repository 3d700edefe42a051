"""The ranks of a node and their runs, read from its exporter's page."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tachograph import diagnosis
from tachograph.catalog import index as c
from tachograph.humanize import plural
from tachograph.top.exporter_page import ExporterPage
from tachograph.top.overview import RankRow, RunSummary, condition, coordinates, in_order
from tachograph.top.rates import AttemptKey, CounterHistory, RankCounters, RankRates

STALE_SECONDS = 60.0
"""After so long without a step, and three steps, the rates of the last steps say nothing about now."""

RankKey = tuple[str, int]
"""Run and rank."""

RankInfos = Mapping[RankKey, Mapping[str, str]]
"""The labels of rank_info by rank."""


def infos(page: ExporterPage) -> RankInfos:
    """Return the ranks of the node."""
    return {_rank_key(sample.labels): sample.labels for sample in page.of(c.RANK_INFO)}


def counters(page: ExporterPage, known: RankInfos) -> Mapping[AttemptKey, RankCounters]:
    """Return the counters of every rank that has completed a step."""
    steps, progress, tokens, flops = (
        _values(page, each) for each in (c.TRAIN_STEPS, c.RANK_PROGRESS, c.TRAIN_TOKENS, c.TRAIN_FLOPS)
    )
    phases = {_rank_key(sample.labels): sample.labels["phase"] for sample in page.of(c.RANK_PHASE)}
    entered: dict[RankKey, dict[str, float]] = defaultdict(dict)
    for sample in page.of(c.TRAIN_COLLECTIVE_ENQUEUED):
        entered[_rank_key(sample.labels)][sample.labels["group"]] = sample.value
    return {
        _attempt_key(rank_key, labels): RankCounters(
            steps[rank_key],
            progress[rank_key],
            tokens.get(rank_key),
            flops.get(rank_key),
            entered.get(rank_key, {}),
            phases.get(rank_key, ""),
        )
        for rank_key, labels in known.items()
        if rank_key in steps and rank_key in progress
    }


def ranks(page: ExporterPage, known: RankInfos, history: CounterHistory, now: float) -> list[RankRow]:
    """Return every rank; lag and wait are taken among the ranks of this node."""
    states = {_rank_key(s.labels): s.labels["state"] for s in page.of(c.RANK_STATE) if s.value == 1}
    phases = {_rank_key(s.labels): (s.labels["phase"], s.value) for s in page.of(c.RANK_PHASE)}
    steps, losses, progress = (_values(page, each) for each in (c.TRAIN_STEP, c.TRAIN_LOSS, c.RANK_PROGRESS))
    waits, usual_steps = (_values(page, each) for each in (c.TRAIN_RECENT_WAIT, c.TRAIN_RECENT_STEP))
    placed = {_rank_key(s.labels): coordinates(s.labels) for s in page.of(c.RANK_COORDINATES)}
    names = {run for run, _ in known}
    usual = {run: diagnosis.usual_wait([wait for key, wait in waits.items() if key[0] == run]) for run in names}
    behind = {key: gap for run in names for key, gap in history.behind(run).items()}
    found = []
    for rank_key, labels in known.items():
        key, state, loss = _attempt_key(rank_key, labels), states.get(rank_key, ""), losses.get(rank_key)
        gap = behind.get(key, 0.0) if state == "running" else 0.0
        wait, median, step_seconds = waits.get(rank_key), usual[rank_key[0]], usual_steps.get(rank_key)
        lag = None if wait is None or median is None else median - wait
        ratio = lag / step_seconds if lag is not None and step_seconds else None
        phase, seconds = phases.get(rank_key, ("", None))
        marks = {
            "NaN loss": loss is not None and not math.isfinite(loss),
            "behind": gap > 0,
            "late": lag is not None
            and lag > diagnosis.LAG_SECONDS
            and ratio is not None
            and ratio > diagnosis.LAG_RATIO,
        }
        found.append(
            RankRow(
                run=rank_key[0],
                rank=rank_key[1],
                gpu=labels["gpu"],
                uuid=labels["uuid"],
                coordinates=placed.get(rank_key, {}),
                state=state,
                phase=phase,
                phase_seconds=seconds,
                step=steps.get(rank_key),
                lag_seconds=lag,
                lag_ratio=ratio,
                wait_seconds=wait,
                progress_seconds=max(0.0, now - progress[rank_key]) if rank_key in progress else None,
                loss=loss,
                marks=in_order([mark for mark, holds in marks.items() if holds]),
                cause=f"{plural(gap, 'collective')} behind" if gap else "",
            )
        )
    return found


def runs(
    page: ExporterPage, known: RankInfos, history: CounterHistory, all_ranks: Iterable[RankRow], now: float
) -> list[RunSummary]:
    """Return the part of each run that the node sees: the figures are those of its own ranks."""
    own: dict[str, list[RankRow]] = defaultdict(list)
    for rank in all_ranks:
        own[rank.run].append(rank)
    rates, peaks = _rates(known, history), _values(page, c.RANK_PEAK_FLOPS)
    saved, restarts = (_highest(page, each) for each in (c.TRAIN_CHECKPOINT_TIMESTAMP, c.TRAIN_RESTARTS))
    found = []
    for name, members in sorted(own.items()):
        mine = {key: rate for key, rate in rates.items() if key[0] == name}
        progress = min((rank.progress_seconds for rank in members if rank.progress_seconds is not None), default=None)
        step_seconds = statistics.fmean(rate.step_seconds for rate in mine.values()) if mine else None
        moves = progress is not None and progress < max(STALE_SECONDS, 3 * (step_seconds or 0.0))
        tokens = [rate.tokens / rate.seconds for rate in mine.values() if rate.tokens is not None]
        finite = [rank.loss for rank in members if rank.loss is not None and math.isfinite(rank.loss)]
        states = Counter(rank.state for rank in members if rank.state)
        sizes = [int(labels["world_size"]) for (run, _), labels in known.items() if run == name]
        found.append(
            RunSummary(
                name=name,
                state=condition(states),
                ranks=dict(states),
                world_size=max(sizes, default=None),
                restarts=restarts.get(name),
                step=max((rank.step for rank in members if rank.step is not None), default=None),
                step_seconds=step_seconds if moves else None,
                tokens_per_second=(sum(tokens) if moves else 0.0) if tokens else None,
                mfu=_mfu(mine, peaks) if moves else None,
                loss=statistics.median(finite) if finite else None,
                nonfinite_ranks=sum("NaN loss" in rank.marks for rank in members),
                progress_seconds=progress,
                checkpoint_seconds=max(0.0, now - saved[name]) if name in saved else None,
            )
        )
    return found


def _mfu(rates: Mapping[AttemptKey, RankRates], peaks: Mapping[RankKey, float]) -> float | None:
    """Return model FLOP/s over peak FLOP/s, of the steps completed, by the ranks of which both are known."""
    known = [(rate, peaks.get(key[:2], 0.0)) for key, rate in rates.items()]
    ratios = [(rate.flops / rate.seconds, peak) for rate, peak in known if rate.flops is not None and peak > 0]
    return sum(flops for flops, _ in ratios) / sum(peak for _, peak in ratios) if ratios else None


def _rates(known: RankInfos, history: CounterHistory) -> dict[AttemptKey, RankRates]:
    rates = {key: history.rank(key) for key in (_attempt_key(rank_key, labels) for rank_key, labels in known.items())}
    return {key: rate for key, rate in rates.items() if rate is not None}


def _attempt_key(rank_key: RankKey, labels: Mapping[str, str]) -> AttemptKey:
    return (*rank_key, labels["attempt"])


def _rank_key(labels: Mapping[str, str]) -> RankKey:
    return labels["run"], int(labels["rank"])


def _values(page: ExporterPage, metric: c.Metric) -> dict[RankKey, float]:
    return {_rank_key(sample.labels): sample.value for sample in page.of(metric)}


def _highest(page: ExporterPage, metric: c.Metric) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in page.of(metric):
        found[sample.labels["run"]] = max(sample.value, found.get(sample.labels["run"], sample.value))
    return found
