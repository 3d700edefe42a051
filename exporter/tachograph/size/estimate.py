"""The cost of a fleet: measured rows, scaled by its series and its scrape interval."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

BYTES_PER_SAMPLE = 2.0
"""On disk: the upper end of what Prometheus' documentation gives (1 to 2), https://prometheus.io/docs/prometheus/latest/storage/."""
DAY_SECONDS = 86_400
IDLE_GIGABYTES = 0.1
"""A Prometheus with our rules and nothing to scrape, after minutes 0.06."""
LOGGED_METRICS, LOGGED_STEPS_PER_SECOND, BYTES_PER_POINT = 100, 2, 16
"""Of a rank that logs each step: how many numbers, how many steps a second, and a time and a number without a name."""
LOGGING_RANKS = 64
"""Rank 0 and one in so many, where not every rank logs."""


@dataclass(frozen=True)
class PlannedFleet:
    """Nodes that have so many GPUs each, with a rank on every GPU."""

    nodes: int
    gpus: int
    scrape_seconds: int
    rank_series: str

    @property
    def ranks(self) -> int:
        """How many ranks run if all GPUs are used."""
        return self.nodes * self.gpus


@dataclass(frozen=True)
class MeasuredPrometheus:
    """A Prometheus that watched so many ranks, and the resources it took."""

    ranks: int
    scrape_seconds: int
    rank_series: str
    series: int
    samples_per_second: float
    gigabytes: float
    cores: float


@dataclass(frozen=True)
class FleetCost:
    """The resources of all Prometheus servers together and of every exporter."""

    ranks: int
    series: int
    samples_per_second: float
    disk_gigabytes_per_day: float
    gigabytes: float
    cores: float
    measured_ranks: int
    """The most ranks that one Prometheus was measured with at this interval or a shorter one."""
    largest_ranks: int
    """The most that one was measured with at any interval."""
    servers: int
    exporter_cores: float
    exporter_megabytes: float
    points_per_second_if_all_log: int
    points_per_second_if_few_log: int


@dataclass(frozen=True)
class Measurements:
    """The figures of bench/rules.py and bench/exporter.py."""

    rows: Sequence[MeasuredPrometheus]
    series_of_a_rank: Mapping[str, int]
    exporter: Mapping[str, float]


def measured() -> Measurements:
    """Return the rows that come with the package."""
    read: dict[str, Any] = json.loads(resources.files(__package__).joinpath("measured.json").read_text("utf-8"))
    return Measurements([MeasuredPrometheus(**row) for row in read["rows"]], read["series_of_a_rank"], read["exporter"])


def estimate(fleet: PlannedFleet, known: Measurements) -> FleetCost:
    """Return what a fleet needs; series grow with ranks, all else with series, by the scrape interval."""
    level = known.series_of_a_rank
    per_rank = max(row.series / row.ranks - level[row.rank_series] for row in known.rows) + level[fleet.rank_series]
    series = math.ceil(fleet.ranks * per_rank)
    rate = series * _by_interval(known.rows, fleet.scrape_seconds, "samples_per_second")
    alike = [row.ranks for row in known.rows if row.scrape_seconds <= fleet.scrape_seconds]
    largest = max(row.ranks for row in known.rows)
    return FleetCost(
        ranks=fleet.ranks,
        series=series,
        samples_per_second=rate,
        disk_gigabytes_per_day=rate * BYTES_PER_SAMPLE * DAY_SECONDS / 1e9,
        gigabytes=max(series * max(row.gigabytes / row.series for row in known.rows), IDLE_GIGABYTES),
        cores=series * _by_interval(known.rows, fleet.scrape_seconds, "cores"),
        measured_ranks=max(alike, default=0),
        largest_ranks=largest,
        servers=math.ceil(fleet.ranks / largest),
        exporter_cores=known.exporter["cores"] * fleet.gpus / known.exporter["gpus"],
        exporter_megabytes=known.exporter["megabytes"],
        points_per_second_if_all_log=_points(fleet.ranks),
        points_per_second_if_few_log=_points(1 + (fleet.ranks - 1) // LOGGING_RANKS),
    )


def as_json(found: FleetCost) -> dict[str, Any]:
    """Return an estimate with numbers that are not more exact than what they come from."""
    return {name: value if isinstance(value, int) else float(f"{value:.3g}") for name, value in asdict(found).items()}


def _by_interval(rows: Sequence[MeasuredPrometheus], seconds: int, figure: str) -> float:
    """Return a figure of one series at a scrape interval: a fixed part, and one for each scrape.

    The two are those of the dearest row at the shortest interval and of the dearest at the longest.
    """
    dearest: dict[int, float] = {}
    for row in rows:
        dearest[row.scrape_seconds] = max(dearest.get(row.scrape_seconds, 0.0), getattr(row, figure) / row.series)
    short, long = min(dearest), max(dearest)
    each_scrape = (dearest[short] - dearest[long]) / (1 / short - 1 / long)
    return max(dearest[long] + each_scrape * (1 / seconds - 1 / long), 0.0)


def _points(ranks: int) -> int:
    return ranks * LOGGED_METRICS * LOGGED_STEPS_PER_SECOND
