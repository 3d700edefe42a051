"""`tachograph silence RUN --for 20m --why "…"`: silence a run for a while, list silences, end one early."""

from __future__ import annotations

import argparse
import getpass
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from tachograph.command_line import CommandParser, versioned_json
from tachograph.findings.kinds import KINDS
from tachograph.servers.alertmanager_api import DEFAULT_URL, ENVIRONMENT, AlertmanagerError, default_url
from tachograph.silence.alertmanager import Silence, SilenceMatcher, Silences
from tachograph.text import duration, humanize
from tachograph.text.printable import printable
from tachograph.text.wrapping import fitted

LONGEST = 4 * 3600.0
"""Limit without --yes: a longer silence outlives the shift of the engineer who created it."""

STATUSES = {0: "done", 1: "Alertmanager does not answer, or refuses", 2: "wrong arguments"}

RESTART_ALERTS = tuple(kind.alert for kind in KINDS if kind.restart)
"""Alerts that a planned restart may cause; a broken GPU, a NaN loss or a failed checkpoint are not among them."""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph silence",
        description="Silence the alerts of one run for a while, through Alertmanager. Only notifications are affected.",
        epilog="For recurring quiet hours, configure Alertmanager: docs/pages.md.",
        statuses=STATUSES,
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="name of the run, exactly as in its alerts")
    parser.add_argument("--for", dest="length", type=_length, metavar="20m", help="how long, starting now")
    parser.add_argument("--why", type=str.strip, metavar="TEXT", help="the reason, for the engineer on call")
    parser.add_argument("--by", default=_user(), metavar="NAME", help="who is responsible (default: %(default)s)")
    parser.add_argument(
        "--planned-restart",
        action="store_true",
        help="only alerts that a restart causes; a broken GPU, a NaN loss or a failed checkpoint still pages",
    )
    parser.add_argument("--yes", action="store_true", help=f"allow more than {humanize.span(LONGEST)}")
    parser.add_argument("--list", action="store_true", help="list the silences of RUN, or of all runs")
    parser.add_argument("--expire", metavar="ID", help="end a silence now")
    parser.add_argument("--json", action="store_true", help="print an object, with the key silences")
    parser.add_argument(
        "--alertmanager",
        default=default_url(),
        metavar="ADDRESS",
        help=f"HOST, HOST:PORT or a URL (default: ${ENVIRONMENT}, or {DEFAULT_URL})",
    )
    return parser


def _length(text: str) -> float:
    try:
        length = duration.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not length:
        raise argparse.ArgumentTypeError("a silence must last longer than 0 s")
    return length


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return ""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 1 if the request to Alertmanager failed, 2 for wrong arguments."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
        if wrong := _wrong(given):
            parser.error(wrong)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        silences = Silences(given.alertmanager)
        if given.list:
            return _list(silences, given)
        if given.expire:
            silences.expire(given.expire)
            if given.json:
                _print_json(ended=given.expire)
            else:
                print(fitted(f"Silence {given.expire} has ended."))
            return 0
        return _add(silences, given)
    except AlertmanagerError as error:
        print(printable(f"tachograph silence: {error}"), file=sys.stderr)
        return 1


def _wrong(given: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments and what to do, in one line; None if they are valid."""
    begins = bool(given.length or given.why or given.planned_restart)
    other = given.list or given.expire is not None
    faults = {
        "use --list or --expire, not both": given.list and given.expire is not None,
        "--list and --expire cannot be combined with options that create a silence": other
        and (begins or (given.run and not given.list)),
        "--expire needs an id; see --list": given.expire == "",
        "name the RUN to silence, or use --list": not other and not given.run,
        "give the duration: --for 20m": not other and given.length is None,
        'give the reason, for the engineer on call: --why "new switch in rack 7"': not other and not given.why,
        "say who is responsible: --by NAME": not other and not given.by.strip(),
    }
    for words, wrong in faults.items():
        if wrong:
            return words
    if given.length and given.length > LONGEST and not given.yes:
        return (
            f"{humanize.span(given.length)} is longer than {humanize.span(LONGEST)}: nobody would be notified of "
            "faults in that time; add --yes to confirm"
        )
    return None


def _add(silences: Silences, given: argparse.Namespace) -> int:
    matchers = [SilenceMatcher("run", given.run)]
    if given.planned_restart:
        matchers.append(SilenceMatcher("alertname", "|".join(RESTART_ALERTS), regex=True))
    now = datetime.now(timezone.utc)
    silence = Silence(tuple(matchers), now, now + timedelta(seconds=given.length), given.by.strip(), given.why)
    silence_id = silences.add(silence)
    if given.json:
        _print_json(replace(silence, id=silence_id, state="active"))
        return 0
    what = "alerts that a restart causes" if given.planned_restart else "all alerts"
    until = f"{_clock(silence.ends)} ({humanize.span(given.length)})"
    print(fitted(f"Run {given.run} is silenced until {until}: {what}."))
    where = "" if given.alertmanager == DEFAULT_URL else f" --alertmanager {shlex.quote(given.alertmanager)}"
    print("To end it:")
    print(printable(f"  tachograph silence --expire {silence_id}{where}"))
    return 0


def _list(silences: Silences, given: argparse.Namespace) -> int:
    now, run = datetime.now(timezone.utc), given.run
    found = [one for one in silences.current() if run is None or SilenceMatcher("run", run) in one.matchers]
    if given.json:
        _print_json(*found)
        return 0
    if not found:
        print(fitted("There are no silences." if run is None else f"Run {run} is not silenced."))
    for one in found:
        when = f"until {_clock(one.ends)}, {humanize.span((one.ends - now).total_seconds())} more"
        if one.starts > now:
            when = f"from {_clock(one.starts)} to {_clock(one.ends)}"
        print(fitted(f"{one.id}  {when}"))
        print(fitted(f"    {', '.join(map(str, one.matchers))}"))
        print(fitted(f"    {one.by}: {one.why}"))
    return 0


def _print_json(*silences: Silence, ended: str | None = None) -> None:
    """Print what was created or found, or the id of the silence that was ended."""
    found = [
        {
            "id": one.id,
            "state": one.state,
            "matchers": list(map(str, one.matchers)),
            "starts": one.starts.isoformat(),
            "ends": one.ends.isoformat(),
            "by": one.by,
            "why": one.why,
        }
        for one in silences
    ]
    print(versioned_json({"silences": found, "ended": ended}))


def _clock(time: datetime) -> str:
    return f"{time:%H:%M UTC, %d %B}"
