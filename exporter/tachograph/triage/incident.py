"""The record of an incident as Markdown: filled as far as the evidence goes, with a gap where a person must say it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tachograph.servers.prometheus_api import Prometheus, PrometheusError
from tachograph.text import humanize
from tachograph.text.moments import iso
from tachograph.text.printable import printable
from tachograph.triage.findings import Triage
from tachograph.triage.modes import NextCommand
from tachograph.triage.text import headline
from tachograph.triage.timeline import IncidentEvent, events, window_of

TO_FILL = "_(to be filled in by a person)_"


class RecordError(Exception):
    """The record cannot be written; the text says why, in one line."""


def check(path: Path) -> None:
    """Raise RecordError unless a new file can be written there; an old one, which may have been edited, is kept."""
    if path.exists() or path.is_symlink():
        raise RecordError(f"{path} is there already, and may have been edited: name another file")
    if not path.parent.is_dir():
        raise RecordError(f"there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise RecordError(f"no permission to write to {path.parent}")


def write(path: Path, found: Triage, commands: Sequence[NextCommand], prometheus: Prometheus | None) -> None:
    """Write the record to a new file; raise RecordError."""
    happened, refused = _happened(found, prometheus)
    made = "\n".join(_safe(line) for line in _lines(found, commands, happened, refused)) + "\n"
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(made)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}") from error


def _happened(found: Triage, prometheus: Prometheus | None) -> tuple[list[IncidentEvent], list[str]]:
    if prometheus is None:
        return [], ["Prometheus did not answer: nothing is known of what came before"]
    try:
        return events(prometheus, found.run, window_of(found.finding.since, found.at))
    except (PrometheusError, ValueError) as error:
        return [], [str(error)]


def _safe(line: str) -> str:
    """Return a line without control characters; names do not become markup, links or pictures."""
    said = printable(line)
    if line.startswith("    "):
        return said
    return re.sub(r"[\[\]`]", r"\\\g<0>", said).replace("<", "&lt;")


def _lines(
    found: Triage, commands: Sequence[NextCommand], happened: Sequence[IncidentEvent], refused: Sequence[str]
) -> Iterator[str]:
    finding = found.finding
    yield f"# Incident: {found.run}, {iso(finding.since or found.at)}"
    yield ""
    yield f"{headline(found)}."
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| severity | {finding.severity} |"
    yield f"| category | {finding.category} |"
    yield f"| failure mode | {finding.mode.replace('_', ' ')} |"
    yield f"| began | {iso(finding.since) if finding.since is not None else TO_FILL} |"
    yield f"| looked at | {iso(found.at)} |"
    yield f"| ended | {TO_FILL} |"
    yield f"| ranks, nodes | {_who(found)} |"
    yield f"| who answered, and when | {TO_FILL} |"
    yield ""
    yield "## Cost"
    yield ""
    yield from _cost(found)
    yield ""
    yield "## Timeline"
    yield ""
    if happened:
        yield "| time | | |"
        yield "|---|---|---|"
        yield from (f"| {iso(one.time)} | {one.kind} | {one.words.replace('|', '/')} |" for one in happened)
    else:
        yield "Nothing was recorded."
    yield from (f"\nNot known: {one}" for one in refused)
    yield ""
    yield f"What people did, and when: {TO_FILL}"
    yield ""
    yield "## Evidence"
    yield ""
    for one in found.answers:
        mark = {"yes": "yes", "no": "**no**", "unknown": "unknown"}[one.answer]
        yield f"- {one.question} {mark}" + (f" ({', '.join(one.alerts)})" if one.alerts else "")
        yield from (f"  - {line}" for line in one.evidence)
    yield from (f"- {source.name}: not asked, {source.words}" for source in found.sources if not source.ok)
    yield ""
    yield "## Five whys"
    yield ""
    yield from _whys(found)
    yield ""
    yield "## Next"
    yield ""
    for command in commands:
        yield f"- {command.why}:"
        yield ""
        yield f"      {command.command}"
        yield ""
    yield f"So that it does not happen again, who, until when: {TO_FILL}"


def _who(found: Triage) -> str:
    finding = found.finding
    ranks = f"rank {humanize.listed(finding.ranks, 8)}" if finding.ranks else ""
    nodes = humanize.listed(finding.nodes, 8)
    return ", ".join(filter(None, (ranks, nodes))) or "none is named"


def _cost(found: Triage) -> Iterator[str]:
    if found.lost_hours is not None and found.lost_share is not None:
        yield (
            f"- {humanize.short(found.lost_hours)} GPU-hours lost from the beginning to the moment looked at:"
            f" {humanize.percent(found.lost_share)} of {humanize.plural(found.ranks, 'GPU')}"
        )
        yield f"- {humanize.short(found.lost_share * found.ranks)} more every hour it lasts"
    else:
        yield f"- GPU-hours lost: {TO_FILL}"
    if found.unsaved_seconds is not None and found.ranks:
        hours = found.unsaved_seconds * found.ranks / 3600
        yield f"- a restart repeats {humanize.span(found.unsaved_seconds)} of steps: {humanize.short(hours)} GPU-hours"
    yield f"- after the moment looked at, until it was over: {TO_FILL}"


def _whys(found: Triage) -> Iterator[str]:
    against = [one for one in found.answers if one.answer == "no"]
    alerts = [alert for one in against for alert in one.alerts]
    evidence = [line for one in against for line in one.evidence]
    yield f"1. Why was somebody called? {_because([f'{humanize.listed(alerts, 4)} fired'] if alerts else [])}"
    yield f"2. Why did it fire? {_because(evidence[:3])}"
    yield f"3. Why was that so? {_because([found.finding.words] if found.finding.wrong else [])}"
    yield f"4. Why did that happen? {TO_FILL}"
    yield f"5. Why was it not prevented, or seen before it cost anything? {TO_FILL}"


def _because(reasons: Sequence[str]) -> str:
    return f"{'; '.join(reasons)}." if reasons else TO_FILL
