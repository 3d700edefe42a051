"""Everything known of a run at one moment: the answers to the queries, and the alerts that fire."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tachograph.diagnosis import stall_limit
from tachograph.findings.kinds import ORDER, SEVERITIES, Kind, kind_of
from tachograph.servers.prometheus_api import QueryRefusedError, TimeSeries
from tachograph.triage.queries import queries

SAME_ATTEMPT = 60.0
"""Seconds within which the ranks of one attempt end, as those that die take the others with them."""

Ask = Callable[[str], Sequence[TimeSeries]]
"""Returns the vector of an expression at the moment."""


@dataclass(frozen=True)
class FiringKind:
    """An alert that fires, in one of its severities: its row, since when its condition holds, the labels of each."""

    kind: Kind
    severity: str
    since: float
    labels: tuple[Mapping[str, str], ...]

    @property
    def urgency(self) -> tuple[int, int]:
        """Return its sort key: the severity, then what explains most."""
        return list(SEVERITIES).index(self.severity), ORDER.get(self.kind.alert, len(ORDER))

    def named(self, label: str) -> tuple[str, ...]:
        """Return the values of a label, in order."""
        found = {one[label] for one in self.labels if one.get(label)}
        return tuple(sorted(found, key=lambda text: (len(text), text) if text.isdigit() else (0, text)))


@dataclass(frozen=True)
class Facts:
    """The answers to the queries about a run, at Unix time `at`."""

    run: str
    at: float
    vectors: Mapping[str, Sequence[TimeSeries]]
    refused: tuple[str, ...] = ()
    """Queries that Prometheus refused, and why."""

    def rows(self, query: str) -> Sequence[TimeSeries]:
        """Return the vector of a query."""
        return self.vectors.get(query, ())

    def number(self, query: str) -> float | None:
        """Return the value of a query with one series at most, None if it is not finite."""
        return next((one.value for one in self.rows(query) if math.isfinite(one.value)), None)

    def figure(self, name: str) -> float | None:
        """Return a recorded series of the run."""
        return self._figures.get(name)

    def by(self, query: str, label: str) -> dict[str, float]:
        """Return the values of a query by one of its labels."""
        return {one.labels.get(label, ""): one.value for one in self.rows(query)}

    def named(self, query: str, label: str) -> tuple[str, ...]:
        """Return the values of a label, without repetition, in the order of the answer."""
        return tuple(dict.fromkeys(one.labels[label] for one in self.rows(query) if one.labels.get(label)))

    @property
    def steps(self) -> bool:
        """Whether the run makes steps: it has made its last one lately, or pauses, and is not overdue."""
        made = self.figure("run:progress_age_seconds:min") is not None
        return made and self.figure("run:overdue_seconds:min") is None and not self.stalled

    @property
    def stalled(self) -> bool:
        """Whether a step is missing for so long that screens say so, though it may be no hang yet."""
        age, usual = self.figure("run:stalled_seconds:min"), self.figure("run:step_interval_seconds:p50")
        return age is not None and usual is not None and age > stall_limit(usual)

    @cached_property
    def first_ends(self) -> tuple[TimeSeries, ...]:
        """Who ended first in the newest attempt, in the order of time; of nodes' first ends where the run has none."""
        rows = self.rows("first_ends") or self.rows("other_ends")
        newest = max((one.value for one in rows), default=0.0)
        return tuple(sorted((one for one in rows if one.value > newest - SAME_ATTEMPT), key=lambda one: one.value))

    @cached_property
    def _figures(self) -> Mapping[str, float]:
        return {one.labels["__name__"]: one.value for one in self.rows("figures")}

    @cached_property
    def firing(self) -> tuple[FiringKind, ...]:
        """The alerts that fire, the finding first."""
        groups: dict[tuple[str, str], list[TimeSeries]] = {}
        for one in self.rows("alerts"):
            severity = one.labels.get("severity", "")
            if severity in SEVERITIES:
                groups.setdefault((one.labels["alertname"], severity), []).append(one)
        found = (
            FiringKind(kind_of(alert), severity, min(one.value for one in group), tuple(one.labels for one in group))
            for (alert, severity), group in groups.items()
        )
        return tuple(sorted(found, key=lambda one: one.urgency))


NEEDED = ("alerts", "figures", "states")
"""The queries without which nothing can be concluded."""


def gather(run: str, at: float, ask: Ask) -> Facts:
    """Return what is known of a run at a moment; raise what asking raises, but for a query that is refused."""
    vectors: dict[str, Sequence[TimeSeries]] = {}
    refused: list[str] = []
    for name, query in queries(run).items():
        try:
            vectors[name] = ask(query)
        except QueryRefusedError as error:
            if name in NEEDED:
                raise
            refused.append(f"{name.replace('_', ' ')}: {error}")
    return Facts(run, at, vectors, tuple(refused))
