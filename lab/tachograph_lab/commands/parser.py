"""The command line of a lab command: errors in one line, and the options that several commands share."""

from __future__ import annotations

import argparse

from tachograph.command_line import CommandParser
from tachograph_lab import binaries
from tachograph_lab.scenario.values import some_time


class LabParser(CommandParser):
    """The argument parser of `tachograph-lab NAME`."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(prog=f"tachograph-lab {name}", description=description)
        self.add_argument(
            "--suite", default=binaries.SYSTEM,
            help="where Prometheus and Alertmanager come from: system, or a Debian code name (system)",
        )  # fmt: skip

    def add_jobs(self) -> None:
        """Add `--jobs`, the number of replays in parallel."""
        self.add_argument("--jobs", type=at_least_one, default=1, metavar="N", help="replays in parallel (1)")

    def add_intervals(self) -> None:
        """Add `--scrape`, `--evaluation` and `--intervals`; `intervals` returns what they ask for."""
        self.add_argument("--scrape", type=seconds, metavar="TIME", help="scrape interval (the scenario's own)")
        self.add_argument("--evaluation", type=seconds, metavar="TIME", help="evaluation interval (its own)")
        self.add_argument(
            "--intervals", type=several_seconds, metavar="TIME,…",
            help="replay at each of these scrape intervals in turn, which is also that of evaluations",
        )  # fmt: skip

    def intervals(self, options: argparse.Namespace) -> list[tuple[float | None, float | None]]:
        """Return the scrape and evaluation intervals to replay at, None where they are the scenario's own."""
        if options.intervals is None:
            return [(options.scrape, options.evaluation)]
        if options.scrape is not None or options.evaluation is not None:
            self.error("give --intervals, or --scrape and --evaluation")
        return [(each, each) for each in options.intervals]


def seconds(text: str) -> float:
    """Read an interval: whole seconds, above zero."""
    try:
        found = some_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {error}") from error
    if found % 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole seconds")
    return found


def several_seconds(text: str) -> list[float]:
    """Read intervals, separated by commas."""
    return list(dict.fromkeys(map(seconds, text.split(","))))


def at_least_one(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)
