"""The budget of a rank at each level of --rank.series, whatever of the usual it reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.app import Exporter
from tachograph.node.config import read_config
from tachograph.node.exposition import TEXT, render
from tachograph.node.ranks.frames import Hello, Peer, decode

FULL_FRAME = (Path(__file__).parents[1] / "full_frame.json").read_text(encoding="utf-8")
"""A state of one rank of a DDP job on CUDA: all that a loop gets without asking for layers or checksums."""

BUDGET = {"few": 4, "dashboards": 20, "all": 80}
"""Series of a rank that reports all of FULL_FRAME."""
WRITES_CHECKPOINTS = {
    "checkpoint_timestamp_seconds": 1763689900.0, "checkpoint_step": 400, "checkpoint_duration_seconds": 4.2,
    "checkpoint_bytes": 7e10, "checkpoints_total": 1, "checkpoint_free_ratio": 0.4,
}  # fmt: skip
"""Additional series of the one rank that calls `checkpoint_saved`."""


@pytest.fixture
def exporter_with(hand: Any, two_gpus: Any, tmp_path: Path) -> Any:
    """An exporter that has received one frame of a rank on GPU 0 in a Slurm job."""

    def tell(*flags: str, **more: object) -> Exporter:
        exporter = Exporter(
            read_config([f"--socket={tmp_path}/s", "--no-gpu", "--run.owner=never", *flags], {}), None, hand.clock
        )
        table = exporter._table
        table._gpus = two_gpus
        job = {"scheduler": "slurm", "job_id": "4711"}
        table.hello("link", Hello(v=1, run="r", rank=0, uuid="GPU-aaaa", job=job), Peer(1000, 1))
        frame = json.loads(FULL_FRAME)
        frame["metrics"] |= more
        table.state("link", decode(json.dumps(frame).encode()))
        hand.turn(5.0, table.tick)
        return exporter

    return tell


def of_rank(exporter: Exporter) -> list[tuple[str, ...]]:
    """The series with a label `rank`, the exporter's own included."""
    shown = [s for s in exporter.samples() if "rank" in s.metric.labels]
    return [(s.metric.name, *s.labels) for s in shown if s.labels[s.metric.labels.index("rank")]]


@pytest.mark.parametrize("level", BUDGET)
def test_a_full_rank_is_within_the_budget(exporter_with: Any, level: str) -> None:
    """Every line of the page with the label `rank`, the exporter's conclusions included; none was dropped for it."""
    exporter = exporter_with(f"--rank.series={level}")
    assert not any(exporter._table.dropped.values())
    lines = [line for line in render(exporter.samples(), TEXT).decode().splitlines() if 'rank="0"' in line]
    series = {line.rpartition(" ")[0] for line in lines}
    assert len(series) == len(of_rank(exporter))
    assert len(series) <= BUDGET[level], sorted(series)
    if level == "dashboards":
        assert {*of_rank(exporter_with())} == {*of_rank(exporter)}, "the default"


def test_the_rank_that_writes_checkpoints_has_five_more(exporter_with: Any) -> None:
    """Time, step and duration of the last one, and the room left, which names the rank: one of a run has them."""
    assert len(of_rank(exporter_with(**WRITES_CHECKPOINTS))) == len(of_rank(exporter_with())) + 5


def test_all_shows_all_that_was_said(exporter_with: Any) -> None:
    """With --rank.series=all every hidden family of the frame is there; --rank.detail still means the same."""
    names = {name for name, *_ in of_rank(exporter_with("--rank.series=all", **WRITES_CHECKPOINTS))}
    assert names == {name for name, *_ in of_rank(exporter_with("--rank.detail", **WRITES_CHECKPOINTS))}
    hidden = {row.name for row in catalog.TRAIN_METRICS.values() if row.detail}
    said = {*json.loads(FULL_FRAME)["metrics"], *WRITES_CHECKPOINTS, catalog.TRAIN_RECENT_STEPS.key}  # the last: by us
    assert {name for name in hidden if catalog.BY_NAME[name].key in said} < names
    assert not hidden & {name for name, *_ in of_rank(exporter_with(**WRITES_CHECKPOINTS))}


def test_what_no_rule_takes_the_increase_of_is_shown_once_it_is_above_zero(exporter_with: Any) -> None:
    """A healthy rank has no series of NaN steps and of what its client dropped, unless all are asked for."""
    rare = {row.name for row in catalog.METRICS if row.rare}
    assert not rare & {name for name, *_ in of_rank(exporter_with())}
    assert rare < {name for name, *_ in of_rank(exporter_with("--rank.series=all"))}
    spoilt = of_rank(exporter_with(nonfinite_total={"loss": 2, "grad_norm": 0}))
    assert {labels[2] for name, *labels in spoilt if name == catalog.TRAIN_NONFINITE.name} == {"loss"}


def test_few_shows_what_names_who_is_at_fault(exporter_with: Any) -> None:
    """At the lowest level stand the families marked `few` alone, for a rank that runs."""
    few = {row.name for row in catalog.METRICS if row.few and row.labels[:2] == catalog.RANK}
    usual = {name for name, *_ in of_rank(exporter_with("--rank.series=few"))}
    assert usual == few & {name for name, *_ in of_rank(exporter_with())}
    assert all(row.labels[:2] in {catalog.RANK, catalog.GPU} for row in catalog.METRICS if row.few)


def test_few_shows_how_long_a_frozen_rank_is_silent(exporter_with: Any, hand: Any) -> None:
    """The heartbeat of a rank that is frozen is there, whatever else is hidden: RankFrozen reads it."""
    exporter = exporter_with("--rank.series=few")
    hand.turn(15.0, exporter._table.tick)
    series = of_rank(exporter)
    assert (catalog.RANK_STATE.name, "r", "0", "frozen") in series
    assert (catalog.RANK_HEARTBEAT.name, "r", "0") in series


def test_what_alerts_need_is_shown() -> None:
    """Twins and causes may hide, culprits may not."""
    hidden = {row.name for row in catalog.TRAIN_METRICS.values() if row.detail}
    for row in (
        catalog.TRAIN_RECENT_WAIT, catalog.TRAIN_NONFINITE_STEP,
    ):  # fmt: skip
        assert row.name not in hidden


def test_the_whole_frame_is_known() -> None:
    """The frame that the budget is measured with holds nothing that is in no catalog, and no opt-in."""
    metrics = json.loads(FULL_FRAME)["metrics"]
    assert metrics.keys() <= catalog.TRAIN_METRICS.keys()
    assert not [key for key in metrics if catalog.TRAIN_METRICS[key].own_label in ("layer", "name")]
