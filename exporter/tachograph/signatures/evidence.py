"""The words of an error that no special row of the table knows: they are weighed together, not one by one.

A row with `words` has patterns with a weight each (4: tells, 2: speaks for it, 1: a hint). Of each weight as many as
three different texts count. The row whose words, but for hints, come first has one more: an error begins with what it
is about. Beside them counts where the exception was raised: the module and the function (`frames`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WORDED = 400
"""Letters in which the words of an error are looked for: it begins with what it is about."""
LEAST = 2
"""Weight that an exception's words must have together: a single hint says nothing."""
LEAST_REPORTED = 3
"""Weight that the words of a line must have that has the level of an error, and names none."""
FRAME = 1
"""Weight of the place where an exception was raised: beside its words a hint, without any it decides."""
_MOST = 3
"""Different texts of one weight that count: a list of twenty files does not outweigh what is said of them."""
_MOST_KNOWN = 4_096
"""Texts that are known again."""
_SPEAKER = re.compile(
    r"NCCL WARN(?: NET/\w+)?(?: ?:)?|UCX +(?:ERROR|FATAL|WARN)|\b(?:ERROR|FATAL|CRITICAL|WARNING|WARN)\b"
)
"""Who speaks, and how loud: a library for communication may complain of a file, too."""
_DIGITS = re.compile(r"\b0x[\da-f]+|(?<![a-z\d])\d+|(?<=[a-z])(?<!\bx)\d{3,}")
"""Numbers, and those at the end of a word, as in `field971`; x509 is a word."""
_ENVIRONMENT = re.compile(
    r"\b(?=[A-Z])(?![A-Z\d_]*(?:ERR|STATUS|FAIL|EXHAUST|EXCEED|INVALID|UNAVAIL|ABORT|RESET))[A-Z\d]+(?:_[A-Z\d]+)+\b"
)
"""The name of an environment variable; in small letters it is marked with a dollar."""
_NAMED_BY_NUMBER = re.compile(
    r"errno:? ?$|os error $|rc ?[=:]? ?-?$|http error $|error code:? ?$|status(?: code)?:? ?$"
)
"""Before a number that names an error; any other does not make two errors different."""


class WordWeight(NamedTuple):
    """Patterns of one row and one weight; `frames`: they are looked for in the frame, not in the message."""

    row: int
    weight: int
    pattern: re.Pattern[str]
    frames: bool = False


class Scales:
    """Weighs the evidence of all rows; texts that differ in numbers alone are weighed once."""

    def __init__(self, evidence: Sequence[WordWeight]) -> None:
        self._words = [one for one in evidence if not one.frames]
        self._frames = [one for one in evidence if one.frames]
        self._known: dict[tuple[str, str, int], int | None] = {}

    def weigh(self, message: str, frame: str = "", least: int = LEAST) -> int | None:
        """Return the row that an error's message and frame speak for most; None if for none by the `least` weight."""
        text = _DIGITS.sub(_zero, _ENVIRONMENT.sub(r"$\g<0>", _SPEAKER.sub(" ", message)[:WORDED]).lower())
        key = text, frame.lower(), least
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._weighed(*key)
        return self._known[key]

    def _weighed(self, text: str, frame: str, least: int) -> int | None:
        weights: dict[int, int] = defaultdict(int)
        places: dict[int, int] = {}
        for one in self._words:
            found: dict[str, int] = {}
            for match in one.pattern.finditer(text):
                found.setdefault(match[0], match.start())
            weights[one.row] += one.weight * min(len(found), _MOST)
            if found and one.weight > 1:
                places[one.row] = min(places.get(one.row, WORDED), *found.values())
        without_words = not any(weights.values())
        for one in self._frames:
            if frame and one.pattern.search(frame):
                weights[one.row] += one.weight
        if max(weights.values(), default=0) < least and not without_words:
            return None
        first = min(places, key=lambda row: places[row], default=None)
        best = max(
            weights, key=lambda row: (weights[row] + (row == first), -places.get(row, WORDED), -row), default=None
        )
        return best if best is not None and weights[best] else None


def compiled(row: int, words: Mapping[int, Sequence[str]], frames: Sequence[str]) -> list[WordWeight]:
    """Return the evidence of one row; raise re.error."""
    made = [WordWeight(row, weight, re.compile("|".join(forms))) for weight, forms in words.items()]
    return [*made, WordWeight(row, FRAME, re.compile("|".join(frames), re.MULTILINE), frames=True)] if frames else made


def _zero(number: re.Match[str]) -> str:
    """Return 0 for a number, and the number itself where it is the name of an error."""
    return number[0] if _NAMED_BY_NUMBER.search(number.string, max(0, number.start() - 16), number.start()) else "0"
