"""`tachograph-lab replay`: replays scenarios, in virtual time or live, and compares the pages with the expected ones.

Exits with status 0 if everything is as expected, 1 on any difference, 2 if a scenario cannot be read.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tachograph.processes.signals import signals_as_exit
from tachograph.text.humanize import duration, plural, span
from tachograph.text.printable import printable
from tachograph_lab import binaries
from tachograph_lab.commands.parser import LabParser
from tachograph_lab.processes import ProcessError
from tachograph_lab.replay.batch import Outcome, replay_all, workers
from tachograph_lab.scenario import INCIDENTS, Scenario, ScenarioError, load
from tachograph_lab.scenario.definition import EVALUATION_SECONDS, SCRAPE_SECONDS

WIDTH = 110
PROMETHEUS, CELLS = "prometheus", "cells"
_NUMBER = re.compile(r"0*(\d+)([a-z]?)")
STYLES = {"ok": "bold green", "FAIL": "bold red", "MISSING": "red", "WRONG": "red", "EXTRA": "red", "error": "red"}
"""The style of a line by its first word."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the scenarios that the command line names; return the exit status."""
    options = _parse(arguments)
    try:
        paths = shipped() if options.all else find(options.scenarios)
        scenarios = [load(path) for path in paths]
        if options.live:
            scenarios = [one.for_live() for one in scenarios if one.live is not None or not options.all]
        scenarios = [one.at_intervals(*each) for one in scenarios for each in options.at]
    except ScenarioError as error:
        for line in error.lines:
            print(f"tachograph-lab replay: {line}", file=sys.stderr)
        return 2
    try:
        with signals_as_exit():
            return _replay(scenarios, options)
    except (binaries.BinariesUnavailable, ProcessError) as error:
        print(f"tachograph-lab replay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tachograph-lab replay: interrupted, everything is stopped", file=sys.stderr)
        return 130


def shipped() -> list[Path]:
    """Return the shipped scenarios, by number."""
    return sorted(INCIDENTS.glob("*.yaml"))


def find(words: Iterable[str]) -> list[Path]:
    """Return the scenario files for these words: a path, or an incident's number (`15`: all its parts, `15b`: one).

    Raises ScenarioError with a line for each word that matches nothing.
    """
    known: dict[str, list[Path]] = {}
    for path in shipped():
        if match := _NUMBER.fullmatch(path.name.partition("-")[0]):
            for name in dict.fromkeys((match[1], match[1] + match[2])):
                known.setdefault(name, []).append(path)
    found: list[Path] = []
    lines: list[str] = []
    for word in words:
        if match := _NUMBER.fullmatch(word):
            paths = known.get(match[1] + match[2], [])
            if not paths:
                lines.append(f"{word}: no such incident; there are {', '.join(known)}")
        else:
            paths = [Path(word)]
            if not paths[0].is_file():
                lines.append(f"{word}: no such file; give the path of a scenario, or an incident's number")
        found += paths
    if lines:
        raise ScenarioError(lines)
    return list(dict.fromkeys(found))


def _replay(scenarios: Sequence[Scenario], options: argparse.Namespace) -> int:
    console = Console(highlight=False)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    for outcome in (_play if options.live else _compute)(scenarios, options, console):
        outcomes.append(outcome)
        _show(console, outcome)
    if len(options.at) > 1:
        console.print()
        for line in table(outcomes):
            console.print(Text(printable(line)), soft_wrap=True)
    if len(outcomes) > 1:
        failed = [
            outcome.verdict.title + (f", at {_interval(outcome)}" if len(options.at) > 1 else "")
            for outcome in outcomes
            if not outcome.verdict.ok
        ]
        took = span(time.monotonic() - began)
        console.print(Text(f"\n{len(outcomes) - len(failed)} of {len(outcomes)} as expected, in {took}"))
        for title in failed:
            console.print(Text(f"  FAIL {title}", STYLES["FAIL"]))
    return 0 if all(outcome.verdict.ok for outcome in outcomes) else 1


def _compute(scenarios: Sequence[Scenario], options: argparse.Namespace, console: Console) -> Iterator[Outcome]:
    """Replay in virtual time: yield outcomes as they complete, a pack of scenarios at a time."""
    if len(scenarios) == 1:
        _introduce(console, scenarios[0])
    for outcome in replay_all(scenarios, options.jobs, options.suite):
        if len(scenarios) > 1:
            _introduce(console, outcome.scenario)
        yield outcome


def _play(scenarios: Sequence[Scenario], options: argparse.Namespace, console: Console) -> Iterator[Outcome]:
    """Replay in real time: yield outcomes in order, `--jobs` of them at a time."""
    binaries.find(options.suite)  # before any replay begins
    if options.jobs == 1 or len(scenarios) == 1:
        for scenario in scenarios:
            _introduce(console, scenario)
            yield play_live(scenario, options.suite, options.store)
        return
    with workers(options.jobs) as pool:
        for future in [pool.submit(play_live, scenario, options.suite, options.store) for scenario in scenarios]:
            outcome = future.result()
            _introduce(console, outcome.scenario)
            yield outcome


def play_live(scenario: Scenario, suite: str, store: str = PROMETHEUS) -> Outcome:
    """Replay one scenario in real time, printing each page as it is received."""
    from tachograph_lab.live.cells import CellFleet
    from tachograph_lab.live.victoria import VictoriaFleet
    from tachograph_lab.live.watched_fleet import WatchedFleet, replay_live

    began = time.monotonic()
    name = scenario.path.name.partition("-")[0] if scenario.path else scenario.title

    def note(line: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print(printable(f"  {name} {minutes:3d}:{seconds:02d}  {line}"), flush=True)

    watch = {PROMETHEUS: WatchedFleet, CELLS: CellFleet, binaries.VICTORIA: VictoriaFleet}
    verdict = replay_live(scenario, suite, note, watch[store])
    return Outcome(scenario, verdict, time.monotonic() - began)


def _introduce(console: Console, scenario: Scenario) -> None:
    fleet = scenario.fleet
    number = f"{scenario.incident}. " if scenario.incident else ""
    console.print(Text(f"\n{number}{scenario.title}", "bold"))
    console.print(Text(scenario.story))
    shape = f"{plural(fleet.ranks, 'rank')} on {plural(fleet.nodes, 'node')}, {span(scenario.lasts)}"
    if scenario.scrape != SCRAPE_SECONDS or scenario.evaluation is not None:
        evaluation = EVALUATION_SECONDS if scenario.evaluation is None else scenario.evaluation
        shape += f", scraped every {scenario.scrape:g} s, evaluated every {evaluation:g} s"
    console.print(Text(shape, "dim"))


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a Markdown table: a row for each scenario, a column for each interval, seconds found / allowed."""
    cells: dict[str, dict[str, str]] = {}
    for outcome in outcomes:
        cells.setdefault(outcome.verdict.title, {})[_interval(outcome)] = _cell(outcome)
    columns = sorted({name for row in cells.values() for name in row}, key=lambda name: (len(name), name))
    lines = [f"| scenario | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for title, row in sorted(cells.items(), key=lambda pair: _by_number(pair[0])):
        lines.append(f"| {title} | {' | '.join(row.get(name, '–') for name in columns)} |")
    return lines


def _interval(outcome: Outcome) -> str:
    return f"{outcome.scenario.scrape:g} s"


def _cell(outcome: Outcome) -> str:
    verdict = outcome.verdict
    parts = [
        f"{one.expected.alert} " + ("missing" if one.delay is None else f"{one.delay:.0f} / {one.limit:.0f}")
        for one in verdict.expectations
    ]
    parts += dict.fromkeys(f"extra {one.alert}" for one in verdict.extra)
    return ("" if verdict.ok else "FAIL ") + (", ".join([*parts, *verdict.errors[:1]]) or "quiet")


def _by_number(title: str) -> tuple[int, str]:
    match = _NUMBER.match(title)
    return (int(match[1]) if match else 0, title)


def _show(console: Console, outcome: Outcome) -> None:
    width = shutil.get_terminal_size((WIDTH, 0)).columns if console.is_terminal else 10**6
    for number, line in enumerate(outcome.verdict.lines):
        indent = " " * (len(line) - len(line.lstrip()))
        style = STYLES.get(line.split(maxsplit=1)[0], "")
        for part in textwrap.wrap(line, width, subsequent_indent=indent + "  ") or [""]:
            console.print(Text(printable(part), style), soft_wrap=True)
        if number == 0:
            console.print(Text(f"  replayed in {duration(outcome.seconds)}", "dim"))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = LabParser("replay", "Replay incidents and compare the pages received with those expected.")
    parser.add_argument("scenarios", nargs="*", metavar="FILE|NUMBER", help="scenario files, or incidents by number")
    parser.add_argument("--all", action="store_true", help="all incidents; with --live those that can run live")
    parser.add_argument(
        "--live", action="store_true", help="in real time, with real exporters, Prometheus and Alertmanager"
    )
    parser.add_argument(
        "--store", choices=(PROMETHEUS, CELLS, binaries.VICTORIA), default=PROMETHEUS,
        help="with --live, what scrapes, stores and evaluates: prometheus, two cells and a level above, or "
        "VictoriaMetrics with its vmagent and vmalert (prometheus)",
    )  # fmt: skip
    parser.add_intervals()
    parser.add_jobs()
    options = parser.parse_args(arguments)
    if options.store != PROMETHEUS and not options.live:
        parser.error("--store needs --live")
    options.at = parser.intervals(options)
    if bool(options.scenarios) == options.all:
        parser.error("give scenario files, incident numbers, or --all")
    return options
