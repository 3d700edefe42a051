"""Trainings of every kind: to the last digit what they are without us, and the same counts as by `tachograph run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
ARMED = TESTS / "auto/armed.py"
RUN = ("-m", "tachograph", "run", "--quiet")
PROGRAMS: dict[str, tuple[str | Path, ...]] = {
    "loop": (TESTS / "attach/loop_script.py",),
    "amp": (TESTS / "attach/loop_script.py", "amp"),
    "ddp": (TESTS / "attach/loop_script.py", "ddp"),
    "fails": (TESTS / "attach/loop_script.py", "fails"),
    "exits": (TESTS / "attach/loop_script.py", "exits"),
    "classify": (TESTS / "attach/public/classify.py",),
    "compiled": (TESTS / "attach/public/compiled.py",),
    "distributed-saves": (TESTS / "attach/public/distributed_saves.py",),
    "gan": (TESTS / "attach/public/gan.py",),
    "language-model": (TESTS / "attach/public/language_model.py", "130"),
    "lightning": (TESTS / "attach/public/lightning_fit.py",),
    "huggingface": (TESTS / "auto/trainers.py", "huggingface", "out"),
    "accelerate": (TESTS / "auto/trainers.py", "accelerate", "out"),
}
COUNTERS = (
    "steps_total", "batches_total", "checkpoints_total", "checkpoint_failures_total", "tagged_steps_total",
    "amp_skipped_steps_total", "nonfinite_total",
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def counted(done: Any, run: str) -> dict[tuple[str, str], float]:
    """Return the counters of a run by name and other labels; garbage is collected when it likes."""
    return {
        (name, str(sorted(dict(labels).items() - {("run", run)}))): value
        for name in COUNTERS
        for labels, value in done.having(name, run=run).items()
        if value and ("tag", "gc") not in labels
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_training_is_the_same_and_is_seen_as_by_tachograph_run(forked: Any, tmp_path: Path, name: str) -> None:
    """Output, exit status, and every count of steps, batches, checkpoints, tags and skipped steps."""
    folders = [tmp_path / way for way in ("alone", "run", "auto")]
    for folder in folders:
        folder.mkdir()
    alone = forked(*PROGRAMS[name], folder=folders[0])
    under = forked(*RUN, "--run", f"{name}-run", *PROGRAMS[name], folder=folders[1])
    done = forked(ARMED, *PROGRAMS[name], folder=folders[2], TACHOGRAPH_RUN=f"{name}-auto")
    assert (done.status, done.out) == (alone.status, alone.out), done.errors
    assert "achograph" not in done.errors
    counts = counted(done, f"{name}-auto")
    assert counts == counted(under, f"{name}-run")
    assert counts[("steps_total", "[('rank', '0')]")] > 0
