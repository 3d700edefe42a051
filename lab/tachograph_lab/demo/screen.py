"""The demo's output: a log of what happens and, on a terminal, a live table of the ranks as Prometheus sees them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tachograph.text.humanize import age, count, duration, significant
from tachograph.text.printable import printable
from tachograph_lab.demo.demo_scenarios import DemoResult
from tachograph_lab.demo.vitals import Vitals
from tachograph_lab.pager import PagedAlert

STATE_STYLES = {"running": "green", "frozen": "cyan", "dead": "bold red", "failed": "red", "finished": "dim"}
WIDTH = 110
"""The width of output that goes to a file; a terminal has its own."""


VERDICTS = {"ok": Text("✓", "green"), "late": Text("✓ late", "yellow")}


class Screen:
    """Prints the log and, on a terminal, keeps a live view at the bottom. Use it as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.live:
            self.console.width = WIDTH
        self._began = time.monotonic()
        self._waiting_for = ""
        self._waiting_since = 0.0
        self._waiting_seconds: float | None = None
        self._run = ""
        self._vitals: Sequence[Vitals] = ()
        self._live = Live(
            console=self.console, get_renderable=self._view, refresh_per_second=8, transient=True, redirect_stdout=False
        )

    @property
    def live(self) -> bool:
        """Whether there is a terminal to show a live view on."""
        return self.console.is_terminal

    def __enter__(self) -> Screen:
        if self.live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def title(self, text: str, below: str) -> None:
        """Print the title."""
        self.console.print(
            Panel(Text(below), title=f"[bold]{text}[/]", title_align="left", box=box.ROUNDED, style="cyan")
        )

    def chapter(self, text: str, number: str = "") -> None:
        """Begin a part of the demo."""
        self.console.print()
        self.console.print(
            Text.assemble((f"{self._clock()}  ", "dim"), (f"{number}  " if number else "", "bold cyan"), (text, "bold"))
        )

    def note(self, text: str, good: bool = True) -> None:
        """Print one fact of the current part."""
        mark = ("✓", "green") if good else ("!", "bold yellow")
        self.console.print(Text.assemble((f"{self._clock()}  ", "dim"), mark, f" {text}"))

    def page(self, page: PagedAlert, delay: float, wanted: bool) -> None:
        """Show a page on arrival, and how long after the fault it arrived."""
        who = f"run {page.labels.get('run', '-')}" + (f", rank {page.labels['rank']}" if "rank" in page.labels else "")
        title = f"{'PAGE' if wanted else 'UNEXPECTED PAGE'} after {duration(delay)} · {page.alert} · {who}"
        summary, description = (printable(page.annotations.get(name, "")) for name in ("summary", "description"))
        body = Text.assemble((summary, "bold"), "\n", description)
        style = "yellow" if wanted else "red"
        heading = Text(printable(title), "bold")
        panel = Panel(body, title=heading, title_align="left", border_style=style, box=box.HEAVY)
        self.console.print(Padding(panel, (0, 0, 0, 8)))

    def waiting(self, what: str, seconds: float | None = None) -> None:
        """Show what the demo is waiting for, and for how long at most; an empty `what` means nothing."""
        self._waiting_for, self._waiting_since, self._waiting_seconds = what, time.monotonic(), seconds
        if what and not self.live:
            limit = "" if seconds is None else f", at most {age(seconds)}"
            self.console.print(f"{self._clock()}  … {what}{limit}")

    def still_waiting(self, what: str) -> None:
        """Change what a terminal shows of that; how long it has waited goes on."""
        self._waiting_for = what

    def show(self, run: str, rows: Sequence[Vitals]) -> None:
        """Update the rows of the live view."""
        self._run, self._vitals = run, rows

    def summary(self, results: Sequence[DemoResult], surplus: Sequence[PagedAlert]) -> None:
        """Print one row per fault, and the pages that no fault called for."""
        table = Table(
            box=box.SIMPLE_HEAD,
            title="\nFaults injected and pages received",
            title_justify="left",
            title_style="bold",
        )
        table.add_column("fault")
        for heading in ("page", "culprit"):
            table.add_column(heading, no_wrap=True)
        for heading in ("after", "budget", "resolved"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for result in results:
            table.add_row(
                result.scenario.title,
                Text(printable(result.page.alert)) if result.page else Text(f"no {result.scenario.alert}", "red"),
                Text(printable(result.culprit)),
                duration(result.delay if result.page else None),
                duration(result.budget),
                duration(result.resolved_after),
                VERDICTS.get(result.verdict) or Text(f"✗ {result.verdict}", "bold red"),
            )
        self.console.print(table)
        for page in surplus:
            self.console.print(Text(printable(f"✗ surplus page: {page.alert} {dict(page.labels)}"), "bold red"))

    def left_running(self, urls: Mapping[str, str], pages: Path, stop: str) -> None:
        """Print what is still running, where, and the command that stops it."""
        table = Table(box=None, show_header=False, padding=(0, 2))
        for part, url in urls.items():
            table.add_row(part, f"[link={url}]{url}[/]")
        table.add_row("pages", str(pages))
        self.console.print(
            Panel(table, title="[bold]still running, with a healthy job[/]", title_align="left", expand=False)
        )
        self.console.print(Text.assemble("To stop it:  ", (stop, "bold")))

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}:{seconds:02d}"

    def _view(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._vitals:
            parts.append(self._ranks())
        if self._waiting_for:
            parts.append(self._progress())
        return Group(*parts)

    def _ranks(self) -> RenderableType:
        table = Table(
            box=box.SIMPLE_HEAD,
            title=f"run {self._run}, as Prometheus sees it",
            title_justify="left",
            title_style="dim",
        )
        for heading, justify in (("rank", "right"), ("state", "left"), ("step", "right"), ("loss", "right")):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        table.add_column("lag per step", justify="right")
        table.add_column("phase", width=22)
        table.add_column("alerts", width=28)
        for row in self._vitals:
            table.add_row(
                str(row.rank),
                Text(printable(row.state or "-"), STATE_STYLES.get(row.state or "", "")),
                count(row.step),
                significant(row.loss),
                duration(row.lag_seconds),
                Text(printable(_phase(row))),
                Text(printable(" ".join(row.alerts)), "bold red"),
            )
        return table

    def _progress(self) -> RenderableType:
        elapsed = time.monotonic() - self._waiting_since
        line = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [Spinner("dots", style="cyan"), Text(self._waiting_for)]
        if self._waiting_seconds is None:
            cells.append(Text(age(elapsed), "dim"))
        else:
            cells.append(ProgressBar(total=self._waiting_seconds, completed=elapsed, width=30))
            cells.append(Text(f"{age(elapsed)} of {age(self._waiting_seconds)}", "dim"))
        line.add_row(*cells)
        return line


def _phase(row: Vitals) -> str:
    lasts = f" for {age(row.phase_seconds)}" if row.phase_seconds and row.phase_seconds >= 2 else ""
    return f"{row.phase or '-'}{lasts}"
