"""A triage as text, as an engineer on call reads it: the finding, the tree with its evidence, what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.text import humanize
from tachograph.text.moments import iso
from tachograph.text.printable import printable
from tachograph.text.wrapping import wrapped
from tachograph.triage.findings import MOST_NAMED, Triage
from tachograph.triage.modes import NextCommand

WORDS = {"yes": "yes", "no": "NO", "unknown": "?"}


def lines(found: Triage, commands: Sequence[NextCommand], width: int) -> list[str]:
    """Return the lines of the text, those with a command to run unbroken."""
    return [*wrapped(map(printable, _lines(found)), width), *map(printable, _next(found, commands))]


def headline(found: Triage) -> str:
    """Return the finding in a sentence."""
    finding = found.finding
    if finding.mode == "no_data":
        return f"no answer: {finding.words}"
    severity = finding.severity.upper() if finding.wrong else "ok" if finding.severity == "none" else "info"
    category = (
        f"{finding.category}: " if finding.category != "none" and not _repeats(finding.words, finding.category) else ""
    )
    return f"{severity}: {category}{finding.words}"


def _repeats(words: str, category: str) -> bool:
    return words.startswith(category.replace("_", " "))


def _lines(found: Triage) -> Iterator[str]:
    finding = found.finding
    yield f"{found.run} at {iso(found.at)}"
    yield headline(found)
    if finding.since is not None:
        yield f"  since {iso(finding.since)}, for {humanize.span(found.at - finding.since)}"
    if found.lost_share and found.ranks:
        lost, each_hour = humanize.short(found.lost_hours), humanize.short(found.lost_share * found.ranks)
        yield f"  about {lost} GPU-hours lost so far, {each_hour} more every hour"
    if finding.nodes:
        yield f"  {'node' if len(finding.nodes) == 1 else 'nodes'} {humanize.listed(finding.nodes, MOST_NAMED)}"
    yield from (f"  also firing: {one}" for one in found.also[:MOST_NAMED])
    yield from (f"  {one}" for one in found.remarks)
    if found.answers:
        yield ""
    for number, one in enumerate(found.answers, 1):
        alerts = f"  {', '.join(one.alerts)}" if one.alerts else ""
        yield f"{number:2}  {WORDS[one.answer]:3}  {one.question}{alerts}"
        yield from (f"         {line}" for line in one.evidence)
    if failed := [one for one in found.sources if not one.ok]:
        yield ""
        yield from (f"not asked: {one.name}: {one.words}" for one in failed)


def _next(found: Triage, commands: Sequence[NextCommand]) -> Iterator[str]:
    finding = found.finding
    if finding.wrong or finding.severity == "info" or finding.mode == "no_data":
        yield ""
        yield "Next:"
        for number, command in enumerate(commands, 1):
            yield f"  {number}. {command.command}"
            yield f"     {command.why}"
