"""`tachograph blackbox analyze DIR`: says from the dumps of a run's ranks who holds it up, and where."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tachograph.blackbox import text
from tachograph.blackbox.verdict import analyze
from tachograph.printable import printable

EPILOG = """\
exit status of analyze:
  0  someone is named, or nothing is stuck
  1  nothing in DIR can be read
  2  wrong arguments
  3  the run is stuck and nobody can be named; the text says why
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tachograph blackbox",
        description="Read what a run's ranks left behind when it stopped.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    one = commands.add_parser(
        "analyze",
        help="say which rank holds the run up, why and at which line",
        description="Analyze a folder of Flight Recorder dumps, one or more files for each rank: pickles or JSON of "
        "PyTorch 2.4 or newer, of NCCL or gloo. Nothing in a file is executed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "directory", type=Path, metavar="DIR", help="the folder with the dumps; folders in it are read too"
    )
    one.add_argument("--world-size", type=_size, metavar="N", help="ranks of the run, where the dumps do not say it")
    one.add_argument("--json", action="store_true", help="print an object, with the key culprits")
    return parser


def _size(given: str) -> int:
    try:
        size = int(given)
    except ValueError:
        size = 0
    if not 0 < size <= 1 << 20:
        raise argparse.ArgumentTypeError(f"{given!r} is no number of ranks")
    return size


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        verdict = analyze(given.directory, given.world_size)
    except OSError as error:
        why = error.strerror or type(error).__name__
        print(printable(f"tachograph blackbox: {given.directory}: {why}"), file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(dataclasses.asdict(verdict), indent=2))
    else:
        print("\n".join(text.lines(verdict)))
    if verdict.state == "unreadable":
        print(
            printable(f"tachograph blackbox: no dump in {given.directory} can be read; expected files such as _dump_0"),
            file=sys.stderr,
        )
        return 1
    return 3 if verdict.state == "stuck" and not verdict.culprits else 0
