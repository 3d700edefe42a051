"""Checkpoint metrics of a rank: saved, failed, resumed from."""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.train import TRAIN_METRICS
from tachograph.client.signals.checkpoints import Checkpoints, free_share
from tachograph.wire import MAX_EVENTS


@pytest.fixture
def checkpoints() -> Checkpoints:
    return Checkpoints()


def kinds(checkpoints: Checkpoints) -> list[object]:
    return [event["kind"] for event in checkpoints.events]


def test_before_the_first_one_there_is_a_zero_and_nothing_else(checkpoints: Checkpoints) -> None:
    """A count of 0 is known; time, step, length and where it resumed from are not."""
    assert checkpoints.metrics() == {"checkpoints_total": 0}
    assert checkpoints.failures == 0


def test_a_saved_one(checkpoints: Checkpoints) -> None:
    """Time, step and size of the last one; a size of 0 is one, no size is none."""
    checkpoints.add(100.0, 0, 0)
    assert checkpoints.metrics() == {
        "checkpoints_total": 1, "checkpoint_timestamp_seconds": 100.0, "checkpoint_step": 0, "checkpoint_bytes": 0,
    }  # fmt: skip
    checkpoints.add(200.0, 7, None)
    assert checkpoints.metrics() == {
        "checkpoints_total": 2, "checkpoint_timestamp_seconds": 200.0, "checkpoint_step": 7,
    }  # fmt: skip


def test_the_room_left_where_it_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of the file system of a file, a folder, or a file that was renamed since; of nothing else."""
    (tmp_path / "model.pt").touch()
    whole = shutil.disk_usage(tmp_path)
    for place in (tmp_path, tmp_path / "model.pt", tmp_path / "renamed.pt"):
        assert free_share(str(place)) == pytest.approx(whole.free / whole.total, abs=0.05)
    monkeypatch.chdir(tmp_path)
    assert free_share("model.pt") == free_share(str(tmp_path))
    for nowhere in ("", "step_100", "s3:bucket", "s3://bucket/model", "\0", "/nowhere/at/all"):
        assert free_share(nowhere) is None


def test_a_file_system_that_hangs_holds_nobody_up(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any]
) -> None:
    """Nor is it asked again before it has answered; the checkpoint is reported all the same."""
    asked: list[str] = []
    answers = threading.Event()

    def hang(path: str) -> float:
        asked.append(path)
        answers.wait(30)
        return 0.5

    monkeypatch.setattr("tachograph.client.signals.checkpoints.free_share", hang)
    checkpoints.add(100.0, 1, None, path="/a")
    checkpoints.add(200.0, 2, None, path="/b")
    assert checkpoints.metrics()["checkpoint_step"] == 2
    assert "checkpoint_free_ratio" not in checkpoints.metrics()
    answers.set()
    until(lambda: checkpoints.metrics().get("checkpoint_free_ratio") == 0.5)
    assert asked == ["/a"]


def test_how_long_the_last_one_took(checkpoints: Checkpoints) -> None:
    """The phase's seconds since the one before; in two parts or one, they are this one's."""
    checkpoints.add(100.0, 1, None, 40.0)
    assert checkpoints.metrics()["checkpoint_duration_seconds"] == 40.0
    checkpoints.add(200.0, 2, None, 440.0)
    assert checkpoints.metrics()["checkpoint_duration_seconds"] == 400.0


@pytest.mark.parametrize("seconds", [None, 40.0, 39.0, math.nan, math.inf, -1.0])
def test_a_length_that_is_not_known_is_absent(checkpoints: Checkpoints, seconds: float | None) -> None:
    """A loop that does not mark the phase, or a number that cannot be: no duration, never 0; the next one is right."""
    checkpoints.add(100.0, 1, None, 40.0)
    checkpoints.add(200.0, 2, None, seconds)
    assert "checkpoint_duration_seconds" not in checkpoints.metrics()
    checkpoints.add(300.0, 3, None, 45.0)
    assert checkpoints.metrics()["checkpoint_duration_seconds"] == 5.0


def test_a_failed_one(checkpoints: Checkpoints) -> None:
    """Counted and told; the last good one stands, and the next one is not charged with its seconds."""
    checkpoints.add(100.0, 1, 8, 10.0)
    before = checkpoints.metrics()
    checkpoints.failed()
    assert checkpoints.metrics() == before
    checkpoints.failed(30.0)
    assert checkpoints.failures == 2
    checkpoints.add(200.0, 2, 8, 42.0)
    assert checkpoints.metrics()["checkpoint_duration_seconds"] == 12.0
    assert kinds(checkpoints) == ["checkpoint_saved", "checkpoint_failed", "checkpoint_failed", "checkpoint_saved"]
    assert "step" not in checkpoints.events[1]


@pytest.mark.parametrize("seconds", [None, 0.0, 12.5, math.nan, -1.0, math.inf])
def test_where_it_resumed_from(checkpoints: Checkpoints, seconds: float | None) -> None:
    """Step and loading time; a time that is not known, or cannot be, is absent, and 0 is one."""
    checkpoints.resumed(400, seconds)
    known = seconds in (0.0, 12.5)
    assert checkpoints.metrics() == {
        "checkpoints_total": 0, "resume_step": 400, **({"checkpoint_load_duration_seconds": seconds} if known else {}),
    }  # fmt: skip
    assert [(event["kind"], event["step"]) for event in checkpoints.events] == [("resumed", 400)]
    checkpoints.resumed(0)
    assert checkpoints.metrics() == {"checkpoints_total": 0, "resume_step": 0}


def test_events_have_rising_ids_and_times(checkpoints: Checkpoints) -> None:
    """One sequence for all kinds, so that the exporter knows a repeated one."""
    began = time.time()
    checkpoints.resumed(3, 1.0)
    checkpoints.add(began, 4, None)
    checkpoints.failed()
    assert [event["id"] for event in checkpoints.events] == [1, 2, 3]
    assert checkpoints.last_id == 3
    assert all(began <= float(event["time"]) <= time.time() for event in checkpoints.events)


def test_events_that_no_frame_carried_are_counted(checkpoints: Checkpoints) -> None:
    """The last 64 are kept; one pushed out before it left is lost, one that had left is not."""
    for step in range(MAX_EVENTS + 3):
        checkpoints.add(1.0, step, None)
    assert checkpoints.overwritten == 3
    checkpoints.sent()
    for _ in range(MAX_EVENTS):
        checkpoints.failed()
    assert checkpoints.overwritten == 3
    checkpoints.resumed(1)
    assert checkpoints.overwritten == 4


def test_every_key_is_in_the_catalog(checkpoints: Checkpoints) -> None:
    """The exporter accepts what the rank reports."""
    checkpoints.add(100.0, 1, 8, 10.0)
    checkpoints.resumed(400, 1.0)
    assert checkpoints.metrics().keys() <= TRAIN_METRICS.keys()
