"""A supervisor that is killed with SIGKILL between any two of its side effects: nothing is done twice, or lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tachograph.supervise.journal import Entry
from tachograph.supervise.policy import EXCLUDE_NODE, LOWER_RATE, SKIP_BATCHES
from tachograph.supervise.triggers import DEAD, DIVERGING, FROZEN, NOT_FINITE, RESTART_LOOP, SLOW, SPIKE
from tachograph.watch.private_exporter import PrivateExporter
from tests.supervise.conftest import Supervised, is_running
from tests.supervise.ladders import Rung, rungs

ROOT = Path(__file__).parents[2]
LEAST_EFFECTS = 25
ALWAYS = {
    f"{DEAD} restart", f"{NOT_FINITE} restart_from_checkpoint", f"{SPIKE} {SKIP_BATCHES}", f"{FROZEN} stop",
    f"{DIVERGING} {LOWER_RATE} asked", f"{RESTART_LOOP} stop asked", f"{SLOW} {EXCLUDE_NODE} asked", f"{SPIKE} leave",
    f"{DEAD} {EXCLUDE_NODE} queued",
}  # fmt: skip
"""Each action once, and each kind of question; the other triggers with the same actions are slow."""


def cases() -> list[Any]:
    return [pytest.param(one, id=str(one), marks=() if str(one) in ALWAYS else pytest.mark.slow) for one in rungs()]


def test_those_that_are_always_tried_are_there() -> None:
    """A rung that is renamed is not left out."""
    assert {str(one) for one in rungs()} >= ALWAYS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rung", cases())
def test_the_next_one_neither_repeats_nor_loses(rung: Rung, tmp_path: Path) -> None:
    """The budget is spent once, the training begins as was decided, what a person confirmed is done (`killed.py`)."""
    command = [sys.executable, "-m", "tests.supervise.killed", str(rung), tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[-1]) >= LEAST_EFFECTS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rung", [f"{DEAD} restart", f"{FROZEN} stop", f"{SLOW} {EXCLUDE_NODE} asked"])
def test_nor_does_the_one_after_that(rung: str, tmp_path: Path) -> None:
    """The next one is killed, too, as it closes what the first one had decided, or a person had confirmed."""
    command = [sys.executable, "-m", "tests.supervise.killed", rung, tmp_path, "twice"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[-1]) > 0


def expected_step(before: Sequence[Entry]) -> int | None:
    """Return the step of the plan that the next attempt must get."""
    for one in reversed(before):
        if one["kind"] in ("recovered", "ended") and one.get("how") not in ("lost", "failed"):
            return None
        if one["kind"] == "decision" and one["outcome"] == "act":
            return int(one["resume_step"])
    return None


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_real_processes(exporter: PrivateExporter, tmp_path: Path) -> None:
    """A rank dies, and a whole supervisor beside it at any moment: no process is left, and none is there twice.

    Each rank holds a lock while it lives, and fails where another one of its number does.
    """
    effects = 0
    while True:
        (folder := tmp_path / str(effects)).mkdir()
        one = Supervised(exporter, folder, f"killed-{effects}")
        program = ("tests.supervise.dying", effects, folder / "effects")
        status, said = one.end(one.ranks("act", "--fail", "die@25", program=program, PYTHONPATH=str(ROOT)))
        before, trained = one.entries(), len(one.plans())
        assert status in (0, -signal.SIGKILL), said
        place = f"after {(folder / 'effects').read_text().splitlines()[-1:]}, {[entry['kind'] for entry in before]}"
        again, said = one.end(one.ranks("act", "--fail", "die@25"))
        assert again == 0, f"{place}: {said}"
        if status == 0:
            break
        after = one.entries()
        restarts = [entry for entry in after if entry["kind"] == "intent" and entry["action"] == "restart"]
        decided = [entry for entry in after if entry["kind"] == "decision" and entry["outcome"] == "act"]
        assert [entry["id"] for entry in restarts] == [entry["id"] for entry in decided], place
        assert len(decided) <= 1, place
        assert [plan[4] for plan in one.plans()[trained : trained + 2]] == [expected_step(before)] * 2, place
        assert not any(is_running(plan[1]) for plan in one.plans()), place
        assert {int(line) for line in (folder / "steps-0").read_text().splitlines()} == set(range(40)), place
        effects += 1
    assert effects >= LEAST_EFFECTS
