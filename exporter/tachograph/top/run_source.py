"""A run, read from Prometheus: its recorded figures, and its worst ranks and GPUs in full."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tachograph.catalog import index as c
from tachograph.catalog.rank import PAUSES
from tachograph.diagnosis import step_parts
from tachograph.files.unreadable import UNREADABLE, wrong_form
from tachograph.servers.prometheus_api import Prometheus, PrometheusError, TimeSeries
from tachograph.text.humanize import plural
from tachograph.top import queries
from tachograph.top.overview import (
    ALERT_WEIGHT,
    DATA_LIMIT,
    WEIGHTS,
    FiringAlert,
    Overview,
    RankRow,
    RunSummary,
    SourceError,
    condition,
    coordinates,
    in_order,
    misuse_note,
)
from tachograph.top.run_gpus import run_gpus
from tachograph.top.run_problems import run_problems

STANDING = frozenset({"hung", "overdue"})
"""The states of a run that makes no step."""
HISTORY_SECONDS = 1800.0
HISTORY_POINTS = 120

RankPlace = tuple[int, str]
"""Rank and node."""


@dataclass
class _RankChoice:
    """Why a rank was chosen: reasons, each with its number."""

    marks: dict[str, float]

    @property
    def weight(self) -> tuple[float, float]:
        weights = {**WEIGHTS, "wanted": 10, "ended": WEIGHTS["dead"], "alert": ALERT_WEIGHT}
        return max(weights.get(mark, 0) for mark in self.marks), self.marks.get("lag", 0.0)


class RunSource:
    """A run in the Prometheus at a URL; `fetch` raises SourceError, for an unknown run only the first time."""

    view = "run"
    fetches_needed = 1

    def __init__(self, run: str, prometheus: Prometheus, most: int) -> None:
        self._run_name = run
        self.url = prometheus.url
        self._prometheus = prometheus
        self._most = most
        self._known = False

    def fetch(self, wanted: str = "") -> Overview:
        """Return the run as it is now; ranks and nodes that are `wanted` are among those shown."""
        try:
            if not self._known:
                self._prometheus.check()
                self._prometheus.known(self._run_name)
                self._known = True
            return self._overview(wanted)
        except PrometheusError as error:
            raise SourceError(str(error)) from error
        except UNREADABLE as error:
            raise SourceError(
                f"what Prometheus at {self.url} has of the run cannot be read: {wrong_form(error)}"
            ) from error

    def _overview(self, wanted: str) -> Overview:
        ask, run = self._prometheus.instant, self._run_name
        states_found = ask(queries.states(run))
        states = {one.labels["state"]: int(one.value) for one in states_found}
        figures = {one.labels["__name__"]: one for one in ask(queries.figures(run))}
        now = next((one.samples[-1][0] for one in (*states_found, *figures.values())), time.time())
        alerts = sorted((_alert(one) for one in ask(queries.alerts(run))), key=_severity)
        usual = figures.get(queries.USUAL_WAIT)
        ranks = self._ranks(wanted, alerts, now, None if usual is None else usual.value)
        summary = self._run(figures, states, now, is_pausing=any(rank.phase in PAUSES for rank in ranks))
        if summary.state in STANDING:
            ranks = [rank.standing() for rank in ranks]
        worst = tuple(sorted(ranks, key=lambda rank: rank.badness, reverse=True))
        misused = misuse_note(run, {one.labels.get("kind", ""): one.value for one in ask(queries.misuses(run))})
        return Overview(
            view=self.view,
            source=self.url,
            at=now,
            runs=(summary,),
            ranks=worst,
            gpus=run_gpus(self._prometheus, run, self._most, ranks, alerts),
            alerts=tuple(alerts),
            ranks_in_all=sum(states.values()),
            notes=(misused,) if misused else (),
            problems=tuple(run_problems(summary, worst, alerts)),
        )

    def _ranks(self, wanted: str, alerts: Iterable[FiringAlert], now: float, usual_wait: float | None) -> list[RankRow]:
        chosen: dict[RankPlace, _RankChoice] = defaultdict(lambda: _RankChoice({}))
        for one in self._prometheus.instant(queries.worst_ranks(self._run_name, self._most, wanted)):
            chosen[_place(one.labels)].marks[one.labels["mark"]] = one.value
        for alert in alerts:
            if alert.rank.isdigit() and alert.node:
                chosen[int(alert.rank), alert.node].marks["straggler" if "Straggler" in alert.name else "alert"] = 0
        if len(chosen) < self._most:
            for one in self._prometheus.instant(queries.any_ranks(self._run_name, self._most)):
                chosen[_place(one.labels)].marks["long"] = one.value
        places = sorted(chosen, key=lambda place: (chosen[place].weight, -place[0]), reverse=True)[: self._most]
        if not places:
            return []
        details: dict[RankPlace, list[TimeSeries]] = defaultdict(list)
        for one in self._prometheus.instant(queries.of_ranks(self._run_name, sorted({rank for rank, _ in places}))):
            details[_place(one.labels)].append(one)
        alive = {rank for (rank, _), found in details.items() if _label(found, c.RANK_STATE.name, "state") in c.ALIVE}
        ranks = [
            self._rank(place, details[place], chosen[place], alerts, now, usual_wait)
            for place in places
            if place in details
        ]
        return [rank for rank in ranks if rank.state in c.ALIVE or rank.rank not in alive]  # it moved to another node

    def _rank(  # noqa: PLR0917 - each is asked for by another query
        self,
        place: RankPlace,
        found: list[TimeSeries],
        why: _RankChoice,
        alerts: Iterable[FiringAlert],
        now: float,
        usual_wait: float | None,
    ) -> RankRow:
        values = {one.labels["__name__"]: one.value for one in found}
        labels = {one.labels["__name__"]: one.labels for one in found}
        progress, wait = values.get(c.RANK_PROGRESS.name), values.get(c.TRAIN_RECENT_WAIT.name)
        number, node = place
        return RankRow(
            run=self._run_name,
            rank=number,
            node=node,
            gpu=_label(found, c.RANK_INFO.name, "gpu"),
            uuid=_label(found, c.RANK_INFO.name, "uuid"),
            coordinates=coordinates(labels.get(c.RANK_COORDINATES.name, {})),
            state=_label(found, c.RANK_STATE.name, "state"),
            phase=_label(found, c.RANK_PHASE.name, "phase"),
            phase_seconds=values.get(c.RANK_PHASE.name),
            pid=_stalled(found, "pid"),
            where=_stalled(found, "where"),
            step=values.get(c.TRAIN_STEP.name),
            lag_seconds=None if usual_wait is None or wait is None else usual_wait - wait,
            lag_ratio=values.get("rank:late_ratio:mean"),
            wait_seconds=wait,
            progress_seconds=None if progress is None else max(0.0, now - progress),
            loss=values.get(c.TRAIN_LOSS.name),
            marks=in_order({*why.marks, *(["late"] if "rank:late_ratio:mean" in values else [])}),
            cause=_cause(found, why.marks),
            alerts=tuple(alert.name for alert in alerts if alert.rank == str(number) and alert.node in {"", node}),
        )

    def _run(
        self, figures: Mapping[str, TimeSeries], states: Mapping[str, int], now: float, *, is_pausing: bool
    ) -> RunSummary:
        values = {name: one.value for name, one in figures.items()}
        hung, overdue, saved, progress = (
            values.get(name)
            for name in (
                "run:hung_seconds:min",
                "run:overdue_seconds:min",
                "run:checkpoint_timestamp_seconds:max",
                "run:progress_timestamp_seconds:max",
            )
        )
        size = f"{values.get('run:ranks:count') or 0:.0f}"
        step = HISTORY_SECONDS / HISTORY_POINTS
        pasts = self._prometheus.range(queries.histories(self._run_name), now - HISTORY_SECONDS, now, step)
        history = {one.labels["__name__"]: _even(one, now, step) for one in pasts}
        whole, share = values.get("run:step_interval_seconds:mean2m"), values.get("run:data_wait:median")
        found = {"hung": hung is not None, "overdue": overdue is not None and not is_pausing}
        state = condition({**states, **{each: int(holds) for each, holds in found.items()}})
        return RunSummary(
            name=self._run_name,
            state=state,
            state_seconds={"hung": hung, "overdue": overdue}.get(state),
            ranks=states,
            world_size=int(size) if size.isdigit() else None,
            restarts=values.get("run:restarts:max"),
            step=values.get("run:train_step:max"),
            step_seconds=whole,
            wait_seconds=None if state in STANDING else values.get("run:collective_wait_per_step_seconds:median"),
            data_seconds=None if share is None or whole is None or state in STANDING else share * whole,
            data_limit=values.get(queries.LIMIT, DATA_LIMIT),
            parts_seconds={} if state in STANDING else step_parts(self._phases()),
            tokens_per_second=values.get("run:tokens:rate1m"),
            mfu=values.get("run:step_mfu:ratio"),
            mfu_baseline=values.get("run:step_mfu:baseline"),
            loss=values.get("run:loss:median"),
            nonfinite_ranks=int(values.get("run:loss_nonfinite_ranks:count", 0)),
            progress_seconds=None if progress is None else max(0.0, now - progress),
            checkpoint_seconds=None if saved is None else max(0.0, now - saved),
            checkpoint_step=values.get("run:checkpoint_step:max"),
            goodput=values.get("run:goodput:ratio1h"),
            loss_history=history.get("run:loss:median", ()),
            mfu_history=history.get("run:step_mfu:ratio", ()),
        )

    def _phases(self) -> dict[str, float]:
        found = self._prometheus.instant(queries.parts(self._run_name))
        return {one.labels["phase"]: one.value for one in found}


def _place(labels: Mapping[str, str]) -> RankPlace:
    return int(labels["rank"]), labels.get("instance", "")


def _label(found: Iterable[TimeSeries], name: str, label: str) -> str:
    """Return the label of a family's sample; of a state, the one that is 1."""
    own = (one for one in found if one.labels["__name__"] == name)
    return next((one.labels.get(label, "") for one in own if one.value or name != c.RANK_STATE.name), "")


def _stalled(found: Iterable[TimeSeries], label: str) -> str:
    return next(filter(None, (_label(found, name, label) for name in queries.STALLED)), "")


def _alert(one: TimeSeries) -> FiringAlert:
    labels = one.labels
    return FiringAlert(
        name=labels["alertname"],
        severity=labels.get("severity", ""),
        seconds=one.value,
        rank=labels.get("rank", ""),
        node=labels.get("instance", ""),
        gpu=labels.get("gpu", ""),
        uuid=labels.get("uuid", ""),
    )


def _severity(alert: FiringAlert) -> tuple[int, float, str]:
    order = {"critical": 0, "warning": 1, "info": 2}
    return order.get(alert.severity, 3), -alert.seconds, alert.name


def _cause(found: Iterable[TimeSeries], marks: Mapping[str, float]) -> str:
    """Return why it is marked, as far as is known."""
    if behind := marks.get("culprit") or marks.get("behind"):
        return f"{plural(behind, 'collective')} behind"
    if "off step" in marks:
        return f"{plural(marks['off step'], 'step')} off"
    if "straggler" in marks:
        return _label(found, queries.LATE_PHASE, "phase")
    return ""


def _even(series: TimeSeries, now: float, step: float) -> tuple[float, ...]:
    """Return the samples at even distances, with NaN where there was none."""
    found = {round((at - now) / step): value for at, value in series.samples}
    return tuple(found.get(i, float("nan")) for i in range(-HISTORY_POINTS, 1))
