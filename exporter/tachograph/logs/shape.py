"""The beginning that all lines of a file have, learned from a sample of its lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, pairwise

from tachograph.logs.line import PLAIN, RANK_AT_END, LineShape, parse, plain

SAMPLE = 400
"""Lines that are looked at."""
SAMPLED = 256 << 10
"""Bytes at the beginning of a log, and at the end of its first block, that they are taken from."""

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
_HEAD = 80
"""Letters at the beginning of a line that tell what most prefixes are."""
_OPENING = ("[", "(", "{")
_NAME = r"([A-Za-z](?:[\w.-]*[\w-])?|\d{1,3}(?:\.\d{1,3}){3})"
_RANK = re.compile(r"(?<![a-z])(?:global[ _-]?)?rank[ _:=#-]{0,2}\d{1,6}\b", re.IGNORECASE)
_CLOSING = re.compile(r"[\])>}|:, -]*")
_SEPARATORS = tuple((form, re.compile(_NAME + form)) for form in (r" *\| ?", r":(?: |$)", r"> ?", r"\s+"))
_DIGIT = re.compile(r"\d")
_WORDS = re.compile(r"\w+")
_BLANKS = re.compile(r" +")
_NO_NAME = re.compile(
    r"(?:rank|step|iter\w*|epoch|batch|trace|debug|info|notice|warn\w*|error|critical|fatal)[\d_-]*$|[IWEF]\d{3,4}$|\w*(?:Error|Exception)\d*$",
    re.IGNORECASE,
)
_MAY_BE_RANK = re.compile(r"\[|\(|.{0,40}rank", re.IGNORECASE)
_ONES = bytes.maketrans(b"023456789", b"1" * 9)
"""Makes lines alike that differ in numbers: a one may begin a number and a date."""
_NO_LABEL = LineShape(numbers=None)
_MOST = 0.6
"""The share of lines that must begin alike; others are those of launchers, and progress bars."""


def samples(block: bytes) -> tuple[list[str], list[str]]:
    """Return the lines at the beginning of a block that its shape is learned from, and some later ones."""
    first = block[:SAMPLED].splitlines()
    last = block[max(len(block) - SAMPLED, SAMPLED) :].splitlines() or first[SAMPLE:]
    return _decoded(first[:SAMPLE]), _decoded(last[-SAMPLE:])


def learn(lines: Sequence[str], until: float = 0.0, later: Sequence[str] = ()) -> LineShape:
    """Return the shape of a file whose first lines, and some `later` ones, these are; `until` as for `parse`."""
    sample = [line for line in map(plain, lines[:SAMPLE]) if line.strip()]
    if not sample:
        return PLAIN
    forms = [_forms(line[:_HEAD]) for line in _alike(sample)]
    common = {form for form, count in Counter(chain.from_iterable(forms)).items() if count >= _MOST * len(sample)}
    names = next(
        (known for mark, form in _SEPARATORS if mark in common and (known := _names(sample, mark, form))),
        None,
    )
    shape = LineShape(names, None if names else PLAIN.numbers)
    for numbers in _NUMBERS:
        found = (
            [int(match[1]) for line in sample if (match := numbers.match(line))] if numbers.pattern in common else []
        )
        if len(found) >= 2:
            rising = sum(after > before for before, after in pairwise(found))
            counted = rising == len(found) - 1 and (len(found) > 2 or numbers is _NUMBERS[1])
            shape = LineShape(names, numbers, numbered=counted)
            break
    if shape.numbers is not None and not shape.numbered:
        shape = shape._replace(tasks=_of_several([*sample, *map(plain, later)], shape.numbers, until))
    fields = sum(bool(RANK_AT_END.search(line)) for line in sample) >= max(3, _MOST * len(sample))
    return shape._replace(prefix=_prefix(sample, shape, until), fields=fields)


def _alike(lines: Sequence[str]) -> list[str]:
    """Return lines with ones for all digits."""
    return "\n".join(lines).encode(errors="replace").translate(_ONES).decode().split("\n")


@lru_cache(maxsize=4096)
def _forms(head: str) -> tuple[str, ...]:
    """Return which of the forms of names and numbers the beginning of a line has, with ones for all digits."""
    names = [separator for separator, form in _SEPARATORS if (match := form.match(head)) and _is_name(match[1])]
    return (*names, *(form.pattern for form in _NUMBERS if form.match(head)))


def _is_name(word: str) -> bool:
    return bool(_DIGIT.search(word)) and not _NO_NAME.match(word)


def _decoded(lines: Sequence[bytes]) -> list[str]:
    return [line[:400].decode("utf-8", errors="replace") for line in lines]


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
    texts = _without_rank(sample, shape, until)
    forms: Counter[tuple[str, str]] = Counter()
    for line, text in zip(sample, texts, strict=True):
        if text and not line.startswith("{") and (rank := _RANK.search(text, 0, 160)):
            behind = _CLOSING.match(text, rank.end())
            forms[_BLANKS.sub(" ", _WORDS.sub("w", text[: rank.start()])), behind[0] if behind else ""] += 1
    (form, closing), count = next(iter(forms.most_common(1)), (("", ""), 0))
    if count < max(3, _MOST * len(sample)):
        return _inner([text for text in texts[:_FEW] if text])
    words = r"\w+".join(map(re.escape, form.split("w"))).replace(r"\ ", " +")  # levels are padded
    return re.compile(words + r"\w*?[ _:=#-]{0,2}\d{1,6}" + re.escape(closing))


def _without_rank(sample: Sequence[str], shape: LineShape, until: float) -> list[str]:
    """Return the messages of lines in whose prefix the grammar finds no rank, and "" for each other one."""
    if shape.names is not None:
        found = [parse(line, until, shape) for line in sample]
        return ["" if one.rank is not None else one.text for one in found]
    begins = [_message_begin(line, shape) for line in _alike(sample)]
    return ["" if begin < 0 else line[begin:] for line, begin in zip(sample, begins, strict=True)]


def _message_begin(line: str, shape: LineShape) -> int:
    """Return where the message of a line begins, -1 if its prefix has a rank."""
    begin = _prefix_end(line[:_HEAD], shape)
    ends = begin < _HEAD // 2 and not line.startswith(_OPENING, max(begin, 0))
    return begin if begin < 0 or ends else _prefix_end(line, shape)


@lru_cache(maxsize=4096)
def _prefix_end(line: str, shape: LineShape) -> int:
    """Return the same for a line as it is.

    Numbers make no difference: of the files of many ranks, which begin alike, the first one is read.
    """
    found = parse(line, 0.0, shape)
    return -1 if found.rank is not None else len(line) - len(found.text)


def _inner(texts: Sequence[str]) -> re.Pattern[str] | None:
    """Return the pattern of a number behind times and names, if it is a rank: few numbers that take turns."""
    for form in _INNER:
        found = Counter(int(match["number"]) for text in texts if (match := form.match(text)))
        if found.total() >= max(4, _MOST * len(texts)) and 2 <= len(found) <= found.total() / 2:
            return form if max(found) < 4 * len(found) + 8 else None
    return None


def _names(sample: Sequence[str], separator: str, form: re.Pattern[str]) -> re.Pattern[str] | None:
    """Return the pattern of names before a separator if most lines have one: words with a number, which come again."""
    found = Counter(match[1] for line in sample if (match := form.match(line)) and _is_name(match[1]))
    total = found.total()
    if total < max(1, _MOST * len(sample)) or (separator == r"\s+" and (len(found) * 2 > total or total < 3)):
        return None
    return re.compile(f"({'|'.join(map(re.escape, found))}){separator}") if separator == r"\s+" else form
