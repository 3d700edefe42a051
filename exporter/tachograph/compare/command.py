"""`tachograph compare A B`: whether a run is slower, larger or worse than another, and whether a fix is one.

Of several runs on each side: `tachograph compare A A2 -- B B2`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from tachograph.command_line import WIDTH, CommandParser, versioned_json
from tachograph.files.unreadable import UNREADABLE, wrong_form
from tachograph.servers.prometheus_api import ENVIRONMENT, Prometheus, PrometheusError, default_url
from tachograph.text import duration
from tachograph.text.moments import moment
from tachograph.text.printable import printable
from tachograph.text.wrapping import columns, fitted

if TYPE_CHECKING:
    from tachograph.compare.comparison import Comparison, Row
    from tachograph.compare.fix import FixVerdict
    from tachograph.compare.recording import RecordedRun

EPILOG = """\
A and B are runs that Prometheus knows, files that --save wrote, or files that
`tachograph run --steps` wrote.

examples:
  tachograph compare llama-70b-monday llama-70b-tuesday
  tachograph compare main-1.json main-2.json -- mine-1.json mine-2.json
  tachograph compare llama-70b --moment 2026-01-31T14:00:00Z --window 30m
  tachograph compare llama-70b --moment 3h --fixes DataStall
  tachograph compare --save main.json llama-70b --since 2h
  tachograph compare main.json steps.jsonl --limit 5 --limit loss=1

exit status:
  0  nothing is worse by the limit; with --fixes: fixed
  1  a regression; with --fixes: not fixed, or a regression
  2  wrong arguments
  3  inconclusive: too few steps, too much noise, or not long enough
  4  a run or a file is not available
"""

BETWEEN = ""
"""In place of `--` for the parser, which leaves that out: no run and no file has this name."""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph compare",
        usage="tachograph compare [options] A B\n"
        "       tachograph compare [options] A A2 … -- B B2 …\n"
        "       tachograph compare [options] --moment TIME RUN\n"
        "       tachograph compare [options] --save FILE RUN",
        description=fill(
            "Compare two runs, or one before and after a moment: step time, phases, waits, throughput, MFU, "
            "memory, and loss at equal steps, with confidence intervals.",
            WIDTH,
        ),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN",
        help="a run or a file: two, or one with --moment or --save; if several on each side, put -- between them",
    )  # fmt: skip
    parser.add_argument("--moment", metavar="TIME", help="compare one run before and after this: 2h (ago), or ISO")
    parser.add_argument("--window", metavar="TIME", help="for a run in Prometheus: the most to use of it (default: 2h)")
    parser.add_argument("--since", metavar="TIME", help="start of the window, for runs in Prometheus")
    parser.add_argument("--until", metavar="TIME", help="end of the window")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="PERCENT|NAME=PERCENT",
        help="what counts as a regression (default: 5), in all measures or in one; may be repeated",
    )  # fmt: skip
    parser.add_argument("--fixes", metavar="ALERT", help="say whether what this alert reports is gone in the second")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write what is known about one run to a file")
    parser.add_argument("--json", action="store_true", help="print an object")
    parser.add_argument(
        "--prometheus", default=default_url(), metavar="URL", help=f"default: ${ENVIRONMENT}, or %(default)s"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = _parser()
    try:
        given = parser.parse_args([BETWEEN if one == "--" else one for one in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    from tachograph.compare.recording import RecordingError  # these are in an extra

    try:
        limits = _limits(parser, given)
        sides = _sides(parser, given)
        if given.save is not None:
            return _save(given)
        return _compare(given, sides, limits)
    except SystemExit as end:
        return int(end.code or 0)
    except (PrometheusError, RecordingError) as error:
        print(printable(f"tachograph compare: {error}"), file=sys.stderr)
        return 4
    except KeyboardInterrupt:
        return 130


def as_object(comparison: Comparison, fix: FixVerdict | None) -> dict[str, Any]:
    """Return the object that --json prints."""
    found: dict[str, Any] = {
        "verdict": comparison.verdict,
        "first": _run_object(comparison.first[0]),
        "second": _run_object(comparison.second[0]),
        "more_first": [_run_object(run) for run in comparison.first[1:]],
        "more_second": [_run_object(run) for run in comparison.second[1:]],
        "measures": [_row_object(row) for row in comparison.rows],
        "notes": list(comparison.notes),
    }
    return found if fix is None else {**found, "fix": vars(fix)}


def _run_object(recording: RecordedRun) -> dict[str, Any]:
    return {
        "run": recording.run, "source": recording.source, "start": recording.start, "end": recording.end,
        "facts": dict(recording.facts),
    }  # fmt: skip


def _row_object(row: Row) -> dict[str, Any]:
    interval = None if row.low is None else [row.low, row.high]
    return {
        "name": row.measure.name, "title": row.measure.title.strip(), "first": row.first, "second": row.second,
        "change": row.change, "interval": interval, "of_step": row.measure.of_step, "limit": row.limit,
        "verdict": row.verdict, "why": row.why,
    }  # fmt: skip


def _sides(parser: argparse.ArgumentParser, given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the runs of both sides, of one alone with --moment or --save; exit if the arguments do not fit."""
    runs: list[str] = given.runs
    if given.moment and given.save:
        parser.error("--moment compares, --save does not: give one of them")
    if given.moment and (given.since or given.until):
        parser.error("--moment goes with --window, not with --since and --until")
    if given.moment or given.save:
        if len(runs) != 1:
            parser.error(f"expected one run, not {len(runs)}")
        return runs, []
    if BETWEEN not in runs:
        if len(runs) != 2:
            parser.error(f"expected two runs or files, not {len(runs)}; if several on each side, put -- between them")
        return runs[:1], runs[1:]
    place = runs.index(BETWEEN)
    first, second = runs[:place], runs[place + 1 :]
    if not first or not second or BETWEEN in second:
        parser.error("expected runs or files on each side of one --")
    if given.fixes and len(first) + len(second) > 2:
        parser.error("--fixes takes one run on each side")
    return first, second


def _limits(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[str, float]:
    """Return the limits as shares; exit with a usage error for one that is none."""
    return {name: share for text in given.limit for name, share in [_limit(parser, text)]}


def _limit(parser: argparse.ArgumentParser, text: str) -> tuple[str, float]:
    from tachograph.compare.measures import NAMES

    name, equals, percent = text.rpartition("=")
    if equals and name not in NAMES:
        parser.error(f"--limit {text}: no measure {name!r}; expected one of {', '.join(NAMES)}")
    try:
        share = float(percent.removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not 0 < share < 10:
        parser.error(f"--limit {text}: expected a percentage above 0, such as 5 or loss=1")
    return name, share


def _save(given: argparse.Namespace) -> int:
    from tachograph.compare.recording import save

    recording = _recording(given, given.runs[0])
    size = save(recording, given.save)
    what = f"{given.save}: {recording.run}, {duration_text(recording)} from {recording.source}, {size:,} bytes"
    if given.json:
        print(versioned_json({"file": str(given.save), **_run_object(recording)}))
    else:
        print(fitted(what))
    return 0


def duration_text(recording: RecordedRun) -> str:
    """Return how long a recording is."""
    from tachograph.text.humanize import span

    return span(recording.seconds)


def _compare(given: argparse.Namespace, sides: tuple[list[str], list[str]], limits: dict[str, float]) -> int:
    from tachograph.compare import fix as fixes
    from tachograph.compare import text
    from tachograph.compare.comparison import INCONCLUSIVE, REGRESSION, compare

    first, second = _around(given) if given.moment else [[_recording(given, name) for name in side] for side in sides]
    comparison = compare(first, second, limits)
    fix = fixes.judge(given.fixes, comparison) if given.fixes else None
    if given.json:
        print(versioned_json(as_object(comparison, fix)))
    else:
        print("\n".join(text.lines(comparison, fix, columns())))
    verdict = comparison.verdict if fix is None else fix.verdict
    return {REGRESSION: 1, fixes.NOT_FIXED: 1, INCONCLUSIVE: 3}.get(verdict, 0)


def _around(given: argparse.Namespace) -> tuple[list[RecordedRun], list[RecordedRun]]:
    """Return the recording of a run before a moment, and after it."""
    from tachograph.compare.recording import RecordingError

    (name,) = given.runs
    if _file(name) is not None:
        raise RecordingError(f"{name} is a file: --moment asks Prometheus")
    now = time.time()
    prometheus, at, length = Prometheus(given.prometheus, 60.0), _time(given.moment, now), _length(given.window)
    before, after = (at - length, at), (at, min(at + length, now))
    return [_of_run(given, prometheus, name, *before)], [_of_run(given, prometheus, name, *after)]


def _recording(given: argparse.Namespace, name: str) -> RecordedRun:
    """Return the recording of a file, or of a run in Prometheus."""
    from tachograph.compare import prometheus_run, rank_steps
    from tachograph.compare.recording import load, read_text

    if (path := _file(name)) is not None:
        text = read_text(path)
        return rank_steps.recording(path, text) if rank_steps.is_one(text) else load(path, text)
    now = time.time()
    prometheus = Prometheus(given.prometheus, 60.0)
    if given.since:
        start, end = _time(given.since, now), _time(given.until or "now", now)
    else:
        start, end = prometheus_run.window(prometheus, name, now)
        end = min(end, _time(given.until, now)) if given.until else end
        start = max(start, end - _length(given.window))
    return _of_run(given, prometheus, name, start, end)


def _of_run(given: argparse.Namespace, prometheus: Prometheus, name: str, start: float, end: float) -> RecordedRun:
    from tachograph.compare import fix, prometheus_run
    from tachograph.compare.recording import RecordingError

    try:
        recording = prometheus_run.recording(prometheus, name, start, end)
        if not given.fixes:
            return recording
        asked = fix.conditions(prometheus, given.fixes, name, start, end)
    except UNREADABLE as error:
        raise RecordingError(
            f"cannot read the answers of Prometheus at {prometheus.url}: {wrong_form(error)}"
        ) from error
    return replace(recording, conditions={given.fixes: asked})


def _file(name: str) -> Path | None:
    """Return the file that an argument names, None for a run: a run's name may have a slash."""
    path = Path(name)
    try:
        return path if path.exists() or path.suffix in (".json", ".jsonl") else None
    except OSError:  # a name longer than that of a file can be
        return None


def _time(text: str, now: float) -> float:
    from tachograph.compare.recording import RecordingError

    try:
        return moment(text, now)
    except ValueError as error:
        raise RecordingError(str(error)) from error


def _length(text: str | None) -> float:
    from tachograph.compare.recording import RecordingError

    try:
        return duration.parse(text or "2h")
    except ValueError as error:
        raise RecordingError(f"--window: {error}") from error
