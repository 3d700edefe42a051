"""A message: the row of the table that it matches, and what the program makes of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from tachograph.logs.candidates import ERRORS, READ_WHOLE, TRACEBACK, known_texts, line_end
from tachograph.logs.line import plain
from tachograph.logs.sightings import UNKNOWN
from tachograph.logs.tracebacks import TracebackEnd, begins
from tachograph.signatures.table import LONGEST, SignatureTable, table

_ERRORS = frozenset(ERRORS)
_LOOKS_LIKE_ERROR = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL)\b(?!\s*=)|(?:^|[\s.\"])[A-Z][A-Za-z]*(?:Error|Exception)\b|(?:^|\s)(?:error|fatal): ",
    re.M,
)
_UNIMPORTANT = re.compile(rb"(?:^|[\s\[|(:])(?:INFO|DEBUG|TRACE)(?:[\s\]:|)]|$)")
"""The level of what a program says of itself where nothing failed."""
_HEAD = TRACEBACK.capitalize().encode()
_HANDLING = b"During handling of the above exception"
_CAUSED = b"The above exception was the direct cause"
"""What stands behind a traceback if another exception was raised by its handler."""
_LOOKED = (
    (re.compile(r"(?:ModuleNotFound|Import)Error\b"), (_HANDLING,)),
    (re.compile(r"(?:\w+\.)*_?queue\.(?:Empty|Full)\b"), (_HANDLING, _CAUSED)),
)
"""What a program raises by looking whether something is there, and behind which sentences the next exception counts."""
_ONES = str.maketrans("023456789", "1" * 9)
_SEARCHED = 600
"""Letters of a line in which a level or an exception is looked for, before its prefix is known."""


class _Rules(NamedTuple):
    """The table, and what follows from it. `outside`: rows of what others say, or that a warning says itself."""

    table: SignatureTable
    outside: frozenset[int]
    by_wording: frozenset[int]


@cache
def rules() -> _Rules:
    """Return the table with what follows from it; `by_wording`: general rows, which say of a line no more than it."""
    known = table()
    outside = (number for number, row in enumerate(known.rows) if row.by != "program" or "warning" in row.despite)
    by_wording = (number for number in known.general if known.rows[number].role == "root")
    return _Rules(known, frozenset(outside), frozenset(by_wording))


def row_of(text: str, marks: Sequence[int], raised: TracebackEnd | None) -> int | None:
    """Return the row of a message with known texts, UNKNOWN for another error, None for any other line."""
    where = f"{raised.inner}\n{raised.frame}" if raised else ""
    number = rules().table.decide(text, rows_of(marks), raised=raised is not None, frame=where)
    if number is not None:
        return number
    return UNKNOWN if not _ERRORS.isdisjoint(texts_of(marks)) and _LOOKS_LIKE_ERROR.search(text[:400]) else None


def is_common(text: str, marks: Sequence[int]) -> bool:
    """Return whether a line, prefix and all, is of the kinds that long logs are full of and that need no parsing."""
    texts = texts_of(marks)
    if texts <= _ERRORS:
        return not _LOOKS_LIKE_ERROR.search(text[:_SEARCHED])
    if "{" in text or not texts.isdisjoint(READ_WHOLE):
        return False
    return not rules().table.may_decide(text, rows_of(marks))


def is_unimportant(raw: bytes, marks: Sequence[int]) -> bool:
    """Return whether a line is what a program says of itself where nothing failed, by its level."""
    return _of_programs(tuple(marks)) and b"{" not in raw and bool(_UNIMPORTANT.search(raw))


def mood(text: str, row: int) -> str:
    """Return what a line makes of what it speaks of."""
    return _mood_of(text[:LONGEST].translate(_ONES), row)


@lru_cache(maxsize=4096)
def _mood_of(text: str, row: int) -> str:
    """Return the mood of a text, whose numbers make no difference to it."""
    return rules().table.mood(text, row)


def mood_beside(block: bytes, begin: int, raised: TracebackEnd) -> str:
    """Return what the lines before the head of a traceback, and behind its end, say of it: that it is caught.

    `begin`: of its last line.
    """
    near = []
    head = block.rfind(_HEAD, 0, begin)
    line = block.rfind(b"\n", 0, max(head, 0))
    if line > 0:
        near.append(block[max(block.rfind(b"\n", 0, line) + 1, line - LONGEST) : line])
    end = line_end(block, begin) + 1
    if _is_superseded(raised.text, block[end : end + LONGEST]):
        return "skip"
    while block[end : end + 1] in (b"\n", b"\r"):
        end += 1
    near.append(block[end : line_end(block, min(end, len(block)))][:LONGEST])
    texts = (plain(one.decode("utf-8", errors="replace")) for one in near)
    handled = rules().table.handled
    return next((found for one in texts if begins(one, raised.alike) and (found := handled(one))), "")


def _is_superseded(text: str, behind: bytes) -> bool:
    """Return whether an exception matters less than what its handler raised, which is in the lines behind it."""
    near = b"".join(behind.split(b"\n", 3)[:3])
    return any(form.match(text) and any(one in near for one in said) for form, said in _LOOKED)


def texts_of(marks: Sequence[int]) -> set[str]:
    """Return known texts by their numbers."""
    texts = known_texts().texts
    return {texts[mark] for mark in marks}


def rows_of(marks: Sequence[int]) -> list[int]:
    """Return the rows that known texts lead to, in their order."""
    rows = known_texts().rows
    return sorted({row for mark in marks for row in rows[mark]})


@lru_cache(maxsize=4096)
def _of_programs(marks: tuple[int, ...]) -> bool:
    """Return whether all that known texts lead to is what programs say of themselves."""
    return texts_of(marks).isdisjoint(READ_WHOLE) and rules().outside.isdisjoint(rows_of(marks))
