"""The command line of a lab command: errors in one line, and the options that several commands share."""

from __future__ import annotations

import argparse
from typing import NoReturn

from tachograph_lab import binaries


class CommandParser(argparse.ArgumentParser):
    """An argument parser for `tachograph-lab NAME` that reports a mistake in one line and exits with status 2."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(prog=f"tachograph-lab {name}", description=description)
        self.add_argument(
            "--suite", default=binaries.SYSTEM,
            help="where Prometheus and Alertmanager come from: system, or a Debian code name (system)",
        )  # fmt: skip

    def add_jobs(self) -> None:
        """Add `--jobs`, the number of replays in parallel."""
        self.add_argument("--jobs", type=at_least_one, default=1, metavar="N", help="replays in parallel (1)")

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and the message in one line."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def at_least_one(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)
