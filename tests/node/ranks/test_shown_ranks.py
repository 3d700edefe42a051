"""The budget of a rank: at most 45 series by default, whatever of the usual it reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.app import Exporter
from tachograph.node.config import read_config
from tachograph.node.ranks.frames import Hello, Peer, decode

FULL_FRAME = (Path(__file__).parents[1] / "full_frame.json").read_text(encoding="utf-8")
"""A state of one rank of a DDP job on CUDA: all that a loop gets without asking for layers or checksums."""

BUDGET = 45
WRITES_CHECKPOINTS = {
    "checkpoint_timestamp_seconds": 1763689900.0, "checkpoint_step": 400, "checkpoint_duration_seconds": 4.2,
    "checkpoint_bytes": 7e10, "checkpoints_total": 1,
}  # fmt: skip
"""Additional series of the one rank that calls `checkpoint_saved`."""


OLD_WINDOWS = (catalog.TRAIN_PHASE_SECONDS.name, catalog.TRAIN_COLLECTIVE_WAIT.name)
"""Not counted yet: these become detail once no rule rebuilds the figures of a step from them."""

RULES = Path(__file__).parents[3] / "prometheus" / "rules"


@pytest.fixture
def exporter_with(hand: Any, two_gpus: Any, tmp_path: Path) -> Any:
    """An exporter that is told one frame of a rank on GPU 0 in a Slurm job."""

    def tell(*flags: str, **more: object) -> Exporter:
        exporter = Exporter(read_config([f"--socket={tmp_path}/s", "--no-gpu", *flags], {}), None, hand.clock)
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
    """The series with a label `rank`, the exporter's own included, but for that of its first minute."""
    found = [(s.metric.name, *s.labels) for s in exporter.samples() if "rank" in s.metric.labels]
    return [series for series in found if series[0] != catalog.RANK_NEW.name]


def test_a_full_rank_is_within_the_budget(exporter_with: Any) -> None:
    """Every series with the label `rank`, the exporter's conclusions included; nothing was dropped to get there."""
    exporter = exporter_with()
    assert not any(exporter._table.dropped.values())
    series = of_rank(exporter)
    assert len(series) == len(set(series))
    counted = [each for each in series if each[0] not in OLD_WINDOWS]
    assert len(counted) <= BUDGET, sorted(counted)


@pytest.mark.parametrize("name", OLD_WINDOWS)
def test_what_is_not_counted_is_read(name: str) -> None:
    """A family that no rule reads any more is made detail, and taken out of `OLD_WINDOWS`."""
    assert any(name in path.read_text(encoding="utf-8") for path in RULES.glob("*.yml"))


def test_the_rank_that_writes_checkpoints_has_three_more(exporter_with: Any) -> None:
    """Time, step and duration of the last one: one rank of a run has them."""
    assert len(of_rank(exporter_with(**WRITES_CHECKPOINTS))) == len(of_rank(exporter_with())) + 3


def test_detail_shows_all_that_was_said(exporter_with: Any) -> None:
    """With --rank.detail every hidden family and every phase of the frame is there."""
    names = {name for name, *_ in of_rank(exporter_with("--rank.detail", **WRITES_CHECKPOINTS))}
    hidden = {row.name for row in catalog.TRAIN_METRICS.values() if row.detail}
    said = {*json.loads(FULL_FRAME)["metrics"], *WRITES_CHECKPOINTS}
    assert {catalog.BY_NAME[name].key for name in hidden} < said
    assert hidden < names
    assert not hidden & {name for name, *_ in of_rank(exporter_with(**WRITES_CHECKPOINTS))}


def test_a_phase_is_shown_once_it_was_entered(exporter_with: Any) -> None:
    """0 seconds of a phase mean it was never entered; fault counters are there at 0 all the same."""
    series = of_rank(exporter_with())
    phases = {labels[2] for name, *labels in series if name == catalog.TRAIN_PHASE_SECONDS.name}
    assert phases == set(catalog.PHASES) - {"collective", "eval"}
    detailed = of_rank(exporter_with("--rank.detail"))
    assert {labels[2] for name, *labels in detailed if name == catalog.TRAIN_PHASE_SECONDS.name} == set(catalog.PHASES)
    for row in (catalog.TRAIN_CHECKPOINT_FAILURES, catalog.TRAIN_RESTARTS, catalog.TRAIN_LOSS_SPIKES):
        assert (row.name, "r", "0") in series
    assert {labels[2] for name, *labels in series if name == catalog.TRAIN_NONFINITE.name} == {"loss", "grad_norm"}
    assert (catalog.TRAIN_COLLECTIVE_FAILURES.name, "r", "0", "all_reduce") in series


def test_what_alerts_need_is_shown() -> None:
    """Twins and causes may hide, culprits may not."""
    hidden = {row.name for row in catalog.TRAIN_METRICS.values() if row.detail}
    for row in (
        catalog.TRAIN_COLLECTIVE_WAIT, catalog.TRAIN_COLLECTIVE_ENQUEUED, catalog.TRAIN_LOSS_ZSCORE,
        catalog.TRAIN_MEMORY_PEAK, catalog.TRAIN_MEMORY_INACTIVE, catalog.TRAIN_NONFINITE_STEP, catalog.TRAIN_INVARIANT,
        catalog.TRAIN_BATCHES,
    ):  # fmt: skip
        assert row.name not in hidden


def test_the_whole_frame_is_known() -> None:
    """The frame that the budget is measured with holds nothing that is in no catalog, and no opt-in."""
    metrics = json.loads(FULL_FRAME)["metrics"]
    assert metrics.keys() <= catalog.TRAIN_METRICS.keys()
    assert not [key for key in metrics if catalog.TRAIN_METRICS[key].own_label in ("layer", "name")]
