"""The live view of `top`: one thread fetches, the app draws and listens, so that no key waits for an answer."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import Footer, Input, Static

from tachograph.text import humanize
from tachograph.text.printable import printable
from tachograph.top import tables
from tachograph.top.header import header, known
from tachograph.top.overview import Overview, OverviewSource, RunSummary, SourceError, harmless
from tachograph.top.sparkline import curve
from tachograph.top.tables import WORST, TableColumn

TICK_SECONDS = 0.25
"""How often the newest answer and its age are looked at."""
LATE_INTERVALS = 3
"""An answer that is so many intervals old is called late, though none has failed."""
SIDE_BY_SIDE, TOO_LOW_FOR_GPUS = 170, 14
"""From so many columns on the tables stand beside each other; below so many lines there are no GPUs."""

HELP = """\
 s      sort by the next column, after the last one the worst first
 r      reverse the order
 /      show only rows with these words: a rank's number, a node, a state, a
        phase, an alert. Of a run, ranks and nodes named are fetched, too
 space  pause, go on     tab  the other table     esc  drop the filter
 up down PgUp PgDn Home End    scroll             q    quit

 STATE      running, or what is wrong. culprit: all others wait for it.
            straggler: it slows the run down. late: it lags, but less.
            died first, NaN first: where it began. stalled: the run makes no step.
 PHASE FOR  what the rank is doing, and for how long
 LAG        how much later than the others it reaches the collective, per step
 WAIT, DATA how long it waits for the others and for data, per step
 ACTIVE     share of time with work on the SMs, otherwise the driver's utilization
 TROUBLE    why the GPU is throttled, and for what share of the time (a power cap
            is normal at full load); what is broken; alerts
"""


@dataclass(frozen=True)
class Fetched:
    """The last overview, when it came by a clock that never jumps, and why there has been none since."""

    overview: Overview
    at: float
    error: str = ""


class Fetcher:
    """Fetches again and again, in a thread of its own."""

    def __init__(self, source: OverviewSource, first: Overview, interval: float) -> None:
        self.last = Fetched(first, time.monotonic())
        self.interval = interval
        self._source = source
        self._wanted = ""
        self._now, self._is_stopped = threading.Event(), False
        threading.Thread(target=self._run, name="tachograph-top", daemon=True).start()

    def want(self, wanted: str) -> None:
        """Fetch certain ranks too, at once."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._now.set()

    def problem(self) -> str:
        """Return why the last overview is old, empty if it is not."""
        age = time.monotonic() - self.last.at
        if not self.last.error and age <= LATE_INTERVALS * self.interval + 1:
            return ""
        return f"no answer for {humanize.age(age)}: {self.last.error or 'the source is slow'}"

    def stop(self) -> None:
        """Fetch no more."""
        self._is_stopped = True
        self._now.set()

    def _run(self) -> None:
        while True:
            self._now.wait(self.interval)
            self._now.clear()
            if self._is_stopped:
                return
            try:
                self.last = Fetched(self._source.fetch(self._wanted), time.monotonic())
            except SourceError as error:
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - a page nobody foresaw must not end the only thread that fetches
                self._failed(f"the answer cannot be read: {error!r}")

    def _failed(self, why: str) -> None:
        self.last = Fetched(self.last.overview, self.last.at, why)


class TablePane(VerticalScroll):
    """A table under its headings, which stay in place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", show=False),
        Binding("j", "scroll_down", show=False),
        Binding("tab", "app.focus_next", "table", key_display="tab"),
    ]

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self.sort, self.is_reversed = WORST, False
        self._headings, self._rows = Static(classes="headings"), Static()

    def compose(self) -> ComposeResult:
        """Yield the parts."""
        yield self._headings
        yield self._rows

    def draw(self, name: str, rows: Sequence[Any], columns: Sequence[TableColumn[Any]], text: str) -> None:
        """Show rows under a name, in the order asked for."""
        ordered = tables.in_order(rows, columns, self.sort, self.is_reversed)
        layout = tables.fitting(columns, ordered, self.size.width - self.styles.scrollbar_size_vertical)
        order = "worst first" if self.sort == WORST else f"by {self.sort.lower()}"
        reverse, filtered = ", reversed" * self.is_reversed, f", with {text!r}" * bool(text)
        self.border_title = Text(f"{name}, {order}{reverse}{filtered}")
        self._headings.update(tables.headings(layout, self.sort))
        self._rows.update(tables.lines(layout, ordered))


class LossCurve(Static):
    """The loss of the first run, in the lines that no table needs: where there is no GPU."""

    _losses: Sequence[float] = ()

    def draw(self, runs: Sequence[RunSummary]) -> None:
        """Take over what is known of it."""
        self._losses = known(runs[0].loss_history) if runs else ()
        if self.has_past:
            first, last = (humanize.significant(self._losses[at]) for at in (0, -1))
            self.border_title = Text(f"loss of {runs[0].name}, {first} to {last}")
        self.refresh()

    @property
    def has_past(self) -> bool:
        """Whether there is anything to draw."""
        return len(self._losses) > 1

    def render(self) -> Text:
        """Return the bars, as high and wide as there is room."""
        return Text("\n".join(curve(self._losses, self.size.width, self.size.height)), no_wrap=True)


class TopApp(App[None]):
    """The live view."""

    TITLE = "tachograph top"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (SIDE_BY_SIDE, "-wide")]  # noqa: RUF012 - Textual declares no ClassVar
    VERTICAL_BREAKPOINTS = [(0, "-low"), (TOO_LOW_FOR_GPUS, "-high")]  # noqa: RUF012
    CSS = """
    Screen { layers: base above; }
    #help { layer: above; width: 100%; height: 100%; }
    #status, #header { height: auto; }
    #header { max-height: 60%; }
    #tables { height: 1fr; }
    TablePane { height: 1fr; border-top: solid gray; scrollbar-size-vertical: 1; overflow-x: hidden; }
    TablePane:focus { border-top: heavy white; border-title-style: bold; background-tint: transparent; }
    TablePane Static { width: auto; height: auto; }
    TablePane Static, #header { text-wrap: nowrap; text-overflow: clip; }
    TablePane .headings { dock: top; width: 100%; }
    #gpus { height: auto; max-height: 45%; }
    .-low #gpus, .-alone #gpus { display: none; }
    #curve { display: none; height: 1fr; border-top: solid gray; color: ansi_cyan; }
    .-alone #ranks { height: auto; max-height: 100%; }
    .-alone #curve { display: block; }
    .-wide .-alone #ranks { height: 100%; }
    .-wide #curve { width: 9fr; margin-left: 1; }
    .-wide #tables { layout: horizontal; }
    .-wide #ranks { width: 11fr; }
    .-wide #gpus { width: 9fr; height: 100%; max-height: 100%; margin-left: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c,ctrl+d", "quit", show=False, priority=True),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("space", "pause", "pause"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("escape", "drop_filter", show=False),
        Binding("ctrl+z", "suspend_process", show=False),
    ]

    def __init__(self, source: OverviewSource, first: Overview, interval: float) -> None:
        super().__init__(ansi_color=True)  # the terminal's own colours
        self.theme = "ansi-dark"
        self._fetcher = Fetcher(source, first, interval)
        self._overview = harmless(first)
        self._shown = self._fetcher.last.overview
        self._filter = ""
        self._is_paused = False
        self._status, self._header, self._help = Static(id="status"), Static(id="header"), Static(HELP, id="help")
        self._ranks, self._gpus = TablePane("ranks"), TablePane("gpus")
        self._curve = LossCurve(id="curve")
        self._tables = Container(self._ranks, self._gpus, self._curve, id="tables")
        self._input = Input(id="filter", placeholder="enter: keep, esc: drop", compact=True)

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield self._status
        yield self._header
        yield self._help
        yield self._tables
        yield self._input
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to draw."""
        self._help.display = self._input.display = False
        self._ranks.focus()
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.exit, None, 128 + number)
        self.set_interval(TICK_SECONDS, self._tick)
        self.call_after_refresh(self._draw)

    def on_unmount(self) -> None:
        """End with the app."""
        self._fetcher.stop()

    def on_resize(self, _: events.Resize) -> None:
        """Fit the columns into the new size."""
        self.call_after_refresh(self._draw)

    def _tick(self) -> None:
        status = Text(" PAUSED " * self._is_paused, "bold black on yellow")
        if problem := self._fetcher.problem():
            status.append(f" {printable(problem)}", "bold white on red")
        self._status.update(status)
        self._status.display = bool(status)
        if not self._is_paused and self._shown is not self._fetcher.last.overview:
            self._shown = self._fetcher.last.overview
            self._overview = harmless(self._shown)
            self._draw()

    def _draw(self) -> None:
        overview = self._overview
        self._header.update(header(overview, self.size.width, max(1, self.size.height // 6)))
        ranks = tables.matching(overview.ranks, self._filter)
        gpus = tables.matching(overview.gpus, self._filter, {rank.uuid for rank in ranks if rank.uuid})
        shown, whole = len(overview.ranks), overview.ranks_in_all
        name = f"{shown:,} of {whole:,} ranks" if shown < whole else "ranks"
        self._ranks.draw(name, ranks, tables.rank_columns(overview), self._filter)
        self._gpus.draw("GPUs", gpus, tables.gpu_columns(overview), self._filter)
        self._gpus.set_class(not overview.gpus, "-none")
        self._curve.draw(overview.runs)
        self._tables.set_class(not overview.gpus and self._curve.has_past, "-alone")

    @property
    def _pane(self) -> TablePane:
        return self._gpus if self._gpus.has_focus else self._ranks

    def on_key(self, event: events.Key) -> None:
        """Close the help with any key."""
        if self._help.display and event.key != "question_mark":
            event.stop()
            event.prevent_default()
            self.action_help()

    def action_help(self) -> None:
        """Show the help, or what it covers."""
        self._help.display = not self._help.display

    def action_sort(self) -> None:
        """Sort the focused table by its next column."""
        gpus = self._pane is self._gpus
        columns: Any = tables.gpu_columns(self._overview) if gpus else tables.rank_columns(self._overview)
        self._pane.sort, self._pane.is_reversed = tables.next_sort(columns, self._pane.sort), False
        self._pane.scroll_home(animate=False)
        self._draw()

    def action_reverse(self) -> None:
        """Reverse the order of the focused table."""
        self._pane.is_reversed = not self._pane.is_reversed
        self._draw()

    def action_pause(self) -> None:
        """Hold the picture, or go on."""
        self._is_paused = not self._is_paused
        self._tick()

    def action_filter(self) -> None:
        """Ask for a filter."""
        self._input.value, self._input.display = self._filter, True
        self._input.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while a person types."""
        self._filter = event.value
        self._ranks.scroll_home(animate=False)
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, and fetch what it names."""
        self._keep(event.value.strip())

    def action_drop_filter(self) -> None:
        """Show all rows."""
        self._keep("")

    def _keep(self, text: str) -> None:
        self._filter, self._input.display = text, False
        self._fetcher.want(text)
        if self._input.has_focus:
            self._ranks.focus()
        self._draw()
