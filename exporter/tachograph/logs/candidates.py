"""The lines of a block that are worth reading: those with a text that the table, or one of the readers, knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from tachograph.logs.named import LISTED, TOLD
from tachograph.logs.nccl import CHANNEL, MARKS
from tachograph.logs.prefilter import Prefilter
from tachograph.signatures.table import LONGEST, table

LONG_LINE = 64 << 10
"""Bytes; of a longer line only what is around a known text is read."""

PIECE = 256 << 10
"""Bytes of a block that are read in one go: lists of lines need memory, and each spares reading in the next."""

TRACEBACK = "traceback (most recent call last)"
PARTIAL = ("stdout p ", "stderr p ")
"""A container's line that goes on in the next one."""
RESTART = ("restart_count", "attempts left")
SUMMARIES = ("(local_rank", " running at ")
"""torchrun's summary names a rank, and in the lines below it how its process ended; so does MPICH's banner."""
ERRORS = ("error", "fatal", "critical", "exception")
READ_WHOLE = frozenset((TRACEBACK, *PARTIAL, *RESTART, *SUMMARIES, *MARKS, LISTED, TOLD))
"""Texts for which a line is read to its end, whatever else stands in it."""

_HEAD = 100
"""Bytes at the beginning of a long line that are kept, for its prefixes."""


class KnownTexts(NamedTuple):
    """The texts that are looked for. `rows`: those of the table that each text leads to.

    `levels`: the lengths of the texts for levels, by their numbers; `channel`: the number of the one for channels.
    """

    prefilter: Prefilter
    texts: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    levels: dict[int, int]
    channel: int


@cache
def known_texts() -> KnownTexts:
    """Return all texts; raise ModuleNotFoundError without the extra `logs`."""
    rows = table().by_text
    texts = tuple(dict.fromkeys((*rows, TRACEBACK, *SUMMARIES, *PARTIAL, *RESTART, *ERRORS, *MARKS, LISTED, TOLD)))
    return KnownTexts(
        Prefilter([text.encode() for text in texts]),
        texts,
        tuple(rows.get(text, ()) for text in texts),
        {texts.index(text): len(text) for text in ERRORS},
        texts.index(CHANNEL),
    )


class Candidate(NamedTuple):
    """A line: where it begins in its block, its content, and the numbers of the known texts in it."""

    begin: int
    raw: bytes
    marks: list[int]


def candidates(
    block: bytes, low: bytes, *, every: Callable[[], bool], channels: Callable[[], bool]
) -> Iterator[Candidate]:
    """Yield the lines of a block with known texts, and all while `every` says so; `low`: the block in small letters.

    `channels`: whether lines of NCCL's channels are wanted.
    """
    found = _places(block, low, channels)
    mark = next(found, None)
    position = 0
    while position < len(block):
        if every():
            begin = at = position
        elif mark is not None:
            begin = max(position, block.rfind(b"\n", position, mark[1]) + 1)
            begin = max(begin, block.rfind(b"\r", begin, mark[1]) + 1)
            at = mark[1]
        else:
            return
        end = line_end(block, at)
        marks: list[int] = []
        while mark is not None and mark[1] < end:
            marks.append(mark[0])
            mark = next(found, None)
        yield Candidate(begin, _around(block, begin, at, end), marks)
        position = end + 1


def _places(block: bytes, low: bytes, channels: Callable[[], bool]) -> Iterator[tuple[int, int]]:
    """Yield the known texts of a block and their places, without what healthy logs are full of.

    An `error` in small letters counts with a colon alone; channels of NCCL do as long as some are missing.
    """
    known = known_texts()
    for number, start in known.prefilter.find(low):
        if number in known.levels:
            end = start + known.levels[number]
            if block[start:end].islower() and block[end : end + 1] != b":":
                continue
        elif number == known.channel and not channels():
            continue
        yield number, start


def line_end(block: bytes, at: int) -> int:
    """Return where a line ends that has `at` in it: before a line break, or a carriage return of a progress bar."""
    end = block.find(b"\n", at)
    end = len(block) if end < 0 else end
    back = block.find(b"\r", at, end)
    return min(end if back < 0 else back, at + LONG_LINE)


def _around(block: bytes, begin: int, at: int, end: int) -> bytes:
    """Return a line; of a long one its beginning, with the prefixes, and what is around `at`; an object whole."""
    if b'{"' in block[begin : begin + _HEAD]:
        return block[begin : min(end, begin + LONG_LINE)]
    if at - begin <= LONGEST:
        return block[begin : min(end, begin + 2 * LONGEST)]
    return block[begin : begin + _HEAD] + b" ... " + block[at - _HEAD // 2 : min(end, at + LONGEST)]


def pieces(block: bytes) -> Iterator[bytes]:
    """Yield a block in pieces of whole lines."""
    begin = 0
    while begin < len(block):
        end = block.find(b"\n", begin + PIECE) + 1 or len(block)
        yield block[begin:end]
        begin = end


def long_lines(block: bytes, *, continued: bool = False) -> int:
    """Return how many lines of a block are longer than LONG_LINE; `continued`: without the first, begun before."""
    count, position = 0, (block.find(b"\n") + 1 or len(block)) if continued else 0
    while position + LONG_LINE < len(block):
        end = block.rfind(b"\n", position, position + LONG_LINE)
        if end < 0:
            count += 1
            end = block.find(b"\n", position + LONG_LINE)
            if end < 0:
                break
        position = end + 1
    return count
