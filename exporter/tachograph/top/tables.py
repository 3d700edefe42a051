"""The tables of ranks and GPUs: their columns, which of those fit, and the rows that a filter and an order leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len
from rich.text import Text

from tachograph.diagnosis import POWER_CAP, THERMAL
from tachograph.text import humanize
from tachograph.top.overview import GpuRow, Overview, RankRow

R = TypeVar("R", RankRow, GpuRow)

CALM, SOFT, WARN, BAD = "", "dim", "yellow", "bold red"
WORST = "worst"
"""The order in which rows come."""

STATE_STYLES = {
    "running": "green", "finished": "cyan", "frozen": "bold yellow", "dead": BAD, "failed": BAD, "hung": BAD,
    "died first": BAD, "failed first": BAD, "culprit": BAD, "NaN first": BAD, "NaN loss": "red",
    "straggler": "bold yellow", "stalled": "bold yellow", "behind": "bold yellow", "off step": WARN, "late": WARN,
}  # fmt: skip


@dataclass(frozen=True)
class TableColumn(Generic[R]):
    """A column; where room is short, those with the highest `spare` go first. `grows` is what it may be wider."""

    heading: str
    width: int
    cell: Callable[[R], str | tuple[str, str]]
    """Its text, or text and style."""
    key: Callable[[R], object]
    right: bool = True
    spare: int = 0
    descending: bool = True
    grows: int = 0

    def text(self, row: R) -> Text:
        """Return the cell of a row."""
        cell = self.cell(row)
        return Text(*((cell,) if isinstance(cell, str) else cell))


Layout = Sequence[tuple[TableColumn[R], int]]
"""Columns that fit beside each other, with their widths."""


def _number(value: float | None) -> float:
    """Return what sorts below any number if there is none."""
    return -math.inf if value is None or math.isnan(value) else value


def _lag(rank: RankRow) -> tuple[str, str]:
    return humanize.duration(rank.lag_seconds), "bold yellow" if "late" in rank.marks else CALM


def _loss(rank: RankRow) -> tuple[str, str]:
    return humanize.significant(rank.loss), BAD if "NaN loss" in rank.marks else CALM


def _why(rank: RankRow) -> str:
    others = [mark for mark in rank.marks if mark != rank.word]
    at = f"at {rank.where} (pid {rank.pid})" if rank.where else ""
    return ", ".join(filter(None, (rank.cause, at, *others, *rank.alerts)))


RANK_COLUMNS: Sequence[TableColumn[RankRow]] = (
    TableColumn("RANK", 6, lambda r: (str(r.rank), "bold"), lambda r: r.rank, descending=False),
    TableColumn("STATE", 12, lambda r: (r.word, STATE_STYLES.get(r.word, "")), lambda r: r.badness, right=False),
    TableColumn("RUN", 14, lambda r: r.run, lambda r: r.run, False, 3, descending=False),
    TableColumn("NODE", 10, lambda r: r.node, lambda r: r.node, False, 1, False, 12),
    TableColumn("GPU", 3, lambda r: r.gpu or humanize.ABSENT, lambda r: r.gpu, descending=False, spare=2),
    TableColumn(
        "COORDINATES", 11, lambda r: humanize.coordinates(r.coordinates), lambda r: sorted(r.coordinates.items()),
        right=False, spare=4, descending=False, grows=29,
    ),
    TableColumn("PHASE", 10, lambda r: r.phase or humanize.ABSENT, lambda r: r.phase, False, 0, False),
    TableColumn("FOR", 6, lambda r: humanize.age(r.phase_seconds), lambda r: _number(r.phase_seconds)),
    TableColumn("STEP", 8, lambda r: humanize.count(r.step), lambda r: _number(r.step), descending=False),
    TableColumn("LAG", 7, _lag, lambda r: _number(r.lag_seconds)),
    TableColumn("WAIT", 7, lambda r: humanize.duration(r.wait_seconds), lambda r: _number(r.wait_seconds), spare=3),
    TableColumn("DATA", 7, lambda r: humanize.duration(r.data_seconds), lambda r: _number(r.data_seconds), spare=8),
    TableColumn("PID", 8, lambda r: r.pid or humanize.ABSENT, lambda r: r.pid, descending=False, spare=7),
    TableColumn("LOSS", 8, _loss, lambda r: _number(r.loss), spare=6),
    TableColumn(
        "LAST STEP", 9, lambda r: humanize.age(r.progress_seconds), lambda r: _number(r.progress_seconds), spare=5
    ),
    TableColumn("WHY", 14, _why, lambda r: len(r.alerts), False, 4, grows=60),
)  # fmt: skip


def _activity(gpu: GpuRow) -> str:
    if gpu.activity is None:
        return humanize.ABSENT
    filled = round(5 * min(1.0, max(0.0, gpu.activity))) if math.isfinite(gpu.activity) else 0
    return f"{'█' * filled}{'░' * (5 - filled)} {humanize.percent(gpu.activity):>4}"


def _heat(gpu: GpuRow) -> tuple[str, str]:
    return humanize.celsius(gpu.temperature_celsius), BAD if THERMAL in gpu.throttling else CALM


def _power(gpu: GpuRow) -> str:
    limit = "" if gpu.power_limit_watts is None else f"/{humanize.watts(gpu.power_limit_watts)}"
    return humanize.watts(gpu.power_watts).removesuffix(" W" * bool(limit)) + limit


def _memory(gpu: GpuRow) -> str:
    total = "" if gpu.memory_total_bytes is None else f"/{humanize.gibibytes(gpu.memory_total_bytes)}"
    return humanize.gibibytes(gpu.memory_used_bytes) + total


def _trouble(gpu: GpuRow) -> tuple[str, str]:
    if gpu.trouble:
        return ", ".join((*gpu.trouble, *gpu.alerts)), BAD
    shares = sorted(gpu.throttling.items(), key=lambda one: (one[0] == POWER_CAP, -one[1]))
    causes = [f"{cause} {humanize.percent(share)}" for cause, share in shares]
    style = SOFT if set(gpu.throttling) <= {POWER_CAP} else BAD
    return ", ".join((*causes, *gpu.alerts)) or humanize.ABSENT, style


GPU_COLUMNS: Sequence[TableColumn[GpuRow]] = (
    TableColumn("GPU", 4, lambda g: (g.gpu, "bold"), lambda g: (g.node, g.gpu), descending=False),
    TableColumn("NODE", 11, lambda g: g.node, lambda g: g.node, False, 1, False, 12),
    TableColumn(
        "RANK", 6, lambda g: ",".join(map(str, g.ranks)) or humanize.ABSENT, lambda g: g.ranks, spare=2,
        descending=False,
    ),
    TableColumn("ACTIVE", 10, _activity, lambda g: _number(g.activity)),
    TableColumn("TENSOR", 6, lambda g: humanize.percent(g.tensor_active), lambda g: _number(g.tensor_active), spare=3),
    TableColumn("TEMP", 6, _heat, lambda g: _number(g.temperature_celsius)),
    TableColumn("POWER", 9, _power, lambda g: _number(g.power_watts)),
    TableColumn("MEMORY GiB", 11, _memory, lambda g: _number(g.memory_used_bytes)),
    TableColumn("TROUBLE", 10, _trouble, lambda g: g.badness, False, 0, grows=26),
    TableColumn("NAME", 14, lambda g: (g.name, SOFT), lambda g: g.name, False, 4, False, 14),
)  # fmt: skip


def rank_columns(overview: Overview) -> list[TableColumn[RankRow]]:
    """Return the columns that tell the ranks apart; that of coordinates only where some are known.

    Of a run Prometheus has the process of a rank that stands still alone, which WHY has.
    """
    without = {"NODE"} if overview.view == "node" else {"RUN", "DATA", "PID"}
    if len(overview.runs) <= 1:
        without.add("RUN")
    if not any(rank.coordinates for rank in overview.ranks):
        without.add("COORDINATES")
    return [column for column in RANK_COLUMNS if column.heading not in without]


def gpu_columns(overview: Overview) -> list[TableColumn[GpuRow]]:
    """Return the columns that tell the GPUs apart."""
    return [column for column in GPU_COLUMNS if column.heading != "NODE" or overview.view != "node"]


def fitting(columns: Sequence[TableColumn[R]], rows: Sequence[R], width: int) -> Layout[R]:
    """Return the columns that fit beside each other, with their widths: what is left goes where cells need it."""
    kept, width = list(columns), width - 1  # the mark before each row
    while sum(column.width + 1 for column in kept) > width and (most := max(column.spare for column in kept)):
        kept.remove(next(column for column in reversed(kept) if column.spare == most))
    left = max(0, width - sum(column.width + 1 for column in kept))
    layout = []
    for column in kept:
        longest = max((cell_len(column.text(row).plain) for row in rows), default=0) if column.grows else 0
        extra = max(0, min(left, column.grows, longest - column.width))
        left -= extra
        layout.append((column, column.width + extra))
    return layout


def headings(layout: Layout[R], sort: str = WORST) -> Text:
    """Return the line above the rows; the column that they are sorted by is underlined."""
    names = (Text(each.heading, "bold underline" if each.heading == sort else "bold") for each, _ in layout)
    return _line(layout, Text(" "), names)


def lines(layout: Layout[R], rows: Iterable[R]) -> Text:
    """Return a line for each row, marked if the row is not healthy."""
    found = []
    for row in rows:
        colour = BAD if row.weight >= 5 else WARN if row.weight > 1 else ""
        mark = Text("▌" if colour else " ", colour)
        found.append(_line(layout, mark, (column.text(row) for column, _ in layout)))
    return Text("\n", no_wrap=True).join(found) if found else Text("   none", "dim")


def _line(layout: Layout[R], mark: Text, cells: Iterable[Text]) -> Text:
    """Return cells beside each other, each as wide as its column."""
    for (column, size), cell in zip(layout, cells, strict=True):
        cell.truncate(size, overflow="ellipsis")
        cell.align("right" if column.right else "left", size)
        mark.append_text(cell).append(" ")
    return mark


def matching(rows: Iterable[R], text: str, uuids: Collection[str] = ()) -> list[R]:
    """Return the rows that fit every term of a filter, and those with one of the uuids."""
    terms = text.casefold().split()
    return [row for row in rows if row.uuid in uuids or all(row.holds(term) for term in terms)]


def in_order(rows: Sequence[R], columns: Sequence[TableColumn[R]], sort: str, is_reversed: bool) -> list[R]:
    """Return the rows sorted by a column; the worst first where it is none of theirs."""
    column = next((column for column in columns if column.heading == sort), None)
    if column is None:
        return list(rows)[::-1] if is_reversed else list(rows)
    return sorted(rows, key=column.key, reverse=column.descending != is_reversed)  # type: ignore[arg-type]  # comparable


def next_sort(columns: Sequence[TableColumn[R]], now: str) -> str:
    """Return what the next press of the key sorts by: the next column, after the last one the worst first."""
    names = [WORST, *(column.heading for column in columns)]
    return names[(names.index(now) + 1) % len(names) if now in names else 0]
