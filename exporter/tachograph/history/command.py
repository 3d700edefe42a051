"""`tachograph history`: which nodes, GPUs and links were culprits, and which events precede failures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tachograph.command_line import CommandParser, versioned_json
from tachograph.files.unreadable import UNREADABLE, wrong_form
from tachograph.history.causes import failures, periodicities, precedences
from tachograph.history.culprits import gpus, links, nodes
from tachograph.history.recorded import read
from tachograph.history.text import History, as_json, shown
from tachograph.servers.prometheus_api import ENVIRONMENT, Prometheus, PrometheusError, default_url
from tachograph.text import duration
from tachograph.text.printable import printable
from tachograph.text.wrapping import fitted

TIMEOUT = 120.0
"""Seconds for a query: three days of a large cluster."""
SHORTEST, LONGEST = 3600.0, 366 * 86_400.0


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph history",
        description="Show which nodes, GPUs and links were culprits of incidents, in all runs or in one, and which "
        "events (a save, an evaluation, a jump of the learning rate, a change of the batch, a restart, a hardware "
        "event) precede failures: how many times as often runs fail soon after one, with a confidence interval.",
        epilog="docs/history.md says how it counts.",
        statuses={0: "done", 1: "Prometheus does not respond, or has no such run", 2: "wrong arguments"},
    )
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="only this run (default: all)")
    parser.add_argument(
        "--since", default="30d", metavar="DURATION", help="how far to look back (default: %(default)s)"
    )
    parser.add_argument(
        "--within", default="10m", metavar="DURATION",
        help="how long after an event a failure counts as soon after it (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print an object with everything")
    parser.add_argument(
        "--prometheus", default=default_url(), metavar="URL", help=f"default: ${ENVIRONMENT}, or %(default)s"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 1 if Prometheus cannot tell, 2 for wrong arguments."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
        since = _seconds(parser, "--since", given.since, SHORTEST, LONGEST)
        within = _seconds(parser, "--within", given.within, 120.0, 86_400.0)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        history = _history(given, since, within)
    except PrometheusError as error:
        print(printable(f"tachograph history: {error}"), file=sys.stderr)
        return 1
    if given.json:
        print(versioned_json(as_json(history)))
    else:
        print(fitted(*shown(history)))
    return 0


def _history(given: argparse.Namespace, since: float, within: float) -> History:
    Prometheus(given.prometheus).check()  # with a short timeout
    prometheus, now = Prometheus(given.prometheus, TIMEOUT), time.time()
    if given.run:
        prometheus.known(given.run, now - since, now)
    try:
        past = read(prometheus, now - since, now, given.run)
        return History(
            recorded=past,
            nodes=nodes(past.incidents, past.nodes),
            gpus=gpus(past.incidents),
            links=links(prometheus, past.incidents),
            failures=failures(past.runs),
            precedences=precedences(past.runs, within),
            periodicities=periodicities(past.runs),
        )
    except UNREADABLE as error:
        raise PrometheusError(f"cannot read the data of Prometheus at {prometheus.url}: {wrong_form(error)}") from error


def _seconds(parser: argparse.ArgumentParser, name: str, text: str, least: float, most: float) -> float:
    """Return the seconds of a duration; exit with a usage error if it is none, too short or too long."""
    try:
        seconds = duration.parse(text)
    except ValueError as error:
        parser.error(f"{name}: {error}")
    if not least <= seconds <= most:
        parser.error(f"{name} {text}: give between {least / 60:.0f}m and {most / 86_400:.0f}d")
    return seconds
