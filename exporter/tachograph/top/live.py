"""The live view: one thread asks, this one draws and listens, so that no key waits for an answer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.text import Text

from tachograph.signals import signals_as_exit
from tachograph.top import words
from tachograph.top.columns import gpu_columns, rank_columns
from tachograph.top.facts import Facts, SourceError
from tachograph.top.glyphs import Glyphs
from tachograph.top.keys import pressed
from tachograph.top.screen import frame
from tachograph.top.terminal import HangUpError, Terminal
from tachograph.top.wishes import Wishes

TICK_SECONDS = 0.25
"""How often the size of the terminal and the age of the answer are looked at."""

LATE_INTERVALS = 3
"""An answer that is so many intervals old is said to be late, though none has failed."""


class Source(Protocol):
    """Whom facts come from."""

    view: str
    looks_needed: int

    def look(self, wanted: str = "") -> Facts:
        """Return what is known now; raise SourceError."""
        ...


@dataclass(frozen=True)
class Answer:
    """The last facts, when they came by a clock that never jumps, and why there have been none since."""

    facts: Facts
    at: float
    error: str = ""


class Asker:
    """Asks again and again, in a thread of its own."""

    def __init__(self, source: Source, first: Facts, interval: float) -> None:
        self.answer = Answer(first, time.monotonic())
        self._source, self._interval = source, interval
        self._wanted = ""
        self._now = threading.Event()
        threading.Thread(target=self._run, name="tachograph-top", daemon=True).start()

    def want(self, wanted: str) -> None:
        """Ask for certain ranks too, at once."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._now.set()

    def _run(self) -> None:
        while True:
            self._now.wait(self._interval)
            self._now.clear()
            try:
                self.answer = Answer(self._source.look(self._wanted), time.monotonic())
            except SourceError as error:
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - a page nobody foresaw must not end the only one who asks
                self._failed(f"the answer cannot be read: {error!r}")

    def _failed(self, why: str) -> None:
        self.answer = Answer(self.answer.facts, self.answer.at, why)


def show_live(source: Source, first: Facts, interval: float, console: Console, glyphs: Glyphs) -> None:
    """Show a source until somebody leaves."""
    asker = Asker(source, first, interval)
    wishes, held = Wishes(), asker.answer
    drawn: object = None
    try:
        with signals_as_exit(), Terminal() as terminal:
            while True:
                answer = held if wishes.paused else asker.answer
                held = answer
                width, height = terminal.size
                trouble = _trouble(asker.answer, interval)
                if drawn != (picture := (answer.facts, wishes, width, height, trouble, terminal.entered)):
                    drawn = picture
                    terminal.show(rendered(frame(answer.facts, wishes, (width, height), glyphs, trouble), console))
                headings = {
                    "ranks": [column.heading for column in rank_columns(answer.facts)],
                    "gpus": [column.heading for column in gpu_columns(answer.facts)],
                }
                for key in terminal.keys(TICK_SECONDS):
                    if key == "q" and not wishes.editing:
                        return
                    wishes = _clamped(pressed(wishes, key, max(1, height // 3), headings), answer.facts)
                    if not wishes.editing:
                        asker.want(wishes.filter)
    except (KeyboardInterrupt, HangUpError):
        return


def rendered(lines: list[Text], console: Console) -> list[str]:
    """Return lines as the console's terminal wants them, colours and all."""
    with console.capture() as capture:
        for line in lines:
            console.print(line)
    return capture.get().split("\n")[: len(lines)]


def _trouble(answer: Answer, interval: float) -> str:
    age = time.monotonic() - answer.at
    if answer.error or age > LATE_INTERVALS * interval + 1:
        since = f"{age:.0f} s" if age < 120 else words.age(age)
        return f"no answer since {since}: {answer.error or 'it takes its time'}"
    return ""


def _clamped(wishes: Wishes, facts: Facts) -> Wishes:
    """Return the wishes with no table scrolled beyond its last row."""
    rows = len(facts.ranks) if wishes.focus == "ranks" else len(facts.gpus)
    pane = wishes.pane
    if pane.offset < rows:
        return wishes
    return wishes.with_pane(lambda old: type(old)(old.sort, old.turned, max(0, rows - 1)))
