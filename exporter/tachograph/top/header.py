"""The header of `top`: the condition of each run, and the alerts that fire."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tachograph.text import humanize
from tachograph.top.overview import FiringAlert, LayerRow, Overview, RunSummary, Trouble
from tachograph.top.sparkline import sparkline

BADGES = {
    "hung": "bold white on red", "dead": "bold white on red", "failed": "bold white on red",
    "frozen": "bold black on yellow", "overdue": "bold black on yellow", "running": "bold black on green",
    "finished": "bold black on cyan",
}  # fmt: skip
SEVERITIES = {"critical": "bold red", "warning": "yellow", "info": "blue"}
RUNS_IN_FULL = 1
PROBLEMS_SHOWN = 4
LAYERS_SHOWN = 8
LAYER_STANDS_OUT = 3.0
"""Times its usual gradient norm."""
LATE_STEPS, LATE_SECONDS = 3, 3.0
"""The last step is worth a word once it is older than so many steps and seconds: a node is read once a second."""
LEAST_SHARE = 0.01
"""Of a step: what is worth a word."""
ROOM_FOR_SOURCE = 60
"""Columns from which on the first line has the source and the time."""


def header(overview: Overview, width: int, alert_lines: int) -> Group:
    """Return the lines above the tables, none wider than the width: what is wrong first, and what usually helps."""
    source = f"{overview.source.split('://')[-1].removesuffix('/metrics')}  {humanize.utc(overview.at)}Z"
    source *= width >= ROOM_FOR_SOURCE
    lines: list[RenderableType] = list(_problems(overview.problems, width))
    for place, run in enumerate(overview.runs):
        lines += [_line(_title(run), Text(source if place == 0 else "", "dim")), figures_of(run, width)]
        if place < RUNS_IN_FULL:
            lines += [_sparklines(run, width), *([_layers(run.layers)] if run.layers else [])]
    if not overview.runs:
        lines.append(_line(Text("No rank has connected on this node."), Text(source)))
    if overview.alerts is not None:
        lines += _alerts(overview.alerts, alert_lines)
    return Group(*lines, *(_cut(Text(f" {note}", "yellow")) for note in overview.notes))


def _problems(problems: Sequence[Trouble], width: int) -> Iterator[Text]:
    """Yield each problem in as many lines as it takes, as its end has the process and the line; its remedy below it."""
    for one in problems[:PROBLEMS_SHOWN]:
        look = "bold white on red" if one.urgent else "bold black on yellow"
        badge = f" {one.kind.upper()} "
        room, indent = max(width - 1, 2 * len(badge)), " " * (len(badge) + 1)
        first, *rest = textwrap.wrap(one.text, room, initial_indent=indent, subsequent_indent="   ") or [""]
        yield _cut(Text.assemble((badge, look), (first[len(badge) :], "bold")))
        yield from (_cut(Text(line, "bold")) for line in rest)
        remedy = textwrap.wrap(one.remedy, room, initial_indent="   → ", subsequent_indent="   ")  # room for an address
        yield from (_cut(Text(line, "dim")) for line in remedy)
    if (more := len(problems) - PROBLEMS_SHOWN) > 0:
        yield Text(f" and {humanize.plural(more, 'problem')} more", "yellow")


def _cut(text: Text) -> Text:
    """Return a text that stays on its line."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _line(left: Text, right: Text) -> Table:
    """Return a line that fills the width: what is left of it is cut where room is short."""
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True)
    table.add_row(left, right)
    return table


def _title(run: RunSummary) -> Text:
    badge = f" {run.state if run.state in ('running', 'finished', 'unseen') else run.state.upper()} "
    if run.state_seconds is not None:
        badge += f"{humanize.age(run.state_seconds)} "
    alive = run.ranks.get("running", 0) + run.ranks.get("frozen", 0)
    whole = max(run.world_size or sum(run.ranks.values()), alive)
    others = [f"{count:,} {state}" for state, count in run.ranks.items() if state != "running" and count]
    up = ", ".join([f"{alive:,} of {humanize.plural(whole, 'rank')} up", *others])
    name = run.name if len(run.name) <= 40 else run.name[:39] + "…"
    return Text.assemble((badge, BADGES.get(run.state, "reverse")), (f" {name}  ", "bold"), up)


def figures_of(run: RunSummary, width: int) -> Text:
    """Return a run's step, speed, last checkpoint, goodput and restarts in one line, as far as the width goes."""
    parts: list[tuple[str, str, str]] = [("step", humanize.count(run.step), "bold")]
    late = run.progress_seconds is not None and run.progress_seconds > max(
        LATE_SECONDS, LATE_STEPS * (run.step_seconds or 0.0)
    )
    if late and run.state != "finished":
        parts.append(("last step", f"{humanize.age(run.progress_seconds)} ago", "bold yellow"))
    if run.step_seconds is not None:
        parts.append(("", f"{humanize.duration(run.step_seconds)}/step", ""))
        parts += _parts(run) if run.parts_seconds else _where_it_goes(run, run.step_seconds)
    if run.saving_seconds is not None:
        parts.append(("saving for", humanize.age(run.saving_seconds), "bold"))
    if run.tokens_per_second is not None:
        parts.append(("", f"{humanize.short(run.tokens_per_second)} tok/s", ""))
    if run.checkpoint_seconds is not None:
        step = "" if run.checkpoint_step is None else f"step {humanize.count(run.checkpoint_step)}, "
        parts.append(("saved", f"{step}{humanize.age(run.checkpoint_seconds)} ago", ""))
    if run.goodput is not None:
        parts.append(("goodput", humanize.percent(run.goodput), ""))
    if run.restarts:
        parts.append(("restarts", humanize.count(run.restarts), ""))
    text = Text(" ", no_wrap=True)
    for label, value, style in parts:
        piece = Text.assemble((f"{label} " if label else "", "dim"), (value, style))
        lead = "" if len(text) == 1 else " · "
        if text.cell_len + len(lead) + piece.cell_len <= width:
            text.append(lead, "dim").append_text(piece)
    return text


def _parts(run: RunSummary) -> Iterator[tuple[str, str, str]]:
    """Yield what the steps of a loop that generates go into, but for what is next to nothing."""
    whole = sum(run.parts_seconds.values())
    for name, seconds in run.parts_seconds.items():
        if (share := seconds / whole if whole else 0.0) >= LEAST_SHARE:
            yield name, f"{humanize.duration(seconds)} ({humanize.percent(share)})", ""


def _where_it_goes(run: RunSummary, step: float) -> Iterator[tuple[str, str, str]]:
    """Yield what a rank works in a step, and what it waits for data and for the others, as far as that is measured."""
    waits = [(name, seconds) for name, seconds in (("data", run.data_seconds), ("others", run.wait_seconds)) if seconds]
    if waits:
        own = max(step - sum(seconds for _, seconds in waits), 0.0)
        yield "own", humanize.duration(own), ""
    for name, seconds in waits:
        share = seconds / step
        yield (
            f"waits for {name}",
            f"{humanize.duration(seconds)} ({humanize.percent(min(share, 1.0))})",
            ("bold yellow" if name == "data" and share > run.data_limit else ""),
        )


def _sparklines(run: RunSummary, width: int) -> Text:
    half = width // 2
    text = Text(no_wrap=True)
    usual = "" if run.mfu_baseline is None else f", usually {humanize.percent(run.mfu_baseline, 1)}"
    nan = f"NaN on {humanize.plural(run.nonfinite_ranks, 'rank')}" if run.nonfinite_ranks else ""
    for label, value, style, history, colour in (
        ("loss", nan or humanize.significant(run.loss), "bold red" if nan else "bold", run.loss_history, "cyan"),
        ("MFU", humanize.percent(run.mfu, 1) + usual, "bold", run.mfu_history, "green"),
    ):
        ends = text.cell_len + half
        text.append(f" {label} ", "dim").append(value, style).append(" ")
        text.append(sparkline(known(history), max(0, ends - text.cell_len - 2)), colour)
        text.append(" " * max(0, ends - text.cell_len))
    text.truncate(width)
    return text


def _layers(layers: Sequence[LayerRow]) -> Text:
    """Return the layers in one line, as far as it goes."""
    text = Text(" layers", "dim")
    for layer in layers[:LAYERS_SHOWN]:
        stands_out = layer.grad_ratio is not None and layer.grad_ratio > LAYER_STANDS_OUT
        text.append(" " if len(text) == len(" layers") else " · ", "dim")
        text.append(f"{layer.layer} ", "bold yellow" if stands_out else "bold").append(", ".join(_of_layer(layer)))
    return _cut(text)


def _of_layer(layer: LayerRow) -> Iterator[str]:
    """Yield what is known of a layer."""
    if layer.grad_norm is not None:
        usual = "" if layer.grad_ratio is None else f" ({humanize.significant(layer.grad_ratio, 2)} ×)"
        yield f"norm {humanize.significant(layer.grad_norm, 3)}{usual}"
    if layer.activation_rms is not None:
        yield f"output {humanize.significant(layer.activation_rms, 3)}"
    if layer.zero_ratio is not None:
        yield f"zeros {humanize.percent(layer.zero_ratio)}"
    if layer.memory_peak_bytes is not None:
        yield f"{humanize.short(layer.memory_peak_bytes)}B"


def known(history: Sequence[float]) -> Sequence[float]:
    """Return a history from its first figure on: a short one is shown short, not as a long gap."""
    first = next((i for i, value in enumerate(history) if math.isfinite(value)), len(history))
    return history[first:]


def _alerts(alerts: Sequence[FiringAlert], most: int) -> list[RenderableType]:
    """Return a line for each alert that fires, however many ranks or GPUs it names."""
    if not alerts:
        return [Text(" no alert is firing", "green")]
    groups: dict[tuple[str, str], list[FiringAlert]] = {}
    for alert in alerts:
        groups.setdefault((alert.severity, alert.name), []).append(alert)
    shown = list(groups.items())
    cut = shown[: most - 1] if len(shown) > most else shown
    lines: list[RenderableType] = []
    for (severity, name), found in cut:
        left = Text.assemble((f" {severity:<8} {name}  ", SEVERITIES.get(severity, "")), _named(found))
        lines.append(_line(left, Text(f"for {humanize.age(max(alert.seconds for alert in found))}", "dim")))
    if len(cut) < len(shown):
        rest = [name for (_, name), _ in shown[len(cut) :]]
        lines.append(_cut(Text(f" and {len(rest)} more: {', '.join(rest)}", "yellow")))
    return lines


def _named(alerts: Iterable[FiringAlert]) -> str:
    names = [
        " ".join(filter(None, (alert.rank and f"rank {alert.rank}", alert.node, alert.gpu and f"GPU {alert.gpu}")))
        for alert in alerts
    ]
    known = [name for name in dict.fromkeys(names) if name]
    return known[0] if len(known) == 1 else f"{len(known)}: {', '.join(known)}" if known else ""
