"""One document of JSON that holds records, as tools of clouds and Loki print them: read as a record to a line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

from tachograph.logs.loki_streams import entries, is_stream

LARGEST = 32 << 20
"""Bytes of a document that is read as such; a larger one is read line by line."""

_BEGINS = re.compile(rb"\s*(?:\[\s*(?:\{|$)|\{\s*(?:\n|\"status\": ?\"success\"|\"\w{1,40}\": ?\[\s*\{))")
_LIST = re.compile(r"\[\s*(?=\{)")
_BETWEEN = re.compile(r"[\s,]*")


def is_document(start: bytes, size: int) -> bool:
    """Return whether a file of this size that begins so may be one."""
    return size <= LARGEST and _BEGINS.match(start) is not None


def as_lines(content: bytes) -> io.BytesIO:
    """Return the records of a document, each in the line that it begins in; what is none stays as it is."""
    text = content.decode("utf-8-sig", errors="replace")
    lines: list[str] = []
    done = 0
    try:
        for record, at in _records(text):
            lines.append("\n" * max(text.count("\n", done, at), bool(lines)))
            lines.append(
                "".join(line for _, line in entries([record])).rstrip() if is_stream(record) else json.dumps(record)
            )
            done = at
    except (ValueError, TypeError, RecursionError):
        return io.BytesIO(content)
    return io.BytesIO("".join([*lines, "\n"]).encode()) if lines else io.BytesIO(content)


def _records(text: str) -> Iterator[tuple[object, int]]:
    """Yield the objects of a list, of the first list of objects in an object, or that follow each other.

    With each comes its place; raise ValueError for what is no JSON.
    """
    decoder = json.JSONDecoder()
    at = _next(text, 0)
    if text[at] == "[":
        at = _next(text, at + 1)
    elif _next(text, decoder.raw_decode(text, at)[1]) == len(text) and (inner := _LIST.search(text, at)):
        at = inner.end()
    while text.startswith("{", at):
        record, end = decoder.raw_decode(text, at)
        yield record, at
        at = _next(text, end)


def _next(text: str, at: int) -> int:
    """Return where it goes on behind blanks and commas."""
    between = _BETWEEN.match(text, at)
    return between.end() if between else at
