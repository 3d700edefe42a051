"""The ranks of a node and their runs, from its exporter's page."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tachograph.catalog import index as c
from tachograph.top.facts import LATE_RATIO, LATE_SECONDS, Rank, Run, condition, in_order
from tachograph.top.pace import Key, Past, RankCounters, RankPace
from tachograph.top.page import Page

UNMOVED_SECONDS = 60.0
"""After so long without a step, and three steps, the pace of the last steps says nothing about now."""

Place = tuple[str, int]
"""Run and rank."""

Infos = Mapping[Place, Mapping[str, str]]
"""The labels of rank_info by place."""


def infos(page: Page) -> Infos:
    """Return who sits on the node."""
    return {_place(sample.labels): sample.labels for sample in page.of(c.RANK_INFO)}


def counters(page: Page, seats: Infos) -> Mapping[Key, RankCounters]:
    """Return the counters of every rank that has completed a step."""
    steps, progress, tokens, flops = (
        _values(page, each) for each in (c.TRAIN_STEPS, c.RANK_PROGRESS, c.TRAIN_TOKENS, c.TRAIN_FLOPS)
    )
    waits: dict[Place, float] = defaultdict(float)
    for sample in page.of(c.TRAIN_COLLECTIVE_WAIT):
        waits[_place(sample.labels)] += sample.value
    entered: dict[Place, dict[str, float]] = defaultdict(dict)
    for sample in page.of(c.TRAIN_COLLECTIVE_ENQUEUED):
        entered[_place(sample.labels)][sample.labels["group"]] = sample.value
    return {
        _key(place, labels): RankCounters(
            steps[place], progress[place], tokens.get(place), flops.get(place), waits.get(place), entered.get(place, {})
        )
        for place, labels in seats.items()
        if place in steps and place in progress
    }


def ranks(page: Page, seats: Infos, past: Past, now: float) -> list[Rank]:
    """Return every rank; lag and wait are taken among the ranks of this node."""
    states = {_place(s.labels): s.labels["state"] for s in page.of(c.RANK_STATE) if s.value == 1}
    phases = {_place(s.labels): (s.labels["phase"], s.value) for s in page.of(c.RANK_PHASE)}
    steps, losses, progress = (_values(page, each) for each in (c.TRAIN_STEP, c.TRAIN_LOSS, c.RANK_PROGRESS))
    paces = _paces(seats, past)
    waits = {key: pace.wait_seconds for key, pace in paces.items()}
    names = {run for run, _ in seats}
    usual = {run: _median([wait for key, wait in waits.items() if key[0] == run and wait is not None]) for run in names}
    behind = {key: gap for run in names for key, gap in past.behind(run).items()}
    found = []
    for place, labels in seats.items():
        key, state, loss = _key(place, labels), states.get(place, ""), losses.get(place)
        gap = behind.get(key, 0.0) if state == "running" else 0.0
        wait, median = waits.get(key), usual[place[0]]
        lag = None if wait is None or median is None else median - wait
        ratio = None if lag is None else lag / paces[key].step_seconds
        phase, seconds = phases.get(place, ("", None))
        marks = {
            "NaN loss": loss is not None and not math.isfinite(loss),
            "behind": gap > 0,
            "late": lag is not None and lag > LATE_SECONDS and ratio is not None and ratio > LATE_RATIO,
        }
        found.append(
            Rank(
                run=place[0],
                rank=place[1],
                gpu=labels["gpu"],
                uuid=labels["uuid"],
                state=state,
                phase=phase,
                phase_seconds=seconds,
                step=steps.get(place),
                lag_seconds=lag,
                lag_ratio=ratio,
                wait_seconds=wait,
                progress_seconds=max(0.0, now - progress[place]) if place in progress else None,
                loss=loss,
                marks=in_order([mark for mark, holds in marks.items() if holds]),
                cause=f"{gap:.0f} collective{'s' * (gap != 1)} behind" if gap else "",
            )
        )
    return found


def runs(page: Page, seats: Infos, past: Past, all_ranks: Iterable[Rank], now: float) -> list[Run]:
    """Return what the node sees of each run: the figures are those of its own ranks."""
    own: dict[str, list[Rank]] = defaultdict(list)
    for rank in all_ranks:
        own[rank.run].append(rank)
    paces, peaks = _paces(seats, past), _values(page, c.RANK_PEAK_FLOPS)
    saved, restarts = (_highest(page, each) for each in (c.TRAIN_CHECKPOINT_TIMESTAMP, c.TRAIN_RESTARTS))
    found = []
    for name, members in sorted(own.items()):
        mine = {key: pace for key, pace in paces.items() if key[0] == name}
        progress = min((rank.progress_seconds for rank in members if rank.progress_seconds is not None), default=None)
        step_seconds = statistics.fmean(pace.step_seconds for pace in mine.values()) if mine else None
        moves = progress is not None and progress < max(UNMOVED_SECONDS, 3 * (step_seconds or 0.0))
        tokens = [pace.tokens / pace.seconds for pace in mine.values() if pace.tokens is not None]
        finite = [rank.loss for rank in members if rank.loss is not None and math.isfinite(rank.loss)]
        states = Counter(rank.state for rank in members if rank.state)
        sizes = [int(labels["world_size"]) for (run, _), labels in seats.items() if run == name]
        found.append(
            Run(
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


def _mfu(paces: Mapping[Key, RankPace], peaks: Mapping[Place, float]) -> float | None:
    """Return model FLOP/s over peak FLOP/s, of the steps completed, by the ranks of which both are known."""
    known = [(pace, peaks.get(key[:2], 0.0)) for key, pace in paces.items()]
    rates = [(pace.flops / pace.seconds, peak) for pace, peak in known if pace.flops is not None and peak > 0]
    return sum(rate for rate, _ in rates) / sum(peak for _, peak in rates) if rates else None


def _paces(seats: Infos, past: Past) -> dict[Key, RankPace]:
    paces = {key: past.rank(key) for key in (_key(place, labels) for place, labels in seats.items())}
    return {key: pace for key, pace in paces.items() if pace is not None}


def _median(waits: list[float]) -> float | None:
    """Return what ranks usually wait: of two the longer wait, as in the recorded lag; of one nothing."""
    return None if len(waits) < 2 else max(waits) if len(waits) == 2 else statistics.median(waits)


def _key(place: Place, labels: Mapping[str, str]) -> Key:
    return (*place, labels["attempt"])


def _place(labels: Mapping[str, str]) -> Place:
    return labels["run"], int(labels["rank"])


def _values(page: Page, metric: c.Metric) -> dict[Place, float]:
    return {_place(sample.labels): sample.value for sample in page.of(metric)}


def _highest(page: Page, metric: c.Metric) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in page.of(metric):
        found[sample.labels["run"]] = max(sample.value, found.get(sample.labels["run"], sample.value))
    return found
