"""The top of the screen: how the run is, and what fires."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.text import Text

from tachograph.printable import printable
from tachograph.top import words
from tachograph.top.facts import Alert, Facts, Run
from tachograph.top.glyphs import Glyphs
from tachograph.top.sparkline import sparkline

BADGES = {
    "hung": "bold white on red", "dead": "bold white on red", "failed": "bold white on red",
    "frozen": "bold black on yellow", "running": "bold black on green", "finished": "bold black on cyan",
}  # fmt: skip
SEVERITIES = {"critical": "bold red", "warning": "yellow", "info": "blue"}
RUNS_IN_FULL = 1


def header(facts: Facts, width: int, glyphs: Glyphs, alert_lines: int) -> list[Text]:
    """Return the lines above the tables."""
    lines: list[Text] = []
    for place, run in enumerate(facts.runs):
        right = _whence(facts) if place == 0 else ""
        lines.append(_title(run, right, width, glyphs))
        lines.append(_figures(run, width, glyphs))
        if place < RUNS_IN_FULL:
            lines.append(_sparklines(run, width, glyphs))
    if not facts.runs:
        left = "No rank has said hello on this node."
        right = _whence(facts)
        lines.append(Text(glyphs.fit(left, width - len(right) - 1) + " " + right))
    if facts.alerts is not None:
        lines += _alerts(facts.alerts, width, glyphs, alert_lines)
    return lines + [Text(glyphs.fit(f" {note}", width), "yellow") for note in facts.notes]


def _whence(facts: Facts) -> str:
    return f"{facts.source.split('://')[-1].removesuffix('/metrics')}  {words.clock(facts.at)}"


def _title(run: Run, right: str, width: int, glyphs: Glyphs) -> Text:
    badge = f" {run.state.upper() if run.state in ('hung', 'dead', 'failed', 'frozen') else run.state} "
    if run.state_seconds is not None:
        badge = f"{badge}{words.age(run.state_seconds)} "
    alive = run.ranks.get("running", 0) + run.ranks.get("frozen", 0)
    whole = max(run.world_size or sum(run.ranks.values()), alive)
    said = f"{alive:,} of {whole:,} rank{'s' * (whole != 1)} up"
    others = [f"{count:,} {state}" for state, count in run.ranks.items() if state != "running" and count]
    said = ", ".join([said, *others])
    room = max(0, width - len(badge) - len(right) - 2)
    text = Text.assemble((badge, BADGES.get(run.state, "reverse")))
    name = glyphs.fit(run.name, min(cell_len(printable(run.name)), max(8, room - len(said) - 3)))
    left = f" {name}  "
    text.append(left, "bold")
    text.append(glyphs.fit(said, max(0, room - cell_len(left) + 1)))
    text.append(f" {right}", "dim")
    return text


def _figures(run: Run, width: int, glyphs: Glyphs) -> Text:
    parts: list[tuple[str, str, str]] = [("step", words.number(run.step), "bold")]
    if run.progress_seconds is not None and run.state != "finished":
        late = run.progress_seconds > max(15.0, 4 * (run.step_seconds or 0.0))
        parts.append(("last step", f"{words.age(run.progress_seconds)} ago", "bold yellow" if late else ""))
    if run.step_seconds is not None:
        parts.append(("", f"{words.duration(run.step_seconds)}/step", ""))
    if run.tokens_per_second is not None:
        parts.append(("", f"{words.short(run.tokens_per_second)} tok/s", ""))
    if run.checkpoint_seconds is not None:
        parts.append(("saved", f"{words.age(run.checkpoint_seconds)} ago", ""))
    if run.goodput is not None:
        parts.append(("goodput", words.percent(run.goodput), ""))
    if run.restarts:
        parts.append(("restarts", words.number(run.restarts), ""))
    text = Text(" ")
    for label, value, style in parts:
        piece = Text.assemble((f"{label} " if label else "", "dim"), (value, style))
        lead = "" if len(text) == 1 else glyphs.dot
        if text.cell_len + len(lead) + piece.cell_len <= width:
            text.append(lead, "dim").append_text(piece)
    return text


def _sparklines(run: Run, width: int, glyphs: Glyphs) -> Text:
    half = width // 2
    text = Text()
    usual = "" if run.mfu_baseline is None else f", usually {words.percent(run.mfu_baseline, 1)}"
    nan = f"NaN on {run.nonfinite_ranks:,} rank{'s' * (run.nonfinite_ranks != 1)}" if run.nonfinite_ranks else ""
    for label, value, style, history, colour in (
        ("loss", nan or words.figure(run.loss), "bold red" if nan else "bold", run.loss_history, "cyan"),
        ("MFU", words.percent(run.mfu, 1) + usual, "bold", run.mfu_history, "green"),
    ):
        ends = text.cell_len + half
        text.append(f" {label} ", "dim").append(value, style).append(" ")
        text.append(sparkline(_known(history), max(0, ends - text.cell_len - 2), glyphs.bars), colour)
        text.append(" " * max(0, ends - text.cell_len))
    text.truncate(width)
    return text


def _known(history: Sequence[float]) -> Sequence[float]:
    """Return a history from its first figure on: a short one is shown short, not as a long gap."""
    first = next((i for i, value in enumerate(history) if math.isfinite(value)), len(history))
    return history[first:]


def _alerts(alerts: Sequence[Alert], width: int, glyphs: Glyphs, most: int) -> list[Text]:
    """Return a line for each alert that fires, however many it names."""
    if not alerts:
        return [Text(" no alert fires", "green")]
    groups: dict[tuple[str, str], list[Alert]] = {}
    for alert in alerts:
        groups.setdefault((alert.severity, alert.name), []).append(alert)
    shown = list(groups.items())
    cut = shown[: most - 1] if len(shown) > most else shown
    lines = []
    for (severity, name), found in cut:
        style = SEVERITIES.get(severity, "")
        since = f"for {words.age(max(alert.seconds for alert in found))} "
        left = f" {severity:<8} {name}  "
        who = glyphs.fit(_who(found), max(0, width - len(left) - len(since)))
        lines.append(Text.assemble((left, style), who, (since, "dim")))
    if len(cut) < len(shown):
        rest = [name for (_, name), _ in shown[len(cut) :]]
        lines.append(Text(glyphs.fit(f" and {len(rest)} more: {', '.join(rest)}", width), "yellow"))
    return lines


def _who(alerts: Iterable[Alert]) -> str:
    names = [
        " ".join(filter(None, (alert.rank and f"rank {alert.rank}", alert.node, alert.gpu and f"GPU {alert.gpu}")))
        for alert in alerts
    ]
    known = [name for name in dict.fromkeys(names) if name]
    return known[0] if len(known) == 1 else f"{len(known)}: {', '.join(known)}" if known else ""
