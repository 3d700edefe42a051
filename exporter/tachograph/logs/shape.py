"""The beginning that all lines of a file have, learned from a sample of its lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tachograph.logs.line import PLAIN, LineShape, parse, plain

SAMPLE = 400
"""Lines that are looked at."""

_NUMBERS = tuple(
    re.compile(form)
    for form in (
        r"\s{0,6}(\d{1,9}):(?!\d) ?",
        r"\s{0,8}(\d{1,9})\t",
        r"\s{0,6}(\d{1,6}) ?[|>] ?",
        r"\[(\d{1,6})\]:? ",
    )
)  # fmt: skip
_INNER = tuple(
    re.compile(form)
    for form in (
        r"(?P<number>\d{1,6}): ",
        r"\[(?P<number>\d{1,6})\]:? ",
        r"\((?P<number>\d{1,6})\) ",
        r"[\w.-]+ (?P<number>\d{1,6}): ",
        r"[<\[({][A-Za-z][\w.-]*\d[/|](?P<number>\d{1,6})[>\])}]:? ",
    )
)
_FEW = 60
_NAME = r"([A-Za-z](?:[\w.-]*[\w-])?|\d{1,3}(?:\.\d{1,3}){3})"
_RANK = re.compile(r"(?<![a-z])(?:global[ _-]?)?rank[ _:=#-]{0,2}\d{1,6}\b", re.IGNORECASE)
_CLOSING = re.compile(r"[\])>}|:, -]*")
_SEPARATORS = (r" *\| ?", r":(?: |$)", r"> ?", r"\s+")
_NO_NAME = re.compile(
    r"(?:rank|step|iter\w*|epoch|batch|trace|debug|info|notice|warn\w*|error|critical|fatal)[\d_-]*$|[IWEF]\d{3,4}$|\w*(?:Error|Exception)\d*$",
    re.IGNORECASE,
)
_MAY_BE_RANK = re.compile(r"\[|\(|.{0,40}rank", re.IGNORECASE)
_NO_LABEL = LineShape(numbers=None)
_MOST = 0.6
"""The share of lines that must begin alike; others are those of launchers, and progress bars."""


def learn(lines: Sequence[str], until: float = 0.0, later: Sequence[str] = ()) -> LineShape:
    """Return the shape of a file whose first lines, and some `later` ones, these are; `until` as for `parse`."""
    sample = [line for line in map(plain, lines[:SAMPLE]) if line.strip()]
    names = next((form for separator in _SEPARATORS if (form := _names(sample, separator))), None)
    shape = LineShape(names, None if names else PLAIN.numbers)
    for numbers in _NUMBERS:
        found = [int(match[1]) for line in sample if (match := numbers.match(line))]
        if len(found) >= max(2, _MOST * len(sample)):
            rising = sum(after > before for before, after in pairwise(found))
            counted = rising == len(found) - 1 and (len(found) > 2 or numbers is _NUMBERS[1])
            shape = LineShape(names, numbers, numbered=counted)
            break
    if shape.numbers is not None and not shape.numbered:
        shape = shape._replace(tasks=_of_several([*sample, *map(plain, later)], shape.numbers, until))
    return shape._replace(prefix=_prefix(sample, shape, until))


def _of_several(lines: Sequence[str], numbers: re.Pattern[str], until: float) -> bool:
    """Return whether a number stands before lines of several ranks, as that of a launcher on each node does."""
    inner: dict[str, set[tuple[int | None, int | None]]] = {}
    for line in lines:
        if (label := numbers.match(line)) and _MAY_BE_RANK.match(line, label.end()):
            found = parse(line[label.end() :], until, _NO_LABEL)
            if found.rank is not None or found.local_rank is not None:
                inner.setdefault(label[1], set()).add(
                    (found.rank, None if found.rank is not None else found.local_rank)
                )
    return any(len(ranks) > 1 for ranks in inner.values())


def _prefix(sample: Sequence[str], shape: LineShape, until: float) -> re.Pattern[str] | None:
    """Return the pattern of what stands before a rank on most lines, where the grammar does not find it."""
    forms: Counter[tuple[str, str]] = Counter()
    for found in (
        parse(line, until, shape) for line in sample if not line.startswith("{") and _RANK.search(line, 0, 240)
    ):
        if found.rank is None and (rank := _RANK.search(found.text, 0, 160)):
            behind = _CLOSING.match(found.text, rank.end())
            forms[re.sub(r"\w+", "w", found.text[: rank.start()]), behind[0] if behind else ""] += 1
    (form, closing), count = next(iter(forms.most_common(1)), (("", ""), 0))
    if count < max(3, _MOST * len(sample)):
        return _inner(sample, shape, until)
    return re.compile(r"\w+".join(map(re.escape, form.split("w"))) + r"\w*?[ _:=#-]{0,2}\d{1,6}" + re.escape(closing))


def _inner(sample: Sequence[str], shape: LineShape, until: float) -> re.Pattern[str] | None:
    """Return the pattern of a number behind times and names, if it is a rank: few numbers that take turns."""
    texts = [found.text for found in (parse(line, until, shape) for line in sample[:_FEW]) if found.rank is None]
    for form in _INNER:
        found = Counter(int(match["number"]) for text in texts if (match := form.match(text)))
        if found.total() >= max(4, _MOST * len(texts)) and 2 <= len(found) <= found.total() / 2:
            return form if max(found) < 4 * len(found) + 8 else None
    return None


def _names(sample: Sequence[str], separator: str) -> re.Pattern[str] | None:
    """Return the pattern of names before a separator if most lines have one: words with a number, which come again."""
    form = re.compile(_NAME + separator)
    found = Counter(
        match[1]
        for line in sample
        if (match := form.match(line)) and re.search(r"\d", match[1]) and not _NO_NAME.match(match[1])
    )
    total = found.total()
    if total < max(1, _MOST * len(sample)) or (separator == r"\s+" and (len(found) * 2 > total or total < 3)):
        return None
    return re.compile(f"({'|'.join(map(re.escape, found))}){separator}") if separator == r"\s+" else form
