"""`tachograph top`: this node, another one, or a run, live in a terminal."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from tachograph.printable import printable
from tachograph.prometheus_api import Prometheus, PrometheusError, default_url, nearest
from tachograph.top.facts import Facts, SourceError
from tachograph.top.glyphs import glyphs_for
from tachograph.top.live import Source, rendered, show_live
from tachograph.top.node_source import DEFAULT_PORT, NodeSource
from tachograph.top.run_source import RunSource
from tachograph.top.screen import frame
from tachograph.top.wishes import Wishes

EXPORTER_ENVIRONMENT = "TACHOGRAPH_EXPORTER_URL"
DEFAULT_EXPORTER = f"http://localhost:{DEFAULT_PORT}"
NODE_SECONDS, RUN_SECONDS = 2.0, 5.0
RANKS = 64
RUNS_NAMED = 20
FILE_WIDTH = 120
"""Of what goes to no terminal, unless $COLUMNS says otherwise."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tachograph top",
        description="Show what this node does, or a run: ranks, GPUs, alerts, the worst first.",
        epilog="Press ? for the keys. With standard output to a file or a pipe it prints one picture: docs/top.md.",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run, through Prometheus; without it: a node")
    parser.add_argument(
        "--exporter",
        metavar="NODE|URL",
        help=f"the node's exporter (default: ${EXPORTER_ENVIRONMENT}, else {DEFAULT_EXPORTER})",
    )
    parser.add_argument("--prometheus", metavar="URL", help=f"default: $PROMETHEUS_URL, else {default_url()}")
    parser.add_argument(
        "--interval", type=_interval, metavar="SECONDS", help=f"default: {NODE_SECONDS:.0f}, of a run {RUN_SECONDS:.0f}"
    )
    parser.add_argument("--ranks", type=_count, default=RANKS, metavar="N", help="of a run: the worst N (%(default)s)")
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON and end")
    return parser


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.2 to 3600")
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 512):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 512")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 1 if there was no answer, 2 for what was asked wrongly."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
        if given.run is not None and given.exporter:
            parser.error("RUN is asked of Prometheus, --exporter shows a node: give one of them")
    except SystemExit as end:
        return int(end.code or 0)
    try:
        if given.run is None and given.prometheus:
            names = Prometheus(given.prometheus).runs()
            known = f"it has {', '.join(names[:RUNS_NAMED])}" if names else nearest("", names)
            print(printable(f"tachograph top: which RUN? {known}"), file=sys.stderr)  # noqa: T201
            return 2
        source = _source(given)
        interval = given.interval or (NODE_SECONDS if source.view == "node" else RUN_SECONDS)
        first = source.look()
        dumb = os.environ.get("TERM") in {"dumb", "unknown"}
        if not (given.once or given.json or dumb) and sys.stdout.isatty():
            console = Console(highlight=False, soft_wrap=True)
            show_live(source, first, interval, console, glyphs_for(sys.stdout.encoding))
            return 0
        for _ in range(source.looks_needed - 1):
            time.sleep(interval)
            first = source.look()
        _print(first, given.json)
    except (SourceError, PrometheusError) as error:
        print(printable(f"tachograph top: {error}"), file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _source(given: argparse.Namespace) -> Source:
    if given.run is not None:
        return RunSource(given.run, Prometheus(given.prometheus or default_url()), given.ranks)
    return NodeSource(given.exporter or os.environ.get(EXPORTER_ENVIRONMENT) or DEFAULT_EXPORTER)


def _print(facts: Facts, as_json: bool) -> None:
    """Print the facts, or one picture of them with every row; colours on a terminal only."""
    if as_json:
        sys.stdout.write(facts.as_json() + "\n")
        return
    width = shutil.get_terminal_size((FILE_WIDTH, 24)).columns
    console = Console(highlight=False, soft_wrap=True)
    lines = frame(facts, Wishes(), (width, None), glyphs_for(sys.stdout.encoding))
    for line in rendered(lines, console):
        sys.stdout.write((line if console.is_terminal else line.rstrip()) + "\n")
