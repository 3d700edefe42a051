"""One line of a log without what stands before its message: when, which rank, which node, which process."""

from __future__ import annotations

import calendar
import re
from datetime import datetime, timezone
from functools import lru_cache
from typing import NamedTuple

DAY = 86_400.0


class LogLine(NamedTuple):
    """A line's own text, and what its prefix says of it.

    `time`: Unix seconds; a time without a zone is taken as UTC. `local_rank`: the rank within its node.
    """

    text: str
    time: float | None = None
    rank: int | None = None
    local_rank: int | None = None
    node: str = ""
    pid: int | None = None


class LineShape(NamedTuple):
    """The beginning that all lines of one file have; `logs/shape.py` learns it.

    `names`: the name of a worker or container. `numbers`: a number; `numbered`: it counts lines, and is no rank;
    `tasks`: it is that of a launcher's task, with several ranks in each.
    `prefix`: what else stands before the message, with a rank in it.
    `fields`: most lines end in fields, `key=value`, and the rank is one of them.
    """

    names: re.Pattern[str] | None = None
    numbers: re.Pattern[str] | None = re.compile(r"\s{0,5}(\d{1,6}): ")
    numbered: bool = False
    tasks: bool = False
    prefix: re.Pattern[str] | None = None
    fields: bool = False


PLAIN = LineShape()

_MOST_ELEMENTS = 12
RANK_AT_END = re.compile(r"\srank=(\d{1,6})(?:\s+[\w.]{1,40}=\S+)*\s*$")
"""A rank among the fields that a line ends in, as loggers with fields print them; a rank in a sentence is not one."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr)}
_STAMP = r"""
      (?P<iso>\d{4}[-/.]\d\d[-/.]\d\d[T_ ]\d\d:\d\d:\d\d)(?P<part>[.,]\d{1,9})?\s?(?P<zone>Z\b|UTC\b|[+-]\d\d:?\d\d\b)?
    | (?<!\w)[IWEFVDC](?P<md>\d{8}|\d{3,4})\ (?P<glog>\d\d:\d\d:\d\d)(?P<gpart>\.\d{1,9})?
    | (?P<long>[A-Z][a-z]{2}\ [A-Z][a-z]{2}\ {1,2}\d{1,2}\ \d\d:\d\d:\d\d\ \d{4})
    | (?P<month>[A-Z][a-z]{2})\ {1,2}(?P<day>\d{1,2})\ (?P<clock>\d\d:\d\d:\d\d)
    | (?P<us>\d\d/\d\d/\d{4}\ \d\d:\d\d:\d\d)
    | (?<![\d-])(?P<short>\d\d-\d\d\ \d\d:\d\d:\d\d)(?P<spart>[.,]\d{1,6})?
    | (?<!\d)(?P<epoch>1\d{9}\.\d{1,9})(?!\d)
    | (?<![\d:])\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?![\d:])
"""
_TIME = re.compile(_STAMP, re.VERBOSE)
_NO_DIGIT = re.compile(r"\D")
_ELEMENT = re.compile(
    rf"""\s?(?:
      \[(?P<square>[^\[\]\n]{{1,200}})\](?P<std><std(?:out|err)>)?(?P<colon>:)?\s?
    | \((?P<round>(?=[^()\n]{{0,80}}\b(?:pid|rank|ip)=)[^()\n]{{1,200}})\)\s?
    | \{{(?P<curly>(?=[^{{}}\n]{{0,120}}\b(?:pod|rank|node|host)=)[^{{}}\n]{{1,200}})\}}\s?
    | (?:[A-Za-z][\w.-]*:\ )?(?P<host>[A-Za-z<][\w.<>-]*):(?P<pid>\d+):\d+\ \[(?P<gpu>\d{{1,3}})\]\ (?=.{{0,40}}NCCL)
    | (?:(?:time|ts|timestamp)=)?(?P<stamp>{_STAMP})(?:<std(?:out|err)>|\ std(?:out|err)\ [FP]\b)?[:,]?\ ?(?:-\ )?
    | (?P<pair>(?i:(?:global[_-]?)?rank[=: ]?\d{{1,6}}|(?:local_?rank|pid|node|host|ip|pod)=[\w.:-]+))
      (?:\ ?[:|,>]\ ?|\ -\ |\ |$)
    | kernel:\s
    | (?:kern|user|daemon|syslog)\s{{0,3}}:\w{{3,6}}\s{{0,3}}:\s
    )""",
    re.VERBOSE,
)
_GLOG_END = re.compile(r"[^\]\n]{0,120}?\]\s?")
_LEVEL = re.compile(r"\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\]?[\s:|-]{1,4}(?=[\[(\d])")
"""A level, which stays in the text; what stands in brackets behind it is looked at nevertheless."""
_SYSLOG = re.compile(r"(?P<host>[A-Za-z][\w.-]*) (?:(?:[\w./@-]+\[\d+\]|kernel)|(?P<tag>[\w./@-]+)):\s?")
_UPTIME = re.compile(r"\s{0,8}\+?\d{1,9}\.\d{6}")
_PLACE = re.compile(r"[IWEFVDC] [\w./-]+:\d+")
_MPI = re.compile(r"(?:\S*@)?(?:\d+,)?(\d{1,6})")
_PRTE = re.compile(r"\S+@\d+,(\d{1,6})")
_HOST = re.compile(r"([A-Za-z][\w.-]*):(\d+)")
_TORCH = re.compile(r"rank(\d{1,6})")
"""Of the process itself, by its environment: what follows may be the rank within a group."""
_SUBGROUP = re.compile(r"PG (?!(?:ID )?0\b)(?!.*\bdefault_pg\b)")
_RANK = re.compile(
    r"(?<![a-z])(?<!local[_ -])(?<!node[_ -])(?<!lora[_ -])(?:global[_ -]?|mpi)?rank[ _:=#-]{0,2}\"?(\d{1,6})\b",
    re.IGNORECASE,
)
_OWN_RANK = re.compile(r"[Rr]ank[ :=]{0,2}(\d{1,6})")
_LOCAL = re.compile(r"(?<![a-z])local[_ -]?rank *[:=]? *(\d{1,4})\b", re.IGNORECASE)
_CALLED = re.compile(r"rank|pid|ip|host|node|pod", re.IGNORECASE)
"""What a rank, process or node is called by."""
_PID = re.compile(r"(?<![a-z])pid[ :=]{1,2}(\d{1,9})\b", re.IGNORECASE)
_NODE = re.compile(r"(?<![a-z])(?:ip|host(?:name)?|node(?:_?name)?|pod)[=:/] ?\"?([\w.-]+)", re.IGNORECASE)
_WORKER = re.compile(r"([\w.-]+), ")
"""A rank beside a worker's name numbers the workers, not their processes."""
_ROLE = re.compile(r"[A-Za-z_]{2,20}?(\d{1,4})")
_NODE_WORD = re.compile(r"(?:node|host|worker|pod|nid|dgx|hgx|gpu|ip|server|vm)[\w.-]*\d|[a-z]+0\d+", re.IGNORECASE)
_NODE_LIKE = re.compile(
    r"(?<![\w.])(?!(?:local_?|global_?|task_?)?(?:rank|pid|step|epoch)\d)([A-Za-z][\w.-]*\d[\w-]*)(?![\w=])"
)
_ABOUT = re.compile(
    r"\brank +: +(?P<rank>\d{1,6}) \(local_rank|\bRANK (?P<dead>\d{1,6}) PID \d+ RUNNING AT (?P<at>[\w.-]+)"
    r"|srun: error: (?P<host>[\w.-]+): (?:task (?P<task>\d{1,6}): )?"
    r"|process rank (?P<noticed>\d{1,6}) with PID \d+ on node (?P<its>[\w.-]+)"
    r"|\bhost +: +(?P<on>[\w.-]+)|\bon node (?P<node>[\w.-]+)| ON (?P<job>[\w.-]+) CANCELLED"
    r"|\b[Nn]ode failure on (?P<failed>[\w.-]+)|(?:failure of|failed) node (?P<lost>[\w.-]+)"
    r"|\b[Nn]odes?[ =](?P<down>[A-Za-z][\w.-]*(?:\[[\d,-]+\])?):? (?:not resp|unexpectedly|state|reason|Invalid)"
    r"|(?<![\w/])(?:pod|node)/(?P<pod>[\w.-]+)"
)
_OF_NODES = ("at", "host", "its", "on", "node", "job", "failed", "lost", "down", "pod")
_ABOUT_WORDS = (
    "(local_rank",
    " RUNNING AT ",
    "srun: ",
    "host ",
    "on node ",
    " CANCELLED",
    "failure on ",
    "pod/",
    "node/",
    "node ",
    "Node ",
    "odes ",
    "node=",
)
"""Of whom the summaries of torchrun, MPICH and Open MPI, and the scheduler, speak."""


@lru_cache(64)  # the first lines of a file are read several times: for its shape, its ranks, its times and itself
def parse(line: str, until: float, shape: LineShape = PLAIN) -> LogLine:
    """Return a line without its prefix; a time that names no year is at most a day later than `until`."""
    line = plain(line)
    facts = _Facts(until)
    at, kept = _begin(line, shape, facts), -1
    for _ in range(_MOST_ELEMENTS):
        if level := _LEVEL.match(line, at):
            kept, at = at if kept < 0 else kept, level.end()
            continue
        match = _ELEMENT.match(line, at)
        if match is None:
            break
        if not facts.take(match) and kept < 0:
            kept = at
        at = match.end()
        if match["stamp"] is not None:
            at = _behind_time(line, match, at, facts)
    found = facts.line(line[at if kept < 0 else kept :])
    if found.rank is None and shape.prefix is not None and (learned := shape.prefix.match(found.text)):
        rank = int(learned["number"]) if "number" in shape.prefix.groupindex else None
        return with_facts(found._replace(text=found.text[learned.end() :], rank=rank), learned[0], until)
    if found.rank is None and shape.fields and (field := RANK_AT_END.search(found.text)):
        return found._replace(rank=int(field[1]))
    return found


def with_facts(line: LogLine, prefix: str, until: float, shape: LineShape = PLAIN) -> LogLine:
    """Return a line with what is said, wherever it stands, in the prefix that its file taught."""
    said = parse(prefix, until, shape._replace(prefix=None))
    rank = said.rank if said.rank is not None else next((int(number) for number in _RANK.findall(said.text)[-1:]), None)
    local = said.local_rank
    if rank is None and local is None and (inside := _LOCAL.search(said.text)):
        local = int(inside[1])
    word = _NODE.search(said.text) or next(
        (one for one in _NODE_LIKE.finditer(said.text) if not _RANK.match(one[1])), None
    )
    return line._replace(
        time=line.time if line.time is not None else said.time if said.time is not None else time_of(prefix, until),
        rank=rank if line.rank is None else line.rank,
        local_rank=local if line.local_rank is None else line.local_rank,
        node=line.node or said.node or (word[1] if word else ""),
        pid=said.pid if line.pid is None else line.pid,
    )


def plain(line: str) -> str:
    """Return a line without the colours of a terminal."""
    return _ANSI.sub("", line) if "\x1b" in line else line


def _begin(line: str, shape: LineShape, facts: _Facts) -> int:
    """Take what each line of the file begins with."""
    if shape.numbers is not None and (label := shape.numbers.match(line)):
        if shape.tasks:
            facts.task = f"task {label[1]}"
        elif not shape.numbered:
            facts.rank = int(label[1])
        return label.end()
    if shape.names is not None and (name := shape.names.match(line)):
        facts.node = name[1]
        return name.end()
    return 0


def _behind_time(line: str, match: re.Match[str], at: int, facts: _Facts) -> int:
    """Return where it goes on behind a time: the rest of glog's head, or syslog's host and program."""
    if match["md"]:
        end = _GLOG_END.match(line, match.end("stamp"))
        return end.end() if end else at
    host = _SYSLOG.match(line, at)
    if host is None or (host["tag"] is not None and match["month"] is None):
        return at
    facts.node = facts.node or host["host"]
    return host.end()


class _Facts:
    """The facts of a prefix, as far as it was read: of several ranks the last counts, of several nodes the first."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._time: float | None = None
        self.rank: int | None = None
        self._own = False
        self._local: int | None = None
        self.node = self.task = ""
        self._pid: int | None = None

    def take(self, match: re.Match[str]) -> bool:
        """Take what an element says; return whether it says anything."""
        if match["square"] is not None:
            return self._brackets(match)
        if (words := match["round"] or match["curly"] or match["pair"]) is not None:
            return self._words(words, worker=_WORKER.match(words))
        if match["gpu"] is not None:
            self.node = match["host"]
            self._pid, self._local = int(match["pid"]), int(match["gpu"])
        elif match["stamp"] is not None:
            self._stamp(match)
        return True

    def _brackets(self, match: re.Match[str]) -> bool:
        content = match["square"]
        if _UPTIME.fullmatch(content) or _PLACE.fullmatch(content) or _SUBGROUP.match(content):
            return True
        if self._process(match, content):
            return True
        stamp = _TIME.search(content) if ":" in content else None
        if stamp:
            self._stamp(stamp)
        if self._words(content, worker=None) or stamp:
            return True
        if match["colon"] and (role := _ROLE.fullmatch(content)):
            if _NODE_WORD.fullmatch(content):
                self.node = self.node or content
            else:
                self._local = int(role[1])
            return True
        return False

    def _process(self, match: re.Match[str], content: str) -> bool:
        """Take what names a process and nothing else: `[1,3]<stderr>:`, `[n1:77]<stderr>:`, `[rank3]:`, `[Rank 3]`."""
        if mpi := (_MPI if match["std"] else _PRTE).fullmatch(content):
            self.rank = int(mpi[1])
        elif match["std"] and (host := _HOST.fullmatch(content)):
            self.node, self._pid = host[1], int(host[2])
        elif match["colon"] and (own := _TORCH.fullmatch(content)):
            self.rank, self._own = int(own[1]), True
        elif said := _OWN_RANK.fullmatch(content):
            self.rank = self.rank if self._own else int(said[1])
        else:
            return False
        return True

    def _words(self, words: str, *, worker: re.Match[str] | None) -> bool:
        """Take ranks, processes and nodes that are called so; return whether there are some."""
        if worker is None and not _CALLED.search(words):
            return False
        rank, local, pid, node = (pattern.search(words) for pattern in (_RANK, _LOCAL, _PID, _NODE))
        if worker:
            self.node = self.node or worker[1]
        elif rank and not self._own:
            self.rank = int(rank[1])
        if local:
            self._local = int(local[1])
        if pid:
            self._pid = int(pid[1])
        if node:
            self.node = node[1] if worker or not self.node else self.node
        return any((worker, rank, local, pid, node))

    def _stamp(self, match: re.Match[str]) -> None:
        if self._time is None:
            self._time = _time(match, self._until)

    def line(self, text: str) -> LogLine:
        """Return the line; those who speak of another process name its rank and node in the text."""
        about = _ABOUT.search(text, 0, 400) if any(word in text for word in _ABOUT_WORDS) else None
        rank = self.rank
        if about and (number := about["rank"] or about["dead"] or about["task"] or about["noticed"]):
            rank = int(number)
        if about is not None and about["rank"] is None:
            self.node = next(
                (name for name in about.group(*_OF_NODES) if name),
                self.node,
            )
        local = self._local
        if rank is None and local is None and "ocal" in text and (inside := _LOCAL.search(text, 0, 400)):
            local = int(inside[1])
        return LogLine(text, self._time, rank, local, self.node or self.task, self._pid)


def time_of(text: str, until: float) -> float | None:
    """Return the first time that a text names."""
    match = _TIME.search(text)
    return None if match is None else _time(match, until)


def _time(match: re.Match[str], until: float) -> float | None:  # noqa: PLR0911  one for each form
    if iso := match["iso"]:
        parts = (iso[:4], iso[5:7], iso[8:10], iso[11:13], iso[14:16], iso[17:])
        return _seconds(*map(int, parts), fraction=match["part"], zone=match["zone"])
    if match["long"]:
        _, month, day, clock, year = match["long"].split()
        return _seconds(int(year), _MONTHS.get(month, 0), int(day), *map(int, clock.split(":")))
    if match["us"]:
        month_, day_, year_, *clock_ = map(int, _NO_DIGIT.split(match["us"]))
        return _seconds(year_, month_, day_, *clock_)
    if match["epoch"]:
        return float(match["epoch"])
    if match["md"]:
        digits = match["md"]
        clock_ = list(map(int, match["glog"].split(":")))
        if len(digits) == 8:
            return _seconds(int(digits[:4]), int(digits[4:6]), int(digits[6:]), *clock_, fraction=match["gpart"])
        return _this_year(until, int(digits[:-2]), int(digits[-2:]), *clock_, fraction=match["gpart"])
    if match["month"]:
        month_ = _MONTHS.get(match["month"], 0)
        return _this_year(until, month_, int(match["day"]), *map(int, match["clock"].split(":")))
    if match["short"]:
        return _this_year(until, *map(int, _NO_DIGIT.split(match["short"])), fraction=match["spart"])
    return None


def _this_year(until: float, *parts: int, fraction: str | None = None) -> float | None:
    """Return a time without a year: in the last year in which it is not later than a day after `until`."""
    year = datetime.fromtimestamp(until + DAY, timezone.utc).year
    return next(
        (
            at
            for back in range(5)  # 29 February
            if (at := _seconds(year - back, *parts, fraction=fraction)) is not None and at <= until + DAY
        ),
        None,
    )


def _seconds(*parts: int, fraction: str | None = None, zone: str | None = None) -> float | None:
    try:
        at = datetime(*parts, tzinfo=timezone.utc).timestamp()  # type: ignore[arg-type,misc]
    except ValueError:
        return None
    if fraction:
        at += float("0." + fraction[1:])
    if zone and zone[0] in "+-":
        sign = -1 if zone[0] == "-" else 1
        at -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return at
