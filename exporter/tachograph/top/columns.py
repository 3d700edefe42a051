"""The columns of both tables: heading, cell, and what sorting by it compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len

from tachograph.top import words
from tachograph.top.facts import Facts, Gpu, Rank
from tachograph.top.glyphs import Glyphs
from tachograph.top.gpu_words import POWER_CAP, THERMAL

R = TypeVar("R", Rank, Gpu)
Cell = tuple[str, str]
"""Text and style."""

CALM, SOFT, WARN, BAD = "", "dim", "yellow", "bold red"

STATE_STYLES = {
    "running": "green", "finished": "cyan", "frozen": "bold yellow", "dead": BAD, "failed": BAD, "hung": BAD,
    "died first": BAD, "failed first": BAD, "culprit": BAD, "NaN first": BAD, "NaN loss": "red",
    "straggler": "bold yellow", "behind": "bold yellow", "off step": WARN, "late": WARN,
}  # fmt: skip


@dataclass(frozen=True)
class Column(Generic[R]):
    """One column; where room is short, those with the highest `spare` go first. `grows` takes what is left."""

    heading: str
    width: int
    cell: Callable[[R, Glyphs], Cell]
    key: Callable[[R], object]
    right: bool = True
    spare: int = 0
    descending: bool = True
    grows: int = 0


def _number(value: float | None) -> float:
    """Return what sorts below any number if there is none."""
    return -math.inf if value is None or math.isnan(value) else value


def _lag(rank: Rank, _: Glyphs) -> Cell:
    return words.duration(rank.lag_seconds), "bold yellow" if "late" in rank.marks else CALM


def _phase_age(rank: Rank, _: Glyphs) -> Cell:
    return words.age(rank.phase_seconds), CALM


def _why(rank: Rank, _: Glyphs) -> Cell:
    others = [mark for mark in rank.marks if mark != rank.word]
    return ", ".join(filter(None, (rank.cause, *others, *rank.alerts))), CALM


RANK_COLUMNS: Sequence[Column[Rank]] = (
    Column("RANK", 6, lambda r, _: (str(r.rank), "bold"), lambda r: r.rank, descending=False),
    Column("STATE", 12, lambda r, _: (r.word, STATE_STYLES.get(r.word, "")), lambda r: r.badness, right=False),
    Column("RUN", 14, lambda r, _: (r.run, CALM), lambda r: r.run, False, 3, descending=False),
    Column("NODE", 10, lambda r, _: (r.node, CALM), lambda r: r.node, False, 1, False, 12),
    Column("GPU", 3, lambda r, _: (r.gpu or words.ABSENT, CALM), lambda r: r.gpu, descending=False, spare=2),
    Column("PHASE", 10, lambda r, _: (r.phase or words.ABSENT, CALM), lambda r: r.phase, False, 0, False),
    Column("FOR", 6, _phase_age, lambda r: _number(r.phase_seconds)),
    Column("STEP", 8, lambda r, _: (words.number(r.step), CALM), lambda r: _number(r.step), descending=False),
    Column("LAG", 7, _lag, lambda r: _number(r.lag_seconds)),
    Column("WAIT", 7, lambda r, _: (words.duration(r.wait_seconds), CALM), lambda r: _number(r.wait_seconds), spare=3),
    Column("LOSS", 8, lambda r, _: (words.figure(r.loss), BAD if "NaN loss" in r.marks else CALM),
           lambda r: _number(r.loss), spare=6),
    Column("LAST STEP", 9, lambda r, _: (words.age(r.progress_seconds), CALM), lambda r: _number(r.progress_seconds),
           spare=5),
    Column("WHY", 14, _why, lambda r: len(r.alerts), False, 4, grows=60),
)  # fmt: skip


def _activity(gpu: Gpu, glyphs: Glyphs) -> Cell:
    return f"{glyphs.bar(gpu.activity, 5)} {words.percent(gpu.activity):>4}", CALM


def _heat(gpu: Gpu, glyphs: Glyphs) -> Cell:
    value = gpu.temperature_celsius
    return (
        words.ABSENT if value is None else f"{value:.0f} {glyphs.degrees}"
    ), BAD if THERMAL in gpu.throttling else CALM


def _power(gpu: Gpu, _: Glyphs) -> Cell:
    limit = "" if gpu.power_limit_watts is None else f"/{gpu.power_limit_watts:.0f}"
    return (words.ABSENT if gpu.power_watts is None else f"{gpu.power_watts:.0f}{limit} W"), CALM


def _memory(gpu: Gpu, _: Glyphs) -> Cell:
    if gpu.memory_used_bytes is None:
        return words.ABSENT, CALM
    total = "" if gpu.memory_total_bytes is None else f"/{words.gibibytes(gpu.memory_total_bytes)}"
    return words.gibibytes(gpu.memory_used_bytes) + total, CALM


def _held(gpu: Gpu, _: Glyphs) -> Cell:
    if gpu.trouble:
        return ", ".join((*gpu.trouble, *gpu.alerts)), BAD
    shares = sorted(gpu.throttling.items(), key=lambda one: (one[0] == POWER_CAP, -one[1]))
    said = ", ".join(f"{cause} {words.percent(share)}" for cause, share in shares)
    style = SOFT if set(gpu.throttling) <= {POWER_CAP} else BAD
    return ", ".join(filter(None, (said, *gpu.alerts))) or words.ABSENT, style if said else SOFT


def _holders(gpu: Gpu, _: Glyphs) -> Cell:
    return ",".join(map(str, gpu.ranks)) or words.ABSENT, CALM


GPU_COLUMNS: Sequence[Column[Gpu]] = (
    Column("GPU", 4, lambda g, _: (g.gpu, "bold"), lambda g: (g.node, g.gpu), descending=False),
    Column("NODE", 11, lambda g, _: (g.node, CALM), lambda g: g.node, False, 1, False, 12),
    Column("RANK", 6, _holders, lambda g: g.ranks, spare=2, descending=False),
    Column("ACTIVE", 10, _activity, lambda g: _number(g.activity)),
    Column(
        "TENSOR", 6, lambda g, _: (words.percent(g.tensor_active), CALM), lambda g: _number(g.tensor_active), spare=3
    ),
    Column("TEMP", 6, _heat, lambda g: _number(g.temperature_celsius)),
    Column("POWER", 9, _power, lambda g: _number(g.power_watts)),
    Column("MEMORY GiB", 11, _memory, lambda g: _number(g.memory_used_bytes)),
    Column("TROUBLE", 10, _held, lambda g: g.badness, False, 0, grows=26),
    Column("NAME", 14, lambda g, _: (g.name, SOFT), lambda g: g.name, False, 4, False, 14),
)


def rank_columns(facts: Facts) -> list[Column[Rank]]:
    """Return the columns that tell ranks of these facts apart."""
    without = {"NODE"} if facts.view == "node" else {"RUN"}
    if len(facts.runs) <= 1:
        without.add("RUN")
    return [column for column in RANK_COLUMNS if column.heading not in without]


def gpu_columns(facts: Facts) -> list[Column[Gpu]]:
    """Return the columns that tell GPUs of these facts apart."""
    return [column for column in GPU_COLUMNS if column.heading != "NODE" or facts.view != "node"]


def laid_out(
    columns: Sequence[Column[R]], rows: Sequence[R], width: int, glyphs: Glyphs
) -> list[tuple[Column[R], int]]:
    """Return the columns that fit beside each other, with their widths: what is left goes where cells need it."""
    kept = list(columns)
    while sum(column.width + 1 for column in kept) > width and (most := max(column.spare for column in kept)):
        kept.remove(next(column for column in reversed(kept) if column.spare == most))
    left = max(0, width - sum(column.width + 1 for column in kept))
    widths = []
    for column in kept:
        longest = max((cell_len(column.cell(row, glyphs)[0]) for row in rows), default=0) if column.grows else 0
        extra = max(0, min(left, column.grows, longest - column.width))
        left -= extra
        widths.append((column, column.width + extra))
    return widths
