"""How operations, calls and ranks are named in what an analysis says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tachograph.blackbox.recorder import RankDump, Shape
from tachograph.blackbox.standing import Standing
from tachograph.blackbox.waits import Blocked
from tachograph.text import humanize

NO_SHAPE = Shape("operation", (), (), (), None)


def shape_of(standing: Standing, one: Blocked) -> Shape:
    """Return what is called in an operation that is pending."""
    return standing.shape(one.example) if one.example.shape >= 0 else NO_SHAPE


def operation_name(standing: Standing, one: Blocked) -> str:
    """Return an operation by name, number, group and line; of a send or receive, with the other rank."""
    title = standing.groups[one.group].title
    name = shape_of(standing, one).name
    if one.peer is not None:
        return f"{name} ({'to' if one.peer[0] == 'send' else 'from'} rank {one.peer[1]}, {title})"
    line = shape_of(standing, one).line
    return f"{name} #{one.sequence} of {title}" + (f" at {line}" if line else "")


def line_in(standing: Standing, one: Blocked) -> str | None:
    """Return the line at which an operation was called, else where one stands that waits in it."""
    places = (standing.dumps[rank].where for rank in one.waiting if rank in standing.dumps)
    return shape_of(standing, one).line or next(filter(None, places), None)


def called(shape: Shape) -> str:
    """Return a call by name, sizes, type and line."""
    sizes = " ".join("x".join(map(str, one)) or "scalar" for one in (shape.inputs or shape.outputs)[:3])
    words = [shape.name, *([sizes] if sizes else []), *shape.dtypes[:1]]
    return " ".join(words) + (f" at {shape.line}" if shape.line else "")


def whereabouts(dump: RankDump) -> str:
    """Return where a rank stands by its box: `it stands at data.py:88 load_shard, in phase data for 41 s`; or empty."""
    parts = [f"at {dump.where}"] if dump.where else []
    if dump.phase:
        lasted = "" if dump.phase_seconds is None else f" for {humanize.age(dump.phase_seconds)}"
        parts.append(f"in phase {dump.phase}{lasted}")
    return "it stands " + ", ".join(parts) if parts else ""


def without_dump(standing: Standing, rank: int) -> str:
    """Return what may have become of a rank that left no dump, by what others say of it where they do."""
    known = standing.known.get(rank)
    if known is not None and known.words:
        return known.words
    return "dead, gone early, stuck where it cannot say so, or it raised and hangs on its way out"


def line_of(standing: Standing, rank: int) -> str | None:
    """Return the line at which a rank without a dump stands, if others know it."""
    known = standing.known.get(rank)
    return known.where if known is not None else None


def wait(ranks: Sequence[int]) -> str:
    """Return the verb that goes with so many ranks."""
    return "waits" if len(ranks) == 1 else "wait"


def rank_list(ranks: Iterable[int]) -> str:
    """Return `rank 3`, or `ranks 0-7, 9`."""
    ordered = sorted(set(ranks))
    parts: list[str] = []
    start = 0
    for index, rank in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] != rank + 1:
            parts.append(str(rank) if index == start else f"{ordered[start]}-{rank}")
            start = index + 1
    return ("rank " if len(ordered) == 1 else "ranks ") + humanize.listed(parts, 8)
