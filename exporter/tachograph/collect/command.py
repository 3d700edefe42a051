"""`tachograph blackbox`: asks the ranks of a run for their boxes, collects these, and says who holds the run up."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.blackbox import text
from tachograph.blackbox.findings import Verdict
from tachograph.blackbox.verdict import analyze
from tachograph.blackbox.words import rank_list
from tachograph.command_line import CommandParser, versioned_json
from tachograph.servers.server_address import exporter_url
from tachograph.text import duration
from tachograph.text.humanize import listed, plural
from tachograph.text.printable import printable
from tachograph.text.wrapping import columns, fitted

if TYPE_CHECKING:
    from tachograph.collect.capture import Answer

PROMETHEUS_ENVIRONMENT = "PROMETHEUS_URL"
WAIT_SECONDS = 30.0
EPILOG = """\
exit status of capture:
  0  every connected rank of the run has sent a box
  1  no exporter of the run can be asked, or none has a connected rank
  2  wrong arguments
  3  some ranks have not, or some exporters cannot be asked; the text says which

exit status of collect:
  0  every rank's box is in DIR
  1  none is
  2  wrong arguments
  3  some are not; the text says which

exit status of analyze:
  0  someone is named, or nothing is stuck
  1  nothing in DIR can be read
  2  wrong arguments
  3  the run is stuck and nobody can be named; the text says why
"""
EXPORTERS = """\
The run's exporters are found through Prometheus, which must scrape them at
addresses that can be reached from here, or are named with --exporter. One that
requires a password gets it from ~/.netrc, or from http://user:password@node.
"""
ABOUT_CAPTURE = """\
Have the exporters of a run ask its ranks for a box each, through the
connections they hold, and wait for the boxes. NCCL's RAS service is asked
once, if it listens.
"""
ABOUT_COLLECT = """\
Fetch the last box of each rank of a run from its exporters. DIR then has
ATTEMPT/rank-R.json, exporters.json with what they know about ranks without a
box, and ras.json or ras.txt if NCCL's RAS service has answered a capture.
analyze reads this folder.
"""
ABOUT_ANALYZE = """\
Analyze a folder of boxes, or of Flight Recorder dumps, one or more files for
each rank: pickles or JSON of PyTorch 2.4 or newer, of NCCL or gloo. Nothing in
a file is executed.
"""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph blackbox",
        description="Fetch what a run's ranks leave behind when it stops, and analyze it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    one = _command(commands, "capture", "have each rank leave a box now", EXPORTERS, ABOUT_CAPTURE)
    _add_exporters(one)
    one.add_argument(
        "--wait", type=_seconds, default=WAIT_SECONDS, metavar="TIME", help="how long to wait (default: 30s)"
    )
    one.add_argument("--no-ras", action="store_true", help="do not ask NCCL's RAS service")
    one.add_argument("--json", action="store_true", help="print an object, with the key exporters")
    one = _command(commands, "collect", "fetch the boxes of a run into a folder", EXPORTERS, ABOUT_COLLECT)
    _add_exporters(one)
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder, created if it is not there")
    one.add_argument("--json", action="store_true", help="print an object, with the key boxes")
    one = _command(commands, "analyze", "say which rank holds the run up, why and at which line", "", ABOUT_ANALYZE)
    one.add_argument(
        "directory", type=Path, metavar="DIR", help="the folder with the dumps; folders in it are read too"
    )
    one.add_argument("--world-size", type=_size, metavar="N", help="ranks of the run, if the dumps do not say it")
    one.add_argument(
        "--prometheus",
        metavar="ADDRESS",
        help="say which node and GPU each culprit is on, according to this Prometheus",
    )
    one.add_argument("--run", metavar="RUN", help="the run's name there, if the boxes do not say it")
    one.add_argument("--json", action="store_true", help="print an object, with the key culprits")
    return parser


def _command(
    commands: argparse._SubParsersAction[CommandParser], name: str, summary: str, before: str, about: str
) -> CommandParser:
    """Add a command, whose help ends with its own exit statuses."""
    (own,) = (part for part in EPILOG.split("\n\n") if part.startswith(f"exit status of {name}:"))
    return commands.add_parser(
        name,
        help=summary,
        description=about,
        epilog=f"{before}\n{own}".strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_exporters(parser: CommandParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run, exactly as its alerts name it")
    parser.add_argument(
        "--prometheus",
        metavar="ADDRESS",
        help=f"HOST, HOST:PORT or a URL; default: ${PROMETHEUS_ENVIRONMENT}, or {_default_prometheus(None)}",
    )
    parser.add_argument(
        "--exporter", action="append", default=[], type=_exporter, metavar="NODE|URL",
        help="an exporter to ask, in place of those that Prometheus knows (repeatable)",
    )  # fmt: skip


def _default_prometheus(given: str | None) -> str:
    return given or os.environ.get(PROMETHEUS_ENVIRONMENT) or "http://localhost:9090"


def _exporter(given: str) -> str:
    from tachograph.blackbox.served import exporter_base

    try:
        return exporter_base(exporter_url(given))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given!r}: {error}; expected a node, node:port or a URL") from error


def _seconds(given: str) -> float:
    try:
        seconds = duration.parse(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not 1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{given!r} is not from 1s to 1h")
    return seconds


def _size(given: str) -> int:
    try:
        size = int(given)
    except ValueError:
        size = 0
    if not 0 < size <= 1 << 20:
        raise argparse.ArgumentTypeError(f"{given!r} is not a number of ranks")
    return size


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        if given.command == "analyze":
            return _analyze(given)
        return _capture(given) if given.command == "capture" else _collect(given)
    except KeyboardInterrupt:
        return 130


def _say(error: object) -> None:
    print(printable(f"tachograph blackbox: {error}"), file=sys.stderr)


def _exporters(given: argparse.Namespace) -> list[str]:
    """Return the exporters to ask, empty after saying why there are none."""
    from tachograph.collect import exporters  # what asks is in an extra, and analyze does not ask
    from tachograph.servers.prometheus_api import Prometheus, PrometheusError

    if given.exporter:
        return list(dict.fromkeys(given.exporter))
    try:
        prometheus = Prometheus(_default_prometheus(given.prometheus))
        found, gone = exporters.found(prometheus, given.run)
    except (PrometheusError, ValueError) as error:
        _say(f"{error}, or name exporters with --exporter")
        return []
    if gone:
        _say(f"no target of Prometheus any more, and not asked: {listed(gone)}")
    if not found:
        _say(f"no exporter had a rank of run {given.run} within the hour; name exporters with --exporter")
    return found


def _capture(given: argparse.Namespace) -> int:
    addresses = _exporters(given)
    if not addresses:
        return 1
    from tachograph.collect import capture, exporters

    found = capture.capture(addresses, given.run, given.wait, ras=not given.no_ras)
    if given.json:
        print(versioned_json(capture.as_json(given.run, found)))
    else:
        for one in found.answers:
            print(fitted(f"{one.node or exporters.shown(one.exporter)}: {_in_words(one)}"))
        for address in found.without:
            print(fitted(f"{exporters.shown(address)}: it has nothing of this run"))
        if found.ras:
            print(fitted(f"NCCL RAS: {found.ras}"))
    if not any(one.asked for one in found.answers):
        _say(f"no rank of run {given.run} could be asked: none is connected to these exporters")
        return 1
    return 0 if all(one.is_whole for one in found.answers) else 3


def _in_words(one: Answer) -> str:
    if one.failed:
        return f"not asked: {one.failed}"
    if not one.asked:
        return "no rank is connected"
    came = f"{len(one.came)} of {plural(one.asked, 'rank')} sent a box"
    return came + (f"; not yet: {rank_list(one.missing)}" if one.missing and not one.is_whole else "")


def _collect(given: argparse.Namespace) -> int:
    addresses = _exporters(given)
    if not addresses:
        return 1
    from tachograph.collect import collect, exporters

    try:
        found = collect.collect(addresses, given.run, given.out)
    except OSError as error:
        _say(f"{given.out}: {error.strerror or type(error).__name__}")
        return 1
    if given.json:
        print(versioned_json(collect.as_json(given.run, given.out, found)))
    else:
        size = sum(box.size for _, box in found.boxes)
        print(fitted(f"{plural(len(found.boxes), 'box', 'boxes')} in {given.out} ({size / 1e6:.1f} MB)"))
        if found.ras:
            print(fitted(f"What NCCL's RAS service said: {given.out}/{found.ras}"))
        if found.missing:
            print(fitted(f"No box anywhere: {rank_list(found.missing)}"))
        for rank, why in sorted(found.failed.items()):
            print(fitted(f"rank {rank}: not fetched: {why}"))
        for address, why in found.asked.failed.items():
            print(fitted(f"{exporters.shown(address)}: not asked: {why}"))
        if found.boxes:
            print(printable(f"Next: tachograph blackbox analyze {given.out}"))
    if not found.boxes:
        _say(f"no box of run {given.run}; have its ranks leave some: tachograph blackbox capture RUN")
        return 1
    return 3 if found.missing or found.failed or found.asked.failed else 0


def _analyze(given: argparse.Namespace) -> int:
    try:
        verdict = analyze(given.directory, given.world_size)
    except OSError as error:
        _say(f"{given.directory}: {error.strerror or type(error).__name__}")
        return 1
    if given.prometheus:
        verdict = _with_places(verdict, given)
    if given.json:
        print(versioned_json(dataclasses.asdict(verdict)))
    else:
        print("\n".join(text.lines(verdict, columns())))
    if verdict.state == "unreadable":
        _say(f"no dump in {given.directory} can be read; expected files such as _dump_0")
        return 1
    return 3 if verdict.state == "stuck" and not verdict.culprits else 0


def _with_places(verdict: Verdict, given: argparse.Namespace) -> Verdict:
    """Return the verdict with the places of the culprits; without, after saying why, where they cannot be had."""
    from tachograph.collect import places
    from tachograph.servers.prometheus_api import Prometheus, PrometheusError

    run = given.run or verdict.run
    if not run:
        _say("these dumps do not say of which run they are: give --run RUN for the places of its ranks")
        return verdict
    try:
        return places.with_places(verdict, run, Prometheus(given.prometheus))
    except PrometheusError as error:
        _say(f"without the places of ranks: {error}")
        return verdict
