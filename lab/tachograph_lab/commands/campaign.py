"""Are the names in pages right? Random scenarios in virtual time, and a report that lists every miss.

`tachograph-lab campaign --count 200 --jobs 2 --seed 1` ends with status 0 if all names are right and in time.
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

from tachograph_lab import binaries
from tachograph_lab.checkout import CheckoutError
from tachograph_lab.replay.batch import Outcome, replay_all
from tachograph_lab.replay.verdict import NOBODY
from tachograph_lab.scenario import ScenarioError, random_scenario
from tachograph_lab.scenario.checks import check

MOST_RANKS = max(nodes * gpus for nodes, gpus in random_scenario.SHAPES)
RIGHT, WRONG, LATE, MISSING, EXTRA, FAILED = "right", "wrong", "late", "missing", "extra", "failed"


@dataclass(frozen=True)
class Finding:
    """One thing that was expected, or received beside it, and how it is judged."""

    kind: str
    scenario: str
    words: str


def findings(outcome: Outcome) -> Iterator[Finding]:
    """Yield what a replay came to: for each expectation whether the name was right, and everything else received.

    A page of the expected name that blames somebody else is a wrong one, not a missing and an extra one.
    """
    title = outcome.scenario.title
    for error in outcome.verdict.errors:
        yield Finding(FAILED, title, error)
    extra = [one for one in outcome.verdict.extra if one.receiver not in NOBODY]
    for answer in outcome.verdict.answers:
        wanted = f"{answer.expected.receiver} {answer.expected.alert} {_labels(answer.expected.labels)}"
        if answer.received is not None:
            late = answer.delay is not None and answer.delay > answer.expected.within
            kind = LATE if late else WRONG if answer.wrong else RIGHT
            yield Finding(kind, title, wanted + (f": {answer.wrong}" if answer.wrong else ""))
            continue
        blamed = [one for one in extra if one.alert == answer.expected.alert]
        for one in blamed:
            extra.remove(one)
        named = "; ".join(f"{one.receiver} at {one.time:.0f} s {_labels(one.labels)}" for one in blamed)
        yield Finding(
            WRONG if blamed else MISSING, title, wanted + (f", but {named}" if named else f": {answer.wrong}")
        )
    for one in extra:
        yield Finding(EXTRA, title, f"{one.receiver} {one.alert} {_labels(one.labels)} at {one.time:.0f} s")


def _labels(labels: Mapping[str, str]) -> str:
    kept = {name: labels[name] for name in ("rank", "instance", "gpu") if name in labels}
    return "{" + ", ".join(f"{name}={value}" for name, value in kept.items()) + "}"


def report(outcomes: Sequence[Outcome], command: str, seconds: float) -> list[str]:
    """Return the report's lines: what was replayed, how it went by sort of story, and every miss."""
    found = [(outcome, finding) for outcome in outcomes for finding in findings(outcome)]
    total = Counter(finding.kind for _, finding in found)
    expected = sum(len(outcome.scenario.expect) for outcome in outcomes)
    quiet = sum(not outcome.scenario.expect for outcome in outcomes)
    lines = [
        "# Random campaign",
        "",
        f"`{command}`: {len(outcomes)} scenarios in {seconds / 60:.0f} min, {quiet} of which must bring nothing.",
        "",
        f"Names right: {total[RIGHT] + total[LATE]} of {expected}. Wrong: {total[WRONG]}, missing: {total[MISSING]}, "
        f"late: {total[LATE]}, extra: {total[EXTRA]}, could not be evaluated: {total[FAILED]}.",
        "",
        "| story | scenarios | ranks | right | wrong | missing | late | extra |",
        "|---|---|---|---|---|---|---|---|",
    ]
    words = list(dict.fromkeys(_word(outcome) for outcome in outcomes))
    for word in words:
        those = [outcome for outcome in outcomes if _word(outcome) == word]
        kinds = Counter(finding.kind for outcome, finding in found if _word(outcome) == word)
        sizes = sorted({outcome.scenario.fleet.ranks for outcome in those})
        counted = " | ".join(str(kinds[kind]) for kind in (RIGHT, WRONG, MISSING, LATE, EXTRA))
        lines.append(f"| {word} | {len(those)} | {sizes[0]}–{sizes[-1]} | {counted} |")
    misses = [finding for _, finding in found if finding.kind != RIGHT]
    lines += ["", "## Misses", ""] if misses else ["", "No miss."]
    lines += [f"- {finding.scenario} – {finding.kind}: {finding.words}" for finding in misses]
    return lines


def _word(outcome: Outcome) -> str:
    return outcome.scenario.title.partition(": ")[2].partition(",")[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign; return the exit status."""
    options = _parse(arguments)
    if options.only is None:
        drawn = (random_scenario.generate(number, options.seed) for number in count())
        scenarios = list(islice((one for one in drawn if one.fleet.ranks <= options.ranks), options.count))
        which = f"--count {options.count} --ranks {options.ranks}"
    else:
        scenarios = [random_scenario.generate(number, options.seed) for number in options.only]
        which = "--only " + " ".join(map(str, options.only))
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
            print(f"{'FAIL' if marks else 'ok  '} {outcome.scenario.title} ({outcome.seconds:.0f} s)", flush=True)
            for finding in marks:
                print(f"     {finding.kind}: {finding.words}", flush=True)
    except (binaries.BinariesUnavailable, CheckoutError, ScenarioError) as error:
        print(f"campaign: {error}", file=sys.stderr)
        return 2
    outcomes.sort(key=lambda outcome: scenarios.index(outcome.scenario))
    lines = report(outcomes, command, time.monotonic() - began)
    if options.report:
        options.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n" + "\n".join(lines))
    return int(any(finding.kind != RIGHT for outcome in outcomes for finding in findings(outcome)))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tachograph-lab campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, metavar="N", help="how many scenarios (200)")
    parser.add_argument("--ranks", type=int, default=MOST_RANKS, metavar="N", help=f"fleets up to this ({MOST_RANKS})")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which campaign (1)")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="only these scenarios of it, by number")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="replays side by side (1)")
    parser.add_argument("--suite", default=binaries.SYSTEM, help="whose promtool: system, or a Debian code name")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report there, too, as Markdown")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
