"""The closed vocabularies (codes.yaml): what an interface can say at all, and which row of the table that is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PLACE = "{}"
"""Stands for the word in the forms of a vocabulary."""


class CodeError(Exception):
    """A vocabulary is not valid; the text names it and what was expected."""


def codes_of_rows(content: object) -> dict[str, tuple[str, ...]]:
    """Return the words of each row, in small letters and in all forms; raise CodeError."""
    if not isinstance(content, Mapping):
        raise CodeError("codes: expected vocabularies by their names")
    rows: dict[str, list[str]] = {}
    whose: dict[str, str] = {}
    for name, vocabulary in content.items():
        for row, words in _lists(name, vocabulary).items():
            for word in words:
                if (owner := whose.setdefault(word, row)) != row:
                    raise CodeError(f"codes: {word!r} is of {owner} and of {row}")
            rows.setdefault(row, []).extend(words)
    return {row: tuple(dict.fromkeys(words)) for row, words in rows.items()}


def has_word(words: Sequence[str], low: str) -> bool:
    """Return whether one of the words stands in a text as a whole; both in small letters."""
    return any(one in low and _is_whole(one, low) for one in words)


def _lists(name: object, vocabulary: object) -> dict[str, list[str]]:
    """Return the words of one vocabulary by row, in its forms."""
    if not isinstance(vocabulary, Mapping) or not _are_texts(vocabulary.get("as")):
        raise CodeError(f"codes: {name}: expected rows, and `as`, a list of texts")
    forms = vocabulary["as"]
    if not all(PLACE in form for form in forms):
        raise CodeError(f"codes: {name}: each form in `as` needs {PLACE} for the word")
    lists = {}
    for row, words in vocabulary.items():
        if row == "as":
            continue
        if not _are_texts(words):
            raise CodeError(f"codes: {name}: {row}: expected a list of texts")
        lists[str(row)] = [form.replace(PLACE, word).lower() for word in words for form in forms]
    return lists


def _are_texts(given: object) -> bool:
    return isinstance(given, list) and bool(given) and all(isinstance(one, str) and one for one in given)


def _is_whole(word: str, low: str) -> bool:
    """Return whether a text that contains a word has it somewhere without a letter, digit or underscore beside it."""
    begin = low.find(word)
    while begin >= 0:
        end = begin + len(word)
        if not (_continues(low[begin - 1 : begin], word[0]) or _continues(low[end : end + 1], word[-1])):
            return True
        begin = low.find(word, begin + 1)
    return False


def _continues(beside: str, edge: str) -> bool:
    """Return whether the character beside a word's edge is part of the same word."""
    return _is_letter(beside) and _is_letter(edge)


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"
