"""The checkpoint that a framework's training begins from: the plan's, else the newest, by the step in its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import tachograph
from tachograph.client.hello.resume_from import _by_step, resume_from


def saved(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
    return folder


def sent_back(step: int, checkpoint: str = "", **more: str) -> dict[str, str]:
    return {
        "TACHOGRAPH_PLAN_ATTEMPT": "1", "TACHOGRAPH_PLAN_STEP": str(step), "TACHOGRAPH_PLAN_CHECKPOINT": checkpoint,
    } | more  # fmt: skip


NAMES = {
    "checkpoint-500": 500, "epoch=0-step=40.ckpt": 40, "epoch=3-step=41-v1.ckpt": 41, "step_7": 7, "global_step12": 12,
    "iter_0000100": 100, "120": 120, "checkpoint_3": 3, "model-9.pt": 9,
    "last.ckpt": None, "runs": None, "events-2024.log": None, "trainer_state.json": None, "llama-7b": None,
    ".checkpoint-6": None, "put-aside": None, "log-step-5.txt": None, "checkpoint": None, "checkpoint-5.tmp": None,
}  # fmt: skip


def test_names_of_checkpoints(tmp_path: Path) -> None:
    """As Hugging Face, Lightning, Accelerate, DeepSpeed and Megatron-LM call them; anything else is left alone."""
    saved(tmp_path, *NAMES)
    assert _by_step(str(tmp_path)) == {name: step for name, step in NAMES.items() if step is not None}


def test_without_a_plan_it_is_the_newest(tmp_path: Path) -> None:
    """By number and not by name or age; none in a folder without one, or that is not there."""
    assert resume_from(tmp_path / "none", {}) is None
    assert resume_from(saved(tmp_path / "a", "runs"), {}) is None
    folder = saved(tmp_path / "b", "checkpoint-100", "checkpoint-90")
    assert resume_from(folder, {}) == str(folder / "checkpoint-100")
    assert resume_from(folder, {"TACHOGRAPH_PLAN_ATTEMPT": "1"}) == str(folder / "checkpoint-100")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_plan_sends_it_back(tmp_path: Path, rank: int) -> None:
    """What came after is put aside by rank 0, so that no later attempt finds it; twice is no obstacle."""
    for attempt in (1, 2):
        folder = saved(tmp_path, *(f"checkpoint-{step}" for step in (20, 30, 100) if attempt == 1 or step > 20))
        given = sent_back(20, str(folder / "checkpoint-20"), RANK=str(rank), TACHOGRAPH_PLAN_ATTEMPT=str(attempt))
        assert resume_from(folder, given) == str(folder / "checkpoint-20")
        assert resume_from(folder, sent_back(20, RANK=str(rank))) == str(folder / "checkpoint-20")
        if rank:
            assert (folder / "checkpoint-100").exists()
            return
        assert resume_from(folder, {}) == str(folder / "checkpoint-20")
        assert (folder / "put-aside" / f"checkpoint-100.{attempt}").exists()


def test_ranks_that_the_launcher_restarts_go_on(tmp_path: Path) -> None:
    """They have gone back already: what came after that is good."""
    folder = saved(tmp_path, "checkpoint-20", "checkpoint-30")
    given = sent_back(20, str(folder / "checkpoint-20"), TORCHELASTIC_RESTART_COUNT="1")
    assert resume_from(folder, given) == str(folder / "checkpoint-30")


def test_it_is_public() -> None:
    """Beside the recorder."""
    assert tachograph.resume_from is resume_from
    assert "resume_from" in dir(tachograph)
    with pytest.raises(AttributeError, match="has no attribute 'resume_form'"):
        _ = tachograph.resume_form  # type: ignore[attr-defined]
