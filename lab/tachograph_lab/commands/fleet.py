"""`tachograph-lab fleet`: runs a scenario's fleet behind real exporters until Ctrl-C."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tachograph.processes.signals import signals_as_exit
from tachograph.text.humanize import plural
from tachograph.text.printable import printable
from tachograph_lab import binaries
from tachograph_lab.commands.parser import LabParser
from tachograph_lab.commands.replay import find
from tachograph_lab.live.live_fleet import ANNOUNCEMENT, Announcement
from tachograph_lab.live.watched_fleet import WatchedFleet, start_fleet, wait
from tachograph_lab.pager import PagedAlert, Pager
from tachograph_lab.processes import Children, ProcessError
from tachograph_lab.scenario import Scenario, ScenarioError, load
from tachograph_lab.scenario.values import some_time

SHOWN_NODES = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fleet of the scenario that the command line names; return the exit status."""
    options = _parse(arguments)
    try:
        (path,) = find([options.scenario])[:1]
        scenario = load(path)
    except ScenarioError as error:
        for line in error.lines:
            print(f"tachograph-lab fleet: {line}", file=sys.stderr)
        return 2
    try:
        with signals_as_exit(), tempfile.TemporaryDirectory(prefix="tachograph-") as folder:
            run = _watched if options.stack else _alone
            run(scenario.live or scenario, Path(folder), options)
    except (binaries.BinariesUnavailable, ProcessError) as error:
        print(f"tachograph-lab fleet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


def _alone(scenario: Scenario, folder: Path, options: argparse.Namespace) -> None:
    with Children(folder) as children:
        announcement = start_fleet(children, folder, scenario)
        _describe(scenario, announcement, folder)
        _wait(children, announcement, options.seconds)


def _watched(scenario: Scenario, folder: Path, options: argparse.Namespace) -> None:
    with (
        Pager(record=_print_page) as pager,
        WatchedFleet(scenario, folder, pager.url, suite=options.suite) as watched,
    ):
        _describe(scenario, watched.announcement, watched.scratch)
        for part in watched.parts:
            print(f"{part:13} {watched.url(part)}")
        _wait(watched.children, watched.announcement, options.seconds)


def _wait(children: Children, announcement: Announcement, seconds: float | None) -> None:
    print("Press Ctrl-C to stop.", flush=True)
    wait(children.running, until=math.inf if seconds is None else announcement.epoch + seconds)


def _describe(scenario: Scenario, announcement: Announcement, folder: Path) -> None:
    fleet = scenario.fleet
    print(f"{scenario.title}: {plural(fleet.ranks, 'rank')} of run {fleet.run} on {plural(fleet.nodes, 'node')}")
    print(f"second 0 is at {_clock(announcement.epoch)}")
    for fault in scenario.faults:
        print(f"fault at {_clock(announcement.epoch + fault.at)}: {fault}")
    for name, node in list(announcement.nodes.items())[:SHOWN_NODES]:
        print(f"{name:13} http://{node.exporter}/metrics  http://{node.host}/metrics  {node.socket}")
    if (more := len(announcement.nodes) - SHOWN_NODES) > 0:
        print(f"and {more} more: {folder / ANNOUNCEMENT}")


def _print_page(page: PagedAlert) -> None:
    text = page.annotations.get("description", "")
    print(printable(f"{_clock(page.time)} {page.receiver} {page.status}: {page.alert}: {text}"), flush=True)


def _clock(unix: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = LabParser("fleet", "Run a scenario's fleet in real time: real exporters, simulated ranks.")
    parser.add_argument("scenario", metavar="FILE|NUMBER", help="a scenario file, or an incident by number")
    parser.add_argument(
        "--for", dest="seconds", type=_seconds, metavar="TIME", help="stop this long after second 0, for example 10m"
    )
    parser.add_argument("--stack", action="store_true", help="run Prometheus and Alertmanager too; print every alert")
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    try:
        return some_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {error}") from error
