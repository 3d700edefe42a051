"""What `tachograph size` says of a fleet."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.metric import SERIES_LEVELS
from tachograph.size.command import main
from tachograph.size.estimate import PlannedFleet, estimate, measured
from tests.schemas import conforms

ROOT = Path(__file__).resolve().parents[2]
KNOWN = measured()


@pytest.mark.parametrize("row", KNOWN.rows, ids=lambda row: f"{row.ranks} every {row.scrape_seconds} s")
def test_what_was_measured_is_estimated(row: Any) -> None:
    """Never less than was measured, and at most a third more."""
    found = estimate(PlannedFleet(row.ranks // 8, 8, row.scrape_seconds, row.rank_series), KNOWN)
    assert found.ranks == row.ranks
    for figure in ("series", "samples_per_second", "gigabytes", "cores"):
        assert 0.99 <= getattr(found, figure) / getattr(row, figure) <= 1.34, figure


def test_a_longer_interval_costs_less_and_more_series_more() -> None:
    """Samples, disk and processors by the interval; series and memory by the ranks' series alone."""
    every_5, every_30 = (estimate(PlannedFleet(128, 8, seconds, "dashboards"), KNOWN) for seconds in (5, 30))
    assert every_30.series == every_5.series
    assert every_30.gigabytes == every_5.gigabytes
    assert every_5.samples_per_second / every_30.samples_per_second == pytest.approx(6, rel=0.05)
    assert 0 < every_30.cores < every_5.cores / 3
    by_level = [estimate(PlannedFleet(128, 8, 5, level), KNOWN).series for level in SERIES_LEVELS]
    assert [after - before for before, after in pairwise(by_level)] == [16 * 1024, 60 * 1024]


def test_the_levels_are_those_of_the_page_on_cost() -> None:
    """docs/cost.md counts the series of a rank by level, from a real exporter."""
    page = (ROOT / "docs/cost.md").read_text(encoding="utf-8").partition("### Series of a GPU")[0]
    assert {
        name: int(count) for name, count in re.findall(r"\| `(few|dashboards|all)`(?: \(default\))? \| (\d+) \|", page)
    } == dict(KNOWN.series_of_a_rank)


def test_every_dimension_counts() -> None:
    """Twice the nodes, or twice the GPUs, are twice the series; the exporter's share grows with its GPUs."""
    fleet = PlannedFleet(100, 8, 5, "dashboards")
    one = estimate(fleet, KNOWN)
    for twice in (replace(fleet, nodes=200), replace(fleet, gpus=16)):
        assert estimate(twice, KNOWN).series == pytest.approx(2 * one.series, abs=1)
    assert estimate(replace(fleet, gpus=16), KNOWN).exporter_cores == 2 * one.exporter_cores


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--nodes", "512"), "One Prometheus holds this: it was measured with 4,096 ranks at such an interval, 512 of"),
        (("--nodes", "513"), "with 4,096 ranks at such an interval, and with 16,384 at 15s: scrape less often"),
        (("--nodes", "2048", "--scrape", "15s"), "it was measured with 16,384 ranks at such an interval, 2,048 of"),
        (("--nodes", "2049", "--scrape", "15s"), "Take 2 cells, each with a Prometheus for its nodes, and a level"),
        (("--nodes", "1", "--gpus", "1"), "1 node with 1 GPU, a rank on every GPU: 1 rank, scraped every 5 s"),
        (("--nodes", "128"), "a second to an experiment tracker, that would be 204,800 points a second, 3.28 MB/s."),
        (("--nodes", "128"), "Of one rank in 64, it would be 3,200 points a second, 51.2 kB/s."),
    ],
)  # fmt: skip
def test_what_it_says(arguments: tuple[str, ...], says: str, capsys: Any) -> None:
    """What to install, from which size on it is not enough, and what logging everything would cost."""
    assert main(arguments) == 0
    assert says in " ".join(capsys.readouterr().out.split())


def test_it_fits_a_terminal(fits: Callable[..., None]) -> None:
    """At 80 columns, and at 100."""
    fits(lambda: main(["--nodes", "3000"]), whole="  tachograph bundle")


def test_json_is_as_its_schema_says(capsys: Any) -> None:
    """With no more digits than it can know."""
    assert main(["--nodes", "2048", "--scrape", "15s", "--rank-series", "few", "--json"]) == 0
    facts = conforms("size", capsys.readouterr().out)
    assert (facts["ranks"], facts["servers"], facts["cores"]) == (16384, 1, 1.11)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "the following arguments are required: --nodes"),
        (("--nodes", "0"), "--nodes: '0' is not a whole number from 1 to 100,000"),
        (("--nodes", "1e3"), "--nodes: '1e3' is not a whole number"),
        (("--nodes", "٣"), "is not a whole number"),
        (("--nodes", "1" * 5000), "is not a whole number"),
        (("--nodes", "1", "--gpus", "-8"), "--gpus: '-8' is not a whole number from 1 to 256"),
        (("--nodes", "1", "--scrape", "15"), "--scrape: '15' is not a duration: write 20m"),
        (("--nodes", "1", "--scrape", "1m"), "--scrape: '1m' is not a number of whole seconds from 5s to 30s"),
        (("--nodes", "1", "--rank-series", "most"), "'most': expected one of few, dashboards, all"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], fault: str, capsys: Any) -> None:
    """That says what to write instead."""
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert fault in said
    assert said.count("\n") == 1
