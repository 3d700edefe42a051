"""What the demo shows: a story that scrolls by and, on a terminal, the ranks as Prometheus sees them below it."""

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

from tachograph.printable import printable
from tachograph_lab.demo.demo_scenarios import DemoResult
from tachograph_lab.demo.vitals import Vitals
from tachograph_lab.pager import PagedAlert

STATE_STYLES = {"running": "green", "frozen": "cyan", "dead": "bold red", "failed": "red", "finished": "dim"}
WIDTH = 110
"""Output that goes to a file is as wide as this; a terminal decides for itself."""


VERDICTS = {"ok": Text("✓", "green"), "late": Text("✓ late", "yellow")}


class Screen:
    """Prints the story; on a terminal it keeps a live view at the bottom. Use it as a context manager."""

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
        """Open the story."""
        self.console.print(
            Panel(Text(below), title=f"[bold]{text}[/]", title_align="left", box=box.ROUNDED, style="cyan")
        )

    def chapter(self, text: str, number: str = "") -> None:
        """Begin a part of the story."""
        self.console.print()
        self.console.print(
            Text.assemble((f"{self._clock()}  ", "dim"), (f"{number}  " if number else "", "bold cyan"), (text, "bold"))
        )

    def note(self, text: str, good: bool = True) -> None:
        """Tell one fact of the current part."""
        mark = ("✓", "green") if good else ("!", "bold yellow")
        self.console.print(Text.assemble((f"{self._clock()}  ", "dim"), mark, f" {text}"))

    def page(self, page: PagedAlert, delay: float, wanted: bool) -> None:
        """Show a page as it came in, and how long after the fault."""
        who = f"run {page.labels.get('run', '-')}" + (f", rank {page.labels['rank']}" if "rank" in page.labels else "")
        title = f"{'PAGE' if wanted else 'UNEXPECTED PAGE'} after {delay:.1f} s · {page.alert} · {who}"
        summary, description = (printable(page.annotations.get(name, "")) for name in ("summary", "description"))
        body = Text.assemble((summary, "bold"), "\n", description)
        style = "yellow" if wanted else "red"
        heading = Text(printable(title), "bold")
        panel = Panel(body, title=heading, title_align="left", border_style=style, box=box.HEAVY)
        self.console.print(Padding(panel, (0, 0, 0, 8)))

    def waiting(self, what: str, seconds: float | None = None) -> None:
        """Say what is waited for now, and for at most how long; an empty `what` means nothing."""
        self._waiting_for, self._waiting_since, self._waiting_seconds = what, time.monotonic(), seconds
        if what and not self.live:
            limit = "" if seconds is None else f", at most {seconds:.0f} s"
            self.console.print(f"{self._clock()}  … {what}{limit}")

    def show(self, run: str, rows: Sequence[Vitals]) -> None:
        """Give the live view its newest rows."""
        self._run, self._vitals = run, rows

    def summary(self, results: Sequence[DemoResult], surplus: Sequence[PagedAlert]) -> None:
        """Close the story with one row per fault, and the pages that nothing had called for."""
        table = Table(
            box=box.SIMPLE_HEAD,
            title="\nWhat was broken, and what was received",
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
            resolved = "-" if result.resolved_after is None else f"{result.resolved_after:.0f} s"
            table.add_row(
                result.scenario.title,
                Text(printable(result.page.alert)) if result.page else Text(f"no {result.scenario.alert}", "red"),
                Text(printable(result.culprit)),
                f"{result.delay:.1f} s" if result.page else "-",
                f"{result.budget:.1f} s",
                resolved,
                VERDICTS.get(result.verdict) or Text(f"✗ {result.verdict}", "bold red"),
            )
        self.console.print(table)
        for page in surplus:
            self.console.print(Text(printable(f"✗ surplus page: {page.alert} {dict(page.labels)}"), "bold red"))

    def left_running(self, urls: Mapping[str, str], pages: Path, stop: str) -> None:
        """Say what still runs, where, and the command that ends it."""
        table = Table(box=None, show_header=False, padding=(0, 2))
        for part, url in urls.items():
            table.add_row(part, f"[link={url}]{url}[/]")
        table.add_row("pages", str(pages))
        self.console.print(
            Panel(table, title="[bold]left running, with a healthy job[/]", title_align="left", expand=False)
        )
        self.console.print(Text.assemble("Stop it all:  ", (stop, "bold")))

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
                _number(row.step, "{:,.0f}"),
                _number(row.loss, "{:.3f}"),
                _number(row.lag_seconds, "{:+.0f} ms", 1000),
                Text(printable(_phase(row))),
                Text(printable(" ".join(row.alerts)), "bold red"),
            )
        return table

    def _progress(self) -> RenderableType:
        elapsed = time.monotonic() - self._waiting_since
        line = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [Spinner("dots", style="cyan"), Text(self._waiting_for)]
        if self._waiting_seconds is None:
            cells.append(Text(f"{elapsed:.0f} s", "dim"))
        else:
            cells.append(ProgressBar(total=self._waiting_seconds, completed=elapsed, width=30))
            cells.append(Text(f"{elapsed:.0f} of {self._waiting_seconds:.0f} s", "dim"))
        line.add_row(*cells)
        return line


def _phase(row: Vitals) -> str:
    lasts = f" for {row.phase_seconds:.0f} s" if row.phase_seconds and row.phase_seconds >= 2 else ""
    return f"{row.phase or '-'}{lasts}"


def _number(value: float | None, form: str, scale: float = 1) -> str:
    return "-" if value is None else form.format(value * scale)
