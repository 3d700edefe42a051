"""A run's ranks as Prometheus sees them now: one query, one row per rank."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tachograph.servers.prometheus_api import TimeSeries
from tachograph_lab.demo.stack import Stack

STATE, PHASE, STEP, LOSS, LAG = (
    "tachograph_rank_state",
    "tachograph_rank_phase_seconds",
    "tachograph_train_step",
    "tachograph_train_loss",
    "rank:lag_seconds:mean",
)
ALERT = "ALERTS"


@dataclass(frozen=True)
class Vitals:
    """The present state of one rank; None where Prometheus has no sample."""

    rank: int
    state: str | None
    phase: str | None
    phase_seconds: float | None
    step: float | None
    loss: float | None
    lag_seconds: float | None
    alerts: tuple[str, ...]
    """The alerts of this rank; a question mark after a pending one."""


def vitals(stack: Stack, run: str) -> list[Vitals]:
    """Return the run's ranks, lowest first; empty before the first scrape."""
    names = "|".join((STATE, PHASE, STEP, LOSS, LAG, ALERT))
    by_rank: dict[int, list[TimeSeries]] = defaultdict(list)
    for sample in stack.query(f'{{__name__=~"{names}",run="{run}",rank!=""}}'):
        if sample.labels["__name__"] != STATE or sample.value == 1:
            by_rank[int(sample.labels["rank"])].append(sample)
    return [_row(rank, samples) for rank, samples in sorted(by_rank.items())]


def _row(rank: int, samples: list[TimeSeries]) -> Vitals:
    by_name = {sample.labels["__name__"]: sample for sample in samples}

    def value(name: str) -> float | None:
        return by_name[name].value if name in by_name else None

    def label(name: str, key: str) -> str | None:
        return by_name[name].labels[key] if name in by_name else None

    return Vitals(
        rank=rank,
        state=label(STATE, "state"),
        phase=label(PHASE, "phase"),
        phase_seconds=value(PHASE),
        step=value(STEP),
        loss=value(LOSS),
        lag_seconds=value(LAG),
        alerts=tuple(
            sample.labels["alertname"] + ("" if sample.labels["alertstate"] == "firing" else "?")
            for sample in samples
            if sample.labels["__name__"] == ALERT
        ),
    )
