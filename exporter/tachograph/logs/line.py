"""One line of a log without the prefixes of launchers, containers and loggers: when, which rank, which node."""

from __future__ import annotations

import calendar
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple


class LogLine(NamedTuple):
    """A line's own text, and what its prefixes say of it.

    `time`: Unix seconds; a time without a zone is taken as UTC. `local`: the rank counts within its node alone.
    `pid`: of the process, where the prefix says it.
    """

    text: str
    time: float | None = None
    rank: int | None = None
    local: bool = False
    node: str = ""
    pid: int | None = None


_MOST_PREFIXES = 8
_RANKS = ("rank", "mpi")
_NODES = ("pod", "ip", "host", "nccl", "kernel")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr)}
_PREFIX = re.compile(
    r"""\s?(?:
      \[rank:?\s?(?P<rank>\d{1,6})\]:?\s?                                    # torch, Lightning
    | \[(?!rank)[A-Za-z_]{2,20}(?P<local>\d{1,4})\]:\s?                      # torchrun --tee
    | \[\d+,(?P<mpi>\d{1,6})\]<std(?:out|err)>:\s?                           # mpirun --tag-output
    | \[pod/(?P<pod>[^/\]\s]+)/[^\]\s]+\]\s                                  # kubectl logs --prefix
    | \((?P<ray>\w[\w.:<>=-]*)\ (?:[\w=]+,\ )*pid=(?P<raypid>\d+)(?:,\ ip=(?P<ip>[\w.:]+))?\)\s?
    | \[?(?P<iso>\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?\s?(?P<zone>Z|[+-]\d\d:?\d\d)?\]?:?\s?
      (?:-\ )?(?:std(?:out|err)\ [FP]\ )?                                    # Python, containers' logs
    | \[?[IWEFVDC](?P<md>\d{4})\ (?P<glog>\d\d:\d\d:\d\d)(?P<gpart>\.\d{1,9})?[^\]\n]{0,120}?\]\s?   # glog, PyTorch
    | \[[IWEFVDC]\ [\w./-]+:\d+\]\s?                                         # PyTorch until 2.1
    | \[(?P<long>[A-Z][a-z]{2}\ [A-Z][a-z]{2}\ {1,2}\d{1,2}\ \d\d:\d\d:\d\d\ \d{4})\]\s?          # dmesg -T
    | \[\ {0,8}\+?\d{1,9}\.\d{6}\]\s?                                        # dmesg
    | kernel:\s
    | [A-Za-z][\w.-]*:\ (?=[\w.<>-]+:\d+:\d+\ \[)                             # the MPI operator
    | (?P<month>[A-Z][a-z]{2})\ {1,2}(?P<day>\d{1,2})\ (?P<clock>\d\d:\d\d:\d\d)\ (?P<host>[\w.-]+)
      \ [\w./-]+(?:\[\d+\])?:\s?                                           # syslog
    | (?P<us>\d\d/\d\d/\d{4}\ \d\d:\d\d:\d\d)(?:\ -)?\s?
    | (?P<nccl>[A-Za-z<][\w.<>-]*):(?P<pid>\d+):\d+\ \[(?P<gpu>\d{1,3})\]\ (?=.{0,40}NCCL)
    | (?P<kernel>[A-Za-z][\w.-]*)\ kernel:\s?
    )""",
    re.VERBOSE,
)
_LABEL = re.compile(r"\s{0,5}(?P<rank>\d{1,6}): ")
"""`srun --label`; at the very start of a line alone."""
_INSIDE = re.compile(
    r"\[(?:PG [^\]]{0,80} )?[Rr]ank (?P<a>\d{1,6})\]|^[Rr]ank (?P<b>\d{1,6}):|\brank +: +(?P<c>\d{1,6}) \(local_rank"
    r"|\btask (?P<d>\d{1,6}): |\bon rank (?P<e>\d{1,6})\b|\bprocess rank (?P<f>\d{1,6})\b"
)
_INSIDE_LOCAL = re.compile(r"\blocal_rank: (\d{1,4})\b")
_INSIDE_HOST = re.compile(
    r"\bhost +: +(?P<a>[\w.-]+)|srun: error: (?P<b>[\w.-]+): |\bon node (?P<c>[\w.-]+)| ON (?P<d>[\w.-]+) CANCELLED"
)
_JSON_TEXT = ("MESSAGE", "log", "message", "msg", "event", "text")
_JSON_TIME = ("__REALTIME_TIMESTAMP", "time", "timestamp", "ts", "@timestamp", "asctime")
_JSON_NODE = ("_HOSTNAME", "host", "hostname", "node", "pod")


def parse(line: str, year: int) -> LogLine:
    """Return a line without its prefixes; `year` is that of times which name none."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if line.startswith("{") and (found := _from_json(line, year)):
        return found
    said: dict[str, str] = {}
    when = None
    if label := _LABEL.match(line):
        said["rank"], line = label["rank"], line[label.end() :]
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(line)
        if match is None or not match.end():
            break
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        if when is None and (read := next((_TIMES[name] for name in groups if name in _TIMES), None)):
            when = read(match, year)
        said = groups | said
        line = line[match.end() :]
    rank = _first(said, _RANKS)
    if rank is None and (inside := _INSIDE.search(line, 0, 400)):
        rank = inside[inside.lastindex or 0]
    local = None if rank is not None else _first(said, ("local", "gpu"))
    if rank is None and local is None and (inside := _INSIDE_LOCAL.search(line, 0, 400)):
        local = inside[1]
    node = _first(said, _NODES)
    if node is None and (inside := _INSIDE_HOST.search(line, 0, 400)):
        node = inside[inside.lastindex or 0]
    number, pid = rank or local, _first(said, ("pid", "raypid"))
    return LogLine(
        line,
        when,
        None if number is None else int(number),
        local is not None,
        node or "",
        None if pid is None else int(pid),
    )


def _first(said: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((said[name] for name in names if name in said), None)


def _seconds(*parts: int, fraction: str | None = None, zone: str | None = None) -> float | None:
    try:
        at = datetime(*parts, tzinfo=timezone.utc).timestamp()  # type: ignore[arg-type,misc]
    except ValueError:
        return None
    if fraction:
        at += float("0." + fraction[1:])
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        at -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return at


def _iso(match: re.Match[str], _year: int) -> float | None:
    return _seconds(*map(int, re.split(r"\D", match["iso"])), fraction=match["part"], zone=match["zone"])


def _glog(match: re.Match[str], year: int) -> float | None:
    month, day = int(match["md"][:2]), int(match["md"][2:])
    return _seconds(year, month, day, *map(int, match["glog"].split(":")), fraction=match["gpart"])


def _syslog(match: re.Match[str], year: int) -> float | None:
    month = _MONTHS.get(match["month"], 0)
    return _seconds(year, month, int(match["day"]), *map(int, match["clock"].split(":")))


def _long(match: re.Match[str], _year: int) -> float | None:
    _, month, day, clock, year = match["long"].split()
    return _seconds(int(year), _MONTHS.get(month, 0), int(day), *map(int, clock.split(":")))


def _us(match: re.Match[str], _year: int) -> float | None:
    month, day, year, *clock = map(int, re.split(r"\D", match["us"]))
    return _seconds(year, month, day, *clock)


_TIMES: dict[str, Callable[[re.Match[str], int], float | None]] = {
    "iso": _iso,
    "glog": _glog,
    "month": _syslog,
    "long": _long,
    "us": _us,
}


def _from_json(line: str, year: int) -> LogLine | None:
    """Return the line in an object of journald, a container's log or a structured logger; None if it is none."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    text = next((given[key] for key in _JSON_TEXT if key in given), None)
    if isinstance(text, list):  # journald, of bytes that are not UTF-8
        text = bytes(one for one in text if isinstance(one, int) and 0 <= one < 256).decode(errors="replace")
    if not isinstance(text, str):
        return None
    inner = parse(text.rstrip("\n")[:16384].replace("{", "{ ", 1) if text.startswith("{") else text.rstrip("\n"), year)
    when = next((at for key in _JSON_TIME if (at := _json_time(given.get(key), year)) is not None), None)
    node = next((str(given[key]) for key in _JSON_NODE if isinstance(given.get(key), str)), "")
    rank = given.get("rank", inner.rank)
    known = isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0
    pid = str(given.get("_PID", inner.pid or ""))
    return LogLine(
        inner.text,
        inner.time if when is None else when,
        rank if known else inner.rank,
        False if "rank" in given else inner.local,
        inner.node or node,
        int(pid) if pid.isdecimal() and len(pid) < 10 else None,
    )


def _json_time(value: object, year: int) -> float | None:
    if isinstance(value, str) and value.isdecimal() and len(value) == 16:
        return int(value) / 1e6  # journald: microseconds
    if isinstance(value, str):
        return parse(value + " ", year).time
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1e9 < value < 1e10:
        return float(value)
    return None
