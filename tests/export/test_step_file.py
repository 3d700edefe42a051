"""The file of a rank's steps: what a recorder writes into it, and that it costs nothing but itself."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from tachograph import Recorder
from tachograph.client.hello.identity import Identity
from tachograph.compare import rank_steps
from tachograph.export import step_file
from tachograph.export.step_file import StepFile


def train(path: Path, nowhere: Path, steps: int = 8, **more: Any) -> Recorder:
    """Record steps as a loop would, with an evaluation before the fifth, until the file has the last loss."""
    file = StepFile(path)
    recorder = Recorder(run="llama", socket=nowhere / "no.sock", trace=file, sinks=[file], tokens_per_step=8, **more)
    for number in range(steps):
        with recorder.step() as step:
            with recorder.phase("forward"):
                time.sleep(0.001)
            if number == 4:
                recorder.tag("eval")
            step.log(loss=2.5 - number)
    recorder.close()
    return recorder


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_it_has_each_ordinary_step_and_every_loss(tmp_path: Path) -> None:
    """The first step and the evaluation are no ordinary ones; losses are those of their steps; totals are there."""
    train(tmp_path / "steps.jsonl", tmp_path, rank=0, world_size=2)
    first, *rest = rows(tmp_path / "steps.jsonl")
    assert (first["tachograph_steps"], first["run"], first["rank"], first["world_size"]) == (1, "llama", 0, 2)
    steps = [row for row in rest if "seconds" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 5, 6, 7]
    assert all(0.001 <= row["phases"]["forward"] <= row["seconds"] for row in steps)
    assert [(row["step"], row["logged"]["loss"]) for row in rest if "logged" in row] == [(i, 2.5 - i) for i in range(8)]
    assert any("totals" in row for row in rest)
    path = tmp_path / "steps.jsonl"
    assert len(rank_steps.recording(path, path.read_text(encoding="utf-8")).loss) == 8


def test_rank_0_writes_or_all_do(tmp_path: Path) -> None:
    """Another rank writes nothing, unless the name has a place for its number."""
    train(tmp_path / "steps.jsonl", tmp_path, rank=1, world_size=2)
    assert not (tmp_path / "steps.jsonl").exists()
    train(tmp_path / "steps-{rank}.jsonl", tmp_path, rank=1, world_size=2)
    assert rows(tmp_path / "steps-1.jsonl")[0]["rank"] == 1


def test_a_process_replaces_an_old_file_and_continues_its_own(tmp_path: Path) -> None:
    """A second training of a process is written behind the first."""
    path = tmp_path / "steps.jsonl"
    path.write_text("old\n", encoding="utf-8")
    file = StepFile(path)
    for attempt in range(2):
        file.start(Identity("llama", 0, 0, 1, attempt, 0))
        file.close()
    assert [row["attempt"] for row in rows(path)] == [0, 1]


def test_a_file_that_cannot_be_written_costs_itself_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder, no space: training goes on, and it is logged once."""
    with caplog.at_level(logging.WARNING):
        train(tmp_path / "no/steps.jsonl", tmp_path, rank=0)
        assert "no steps are written to" in caplog.text
        monkeypatch.setattr(step_file, "MAX_BYTES", 300)
        train(tmp_path / "steps.jsonl", tmp_path, rank=0)
    assert caplog.text.count("no more steps are written") == 1
    assert 0 < (tmp_path / "steps.jsonl").stat().st_size < 1000
