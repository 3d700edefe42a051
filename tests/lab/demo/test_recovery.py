"""What the demo of recovery makes of the files that a run and its supervisor leave."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from tachograph.supervise.journal import Journal
from tachograph_lab.demo import loss_plot
from tachograph_lab.demo.recovery import Story
from tachograph_lab.demo.resilient_run import Recovery, ResilientRun, StepMade
from tachograph_lab.demo.screen import Screen
from tachograph_lab.processes import Child, ProcessError

BEGIN = 1_764_000_000.0
OF_RESTART = {"cost": 1, "signature": ["dead", "signal", 30], "line": ""}


@pytest.fixture
def child(tmp_path: Path) -> Child:
    """A process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return Child("ended", process, tmp_path / "log")


def losses(folder: Path, *attempts: tuple[range, float, float]) -> None:
    """Write the losses of attempts: their steps, when the first ended, and each loss; a step takes a second."""
    with (folder / "losses-0").open("w") as file:
        for attempt, (steps, begin, loss) in enumerate(attempts):
            print("attempt", attempt, 4711, file=file)
            for step in steps:
                print(step, loss.hex(), BEGIN + begin + step - steps.start, file=file)


def journal(folder: Path, restarted: bool) -> None:
    """Write the journal of a supervisor that finds a dead rank 2 s after its end, and perhaps restarts it."""
    now = [BEGIN]
    kept = Journal(folder / "state", clock=lambda: now[0])
    kept.write("attempt", attempt=0, action="", reason="", resume_step=None)
    kept.write("started", attempt=0)
    now[0] += 32.0
    kept.write(
        "decision", id="a", mode="act", outcome="act" if restarted else "held", guard="", ranks=[1], step=30,
        text="Rank 1 died.", why="within its budget", found=BEGIN, trigger="dead", action="restart", resume_step=20,
        **OF_RESTART,
    )  # fmt: skip
    if restarted:
        now[0] += 1.0
        kept.write("attempt", attempt=1, action="restart", reason="dead", resume_step=20)
        kept.write("started", attempt=1)
        now[0] += 9.0
        kept.write("recovered", attempt=1, seconds=10.0, lost_steps=10)


def told(run: ResilientRun) -> str:
    """What the screen says of a run that is over."""
    with Screen(Console(file=io.StringIO(), highlight=False)) as screen:
        Story(screen, run).tell_until(lambda: True)
    assert isinstance(screen.console.file, io.StringIO)
    return screen.console.file.getvalue()


def test_a_recovery_is_until_the_first_step_of_the_next_attempt(tmp_path: Path, child: Child) -> None:
    """Of the twelve seconds nine are the command's, and ten steps are made again."""
    (tmp_path / "fault-kill@30").write_text(str(BEGIN + 30.0))
    losses(tmp_path, (range(30), 0.0, 2.0), (range(20, 40), 42.0, 2.0))
    journal(tmp_path, restarted=True)
    run = ResilientRun(tmp_path, child)
    (fault,) = run.faults()
    assert run.recoveries() == [Recovery(fault, "dead", "restart", 12.0, 9.0, 10, 20)]
    said = told(run)
    assert "1/5  kill@30: rank 1 gets SIGKILL" in said
    assert "2.00 s later: the supervisor decides to restart. Rank 1 died. Within its budget" in said
    assert "12.0 s later: it makes steps again" in said


def test_what_is_held_back_is_no_recovery(tmp_path: Path, child: Child) -> None:
    """It is said, and the fault has no time; a fault that is not made yet is none."""
    run = ResilientRun(tmp_path, child)
    assert run.recoveries() == []
    (tmp_path / "fault-kill@30").write_text(str(BEGIN + 30.0))
    (tmp_path / "fault-hang@90").write_text("")
    losses(tmp_path, (range(30), 0.0, 2.0))
    journal(tmp_path, restarted=False)
    (one,) = run.recoveries()
    assert not one.is_over
    assert "2.00 s later: the supervisor holds back: restart" in told(run)


def test_a_run_without_a_step_is_said(tmp_path: Path, child: Child) -> None:
    """With the end of its log, as where PyTorch is missing."""
    child.log.write_text("No module named torch.distributed.run")
    with pytest.raises(ProcessError, match="does not train:\nNo module named torch"):
        told(ResilientRun(tmp_path, child))


def made(*losses: float) -> list[StepMade]:
    return [StepMade(0, step, loss, BEGIN + 10 * step) for step, loss in enumerate(losses)]


def test_both_losses_are_drawn_on_one_scale(tmp_path: Path) -> None:
    """The highest is cut off, a NaN is a gap in characters and a cross in the picture, which is whole."""
    good, bad = made(6.0, 4.0, 3.0, 2.0, 2.0, 2.0, 2.0), made(6.0, 4.0, 3.0, 1e6, math.nan, math.nan, 7.0)
    lines = [line.plain for line in loss_plot.in_characters(good, bad, 40, 13)]
    assert lines[0].startswith("  8.0 ┤")
    assert lines[0].count("×") == 1
    assert lines[12].count("•") == 4
    assert sum(line.count("×") for line in lines[:13]) == 2
    drawn = loss_plot.picture(good, bad, [])
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert drawn.count('class="cross"') == 2
