"""Where the culprits run, by Prometheus: node, GPU and coordinates of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tachograph.blackbox.findings import Culprit, Verdict
from tachograph.catalog.metric import Metric
from tachograph.catalog.rank import DIMENSIONS, RANK_COORDINATES, RANK_INFO
from tachograph.servers.prometheus_api import Prometheus, quoted

WINDOW = "6h"
"""Back from now: the ranks of a run that hung may be gone."""

Labels = Mapping[str, str]


def with_places(verdict: Verdict, run: str, prometheus: Prometheus) -> Verdict:
    """Return the verdict with the place of each culprit that Prometheus knows; raise PrometheusError."""
    ranks = "|".join(str(one.rank) for one in verdict.culprits)
    if not ranks:
        return verdict
    info = _by_rank(prometheus, RANK_INFO, run, ranks)
    where = _by_rank(prometheus, RANK_COORDINATES, run, ranks)
    placed = [_placed(one, info.get(str(one.rank), {}), where.get(str(one.rank), {})) for one in verdict.culprits]
    return replace(verdict, culprits=placed)


def _by_rank(prometheus: Prometheus, metric: Metric, run: str, ranks: str) -> dict[str, Labels]:
    """Return the labels of each rank's series, of the newest attempt where there are several."""
    wanted = f"{metric.name}{{run={quoted(run)},rank=~{quoted(ranks)}}}"
    found = [series.labels for series in prometheus.instant(f"last_over_time({wanted}[{WINDOW}])")]
    return {labels.get("rank", ""): labels for labels in sorted(found, key=_attempt)}


def _attempt(labels: Labels) -> int:
    attempt = labels.get("attempt", "")
    return int(attempt) if attempt.isascii() and attempt.isdigit() else 0


def _placed(one: Culprit, info: Labels, where: Labels) -> Culprit:
    numbers = {
        axis: int(where[axis]) for axis in DIMENSIONS if where.get(axis, "").isascii() and where.get(axis, "").isdigit()
    }
    return replace(one, node=info.get("instance") or None, gpu=info.get("gpu") or None, coordinates=numbers or None)
