"""A training by a framework takes the plan as one argument of its own call: with the real ones, killed once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.supervise.conftest import Supervised

SCRIPT = Path(__file__).with_name("resumed.py")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("framework", ["hugging_face", "lightning", "accelerate"])
def test_it_goes_on_from_where_the_plan_says(supervised: Supervised, framework: str) -> None:
    """Its newest checkpoint is damaged: it begins from the one before, puts the damaged one aside, and finishes."""
    command = [sys.executable, "-W", "ignore", SCRIPT, framework, supervised.folder, supervised.state]
    process = supervised.start("act", command, PYTHONPATH=str(Path(__file__).parents[2]))
    _, said = process.communicate(timeout=1500)
    assert process.returncode == 0, said
    assert (supervised.folder / "begun").read_text().splitlines() == ["0", "10"]
    (aside,) = (supervised.folder / "checkpoints" / "put-aside").iterdir()
    assert "20" in aside.name
    assert supervised.decisions() == [("act", "dead", "restart")]
