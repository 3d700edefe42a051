"""A comparison as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.compare.comparison import NOT_JUDGED, Comparison, Row
from tachograph.compare.fix import FixVerdict
from tachograph.compare.interval import LEVEL
from tachograph.compare.recording import RecordedRun
from tachograph.text import humanize
from tachograph.text.printable import printable
from tachograph.text.wrapping import wrapped

COLUMNS = ("", "first", "second", "change", f"{LEVEL:.0%} interval", "")
TIME = "%Y-%m-%d %H:%M:%S"


def lines(comparison: Comparison, fix: FixVerdict | None, width: int) -> Iterator[str]:
    """Yield the lines: both runs, a row for each measure, what makes them hard to compare, and the verdict."""
    sides = (("first", comparison.first), ("second", comparison.second))
    runs = [f"{side:6}  {_run(run)}" for side, ones in sides for run in ones]
    yield from wrapped(map(printable, [*runs, ""]), width, hang=8)
    yield from _table(comparison, width)
    yield from wrapped(map(printable, _end(comparison, fix)), width)


def _table(comparison: Comparison, width: int) -> Iterator[str]:
    """Yield the rows; where one does not fit beside its verdict, all verdicts are below their rows."""
    cells = [COLUMNS, *(_cells(row) for row in comparison.rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    fits = sum(widths) + 2 * (len(widths) - 1) <= width
    for first, *middle, last in cells:
        aligned = (cell.rjust(wide) for cell, wide in zip(middle, widths[1:-1], strict=True))
        yield "  ".join([first.ljust(widths[0]), *aligned, *[last] * fits]).rstrip()
        if last and not fits:
            yield from wrapped([f"    {last}"], width)
    if any(row.measure.of_step for row in comparison.rows):
        yield "Changes of what is indented are shares of a step."
    yield ""


def _end(comparison: Comparison, fix: FixVerdict | None) -> Iterator[str]:
    yield from (f"note: {note}" for note in comparison.notes)
    if fix is not None:
        yield f"{fix.alert}: {fix.verdict}: {fix.why}"
    yield f"verdict: {comparison.verdict}"


def _run(recording: RecordedRun) -> str:
    when = f"{humanize.utc(recording.start, TIME)} to {humanize.utc(recording.end, '%H:%M:%S')} UTC"
    return f"{recording.run}, {when}, {humanize.span(recording.seconds)}, from {recording.source}"


def _cells(row: Row) -> tuple[str, ...]:
    shown = row.measure.shown
    bounds = "" if row.low is None or row.high is None else f"{row.low:+.1%} to {row.high:+.1%}"
    verdict = "" if row.verdict == NOT_JUDGED else row.verdict
    why = f"{verdict}: {row.why}" if verdict and row.why else verdict or row.why
    return row.measure.title, shown(row.first), shown(row.second), f"{row.change:+.1%}", bounds, why
