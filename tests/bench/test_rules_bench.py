"""The rules bench: what its fleet shows, and what it reads of Prometheus."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tachograph.catalog import index as catalog

MEASURED = Path(__file__).resolve().parents[2] / "exporter/tachograph/size/measured.json"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return importlib.import_module("rules_pages")


def samples(page: bytes) -> dict[str, float]:
    lines = [line for line in page.decode().splitlines() if line and not line.startswith("#")]
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(found) == len(lines), "a sample stands twice"
    return found


def test_a_page_shows_each_node_its_own_ranks_and_numbers_that_move(pages: ModuleType) -> None:
    """Ranks are counted through; steps and clock move what they should; what a node concludes is not the pattern's."""
    pattern = (
        'tachograph_rank_info{run="bench",rank="3",local_rank="3",uuid="GPU-fa4e0000-0000-4000-8000-000000000003"} 1\n'
        'tachograph_rank_heartbeat_timestamp_seconds{run="bench",rank="3"} 1795273135.3\n'
        'tachograph_train_steps_total{run="bench",rank="3"} 480\n'
        'tachograph_train_flops_total{run="bench",rank="3"} 1.5e18\n'
        'tachograph_train_collective_seconds_total{run="bench",rank="3",op="all_reduce"} 3.2\n'
        'tachograph_train_recent_wait_seconds{run="bench",rank="3"} 0.006\n'
        'tachograph_train_learning_rate{run="bench",rank="3"} 0.0003\n'
    )
    lines = [*pages.exporter_lines(pattern, 27)]
    page = pages.Page(lines, pages.plan(lines), np.random.default_rng(1))
    page.start(1_700_000_000.0)
    own = f'run="{pages.RUN}",rank="219"'
    early, late = samples(page.render(100, 200.5)), samples(page.render(110, 220.5))
    info = f'tachograph_rank_info{{{own},local_rank="3",uuid="GPU-fa4e001b-0000-4000-8000-000000000003"}}'
    assert early[info] == 1
    assert early[f"tachograph_rank_heartbeat_timestamp_seconds{{{own}}}"] == 1_700_000_200.5
    assert early[f"tachograph_train_steps_total{{{own}}}"] == 100
    assert early[f"tachograph_train_flops_total{{{own}}}"] == 8e16
    assert late[f"tachograph_train_learning_rate{{{own}}}"] == 0.0003
    wait = f'tachograph_train_collective_seconds_total{{{own},op="all_reduce"}}'
    grown = late[wait] - early[wait]
    assert grown == pytest.approx(6, rel=0.2)
    assert not any(sample.startswith("tachograph_run_") for sample in early)


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("straggler", ["run_least_wait_seconds"]),
        ("hang", ["run_hang_suspect_seconds", "run_hang_suspect_enqueued"]),
    ],
)
def test_a_state_shows_what_a_real_exporter_concludes(pages: ModuleType, state: str, names: list[str]) -> None:
    """The culprit's node names it, with the GPU of the pattern; ages go on, and timestamps count from the beginning."""
    conclusions = importlib.import_module("rules_conclusions")
    pattern = "\n".join(f'tachograph_gpu_up{{gpu="{gpu}",uuid="GPU-fa4e0000-{gpu}"}} 1' for gpu in range(8))
    uuids = pages.gpu_uuids(pages.exporter_lines(pattern, 27))
    culprits, others = conclusions.conclusions(state)
    page = pages.Page(*pages.concluded(culprits, uuids, 27, 4096), np.random.default_rng(1))
    page.start(1_700_000_000.0)
    early, late = samples(page.render(0, 0)), samples(page.render(0, 100))
    for name in names:
        suspects = [sample for sample in early if sample.startswith(f"tachograph_{name}{{")]
        assert any('rank="217"' in sample and 'uuid="GPU-fa4e001b-1"' in sample for sample in suspects), name
    assert early[f'tachograph_run_world_size{{run="{pages.RUN}"}}'] == 4096
    overdue = f'tachograph_run_overdue_seconds{{run="{pages.RUN}"}}'
    assert late[overdue] - early[overdue] == pytest.approx(100 if state == "hang" else 0)
    progress = early[f'tachograph_run_progress_timestamp_seconds{{run="{pages.RUN}"}}']
    assert 1_700_000_000 - 95 < progress <= 1_700_000_000
    assert not any('why="elsewhere"' in line.sample for line in others)


def test_what_moves_is_what_an_exporter_shows(pages: ModuleType) -> None:
    """No row of the table of what moves has lost its family."""
    families = {metric.name for metric in catalog.METRICS}
    for pattern, _ in pages.ROWS:
        if pattern.pattern.startswith("tachograph_"):
            name = re.sub(r"\\\{.*| $|_bucket.*|_sum\\.*|_count\\.*", "", pattern.pattern)
            assert any(re.match(name, family) for family in families), pattern.pattern


def test_figures_are_read_off_prometheus_own_page() -> None:
    """Groups go by their name, without the file; families of several samples are summed."""
    report = importlib.import_module("rules_report")
    name = "prometheus_rule_group_last_duration_seconds"
    page = f'{name}{{rule_group="/etc/rules/skew.yml;tachograph-skew"}} 0.25\nx{{a="1"}} 1\nx{{a="2"}} 2.5\n'
    figures = report.Figures(page, 0.0, 0.0, 0.0)
    assert figures.groups(name) == {"tachograph-skew": 0.25}
    assert figures.value("x") == 3.5


def test_the_document_shows_cpu_where_it_was_measured() -> None:
    """A group's CPU stands in a column of its own, and the sum over all groups, each by its interval."""
    report = importlib.import_module("rules_report")
    state = {"series": 1, "samples a second": 1, "resident GB": 1.0, "cores": 1.0, "cores for rules": 0.1,
             "cores of the fleet": 0.0, "evaluations missed": 0, "alerts": [], "load": 0.0,
             "groups": {"g": {"interval": 2.0, "p50": 0.2, "max": 0.3}}}  # fmt: skip
    cpu = {"g": {"interval": 2.0, "cpu": 0.05}, "cheap": {"interval": 10.0, "cpu": 0.1}}
    sizes = [{"ranks": 8, "healthy": state, "cpu": cpu}, {"ranks": 16, "healthy": state}]
    timing = {
        "gogc": 100,
        "scrape": "5s",
        "prometheus": "2.42.0",
        "suite": "bookworm",
        "warm-up": 1.0,
        "onset": 1.0,
        "seconds": 1.0,
    }
    text = report.document(f"before\n{report.FENCE}\nold", {**timing, "sizes": sizes})
    first, second = text.split("Groups at ")[1:]
    assert text.startswith("before\n")
    assert "old" not in text
    assert "| g | 2 s | 200.0 (300.0), 10.0% | 50.0, 2.5% |" in first
    assert "together: 0.04 cores" in first
    assert "| g | 2 s | 200.0 (300.0), 10.0% |\n" in second
    assert "CPU" not in second


def test_what_was_measured_is_what_size_scales_from() -> None:
    """The dearest state of each size takes its row's place; without a size, the file stays as it is."""
    report = importlib.import_module("rules_report")
    text = MEASURED.read_text(encoding="utf-8")
    assert report.with_rows(text, [], "5s", "few") == text
    cheap = {"series": 8, "samples a second": 1, "resident GB": 0.5, "cores": 0.1, "groups": {}}
    measured = {"ranks": 4096, "healthy": cheap, "hang": cheap | {"cores": 0.2, "series": 7}, "cpu": {}}
    before, after = json.loads(text)["rows"], json.loads(report.with_rows(text, [measured], "5s", "few"))["rows"]
    assert after == [
        {"ranks": 4096, "scrape_seconds": 5, "rank_series": "few", "series": 8, "samples_per_second": 1,
         "gigabytes": 0.5, "cores": 0.2}
        if (row["ranks"], row["scrape_seconds"]) == (4096, 5) else row for row in before
    ]  # fmt: skip
