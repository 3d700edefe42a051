"""Lines that differ in numbers alone: of a wording that says nothing new most are counted without being read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tachograph.logs.sightings import Key

SETTLED = 256
"""Lines of a wording in a row that are of a known kind and rank, after which it is settled."""
EVERY = 127
"""Of a settled wording one line in so many is read: it may be of another rank. Prime, since ranks take turns."""
_DENSE = 4
"""One line in so many of a block is of settled wordings; else taking them out costs more than it saves."""
_MOST = 4_000
"""Wordings of lines that are told apart; lines of further ones are all read."""
_MOST_TRACEBACKS = 200
_VARYING = b"0123456789abcdefABCDEF"
"""What numbers are made of, those with a base of 16 too."""


class ThinBlock(NamedTuple):
    """A block in which most lines of settled wordings are blank, each as long as before.

    `rest`: its other lines; `blank`: how often each wording was taken out.
    """

    block: bytes
    rest: bytes
    blank: Mapping[bytes, int]


@dataclass
class _Wording:
    quiet: int = 0
    last: Key | None = None
    steps: int = 0
    passed: int = 0
    counted: int = 0

    def settled(self, steps: int) -> bool:
        return self.quiet >= SETTLED and self.steps == steps


class _Wordings:
    """The wordings of one stream. `steps`, wherever it stands: how many lines of steps were read before a line."""

    def __init__(self, most: int) -> None:
        self._known: dict[bytes, _Wording] = {}
        self._most = most

    def read(self, raw: bytes, key: Key | None, steps: int, *, new: bool) -> None:
        """Note what was read, what it was counted as, and whether that is new; None: as nothing."""
        wording = _wording(raw)
        one = self._known.get(wording)
        if one is None:
            if key is None or len(self._known) >= self._most:
                return
            one = self._known[wording] = _Wording()
        one.quiet = 0 if new or key is None or one.steps != steps else one.quiet + 1
        one.last, one.steps = key, steps

    def count(self, blank: Mapping[bytes, int]) -> None:
        """Count what was taken out of a block."""
        for wording, more in blank.items():
            self._known[wording].counted += more

    def forget(self) -> Iterator[tuple[Key, int]]:
        """Yield how often a wording was counted, as what it was read as last; forget all wordings."""
        yield from ((one.last, one.counted) for one in self._known.values() if one.last and one.counted)
        self._known.clear()

    def _settled(self, steps: int) -> set[bytes]:
        return {wording for wording, one in self._known.items() if one.settled(steps)}


class LineWordings(_Wordings):
    """The wordings of single lines."""

    def __init__(self) -> None:
        super().__init__(_MOST)

    def counts(self, raw: bytes, steps: int) -> bool:
        """Return whether a line is only counted."""
        one = self._known.get(_wording(raw))
        if one is None or not one.settled(steps):
            return False
        one.passed += 1
        if one.passed % EVERY == 0:
            return False
        one.counted += 1
        return True

    def thin(self, block: bytes, steps: int) -> ThinBlock | None:
        """Return a block without most lines of settled wordings, None if it has too few; they are not yet counted."""
        settled = self._settled(steps)
        if not settled:
            return None
        wordings = _wording(block).split(b"\n")
        wordings[::EVERY] = [b""] * len(wordings[::EVERY])
        blank = Counter(filter(settled.__contains__, wordings))
        return _without(block, [wording in settled for wording in wordings], blank)


class TracebackWordings(_Wordings):
    """The wordings of whole tracebacks, whose lines stand together."""

    def __init__(self) -> None:
        super().__init__(_MOST_TRACEBACKS)

    def thin(self, block: bytes, steps: int) -> ThinBlock | None:
        """Return a block without most settled tracebacks, None if it has too few; they are not yet counted."""
        settled = self._settled(steps)
        if not settled:
            return None
        wordings = _wording(block).split(b"\n")
        blank: Counter[bytes] = Counter()
        out = [False] * len(wordings)
        for number, (begin, end, wording) in enumerate(_tracebacks(wordings, settled)):
            if number % EVERY:
                blank[wording] += 1
                out[begin:end] = [True] * (end - begin)
        return _without(block, out, blank)


def _tracebacks(wordings: Sequence[bytes], known: Collection[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Yield begin, end and wording of the known tracebacks among the lines of a block, by their wordings."""
    lengths: dict[bytes, set[int]] = {}
    for one in known:
        lengths.setdefault(one.partition(b"\n")[0], set()).add(one.count(b"\n") + 1)
    begin = 0
    while begin < len(wordings):
        end = begin + 1
        for length in lengths.get(wordings[begin], ()):
            if (wording := b"\n".join(wordings[begin : begin + length])) in known:
                end = begin + length
                yield begin, end, wording
                break
        begin = end


def _without(block: bytes, out: Sequence[bool], blank: Counter[bytes]) -> ThinBlock | None:
    """Return a block without some of its lines, None if they are few."""
    if sum(out) * _DENSE < len(out):
        return None
    lines = block.split(b"\n")
    rest = [line for line, gone in zip(lines, out, strict=True) if not gone]
    thin = [b" " * len(line) if gone else line for line, gone in zip(lines, out, strict=True)]
    return ThinBlock(b"\n".join(thin), b"\n".join(rest), blank)


def _wording(raw: bytes) -> bytes:
    return raw.translate(None, _VARYING)
