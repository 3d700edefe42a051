"""`tachograph report RUN --since 2h --out report.html`: write a page about a run, to attach to a post-mortem."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tachograph.command_line import CommandParser, versioned_json
from tachograph.files import atomic_file
from tachograph.files.unreadable import UNREADABLE, wrong_form
from tachograph.report.alert_episodes import FiredAlerts
from tachograph.report.page import in_words, page
from tachograph.report.queries import TIMEOUT, matcher
from tachograph.report.window import Window
from tachograph.servers.prometheus_api import DEFAULT_URL, ENVIRONMENT, Prometheus, PrometheusError, default_url
from tachograph.text import humanize
from tachograph.text.moments import iso, moment
from tachograph.text.printable import printable
from tachograph.text.wrapping import fitted

SINCE = "2h"
BEFORE_SECONDS = 60
"""How much of the time before a young run is shown."""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph report",
        description="Write one self-contained page about a run and a time window, to attach to a post-mortem.",
        epilog="Times are 2h or 1h30m (that long ago), now, or ISO: 2026-01-31T02:00:00Z. Without a zone they are UTC.",
        statuses={0: "written", 1: "no report can be written: the text says why", 2: "wrong arguments"},
    )
    parser.add_argument("run", metavar="RUN", help="the run, exactly as its alerts name it")
    parser.add_argument(
        "--since", metavar="TIME", help=f"start of the window (default: {SINCE}, or where a younger run began)"
    )
    parser.add_argument("--until", default="now", metavar="TIME", help="end of the window (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="output file; - for standard output")
    parser.add_argument(
        "--prometheus",
        default=default_url(),
        metavar="ADDRESS",
        help=f"HOST, HOST:PORT or a URL (default: ${ENVIRONMENT}, or {DEFAULT_URL})",
    )
    parser.add_argument(
        "--json", action="store_true", help="print an object about the report, with the key alerts, instead of the line"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 1 if no report can be written, 2 for wrong arguments."""
    parser, now = _parser(), time.time()
    try:
        given = parser.parse_args(arguments)
        window = _window(parser, given, now)
        if given.json and str(given.out) == "-":
            parser.error("--json and --out - both write to standard output: give the report a file")
    except SystemExit as end:
        return int(end.code or 0)
    to_stdout = str(given.out) == "-"
    try:
        if not to_stdout:
            check_writable(given.out)
        Prometheus(given.prometheus).check()  # with a short timeout: no answer to this, no report
        prometheus = Prometheus(given.prometheus, TIMEOUT)
        _seen(prometheus, given.run, window)
        if given.since is None:
            window = since_it_began(prometheus, given.run, window)
        try:
            html, fired = page(prometheus, given.run, window, now)
        except UNREADABLE as error:
            raise PrometheusError(
                f"cannot draw the data of Prometheus at {prometheus.url}: {wrong_form(error)}"
            ) from error
        if to_stdout:
            sys.stdout.write(html)
            return 0
        size = write_page(given.out, html)
    except PrometheusError as error:
        sys.stderr.write(printable(f"tachograph report: {error}") + "\n")
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stderr.write(f"tachograph report: cannot write {given.out}: {error.strerror or error}\n")
        return 1
    if given.json:
        sys.stdout.write(versioned_json(_as_object(given, window, size, fired)) + "\n")
        return 0
    first = fired.first()
    said = in_words(fired, first) if first else "no alert fired."
    what = f"{given.out}: {given.run}, {iso(window.start)} to {iso(window.end)}, {humanize.byte_size(size)}; {said}"
    sys.stdout.write(fitted(what) + "\n")
    return 0


def _as_object(given: argparse.Namespace, window: Window, size: int, fired: FiredAlerts) -> dict[str, object]:
    """Return what --json prints: where the report is, and the alerts that it has, pages first."""
    alerts = [
        {
            "alert": each.alert,
            "severity": each.severity,
            "named": each.named,
            "fired": iso(each.fired),
            "ended": None if each.still else iso(each.ended),
            "before_window": each.before,
            "text": each.words,
        }
        for each in fired.found
    ]
    return {
        "run": given.run,
        "file": str(given.out),
        "bytes": size,
        "start": iso(window.start),
        "end": iso(window.end),
        "alerts": alerts,
        "alerts_not_listed": dict(fired.more),
    }


def _window(parser: CommandParser, given: argparse.Namespace, now: float) -> Window:
    """Return the window of the arguments; exit with a usage error if it is not valid."""
    try:
        since, until = moment(given.since or SINCE, now), moment(given.until, now)
        if since >= until:
            parser.error(f"--since {given.since or SINCE} is not before --until {given.until}")
        if since >= now:
            parser.error(f"--since {given.since} is in the future")
        return Window.between(since, min(until, now))
    except ValueError as error:
        parser.error(str(error))


def since_it_began(prometheus: Prometheus, run: str, window: Window) -> Window:
    """Return the window without the time in which there was no such run, in which its charts would be empty."""
    seen = f"min_over_time(timestamp(run:ranks:count{{{matcher(run)}}})[{window.seconds}s:15s])"
    began = min((each.value for each in prometheus.instant(seen, window.end)), default=window.start)
    return Window.between(max(window.start, began - BEFORE_SECONDS), window.end)


def _seen(prometheus: Prometheus, run: str, window: Window) -> None:
    """Raise PrometheusError unless the run has data in the window, UnknownRunError if there is no such run."""
    ranks = f"run:ranks:count{{{matcher(run)}}}"
    if prometheus.instant(f"count_over_time({ranks}[{window.seconds}s])", window.end):
        return
    if run not in prometheus.runs(window.start - window.seconds, window.end):
        prometheus.known(run)
    seen = prometheus.instant(f"max_over_time(timestamp({ranks})[30d:10m])")
    when = f"last seen about {iso(seen[0].value)}" if seen else "no rule has recorded it in 30 days"
    raise PrometheusError(f"run {run!r} has no data from {iso(window.start)} to {iso(window.end)}: {when}")


def check_writable(out: Path) -> None:
    """Raise OSError if a file cannot be written there, before any query is sent."""
    if out.exists() and not out.is_file():
        raise OSError(f"{out} is not a file")
    if not out.parent.is_dir():
        raise OSError(f"there is no directory {out.parent}")
    if not os.access(out.parent, os.W_OK):
        raise OSError(f"no permission to write to {out.parent}")


def write_page(out: Path, html: str) -> int:
    """Write or replace a file atomically; return its size in bytes."""
    target = out.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
    data = html.encode("utf-8", errors="replace")
    atomic_file.replace(target, data, mode)
    return len(data)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
