"""`tachograph triage RUN`: what is wrong with a run, where the cause lies, and what to do next."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from tachograph.command_line import WIDTH, CommandParser, versioned_json
from tachograph.files.unreadable import UNREADABLE, wrong_form
from tachograph.servers.prometheus_api import (
    ENVIRONMENT,
    Prometheus,
    PrometheusError,
    UnknownRunError,
    default_url,
    quoted,
)
from tachograph.servers.server_address import exporter_url
from tachograph.text.moments import iso, moment
from tachograph.text.printable import printable
from tachograph.text.wrapping import columns
from tachograph.triage import incident, text
from tachograph.triage.conclusion import conclude
from tachograph.triage.facts import gather
from tachograph.triage.findings import AskedSource, Triage
from tachograph.triage.modes import NextCommand, next_commands

QUERY_SECONDS = 30.0
RUNS_NAMED = 20
EPILOG = """\
TIME is 2h or 1h30m (that long ago), now, or ISO: 2026-01-31T02:00:00Z. Without
a zone it is UTC. Without Prometheus, it asks the exporters that are named, or
this node's, and the logs.

examples:
  tachograph triage llama-70b
  tachograph triage llama-70b --at 2026-01-31T03:12:00Z --incident incident.md
  tachograph triage llama-70b --logs /shared/logs/llama-70b --json

exit status:
  0  nothing is wrong
  1  no answer: no such run, nothing could be asked, or nothing is known about
     it at that time; or the record cannot be written
  2  wrong arguments
  3  something is wrong
"""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph triage",
        description=fill(
            "Say what is wrong with a run: how bad it is, where the cause lies, the likely failure mode, the "
            "evidence for each step of the way, and the next three commands.",
            WIDTH,
        ),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="the run, exactly as its alerts name it")
    parser.add_argument("--at", default="now", metavar="TIME", help="the moment to look at (default: %(default)s)")
    parser.add_argument(
        "--prometheus", default=default_url(), metavar="URL", help=f"default: ${ENVIRONMENT}, or %(default)s"
    )
    parser.add_argument(
        "--exporter", action="append", default=[], type=_exporter, metavar="NODE|URL",
        help="an exporter to ask for boxes, and for what it knows itself if Prometheus does not answer (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--logs", action="append", default=[], metavar="PATH", help="logs of the run, a file or a folder (repeatable)"
    )
    parser.add_argument(
        "--incident", type=Path, metavar="FILE.md", help="write a record of the incident, filled in as far as possible"
    )
    parser.add_argument("--json", action="store_true", help="print an object, with the key finding")
    return parser


def _exporter(given: str) -> str:
    try:
        return exporter_url(given).removesuffix("/metrics")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given!r}: {error}; expected a node, node:port or a URL") from error


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser, now = _parser(), time.time()
    try:
        given = parser.parse_args(arguments)
        at = _moment(parser, given, now)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        if given.incident:
            incident.check(given.incident)
        found, prometheus = _asked(given, at)
    except (UnknownRunError, incident.RecordError) as error:
        for line in str(error).splitlines():
            print(printable(line if line.startswith(" ") else f"tachograph triage: {line}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    commands = _commands(found)
    if given.json:
        print(versioned_json(as_object(found, commands)))
    else:
        print("\n".join(text.lines(found, commands, columns())))
    if given.incident:
        try:
            incident.write(given.incident, found, commands, prometheus)
        except incident.RecordError as error:
            print(printable(f"tachograph triage: {error}"), file=sys.stderr)
            return 1
        print(printable(f"tachograph triage: {given.incident} written"), file=sys.stderr)
    if found.finding.mode == "no_data":
        return 1
    return 3 if found.finding.wrong else 0


def _moment(parser: argparse.ArgumentParser, given: argparse.Namespace, now: float) -> float:
    """Return the Unix time of --at; exit with a usage error if it is none."""
    try:
        at = moment(given.at, now)
    except ValueError as error:
        parser.error(f"--at: {error}")
    if at > now + 1:
        parser.error(f"--at {given.at} is in the future")
    return at


def _asked(given: argparse.Namespace, at: float) -> tuple[Triage, Prometheus | None]:
    """Return what all sources say, and Prometheus if it answers; raise UnknownRunError."""
    from tachograph.triage import elsewhere  # it needs what is in an extra, and --help does not

    prometheus = Prometheus(given.prometheus, QUERY_SECONDS)
    answering: Prometheus | None = prometheus
    try:
        Prometheus(given.prometheus).check()  # with a short timeout: no answer to this, no answer at all
        found = _by_prometheus(prometheus, given.run, at)
    except UnknownRunError:
        raise
    except PrometheusError as error:
        asked = given.exporter or [elsewhere.own()]
        found = elsewhere.of_exporters(given.run, asked) if given.at == "now" else elsewhere.nothing(given.run, at)
        found.sources.insert(0, AskedSource("Prometheus", False, str(error)))
        answering = None
    if given.at == "now" and (answering is None or found.finding.mode in ("communication_stall", "frozen")):
        addresses = given.exporter or (elsewhere.addresses_of(given.run, answering) if answering else [])
        elsewhere.add_boxes(found, addresses)
    if given.logs:
        elsewhere.add_logs(found, given.logs)
    return found, answering


def _by_prometheus(prometheus: Prometheus, run: str, at: float) -> Triage:
    try:
        prometheus.known(run)
    except UnknownRunError as error:
        names = prometheus.runs()
        more = [f"  and {len(names) - RUNS_NAMED} more"] if len(names) > RUNS_NAMED else []
        shown = [f"  {printable(name)}" for name in names[:RUNS_NAMED]]
        raise UnknownRunError("\n".join([printable(str(error)), *shown, *more])) from error
    try:
        found = conclude(gather(run, at, lambda query: prometheus.instant(query, at)))
    except UNREADABLE as error:
        raise PrometheusError(
            f"what Prometheus at {prometheus.url} has of the run cannot be read: {wrong_form(error)}"
        ) from error
    found.sources.insert(0, AskedSource(f"Prometheus at {prometheus.url}", True, "its rules and what they recorded"))
    if found.finding.mode == "no_data":
        seen = prometheus.instant(f"max_over_time(timestamp(run:ranks:count{{run={quoted(run)}}})[30d:10m])")
        when = f"about {iso(seen[0].value)}" if seen else "not within 30 days"
        found.remarks.append(f"last seen by the rules: {when}")
    return found


def _commands(found: Triage) -> tuple[NextCommand, ...]:
    finding = found.finding
    gpu = next((one.rpartition("/")[2] for one in finding.gpus), "")
    node = re.sub(r":\d+$", "", next(iter(finding.nodes), ""))  # where `instance` has the port, too
    known = {
        "run": found.run, "rank": next(iter(finding.ranks), ""), "node": node, "gpu": gpu, "pid": finding.pid,
    }  # fmt: skip
    return next_commands(finding.mode, known)


def as_object(found: Triage, commands: Sequence[NextCommand]) -> dict[str, Any]:
    """Return the object that --json prints."""
    finding = dataclasses.asdict(found.finding) | {"sentence": text.headline(found)}
    return {
        "run": found.run,
        "at": iso(found.at),
        "finding": finding,
        "questions": [dataclasses.asdict(one) for one in found.answers],
        "also": list(found.also),
        "remarks": found.remarks,
        "next": [dataclasses.asdict(one) for one in commands],
        "sources": [dataclasses.asdict(one) for one in found.sources],
    }
