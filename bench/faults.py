"""The fault bench: whether faults in real training jobs cause the right alert, with the right rank, and no other.

Real jobs of four ranks, real exporter, Prometheus and Alertmanager with the shipped rules; fault_scenarios.py has the
expected alerts. Each result is saved at once: finished jobs are not repeated, except with --fresh.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from fault_scenarios import Scenario, campaign
from fault_scores import EMPTY, judge, tables
from fault_stack import FaultStack, Outcome, Told
from tachograph_lab import binaries, table
from tachograph_lab.table import OUT, show

RESULTS = OUT / "faults.jsonl"
DOCUMENT = Path(__file__).parent.parent / "docs" / "evidence" / "fault-bench.md"
FENCE = "<!-- written by bench/faults.py --doc -->"


def main() -> None:
    """Run the jobs that have no result yet, and print the tables of all results."""
    options = parse()
    signal.signal(signal.SIGTERM, leave)
    scenarios = [one for one in campaign(options.healthy, options.repeats) if matches(one, options.only)]
    if options.fresh:
        RESULTS.unlink(missing_ok=True)
    done = read(scenarios)
    known = {one.scenario.run for one in done if not one.fault}
    left = [one for one in scenarios if one.run not in known]
    if left and options.minutes > 0:
        done = [one for one in done if not one.fault] + play(left, options)
    if not done:
        sys.exit("nothing was measured")
    found = tables(done)
    for title, rows in found.items():
        show(title, rows)
    if options.doc:
        write_document(found, facts(options))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WORD", help="only jobs whose names contain these words"
    )
    parser.add_argument("--jobs", type=int, default=8, help="jobs in parallel, besides the long ones")
    parser.add_argument("--minutes", type=float, default=120, help="do not start jobs that would end later than this")
    parser.add_argument("--healthy", type=int, default=30, help="number of healthy jobs")
    parser.add_argument("--repeats", type=int, default=2, help="jobs per fault")
    parser.add_argument(
        "--suite", default=binaries.SYSTEM, help="where Prometheus comes from: system, or a Debian code name"
    )
    parser.add_argument("--fresh", action="store_true", help="discard earlier results")
    parser.add_argument("--doc", action="store_true", help="write the tables into docs/evidence/fault-bench.md")
    return parser.parse_args()


def matches(scenario: Scenario, words: Sequence[str]) -> bool:
    """Return whether a job is selected."""
    return all(word in scenario.run for word in words)


def play(scenarios: Sequence[Scenario], options: argparse.Namespace) -> list[Outcome]:
    """Run the jobs, save each result at once, and return all of them."""
    OUT.mkdir(exist_ok=True)
    outcomes = []
    until = time.time() + 60 * options.minutes
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        FaultStack(Path(folder), options.suite) as stack,
        RESULTS.open("a", encoding="utf-8") as results,
    ):
        print(f"{len(scenarios)} jobs, {options.jobs} at a time; {stack.stack.description()}", flush=True)
        for outcome in stack.play(scenarios, options.jobs, until):
            outcomes.append(outcome)
            results.write(json.dumps(outcome.row()) + "\n")
            results.flush()
            one = judge(outcome)
            delay = "" if one.delay is None else f" after {one.delay:.0f} s"
            said = outcome.fault or f"{one.verdict}{delay}"
            mark = "-- " if outcome.fault else "ok " if one.right else "NOT"
            print(f"  {mark} {outcome.scenario.run}: {said}", flush=True)
    return outcomes


def read(scenarios: Sequence[Scenario]) -> list[Outcome]:
    """Return the last earlier result of each of these jobs."""
    by_run = {one.run: one for one in scenarios}
    found: dict[str, Outcome] = {}
    if RESULTS.exists():
        for line in RESULTS.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if scenario := by_run.get(row["run"]):
                told = [Told(**one) for one in row["told"]]
                found[row["run"]] = Outcome(scenario, row["onset"], row["began"], row["ended"], told, row["fault"])
    return list(found.values())


def facts(options: argparse.Namespace) -> str:
    """Return the conditions under which the figures were measured."""
    programs = binaries.find(options.suite)
    prometheus = ".".join(map(str, binaries.version(programs["prometheus"])))
    return f"{os.cpu_count()} cores, up to {options.jobs} jobs of four ranks at a time, Prometheus {prometheus}."


def write_document(found: Mapping[str, Sequence[Mapping[str, Any]]], machine: str) -> None:
    """Write the tables between the markers of docs/evidence/fault-bench.md."""
    before, _, after = DOCUMENT.read_text(encoding="utf-8").split(FENCE)
    shown = ((title, rows) for title, rows in found.items() if "longest delay" not in title)  # the text has the longest
    body = "\n\n".join(f"### {title}\n\n{markdown(rows)}" for title, rows in shown)
    DOCUMENT.write_text(f"{before}{FENCE}\n\n{machine}\n\n{body}\n\n{FENCE}{after}", encoding="utf-8")


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table: those that are alike beside their first cell share one, a sparse one lists its counts."""
    if any(EMPTY in row.values() for row in rows):
        rows = [counts(row) for row in rows]
    first, *others = rows[0]
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        alike.setdefault(tuple(str(row[column]) for column in others), []).append(str(row[first]))
    body = ([", ".join(names), *cells] for cells, names in alike.items())
    return "\n".join(table.markdown([first, *others], body))


def counts(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of counts as its first cell and a list of the columns that have any."""
    (first, name), *cells = row.items()
    return {first: name, "named": ", ".join(f"{column} {count}" for column, count in cells if count != EMPTY)}


def leave(number: int, frame: FrameType | None) -> None:
    """Exit normally: the jobs are stopped, the results are kept."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
