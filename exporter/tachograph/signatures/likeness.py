"""Which general row the words of an error are most like: counts of words in errors whose row is known (words.txt).

It is naive Bayes with the complement of each row: a word speaks for a row as much as it is more frequent in the errors
of this row than in all others. Counts add up, so that further errors can be learned without those learned before:
`python -m tools.signature_words`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

PATH = Path(__file__).with_name("words.txt")
FACTOR = 2.0
"""What one unit of likeness weighs beside the weights of the table; chosen on errors that were left out."""
_LEAST = 3
"""Known words that a text must have."""
_SMOOTHED = 0.3
"""Occurrences that each row has of each word from the beginning."""
_LONGEST = 400
_SPEAKER = re.compile(
    r"NCCL WARN(?: NET/\w+)?(?: ?:)?|UCX +(?:ERROR|FATAL|WARN)|\b(?:ERROR|FATAL|CRITICAL|WARNING|WARN)\b"
)
"""Who speaks, and how loud: a library for communication may complain of a file, too."""
_HEXADECIMAL = re.compile(r"0x[0-9a-f]+|\b(?=[0-9a-f]*\d)[0-9a-f]{6,}\b")
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[a-z0-9_]+")
_PART = re.compile(r"[a-z0-9]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Between the parts of a name such as ShardIndexError."""

WordCounts = Mapping[str, Mapping[str, int]]
"""How many errors of a row, by its name, have a word."""


def without_speaker(text: str) -> str:
    """Return an error without the library that reports it and its level."""
    return _SPEAKER.sub(" ", text)


def words(text: str) -> set[str]:
    """Return the words of an error, and the parts of its names; numbers are one word."""
    text = without_speaker(text)[:_LONGEST]
    found = set(_WORD.findall(_plain(text)))
    found.update(part for word in list(found) if "_" in word for part in word.split("_"))
    found.update(_PART.findall(_plain(_HUMP.sub(" ", text))))
    return found - {"", "0"}


def read(path: Path = PATH) -> dict[str, dict[str, int]]:
    """Return the counts of a file: a word in each line, and behind it the rows with their numbers."""
    found: dict[str, dict[str, int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            word, *counts = line.split()
            found[word] = {row: int(count) for row, _, count in (one.partition("=") for one in counts)}
    return found


class Likeness:
    """Weighs texts. `rows`: the number of each row that words may speak for, by its name."""

    def __init__(self, counts: WordCounts, rows: Mapping[str, int]) -> None:
        totals: Counter[str] = Counter()
        for known in counts.values():
            totals.update(known)
        self._counts = counts
        self._rows = {name: number for name, number in rows.items() if totals[name]}
        self._totals = totals
        self._all = totals.total()

    def weights(self, text: str) -> dict[int, float]:
        """Return how much the words of a text speak for rows; what speaks against one does not count."""
        known = [self._counts[word] for word in words(text) if word in self._counts]
        if len(known) < _LEAST or not self._rows:
            return {}
        scale = FACTOR / math.sqrt(len(known))
        ratios = ((number, self._ratio(name, known)) for name, number in self._rows.items())
        return {number: scale * ratio for number, ratio in ratios if ratio > 0}

    def _ratio(self, row: str, known: Iterable[Mapping[str, int]]) -> float:
        """Return the logarithm of how much more frequent words are in a row than in the others."""
        smoothed = _SMOOTHED * len(self._counts)
        inside, outside = self._totals[row] + smoothed, self._all - self._totals[row] + smoothed
        odds = 0.0
        for word in known:
            own = word.get(row, 0)
            odds += math.log((own + _SMOOTHED) / (sum(word.values()) - own + _SMOOTHED))
        return odds + math.log(outside / inside) * sum(1 for _ in known)


def _plain(text: str) -> str:
    """Return a text in small letters without numbers."""
    return _NUMBER.sub("0", _HEXADECIMAL.sub("0", text.lower()))
