"""Replay random incidents in virtual time, and report every page that does not name the right culprit in time.

`tachograph-lab campaign --count 200 --jobs 2 --seed 1` exits with status 0 if all pages are right and in time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from tachograph.text.humanize import duration, plural, span
from tachograph_lab import binaries
from tachograph_lab.commands.parser import LabParser, at_least_one
from tachograph_lab.replay.batch import Outcome, replay_all
from tachograph_lab.replay.verdict import NOBODY
from tachograph_lab.scenario import Scenario, ScenarioError, random_scenario, random_seams
from tachograph_lab.scenario.checks import check

MOST_RANKS = max(nodes * gpus for nodes, gpus in random_scenario.SHAPES)
RIGHT, WRONG, LATE, MISSING, EXTRA, FAILED = "right", "wrong", "late", "missing", "extra", "failed"


@dataclass(frozen=True)
class Finding:
    """An expected or unexpected notification, and how it is judged."""

    kind: str
    scenario: str
    text: str


def findings(outcome: Outcome) -> Iterator[Finding]:
    """Yield the findings of a replay: one for each expectation, and one for each unexpected notification.

    A page of the expected name that names another culprit is one wrong page, not a missing and an extra one.
    """
    title = outcome.scenario.title
    for error in outcome.verdict.errors:
        yield Finding(FAILED, title, error)
    extra = [one for one in outcome.verdict.extra if one.receiver not in NOBODY]
    for result in outcome.verdict.expectations:
        wanted = f"{result.expected.receiver} {result.expected.alert} {_labels(result.expected.labels)}"
        if result.received is not None:
            late = result.delay is not None and result.delay > result.limit
            kind = LATE if late else WRONG if result.wrong else RIGHT
            yield Finding(kind, title, wanted + (f": {result.wrong}" if result.wrong else ""))
            continue
        blamed = [one for one in extra if one.alert == result.expected.alert]
        for one in blamed:
            extra.remove(one)
        named = "; ".join(f"{one.receiver} at {one.time:.0f} s {_labels(one.labels)}" for one in blamed)
        yield Finding(
            WRONG if blamed else MISSING, title, wanted + (f", but {named}" if named else f": {result.wrong}")
        )
    for one in extra:
        yield Finding(EXTRA, title, f"{one.receiver} {one.alert} {_labels(one.labels)} at {one.time:.0f} s")


def _labels(labels: Mapping[str, str]) -> str:
    kept = {name: labels[name] for name in ("rank", "instance", "gpu") if name in labels}
    return "{" + ", ".join(f"{name}={value}" for name, value in kept.items()) + "}"


def report(outcomes: Sequence[Outcome], command: str, seconds: float) -> list[str]:
    """Return the report's lines: what was replayed, the results by kind of incident, and every miss."""
    found = [(outcome, finding) for outcome in outcomes for finding in findings(outcome)]
    total = Counter(finding.kind for _, finding in found)
    expected = sum(len(outcome.scenario.expect) for outcome in outcomes)
    quiet = sum(not outcome.scenario.expect for outcome in outcomes)
    lines = [
        "# Random campaign",
        "",
        f"`{command}`: {plural(len(outcomes), 'scenario')} in {span(seconds)}, {quiet} of which must cause no page.",
        "",
        f"Right culprit: {total[RIGHT] + total[LATE]} of {expected}. Wrong: {total[WRONG]}, missing: {total[MISSING]}, "
        f"late: {total[LATE]}, extra: {total[EXTRA]}, could not be evaluated: {total[FAILED]}.",
        "",
        "| incident | scenarios | ranks | right | wrong | missing | late | extra |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(map(_incident, outcomes)):
        those = [outcome for outcome in outcomes if _incident(outcome) == name]
        kinds = Counter(finding.kind for outcome, finding in found if _incident(outcome) == name)
        sizes = sorted({outcome.scenario.fleet.ranks for outcome in those})
        counted = " | ".join(str(kinds[kind]) for kind in (RIGHT, WRONG, MISSING, LATE, EXTRA))
        lines.append(f"| {name} | {len(those)} | {sizes[0]}–{sizes[-1]} | {counted} |")
    misses = [finding for _, finding in found if finding.kind != RIGHT]
    lines += ["", "## Misses", ""] if misses else ["", "No miss."]
    lines += [f"- {finding.scenario} – {finding.kind}: {finding.text}" for finding in misses]
    return lines


def _incident(outcome: Outcome) -> str:
    return outcome.scenario.title.partition(": ")[2].partition(",")[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign; return the exit status."""
    options = _parse(arguments)

    def drawn(number: int) -> Scenario:
        if options.seams:
            return random_seams.generate(number, options.seed)
        return random_scenario.generate(number, options.seed, options.field)

    if options.only is None:
        small = (one for one in map(drawn, count()) if one.fleet.ranks <= options.ranks)
        scenarios = list(islice(small, options.count))
        which = f"--count {options.count} --ranks {options.ranks}"
    else:
        scenarios = [drawn(number) for number in options.only]
        which = "--only " + " ".join(map(str, options.only))
    which += " --field" * options.field + " --seams" * options.seams
    command = f"tachograph-lab campaign {which} --seed {options.seed}"
    began = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        problems = [f"{s.title}: {p.what}; {p.allowed}" for s in scenarios for p in check(s)]
        if problems:
            raise ScenarioError(problems)
        for outcome in replay_all(scenarios, options.jobs, options.suite):
            outcomes.append(outcome)
            marks = [finding for finding in findings(outcome) if finding.kind != RIGHT]
            print(f"{'FAIL' if marks else 'ok  '} {outcome.scenario.title} ({duration(outcome.seconds)})", flush=True)
            for finding in marks:
                print(f"     {finding.kind}: {finding.text}", flush=True)
    except (binaries.BinariesUnavailable, ScenarioError) as error:
        print(f"tachograph-lab campaign: {error}", file=sys.stderr)
        return 2
    outcomes.sort(key=lambda outcome: scenarios.index(outcome.scenario))
    lines = report(outcomes, command, time.monotonic() - began)
    if options.report:
        options.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n" + "\n".join(lines))
    return int(any(finding.kind != RIGHT for outcome in outcomes for finding in findings(outcome)))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = LabParser("campaign", __doc__.splitlines()[0])
    parser.add_argument("--count", type=at_least_one, default=200, metavar="N", help="number of scenarios (200)")
    parser.add_argument(
        "--ranks", type=_ranks, default=MOST_RANKS, metavar="N", help=f"size of the largest fleet ({MOST_RANKS})"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the campaign (1)")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="replay only these scenarios, by number")
    of_a_kind = parser.add_mutually_exclusive_group()
    of_a_kind.add_argument(
        "--seams", action="store_true",
        help="incidents beside restarts, exporters or a Prometheus that are away and back, and pauses",
    )  # fmt: skip
    of_a_kind.add_argument(
        "--field", action="store_true",
        help="habits of the field: steps of 50 ms to 200 s, scrapes every 5 to 30 s, basic loops, uneven stages",
    )  # fmt: skip
    parser.add_jobs()
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the report to this file, as Markdown")
    return parser.parse_args(arguments)


def _ranks(text: str) -> int:
    ranks = at_least_one(text)
    if ranks < (least := min(nodes * gpus for nodes, gpus in random_scenario.SHAPES)):
        raise argparse.ArgumentTypeError(f"{text!r}: the smallest fleet has {least} ranks")
    return ranks
