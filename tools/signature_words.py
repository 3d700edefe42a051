"""`python -m tools.signature_words LINES…`: learns the words of errors whose category and role are known.

Each line of a file is `category role | text` or `category role | source | text`, as in tests/signatures. Their words
are added to exporter/tachograph/signatures/words.txt; the lines themselves are not kept. Lines whose category and role
no general row of the table has are passed over.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tachograph.signatures import likeness
from tachograph.signatures.table import table

LEAST = 2
"""Errors that a word must be in to be kept."""
_SOURCE = re.compile(r"-|\S+#\d+")
"""A repository and the number of an issue; - for another document."""
HEAD = "# Words of errors, and in how many of each general row's they are; made by `python -m tools.signature_words`.\n"


def labelled(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield category and role as one text, and the error."""
    for line in lines:
        label, _, rest = line.rstrip("\n").partition(" | ")
        source, _, text = rest.partition(" | ")
        if rest and not label.startswith("#"):
            yield label, text if _SOURCE.fullmatch(source) else rest


def learned(errors: Iterable[tuple[str, str]], before: likeness.WordCounts) -> dict[str, Counter[str]]:
    """Return the counts with those of further errors, each of which counts once."""
    rows: dict[str, str] = {}
    for row in table().rows:
        if row.evidence:
            rows.setdefault(f"{row.category} {row.role}", row.name)
    found = {word: Counter(known) for word, known in before.items()}
    for label, text in dict.fromkeys(errors):
        if label in rows:
            for word in likeness.words(text):
                found.setdefault(word, Counter())[rows[label]] += 1
    return {word: known for word, known in found.items() if known.total() >= LEAST}


def written(counts: Mapping[str, Counter[str]]) -> str:
    """Return the text of words.txt."""
    lines = (f"{word} {' '.join(f'{row}={n}' for row, n in sorted(known.items()))}" for word, known in counts.items())
    return HEAD + "".join(f"{line}\n" for line in sorted(lines))


def main(paths: list[str]) -> None:
    """Add the words of the files."""
    errors = (error for path in paths for error in labelled(Path(path).read_text(encoding="utf-8").splitlines()))
    before = likeness.read() if likeness.PATH.exists() else {}
    likeness.PATH.write_text(written(learned(errors, before)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
