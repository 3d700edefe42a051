"""The demo of recovery: a training that meets five faults, what its supervisor does about each, and what that saved.

The same training with the same bad batch runs beside it, without a supervisor.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from tachograph.supervise import journal
from tachograph.supervise.journal import DECISION, Entry
from tachograph.supervise.policy import NOTIFY
from tachograph.supervise.totals import DECIDED
from tachograph.supervise.triggers import ALERTS, words
from tachograph.text.humanize import count, duration, significant
from tachograph.watch.private_exporter import private_exporter
from tachograph_lab.demo import loss_plot
from tachograph_lab.demo.resilient_run import (
    RANKS,
    STEPS,
    FaultMade,
    Recovery,
    ResilientRun,
    start_alone,
    start_supervised,
)
from tachograph_lab.demo.screen import Screen
from tachograph_lab.processes import Children, ProcessError

FAULTS = {
    "hang": "rank 1 gets stuck in its loader",
    "kill": "rank 1 gets SIGKILL",
    "spike": "a corrupt batch: the loss climbs, and does not recover",
    "corrupt": "rank 1's newest checkpoint is cut short, and then the rank gets SIGKILL",
    "nan": "rank 1 computes NaN, which the all-reduce spreads to all",
}
"""Kind -> what happens."""

GIVEN = ("hang@50", "kill@90", "corrupt@135", "spike@170", "nan@310")
"""In this order, as a hang is acted upon a minute after the last restart at the earliest, and a spike by steps and
seconds after it began."""

PACE = ("--pace", "0.3", "--clipping", "inf")
"""A NaN is acted upon after 25 s: on a quick machine, too, before the last step."""

POLL_SECONDS = 0.5
MOST_SECONDS = 1500.0
PICTURE_FILE = "recovery.svg"
SUBJECT = f"""\
{RANKS} ranks train a small transformer on Python's manual for {STEPS} steps (examples/resilient: DDP, gloo, CPU),
under `tachograph supervise --mode act`. Its policy is the default, but allows more restarts, as there are
five faults within minutes. The same training runs beside it without a supervisor, and meets the bad batch
alone. Gradients are not clipped: clipping would make that batch harmless."""


def play(folder: Path, screen: Screen) -> bool:
    """Play it, and return whether each fault was recovered from, and the training came to its end."""
    screen.title("Tachograph demo: recovery", SUBJECT)
    screen.note("this takes six minutes, and longer on a busy machine")
    place = folder / "recovery"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    faults = [word for text in GIVEN for word in ("--fault", text)]
    bad_batch = [word for text in GIVEN if text.startswith("spike") for word in ("--fault", text)]
    with private_exporter() as exporter, Children(place) as children:
        screen.chapter("Starting both")
        run = start_supervised(children, place / "with", "recovery", exporter.socket, *PACE, *faults)
        alone = start_alone(children, place / "without", "without", *PACE, *bad_batch)
        screen.waiting("waiting for all ranks to train")
        Story(screen, run).tell_until(lambda: not run.process.running)
        screen.waiting("the run without a supervisor trains to its end")
        while alone.process.running:
            time.sleep(POLL_SECONDS)
        screen.waiting("")
    recoveries = run.recoveries()
    _summary(screen, recoveries)
    _losses(screen, run, alone)
    drawn = place / PICTURE_FILE
    drawn.write_text(loss_plot.picture(run.steps(), alone.steps(), run.faults()), encoding="utf-8")
    good = run.process.status == 0 and [one.fault.text for one in recoveries if one.is_over] == list(GIVEN)
    if run.process.status != 0:
        screen.note(f"the supervisor ended with status {run.process.status}:\n{run.process.tail(10)}", good=False)
    screen.note(f"the picture is {drawn}; the supervisor's journal is beside it, in with/state", good)
    return good


class Story:
    """Tells what happens to a run, as its files say it."""

    def __init__(self, screen: Screen, run: ResilientRun) -> None:
        self._screen, self._run = screen, run
        self._faults, self._entries, self._trains = 0, 0, False

    def tell_until(self, is_over: Callable[[], bool]) -> None:
        """Tell until it is over; raise ProcessError where that takes too long, or no step is made."""
        deadline = time.monotonic() + MOST_SECONDS
        over = False
        while not over:
            over = is_over()
            self._look()
            if time.monotonic() > deadline:
                raise ProcessError(f"the demo takes too long:\n{self._run.process.tail(20)}")
            time.sleep(POLL_SECONDS)
        if not self._trains:
            raise ProcessError(f"the run does not train:\n{self._run.process.tail(20)}")

    def _look(self) -> None:
        faults, entries = self._run.faults(), self._run.entries()
        for fault in faults[self._faults :]:
            self._faults += 1
            self._screen.chapter(f"{fault.text}: {FAULTS[fault.kind]}", f"{self._faults}/{len(GIVEN)}")
        for entry in entries[self._entries :]:
            if told := _told(entry, faults):
                self._screen.note(told, good=entry["kind"] != DECISION or entry["outcome"] == DECIDED)
        self._entries = len(entries)
        steps = self._run.steps()
        if steps and not self._trains:
            self._trains = True
            self._screen.note("all ranks are training")
        if steps:
            last = steps[-1]
            at = f"step {count(last.step)} of {count(STEPS)}, loss {significant(last.loss, 3)}"
            self._screen.still_waiting(f"attempt {last.attempt}, {at}")


def _told(entry: Entry, faults: Sequence[FaultMade]) -> str:
    """Return what the screen says of an entry of the journal, empty for most."""
    told = ""
    match entry:
        case {"kind": journal.ENDED, "how": "finished"}:
            return "the training has finished"
        case {"kind": journal.DECISION, "outcome": outcome, "action": action, "text": text, "why": why}:
            act = "decides to" if outcome == DECIDED else "holds back:"
            told = f"the supervisor {act} {words(action)}. {text} {why.capitalize()}"
        case {"kind": journal.OUTCOME, "action": action, "text": text} if action != NOTIFY:
            told = f"{words(action)}: {text}"
        case {"kind": journal.STARTED}:
            told = "the command is started again"
        case {"kind": journal.RECOVERED}:
            told = "it makes steps again"
    return f"{duration(entry['time'] - faults[-1].time)} later: {told}" if told and faults else ""


def _summary(screen: Screen, recoveries: Sequence[Recovery]) -> None:
    title = "\nFaults made, what the supervisor did, and after how long a step was made again"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for heading in ("fault", "found by", "action"):
        table.add_column(heading, no_wrap=heading != "action")
    for heading in ("back to", "after", "of it loading", "steps lost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in recoveries:
        table.add_row(
            one.fault.text, ALERTS.get(one.trigger or "", ("nothing",))[-1], words(one.action or "none"),
            count(one.from_step), duration(one.seconds) if one.is_over else Text("✗ not recovered", "bold red"),
            duration(one.load_seconds), count(one.lost_steps),
        )  # fmt: skip
    screen.console.print(table)


def _losses(screen: Screen, run: ResilientRun, alone: ResilientRun) -> None:
    width = min(screen.console.width, 120) - 8
    screen.console.print(Text("\nThe loss over time\n", "bold"))
    for line in loss_plot.in_characters(run.steps(), alone.steps(), width, 16):
        screen.console.print(line, no_wrap=True)
    screen.console.print()
    validated = [significant(each.validation(), 4) for each in (run, alone)]
    screen.note(f"at the end the loss on text that was held out is {validated[0]}, and without it {validated[1]}")
