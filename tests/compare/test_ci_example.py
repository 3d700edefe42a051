"""The example of a CI job: its own shell commands, on a training script that a change has made slower."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.torch]

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(150):
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep({})
"""


def job(folder: Path, head: float) -> tuple[int, str]:
    """Run the commands of the job, the proposal's step taking `head` seconds and the base's 0.02."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "examples/ci/step_time.yml").read_text(encoding="utf-8"))
    (steps,) = (job["steps"] for job in content["jobs"].values())
    for side, seconds in (("base", 0.02), ("head", head)):
        (folder / side).mkdir()
        (folder / side / "train.py").write_text(TRAIN.format(seconds), encoding="utf-8")
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith(("TACHOGRAPH", "SLURM", "RANK"))
    }
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(folder),
        "TRAIN": "train.py",
    }
    for step in steps:
        if step["name"] in ("Train both", "Compare"):
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]], cwd=folder, env=inherited | own, capture_output=True, text=True,
                timeout=120, check=False,
            )  # fmt: skip
            if step["name"] == "Compare":
                return done.returncode, done.stdout
            assert done.returncode == 0, done.stderr
    raise AssertionError("the job has no step that compares")


def test_a_slower_step_fails_the_job(tmp_path: Path) -> None:
    """Status 1, and the table says what became slower."""
    status, shown = job(tmp_path, 0.03)
    assert status == 1, shown
    assert "verdict: regression" in shown


def test_a_faster_step_passes(tmp_path: Path) -> None:
    """Status 0."""
    status, shown = job(tmp_path, 0.015)
    assert status == 0, shown
    assert "verdict: improvement" in shown
