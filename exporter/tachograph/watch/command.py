"""`tachograph run --watch`: starts the exporter, then the program, says now and then how it goes, and sums up."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from tachograph.attach.summary import SAYS, SUMMARY_ENVIRONMENT, figures_text
from tachograph.catalog.rank import ALIVE
from tachograph.processes.signals import signals_as_exit
from tachograph.report.command import check_writable, write_page
from tachograph.servers.server_address import exporter_url
from tachograph.text.printable import printable
from tachograph.text.wrapping import wrapped
from tachograph.top.header import figures_of
from tachograph.top.node_source import NodeSource, exporter_page
from tachograph.top.overview import Overview, RunSummary, SourceError, Trouble, harmless
from tachograph.watch.curves import Curves
from tachograph.watch.figures import LastValues
from tachograph.watch.private_exporter import NotServingError, PrivateExporter, private_exporter
from tachograph.watch.program import end_as, run_watched

PAGE_SECONDS = 1.0
"""How often the exporter's page is read: it makes one each second."""

LINE_SECONDS = 5.0
"""How often a line on the run appears on a terminal."""

FORGET_SECONDS = 60.0
"""A problem that has been absent for so long is said in full again when it comes back."""

SETTLE_SECONDS = 3.0
"""How long the exporter may take to show the end of ranks whose program has ended."""

WIDTH = 200
"""Columns of a line on the run, where the terminal does not say how many it has."""

NO_STEP = "No step"
"""The kind of a problem that a program which goes on after its training has at its good end."""
MISUSE = "Misuse"

Identity = tuple[str, str, str]
_RANK = re.compile(r"(?:Rank \d+ )?")


def main(arguments: Sequence[str], quiet: bool, report: str = "") -> int:
    """Run `tachograph run ARGUMENTS` beside an exporter; return the program's status, or end by its signal.

    `report`: the file of a page with what was measured, empty for none.
    """
    if report and (fault := _fault(report)):
        _say(fault)
        return 2
    try:
        with signals_as_exit(), private_exporter() as exporter:
            watched = Watched(exporter)
            if not quiet:
                _say(f"{exporter.url}/ shows this run until it ends; so does tachograph top --exporter {exporter.own}")
            left = exporter.socket.with_name("summary")
            more = {"TACHOGRAPH_SOCKET": str(exporter.socket), SUMMARY_ENVIRONMENT: str(left)}
            status = run_watched(arguments, more, watched.tick, PAGE_SECONDS)
            watched.settle()
            seen = left.read_text(encoding="utf-8", errors="replace") if left.exists() else ""
    except NotServingError as error:
        _say(printable(str(error)))
        return 1
    except KeyboardInterrupt:  # before there was a program to pass it on to
        return 130
    wrong = [in_words(one) for one in watched.wrong(ended_well=status == 0)]
    if not quiet:
        sys.stderr.write(figures_text(watched.record.figures(), wrong, seen))
    if report:
        measured = figures_text(watched.record.figures(), (), seen).replace(SAYS, "")
        _leave(report, watched.curves.page(wrong, measured, time.time(), PAGE_SECONDS))
    return end_as(status)


def _fault(report: str) -> str:
    """Return why no file can be written there, empty if one can: said before the program has run for hours."""
    try:
        check_writable(Path(report))
    except OSError as error:
        return f"cannot write {report}: {error.strerror or error}"
    return ""


def _leave(report: str, page: str) -> None:
    """Write the page, and say where it is."""
    try:
        write_page(Path(report), page)
    except OSError as error:
        _say(f"cannot write {report}: {error.strerror or error}")
    else:
        _say(f"{report} shows the loss and what was measured")


class Watched:
    """The exporter's pages, read one after the other."""

    def __init__(self, exporter: PrivateExporter) -> None:
        self.record, self.curves = LastValues(), Curves()
        self._source, self._metrics = NodeSource(exporter.own, PAGE_SECONDS), exporter_url(exporter.own)
        self._next_line = time.monotonic() + LINE_SECONDS
        self._last_seen: dict[Identity, float] = {}
        self._while_it_ran: tuple[Trouble, ...] = ()
        self._last: tuple[Trouble, ...] = ()

    def tick(self) -> None:
        """Read the answer of the exporter; say at once what goes wrong, and on a terminal now and then how it goes."""
        overview = self.read()
        if overview is None:
            return
        now = time.monotonic()
        self._last_seen = {key: at for key, at in self._last_seen.items() if now - at < FORGET_SECONDS}
        said = set(self._last_seen)
        present = {identity(one) for one in harmless(overview).problems}
        self._last_seen.update(dict.fromkeys(present, now))
        if not sys.stderr.isatty():  # a file, a pipe, a batch job's output: no line but for what is new
            for line in map(in_words, (one for one in harmless(overview).problems if identity(one) not in said)):
                _say(line)
        elif present - said or now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            width = _columns()
            for line in wrapped(lines(overview, said, width), width):
                sys.stderr.write(f"\r\x1b[K{line}\n")  # over a progress bar, which draws itself again below
            sys.stderr.flush()

    def settle(self) -> None:
        """Read pages until no rank is up any more."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            overview = self.read()
            if overview is not None and not any(rank.state in ALIVE for rank in overview.ranks):
                return
            time.sleep(0.1)

    def wrong(self, *, ended_well: bool) -> list[Trouble]:
        """Return what was wrong at the end, then while ranks last ran; a missing step is no news of a good end."""
        found = {identity(one): one for one in (*self._last, *self._while_it_ran)}
        return [one for one in found.values() if not (ended_well and one.kind == NO_STEP)]

    def read(self) -> Overview | None:
        """Return the node as it is now, None if there is no answer: the program goes on all the same."""
        try:
            overview = self._source.fetch()
            self.record.add(exporter_page(self._metrics, PAGE_SECONDS), overview.ranks)
        except SourceError:
            return None
        self.curves.add(overview.at, harmless(overview).runs)
        self._last = overview.problems
        if any(rank.state in ALIVE for rank in overview.ranks):
            self._while_it_ran = overview.problems
        return overview


def identity(one: Trouble) -> Identity:
    """Return what stays while a problem's figures change: its kind, its run, and the single rank or the misuse."""
    which = one.text.partition(": ")[2] if one.kind == MISUSE else _RANK.findall(one.text)[0]
    return one.kind, one.run, which


def lines(overview: Overview, said: Collection[Identity] = (), width: int = WIDTH) -> list[str]:
    """Return what is wrong, with what usually helps, and then a line on each run: how it goes.

    Of the problems that have been `said` already, only a missing step and what is urgent are repeated, without advice.
    """
    shown = harmless(overview)
    new = [one for one in shown.problems if identity(one) not in said]
    return [
        *map(in_words, new),
        *(one.text for one in shown.problems if one not in new and (one.urgent or one.kind == NO_STEP)),
        *(_figures(run, width) for run in shown.runs),
    ]


def _figures(run: RunSummary, width: int) -> str:
    """Return how a run goes in one line, as far as the width goes."""
    which = f"{run.name} {run.state}:"
    return which + figures_of(run, width - len(which)).plain


def _columns() -> int:
    """Return how wide the terminal on standard error is."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or WIDTH
    return WIDTH


def in_words(one: Trouble) -> str:
    """Return a problem and what usually helps, in one line."""
    return one.text + f" → {one.remedy}" * bool(one.remedy)


def _say(text: str) -> None:
    sys.stderr.write(f"tachograph run: {text}\n")
    sys.stderr.flush()
