"""Facts as lines of a terminal: the header, both tables, the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich.text import Text

from tachograph.printable import printable
from tachograph.top.columns import BAD, WARN, Column, gpu_columns, laid_out, rank_columns
from tachograph.top.facts import Facts, Gpu, Rank
from tachograph.top.glyphs import Glyphs
from tachograph.top.header import header
from tachograph.top.wishes import WORST, Pane, Wishes, in_order, matching

R = TypeVar("R", Rank, Gpu)

SIDE_BY_SIDE = 170
"""From so many columns on the tables stand beside each other."""

KEYS = "q quit  s sort  r turn  / filter  space pause  tab table  ? help"

HELP = """
 s      sort by the next column, after the last one the worst first     r  turn
 /      only rows with these words: a rank's number, a node, a state, a phase,
        an alert; of a run, ranks and nodes are asked for though not the worst
 space  hold still, go on      tab  the other table      esc  drop the filter
 up down PgUp PgDn Home End    scroll                    q    quit

 STATE      running, or what is wrong. culprit: all wait for it. died first.
            straggler: it holds the run up. late: it lags, less. NaN first.
 PHASE FOR  what the rank does now, since when
 LAG        how much later than the others it comes to the collective, per step
 WAIT       how long it only waits for the others, per step
 ACTIVE     share of time with work on the SMs, else the driver's utilization
 TROUBLE    why clocks are held down, and for which share of the time (a power
            cap is what full load looks like); what is broken; alerts
"""


def frame(facts: Facts, wishes: Wishes, size: tuple[int, int | None], glyphs: Glyphs, trouble: str = "") -> list[Text]:
    """Return the lines of one picture of that width, exactly that height, or all rows there are where it is None."""
    width, height = size
    alert_lines = 20 if height is None else max(3, height // 6)
    lines = header(facts, width, glyphs, alert_lines)
    if trouble:
        lines.insert(0, Text(glyphs.fit(f" {trouble}", width), "bold white on red"))
    room = None if height is None else height - len(lines) - 1
    if wishes.help:
        body = [Text(glyphs.fit(line, width)) for line in HELP.strip("\n").splitlines()]
    else:
        body = _tables(facts, wishes, width, room, glyphs)
    lines += body
    if height is not None:
        lines = lines[: height - 1]
        lines += [Text("")] * (height - 1 - len(lines))
        lines.append(_footer(wishes))
    for line in lines:
        line.plain = printable(line.plain)  # whoever wrote a line: nothing that others chose steers the terminal
        line.truncate(width, overflow="crop")
    return lines


def _tables(facts: Facts, wishes: Wishes, width: int, room: int | None, glyphs: Glyphs) -> list[Text]:
    ranks = matching(facts.ranks, wishes.filter)
    gpus = matching(facts.gpus, wishes.filter, {rank.uuid for rank in ranks if rank.uuid})
    side = width >= SIDE_BY_SIDE
    widths = (width * 11 // 20, width - width * 11 // 20 - 1) if side else (width, width)
    if room is None or side:
        rows = (room, room) if room is None else (room - 2, room - 2)
    else:
        rows = _shared(max(0, room - 4), len(ranks), len(gpus))
    whole = f"{len(facts.ranks):,} of {facts.ranks_in_all:,} ranks" if _left_out(facts) else "ranks"
    left = _table(ranks, rank_columns(facts), wishes.ranks, widths[0], rows[0], glyphs, _named(whole, wishes, "ranks"))
    right = _table(gpus, gpu_columns(facts), wishes.gpus, widths[1], rows[1], glyphs, _named("GPUs", wishes, "gpus"))
    if not side:
        return left + right
    count = max(len(left), len(right))
    left += [Text(" " * widths[0])] * (count - len(left))
    right += [Text("")] * (count - len(right))
    return [Text.assemble(one, " ", other) for one, other in zip(left, right, strict=True)]


def _left_out(facts: Facts) -> bool:
    return len(facts.ranks) < facts.ranks_in_all


def _shared(room: int, ranks: int, gpus: int) -> tuple[int, int]:
    """Return how many rows each table gets: ranks the larger half, and each what the other leaves."""
    for_ranks = min(max(ranks, 1), max(room - max(gpus, 1), (room * 11 + 19) // 20))
    return for_ranks, max(0, min(max(gpus, 1), room - for_ranks))


def _named(what: str, wishes: Wishes, pane: str) -> str:
    shown = wishes.ranks if pane == "ranks" else wishes.gpus
    order = "worst first" if shown.sort == WORST else f"by {shown.sort.lower()}"
    turned = ", reversed" if shown.turned else ""
    filtered = f", with {wishes.filter!r}" if wishes.filter else ""
    return f"{'>' if wishes.focus == pane else ' '} {what}, {order}{turned}{filtered}"


def _table(  # noqa: PLR0917 - both tables, all they need
    rows: Sequence[R], columns: Sequence[Column[R]], pane: Pane, width: int, most: int | None, glyphs: Glyphs, name: str
) -> list[Text]:
    if most is not None and most <= 0:
        return []
    ordered = in_order(rows, columns, pane)
    offset = 0 if most is None else max(0, min(pane.offset, len(ordered) - most))
    shown = ordered[offset:] if most is None else ordered[offset : offset + most]
    place = f" {offset + 1}-{offset + len(shown)} of {len(ordered):,} " if len(shown) < len(ordered) else ""
    title = glyphs.fit(f"{glyphs.rule}{name} ", min(width - len(place), len(name) + 2))
    lines = [Text(title + glyphs.rule * (width - len(title) - len(place)) + place, "dim")]
    places = laid_out(columns, shown, width - 1, glyphs)
    head = Text(" ", "bold")
    for column, size in places:
        style = "underline" if column.heading == pane.sort else ""
        head.append(glyphs.fit(column.heading, size, column.right), style).append(" ")
    lines.append(head)
    for row in shown:
        colour = BAD if row.weight >= 5 else WARN if row.weight > 1 else ""
        line = Text.assemble((glyphs.mark if colour else " ", colour))
        for column, size in places:
            text, style = column.cell(row, glyphs)
            line.append(glyphs.fit(text, size, column.right), style).append(" ")
        lines.append(line)
    if not shown:
        lines.append(Text(glyphs.fit("   none", width), "dim"))
    for line in lines:
        line.truncate(width, overflow="crop", pad=True)
    return lines


def _footer(wishes: Wishes) -> Text:
    if wishes.editing:
        return Text.assemble(
            (" / ", "bold"), (wishes.filter, "bold"), ("_", "blink"), ("   enter: keep   esc: drop", "dim")
        )
    text = Text.assemble((" PAUSED " if wishes.paused else "", "bold black on yellow"))
    return text.append(f" {KEYS}", "dim")
