"""`tachograph top`: a node or a run, live in a terminal, or once as text or JSON."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.rule import Rule

from tachograph.command_line import CommandParser
from tachograph.servers.prometheus_api import (
    DEFAULT_URL,
    ENVIRONMENT,
    Prometheus,
    PrometheusError,
    default_url,
    nearest,
)
from tachograph.text.printable import printable
from tachograph.text.wrapping import columns
from tachograph.top import tables
from tachograph.top.header import header
from tachograph.top.node_source import DEFAULT_EXPORTER, EXPORTER_ENVIRONMENT, NodeSource, default_exporter
from tachograph.top.overview import Overview, OverviewSource, SourceError, harmless
from tachograph.top.run_source import RunSource

NODE_SECONDS, RUN_SECONDS = 2.0, 5.0
RANKS = 64
RUNS_NAMED = 20
MOST_ALERTS = 20
"""Of a picture that does not go to a terminal."""
ASCII = str.maketrans("▁▂▃▄▅▆▇█░▌─·…°", "_.-=+*%#.!- ~ ")
"""Replacements for the characters of a picture in an encoding that lacks them."""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph top",
        description="Show a node or a run: ranks, GPUs and alerts, worst first.",
        epilog="Press ? for the keys. Written to a file or a pipe, it prints the screen once: docs/top.md.",
        statuses={0: "shown", 1: "the exporter or Prometheus does not answer", 2: "wrong arguments"},
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run, through Prometheus; without it: a node")
    parser.add_argument(
        "--exporter",
        metavar="NODE|URL",
        help=f"the node's exporter (default: ${EXPORTER_ENVIRONMENT}, or {DEFAULT_EXPORTER})",
    )
    parser.add_argument(
        "--prometheus",
        metavar="ADDRESS",
        help=f"HOST, HOST:PORT or a URL (default: ${ENVIRONMENT}, or {DEFAULT_URL})",
    )
    parser.add_argument(
        "--interval",
        type=_interval,
        metavar="SECONDS",
        help=f"default: {NODE_SECONDS:.0f}, for a run {RUN_SECONDS:.0f}",
    )
    parser.add_argument(
        "--ranks", type=_count, default=RANKS, metavar="N", help="for a run: the worst N (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="print it once as text and exit")
    parser.add_argument("--json", action="store_true", help="print the same as JSON and exit")
    return parser


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.2 to 3600")
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 512):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 512")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 1 without an answer, 2 for a wrong command line."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
        if given.run is not None and given.exporter:
            parser.error("RUN is read from Prometheus, --exporter shows a node: give one of them")
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
        first = source.fetch()
        if not (given.once or given.json) and _is_screen():
            return _live(source, first, interval)
        for _ in range(source.fetches_needed - 1):
            time.sleep(interval)
            first = source.fetch()
        sys.stdout.write(first.as_json() + "\n" if given.json else picture(first))
    except (SourceError, PrometheusError) as error:
        print(printable(f"tachograph top: {error}"), file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _source(given: argparse.Namespace) -> OverviewSource:
    if given.run is not None:
        return RunSource(given.run, Prometheus(given.prometheus or default_url()), given.ranks)
    return NodeSource(given.exporter or default_exporter())


def _live(source: OverviewSource, first: Overview, interval: float) -> int:
    from tachograph.top.app import TopApp  # Textual takes as long to import as all the rest: not for --once and --json

    app = TopApp(source, first, interval)
    app.run(mouse=False)  # the terminal's own way to select text keeps working
    return app.return_code or 0


def _is_screen() -> bool:
    """Return whether there is a terminal that can show the live view; Textual draws on standard error, in UTF-8."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if os.environ.get("TERM") in {"dumb", "unknown"} or not all(each is not None and each.isatty() for each in streams):
        return False
    return sys.stderr.encoding.lower().replace("-", "") == "utf8"


def picture(overview: Overview) -> str:
    """Return one picture with every row; with colours if standard output is a terminal."""
    width = columns()
    console = Console(highlight=False, width=width)
    shown = harmless(overview)
    ranks = tables.fitting(tables.rank_columns(shown), shown.ranks, width)
    gpus = tables.fitting(tables.gpu_columns(shown), shown.gpus, width)
    whole = f"{len(shown.ranks):,} of {shown.ranks_in_all:,} ranks"
    name = whole if len(shown.ranks) < shown.ranks_in_all else "ranks"
    parts = Group(
        header(shown, width, MOST_ALERTS),
        Rule(f"{name}, worst first", align="left", style="dim"),
        tables.headings(ranks),
        tables.lines(ranks, shown.ranks),
        Rule("GPUs, worst first", align="left", style="dim"),
        tables.headings(gpus),
        tables.lines(gpus, shown.gpus),
    )
    with console.capture() as capture:
        console.print(parts, no_wrap=True, overflow="crop")
    text = capture.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text
