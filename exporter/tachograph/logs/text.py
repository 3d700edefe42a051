"""A verdict in words, for a terminal: the root first, its evidence, what followed, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.logs.findings import LogFinding, Weight
from tachograph.logs.verdict import STEP, LogVerdict
from tachograph.text import humanize
from tachograph.text.printable import printable
from tachograph.text.wrapping import wrapped

WIDEST = 200
"""Letters of a line of a log that are shown."""
MOST_UNKNOWN = 5
MOST_PROBLEMS = 8
MOST_RIVALS = 3

_HEADINGS = {
    Weight.ROOT: "CAUSE",
    Weight.CONFIRMED: "CAUSE, as confirmed from outside",
    Weight.PEER: "CAUSE, unless the peer that the line names died of something else",
    Weight.EXCEPTION: "CAUSE, an exception that no row of the table knows",
    Weight.CONFIRMATION: "PROBABLE CAUSE",
    Weight.ALONE: "CAUSE, as far as the logs go",
    Weight.REPORTED: "PERHAPS, an error that no row of the table knows",
    Weight.UNKNOWN: "PERHAPS, an error that no row of the table knows",
}


def lines(verdict: LogVerdict, width: int) -> Iterator[str]:
    """Yield the lines of the text; the line of a log that names the cause is not broken."""
    yield from wrapped((_summary(verdict), *_problems(verdict), ""), width)
    if verdict.state == "nothing_wrong":
        yield "NOTHING WRONG: no line reports a failure."
    elif verdict.findings:
        first = verdict.findings[0]
        yield from wrapped(_heading(verdict, first), width)
        yield _place(first)
        yield from wrapped(_rest(verdict, first), width)


def _heading(verdict: LogVerdict, first: LogFinding) -> Iterator[str]:
    if verdict.state == "no_cause":
        yield "NO CAUSE FOUND: all that failed waited for others or was ended. The first to suffer:"
        if verdict.silent:
            names = f"{humanize.plural(len(verdict.silent), 'rank').split()[1]} {_ranges(verdict.silent)}"
            yield f"  Of {names} there is no such line, unlike of the others: look there first."
    else:
        yield f"{_HEADINGS[first.weight]}: {_words(first.category)}, {_who(first)}"


def _rest(verdict: LogVerdict, first: LogFinding) -> Iterator[str]:
    yield from _evidence(first)
    for one in sorted(verdict.rivals, key=lambda one: abs(_time(one) - _time(first)))[:MOST_RIVALS]:
        later = _time(one) - _time(first)
        how = f"{humanize.span(abs(later))} {'later' if later >= 0 else 'earlier'} by its own clock"
        yield printable(
            f"  Perhaps before it, since clocks of nodes differ: {_words(one.category)}, {_who(one)}, {how}: "
            f"{_cut(one.line, 100)}"
        )
    yield from _clocks(verdict, first)
    if first.next:
        yield "Next:"
        yield from (f"  {number}. {printable(step)}" for number, step in enumerate(first.next, 1))
    yield from _attempts(verdict)
    yield from _followed(verdict, first)
    yield from _unknown(verdict, first)


def _summary(verdict: LogVerdict) -> str:
    reading = verdict.reading
    said = f"Read {humanize.plural(reading.files, 'log')}, {humanize.plural(reading.lines, 'line')}, "
    said += humanize.byte_size(reading.size)
    if ranks := reading.names.known():
        said += f", {humanize.plural(len(ranks), 'rank')}"
    if reading.first is not None and reading.last is not None:
        said += (
            f", {humanize.utc(reading.first, '%Y-%m-%d %H:%M:%S')} to {humanize.utc(reading.last, '%Y-%m-%d %H:%M:%S')}"
        )
    skipped = sum(problem.skipped for problem in reading.problems)
    return said + (f"; {skipped:,} skipped" if skipped else "")


def _problems(verdict: LogVerdict) -> Iterator[str]:
    reading = verdict.reading
    for problem in reading.problems[:MOST_PROBLEMS]:
        yield printable(f"  {'skipped' if problem.skipped else 'note'}: {problem.name}: {problem.why}")
    if (more := len(reading.problems) - MOST_PROBLEMS) > 0:
        yield f"  and {more:,} more"
    if reading.long_lines:
        yield f"  note: {humanize.plural(reading.long_lines, 'line')} longer than 64 KiB, read around known texts alone"
    if reading.lost:
        yield f"  note: {humanize.plural(reading.lost, 'line')} of further kinds or ranks not kept"


def _place(finding: LogFinding) -> str:
    when = "" if finding.time is None else humanize.utc(finding.time) + "  "
    return printable(f"  {finding.file}:{finding.line_number}: {when}{_cut(finding.line)}")


def _evidence(finding: LogFinding) -> Iterator[str]:
    if finding.frame:
        yield printable(f"  at {finding.frame}")
    if finding.nic:
        yield printable(f"  network card: {finding.nic}")
    yield printable(f"  {finding.cause}")


def _clocks(verdict: LogVerdict, first: LogFinding) -> Iterator[str]:
    """Yield how far the clocks of those who failed likewise differ from that of the cause, where steps tell it."""
    alike = (one for one in verdict.findings[1:] if one.weight == first.weight and one.attempt == first.attempt)
    ahead = {one.node or one.file: verdict.reading.clocks.apart(one.source, first.source) or 0.0 for one in alike}
    for name, seconds in sorted(ahead.items(), key=lambda item: -abs(item[1]))[:MOST_RIVALS]:
        if abs(seconds) >= STEP:
            way = "ahead of" if seconds > 0 else "behind"
            yield printable(
                f"  By the steps that both report, the clock of {name} is {humanize.span(abs(seconds))} {way} that of "
                f"{first.node or first.file}."
            )


def _attempts(verdict: LogVerdict) -> Iterator[str]:
    if len(verdict.roots) < 2:
        return
    yield "Attempts:"
    for root in verdict.roots:
        yield printable(f"  {root.attempt}: {_words(root.category)}, {_who(root)}: {_cut(root.line, 100)}")


def _followed(verdict: LogVerdict, first: LogFinding) -> Iterator[str]:
    """Yield one line for each category of what else was found in the root's attempt."""
    others: dict[str, list[LogFinding]] = {}
    for one in verdict.findings[1:]:
        if one.attempt == first.attempt and one.weight not in (Weight.ADVICE, Weight.REPORTED, Weight.UNKNOWN):
            others.setdefault(one.category, []).append(one)
    if others:
        yield "Also, in the order of their times:"
    for category, group in sorted(others.items(), key=lambda item: min(_time(one) for one in item[1])):
        head = min(group, key=_time)
        ranks = sorted({rank for one in group for rank in one.ranks})
        count = sum(one.count for one in group)
        who = f"ranks {_ranges(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else "no rank named"
        when = "" if head.time is None else f" from {humanize.utc(head.time)}"
        place = f"{head.file}:{head.line_number}"
        yield printable(
            f"  {_words(category)} ({head.role}): {humanize.plural(count, 'line')}, {who}{when}: {place}: "
            f"{_cut(head.line, 100)}"
        )


def _unknown(verdict: LogVerdict, first: LogFinding) -> Iterator[str]:
    unknown = [one for one in verdict.findings if one.weight in (Weight.REPORTED, Weight.UNKNOWN) and one is not first]
    if not unknown:
        return
    yield f"Errors that no row of the table knows: {humanize.plural(len(unknown), 'kind')}"
    for one in sorted(unknown, key=lambda one: -one.count)[:MOST_UNKNOWN]:
        yield printable(f"  {one.count:,} × {one.file}:{one.line_number}: {_cut(one.line, 120)}")


def _who(finding: LogFinding) -> str:
    where = f" on {finding.node}" if finding.node else ""
    if finding.rank is None:
        local = "" if finding.local_rank is None else f"local rank {finding.local_rank}"
        who = " on ".join(part for part in (local, finding.node) if part) or "no rank named"
    else:
        more = len(finding.ranks) - 1
        who = f"rank {finding.rank}{where}" + (f", also on {humanize.plural(more, 'other rank')}" if more > 0 else "")
    return who


def _words(category: str) -> str:
    return category.replace("_", " ")


def _time(finding: LogFinding) -> float:
    return float("inf") if finding.time is None else finding.time


def _cut(text: str, most: int = WIDEST) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _ranges(ranks: Sequence[int]) -> str:
    """Return `0-2, 4-15` for sorted ranks."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return humanize.listed([f"{low}-{high}" if high > low else str(low) for low, high in spans], 6)
