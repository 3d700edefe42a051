"""Python's tracebacks, which ranks that share a file may print line by line among each other's.

What stands before the first `File "…"` of a traceback stands before all of its lines: this prefix is learned there,
whatever it is, and only clocks may differ in it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

LONGEST = 2_000
"""Lines after which a traceback is given up."""
FOREIGN = 300
"""Lines of others in a row after which it is given up, and for each other one that is open, since they take turns:"""
_EACH = 4

HEAD = re.compile(
    r"(?:[╭+][─-]+ ?)?(?:Exception Group )?Traceback \(most recent call last\)(?:: \(RANK (?P<rank>\d{1,6})\))?"
)
"""With a rank where all ranks print what one of them raised, as PyTorch does of checkpoints."""
_FRAME = re.compile(
    r'(?: {2}|> |\t)?\bFile "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<name>\S{1,80}))?'
    r"|[│|] *(?P<drawn>[^\s:]{1,400}\.py):(?P<at>\d+) in (?P<of>[\w.<>]{1,80})"
)
_MARGIN = re.compile(r" *(?:\+-\+-+ \d+ -+|(?:\+ |[|│] ?)+|\+-+$)")
"""Of an exception group, which is indented to its end."""
_EXCEPTION = re.compile(r"(?P<path>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Za-z_]\w*)(?:\[[\w., ]+\])?(?P<more>:(?:\s|$)|\s*$)")
_LEVELS = {"INFO", "WARNING", "WARN", "ERROR", "DEBUG", "CRITICAL", "FATAL", "NOTE"}
_NAMED = re.compile(r"(?:Error|Exception|Exit|Interrupt|Failure|Timeout|Warning|Expired|Cancelled|Iteration)$")
_INSIDE = (" ", "\t", "│", "╰", "╭", "❱", "└", "~", "^", "|", "+-")
_BARE = re.compile(r" *(?:[|+│] ?)+$")
_CLOCK = re.compile(
    r"\d\d:\d\d:\d\d(?:[.,]\d+)?|:\d+\]|(?<=\d)[.,]\d{3,9}\b|^\s*\d+(?=[:\t])"
    r"|(?<=stdout )[PF](?= )|(?<=stderr )[PF](?= )"
)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen|<string>")


class TracebackEnd(NamedTuple):
    """The end of a traceback: where its exception was raised, its text, its prefix, and that of all of its lines.

    `frame`: outside installed packages, if possible; `inner`: wherever that is; `lines`: how many it has. `rank`: whose
    it is, if its head says so.
    """

    frame: str
    inner: str
    text: str
    prefix: str
    alike: str
    lines: int
    rank: int | None


@dataclass
class _Traceback:
    prefix: str
    rank: int | None = None
    learned: bool = False
    lines: int = 0
    touched: int = 0
    last: str = ""
    own: str = ""

    @property
    def frame(self) -> str:
        """Its innermost call; one outside installed packages is preferred."""
        return self.own or self.last


class Tracebacks:
    """The tracebacks that have begun and not ended, one for each prefix, the one that was heard of last at the end."""

    def __init__(self) -> None:
        self._open: dict[str, _Traceback] = {}
        self._lengths: Counter[int] = Counter()
        self._with_clocks = 0
        self._read = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, line: str) -> TracebackEnd | bool:  # noqa: PLR0911  one for each kind of line
        """Return True for a line that belongs to a traceback, TracebackEnd for its last one, False for any other."""
        self._read += 1
        if "Traceback" in line and (head := HEAD.search(line)):
            prefix = _alike(line[: head.start()])
            self._close(prefix)
            self._begin(_Traceback(prefix, None if head["rank"] is None else int(head["rank"])))
            return True
        if not self._open:
            return False
        if ('File "' in line or ".py:" in line) and (frame := _FRAME.search(line)):
            self._frame(_alike(line[: frame.start()]), frame)
            return True
        alike = _CLOCK.sub("#", line) if self._with_clocks else line
        for length in sorted(self._lengths, reverse=True):
            entry = self._open.get(alike[:length])
            if entry is None:
                continue
            end = _end(line, entry.prefix)
            rest = line[end:]
            if (margin := _MARGIN.match(rest)) and not rest.rstrip().endswith("│"):
                rest = rest[margin.end() :]
            if not rest.strip() or rest.startswith(_INSIDE):
                self._touch(entry)
                return True
            if self._is_exception(rest, entry):
                if "sub-exception" in rest:  # the group's own, above those that it holds
                    return True
                self._close(entry.prefix)
                return TracebackEnd(
                    entry.frame, entry.last, rest, line[:end], entry.prefix, entry.lines + 2, entry.rank
                )
        while self._open:
            oldest = next(iter(self._open.values()))
            if self._read - oldest.touched <= FOREIGN + _EACH * len(self._open):
                break
            self._close(oldest.prefix)
        return False

    def _begin(self, entry: _Traceback) -> None:
        entry.touched = self._read
        self._open[entry.prefix] = entry
        self._lengths[len(entry.prefix)] += 1
        self._with_clocks += "#" in entry.prefix

    def _close(self, prefix: str) -> None:
        if self._open.pop(prefix, None) is not None:
            self._with_clocks -= "#" in prefix
            self._lengths[len(prefix)] -= 1
            if not self._lengths[len(prefix)]:
                del self._lengths[len(prefix)]

    def _frame(self, prefix: str, frame: re.Match[str]) -> None:
        entry = self._open.get(prefix)
        if entry is None:
            waiting = [one for one in self._open.values() if not one.learned]
            ends = [one for one in waiting if prefix.strip() and one.prefix.rstrip().endswith(prefix.strip())]
            if not waiting:
                return
            entry = (ends or waiting)[-1]
            self._close(entry.prefix)
            entry.prefix = prefix
            self._begin(entry)
        entry.learned = True
        self._touch(entry)
        file, at, name = (
            (frame["file"], frame["line"], frame["name"]) if frame["file"] else frame.group("drawn", "at", "of")
        )
        entry.last = f"{file}:{at}" + (f" in {name}" if name else "")
        if not _LIBRARY.search(file):
            entry.own = entry.last

    def _touch(self, entry: _Traceback) -> None:
        """Note a line of a traceback; give up one that does not end."""
        entry.lines += 1
        if entry.lines > LONGEST:
            self._close(entry.prefix)
            return
        entry.touched = self._read
        self._open[entry.prefix] = self._open.pop(entry.prefix)

    def _is_exception(self, rest: str, entry: _Traceback) -> bool:
        """Return whether a text is an exception's: a class and a message. Of plain lines more is asked for."""
        match = _EXCEPTION.match(rest)
        if match is None or match["name"] in _LEVELS:
            return False
        if match["path"] or _NAMED.search(match["name"]):
            return True
        return match["name"][0].isupper() and (bool(entry.prefix.strip()) or entry.touched == self._read - 1)


def begins(line: str, alike: str) -> bool:
    """Return whether a line has the prefix of a traceback."""
    return _CLOCK.sub("#", line).startswith(alike)


@lru_cache(maxsize=1024)  # most ranks print the same again and again
def _alike(prefix: str) -> str:
    """Return a prefix without a margin, and with # for what differs from line to line."""
    return _CLOCK.sub("#", _BARE.sub("", prefix))


def _end(line: str, alike: str) -> int:
    """Return where the prefix of a line ends, which begins like `alike`."""
    if "#" not in alike:
        return len(alike)
    end = done = 0
    for clock in _CLOCK.finditer(line):
        plain = clock.start() - end
        if done + plain >= len(alike):
            break
        done, end = done + plain + 1, clock.end()
    return end + len(alike) - done
