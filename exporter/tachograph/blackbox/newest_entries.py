"""Leaves old entries of a ring out of a pickle before it is read: of 2,000 that are done, few are looked at.

PyTorch writes a ring as a list of dictionaries, each of which begins with `record_id`. A text is written where it comes
first, with a number, and later by that number; so the texts of what is left out are kept. What comes of it is checked
and read like any other pickle; one that does not fit together is read whole.
"""

from __future__ import annotations

import re

WORTH_IT = 256 << 10
"""Bytes below which a pickle is read whole."""

LONGEST_TEXT = 4096
_DEFINED = rb"X%s\0\0\0%s(?:q(.)|r(....))"
_RECORD_ID = re.compile(_DEFINED % (b"\x09", b"record_id"), re.DOTALL)
_RETIRED = re.compile(_DEFINED % (b"\x07", b"retired"), re.DOTALL)
_FALSE = b"\x89"


def shortened(data: bytes, most: int) -> bytes:
    """Return a pickle with its first entry, the newest, and all from the first on that is not done.

    Returned as it is where it is short, or not written as PyTorch does.
    """
    record_id, retired = _RECORD_ID.search(data), _RETIRED.search(data)
    if len(data) < WORTH_IT or record_id is None or retired is None:
        return data
    starts = [found.start() for found in re.finditer(rb"\}(?:q.|r....)?\(" + _again(record_id), data, re.DOTALL)]
    if len(starts) <= most:
        return data
    first, cut = starts[0], starts[-most]
    not_done = data.find(_plain_again(retired) + _FALSE, first, cut)
    if not_done >= 0:
        cut = max(start for start in starts if start <= not_done)
    return data[:first] + _texts(data, first, cut) + data[cut:]


def _number(defined: re.Match[bytes]) -> int:
    return int.from_bytes(defined[1] or defined[2], "little")


def _plain_again(defined: re.Match[bytes]) -> bytes:
    """Return how a text is written again."""
    number = _number(defined)
    return b"h" + bytes([number]) if number < 256 else b"j" + number.to_bytes(4, "little")


def _again(defined: re.Match[bytes]) -> bytes:
    return re.escape(_plain_again(defined))


def _texts(data: bytes, start: int, end: int) -> bytes:
    """Return the texts that are written first within a part of a pickle, each numbered and dropped again."""
    found = []
    last = -1
    at = data.find(b"X", start, end)
    while at >= 0:
        after = at + 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        numbered = {b"q": 2, b"r": 5}.get(data[after : after + 1], 0)
        number = int.from_bytes(data[after + 1 : after + numbered], "little")
        if numbered and number > last and after - at - 5 <= LONGEST_TEXT and after + numbered <= end:
            found.append(data[at : after + numbered] + b"0")
            last, at = number, after + numbered - 1
        at = data.find(b"X", at + 1, end)
    return b"".join(found)
