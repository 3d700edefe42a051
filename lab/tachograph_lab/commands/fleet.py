"""`tachograph-lab fleet`: a scenario's fleet alone, as real exporters to look at, until Ctrl-C."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tachograph.printable import printable
from tachograph.signals import signals_as_exit
from tachograph_lab import binaries
from tachograph_lab.checkout import CheckoutError
from tachograph_lab.commands.replay import find
from tachograph_lab.live.live_fleet import ANNOUNCEMENT, Announcement
from tachograph_lab.live.watched_fleet import WatchedFleet, start_fleet, wait
from tachograph_lab.pager import Page, Pager
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
    except (binaries.BinariesUnavailable, CheckoutError, ProcessError) as error:
        print(f"tachograph-lab fleet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


def _alone(scenario: Scenario, folder: Path, options: argparse.Namespace) -> None:
    with Children(folder) as children:
        told = start_fleet(children, folder, scenario)
        _describe(scenario, told, folder)
        _last(children, told, options.seconds)


def _watched(scenario: Scenario, folder: Path, options: argparse.Namespace) -> None:
    with (
        Pager(record=_print_page) as pager,
        WatchedFleet(scenario, folder, pager.url, suite=options.suite) as watched,
    ):
        _describe(scenario, watched.told, watched.scratch)
        for part in watched.parts:
            print(f"{part:13} {watched.url(part)}")
        _last(watched.children, watched.told, options.seconds)


def _last(children: Children, told: Announcement, seconds: float | None) -> None:
    print("Ctrl-C ends it.", flush=True)
    wait(children.running, until=math.inf if seconds is None else told.epoch + seconds)


def _describe(scenario: Scenario, told: Announcement, folder: Path) -> None:
    fleet = scenario.fleet
    print(f"{scenario.title}: {fleet.ranks:,} ranks of run {fleet.run} on {fleet.nodes:,} nodes")
    print(f"second 0 is at {time.strftime('%H:%M:%S', time.localtime(told.epoch))}")
    for fault in scenario.faults:
        at = time.strftime("%H:%M:%S", time.localtime(told.epoch + fault.at))
        print(f"fault at {at}: {fault}")
    for name, place in list(told.places.items())[:SHOWN_NODES]:
        print(f"{name:13} http://{place.exporter}/metrics  http://{place.host}/metrics  {place.socket}")
    if (more := len(told.places) - SHOWN_NODES) > 0:
        print(f"and {more} more: {folder / ANNOUNCEMENT}")


def _print_page(page: Page) -> None:
    text = page.annotations.get("description", "")
    line = f"{time.strftime('%H:%M:%S')} {page.receiver} {page.status}: {page.alert}: {text}"
    print(printable(line), flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tachograph-lab fleet", description="Run a scenario's fleet in real time: real exporters, simulated ranks."
    )
    parser.add_argument("scenario", metavar="FILE|NUMBER", help="a scenario file, or an incident by number")
    parser.add_argument("--for", dest="seconds", type=_seconds, metavar="TIME", help="end after this long, such as 10m")
    parser.add_argument("--stack", action="store_true", help="Prometheus and Alertmanager too; print every page")
    parser.add_argument(
        "--suite", default=binaries.SYSTEM, help="whose Prometheus and Alertmanager: system, or a Debian code name"
    )
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    try:
        return some_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {error}") from error
