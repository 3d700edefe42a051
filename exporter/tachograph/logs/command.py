"""`tachograph logs PATH…`: the first cause of a failed run, from its logs."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tachograph.command_line import CommandParser, versioned_json
from tachograph.logs import text
from tachograph.logs.findings import LogFinding
from tachograph.logs.reading import Progress, Reading, read, read_stream
from tachograph.logs.remote import RemoteError, journal, loki
from tachograph.logs.scan import prepare
from tachograph.logs.sightings import Context
from tachograph.logs.sources import Unread, plan, refused, standard_input, whole_lines
from tachograph.logs.verdict import LogVerdict, conclude
from tachograph.servers.server_address import server_url
from tachograph.signatures.table import table
from tachograph.text import duration
from tachograph.text.printable import printable
from tachograph.text.wrapping import columns

LOKI_PORT = 3100
EPILOG = """\
examples:
  tachograph logs slurm-4711.out
  tachograph logs --json /shared/logs/llama-70b
  kubectl logs --prefix --timestamps -l job=llama-70b | tachograph logs -
  tachograph logs --journal --since 2h
  tachograph logs --loki http://loki:3100 --query '{job="llama-70b"}' --since 6h

exit status:
  0  the cause is named, or nothing is wrong
  1  nothing could be read
  2  wrong arguments
  3  something failed, and nothing in the logs says why
"""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph logs",
        description="Find the first cause of a failed run in what its ranks, launchers, schedulers\n"
        "and kernels printed. What stands before the messages is learned from each file;\n"
        "reads lines of JSON, and files packed with gzip, bzip2 and xz.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a file, a folder, or - for standard input")
    parser.add_argument(
        "--journal", nargs="?", const="", metavar="UNIT", help="read systemd's journal of this machine, or of one unit"
    )
    parser.add_argument("--loki", metavar="ADDRESS", help="read from Loki at HOST, HOST:PORT or a URL; needs --query")
    parser.add_argument("--query", metavar="LOGQL", help='the lines to read from Loki, as {job="llama-70b"}')
    parser.add_argument(
        "--since", default="24h", metavar="TIME", help="for --journal and --loki (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print an object, with the key findings, the root first")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
        since = _checked(parser, given)
    except SystemExit as end:
        return int(end.code or 0)
    reading = Reading()
    try:
        _read(given, since, reading)
    except KeyboardInterrupt:
        return 130
    verdict = conclude(reading)
    if given.json:
        print(versioned_json(as_object(verdict)))
    elif verdict.state != "unreadable":
        print("\n".join(text.lines(verdict, columns())))
    if verdict.state == "unreadable":
        for problem in reading.problems or [Unread("tachograph logs", "nothing was given to read")]:
            print(printable(f"tachograph logs: {problem.name}: {problem.why}"), file=sys.stderr)
    return {"unreadable": 1, "no_cause": 3}.get(verdict.state, 0)


def as_object(verdict: LogVerdict) -> dict[str, Any]:
    """Return the object that --json prints."""
    reading = verdict.reading
    return {
        "signatures": table().version,
        "state": verdict.state,
        "findings": [_finding(finding) for finding in verdict.findings],
        "attempts": [
            {
                "attempt": root.attempt,
                "category": root.category,
                "role": root.role,
                "rank": root.rank,
                "line": root.line,
            }
            for root in verdict.roots
        ],
        "rivals": [_finding(finding) for finding in verdict.rivals],
        "silent_ranks": verdict.silent,
        "read": {
            "logs": reading.files,
            "lines": reading.lines,
            "bytes": reading.size,
            "ranks": len(reading.names.known()),
            "first": reading.first,
            "last": reading.last,
            "long_lines": reading.long_lines,
            "lines_not_kept": reading.lost,
        },
        "problems": [problem._asdict() for problem in reading.problems],
    }


_INNER = ("weight", "source", "suffered")
"""What a verdict is drawn from, and a finding does not show."""


def _finding(finding: LogFinding) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(finding).items() if name not in _INNER}


def _checked(parser: CommandParser, given: argparse.Namespace) -> float:
    """Return the Unix time of --since; exit with a usage error if the arguments do not fit."""
    if bool(given.loki) != bool(given.query):
        parser.error("--loki and --query go together")
    if not given.paths and given.journal is None and not given.loki:
        parser.error("expected a PATH, --journal or --loki")
    if given.loki:
        try:
            given.loki = server_url(given.loki, LOKI_PORT)
        except ValueError as error:
            parser.error(f"--loki {given.loki.rpartition('@')[2]}: {error}")
    try:
        return time.time() - duration.parse(given.since)
    except ValueError as error:
        parser.error(f"--since: {error}")


def _read(given: argparse.Namespace, since: float, reading: Reading) -> None:
    tasks = plan([one for one in given.paths if one != "-"], reading.problems)
    number = tasks[-1].context.file if tasks else 0
    now = time.time()
    total = sum(0 if part.end is None else part.end - part.begin for part in tasks)
    prepare()
    with _progress(total) as progress:
        read(tasks, reading, progress)
        if "-" in given.paths:
            _stream("standard input", whole_lines(standard_input()), Context(number + 1, now), reading, progress)
        if given.journal is not None:
            _stream("journal", journal(given.journal, since, now), Context(number + 2, now), reading, progress)
        if given.loki:
            _stream("Loki", loki(given.loki, given.query, since, now), Context(number + 3, now), reading, progress)


def _stream(name: str, blocks: Iterator[bytes], context: Context, reading: Reading, progress: Progress) -> None:
    """Read a stream that has no file; what is no text, or cannot be had, is a problem."""
    try:
        first = next(blocks, b"")
        if why := refused(first.lstrip(b"\0")[:8192] or first[:1]):
            reading.problems.append(Unread(name, why))
            return
        read_stream(name, _with(first, blocks), context, reading, progress)
    except (RemoteError, OSError) as error:
        reading.problems.append(Unread(name, str(error)))


def _with(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how much has been read; elsewhere, or without rich, nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
    except ModuleNotFoundError:
        yield lambda _: None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total or None)
        yield lambda size: bar.advance(task, size)
