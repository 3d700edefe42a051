"""The lines that the command prints for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tachograph.preflight.checklists import answered
from tachograph.preflight.finding import FAIL, OK, SKIPPED, WARN, CheckReport
from tachograph.text.humanize import duration, plural

MARKS = {OK: "ok", WARN: "warn", FAIL: "FAIL", SKIPPED: "-"}


def lines(report: CheckReport) -> Iterator[str]:
    """Yield a line for a check, and one or two for each of its findings."""
    took = f" ({duration(report.seconds)})" if report.seconds >= 0.1 else ""
    says = f": {report.summary}" if report.summary else ""
    yield f"{MARKS[report.state]:4} {report.check}{says}{took}"
    for finding in report.findings:
        yield f"       {'WRONG' if finding.severity == FAIL else 'warning'}: {finding.what}"
        if finding.then:
            yield f"         {finding.then}"


def verdict(reports: Sequence[CheckReport]) -> str:
    """Return the last line: how many checks are right, and how many things are wrong."""
    states = Counter(report.state for report in reports)
    severities = Counter(finding.severity for report in reports for finding in report.findings)
    wrong = (
        "nothing is wrong"
        if not severities[FAIL]
        else f"{plural(severities[FAIL], 'thing')} {'is' if severities[FAIL] == 1 else 'are'} wrong"
    )
    parts = [wrong]
    if severities[WARN]:
        parts.append(plural(severities[WARN], "warning"))
    parts.append(f"{states[OK] + states[WARN] + states[FAIL]} checks made, {states[SKIPPED]} skipped")
    return ", ".join(parts)


def checklist(name: str, reports: Sequence[CheckReport]) -> Iterator[str]:
    """Yield a checklist's lines, those that were checked first."""
    yield f"Checklist {name}:"
    states = {report.check: report.state for report in reports}
    items = list(answered(name, states))
    for state, item in items:
        if item.checks:
            yield f"  [{MARKS[state]:^4}] {item.text} ({', '.join(item.checks)})"
    yield "  By hand:"
    for _, item in items:
        if not item.checks:
            yield f"  [    ] {item.text}"
