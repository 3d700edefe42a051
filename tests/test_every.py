"""A test of all rows of a table names each that is faulty."""

from __future__ import annotations

import inspect

import pytest

from tests.every import every


def test_each_faulty_row_is_named_and_all_are_tried() -> None:
    """Whatever went wrong with it."""
    tried = []

    @every("number,word", [(1, "a"), (2, "b"), (0, "c"), (4, "d")])
    def check(number: int, word: str, limit: int) -> None:
        tried.append(word)
        assert 4 // number > limit, f"{word} is too large"

    with pytest.raises(AssertionError) as error:
        check(limit=1)
    assert tried == ["a", "b", "c", "d"]
    assert str(error.value).splitlines()[0].startswith("2 of 4")
    assert "(0, 'c'): ZeroDivisionError" in str(error.value)
    assert "(4, 'd'): AssertionError: d is too large" in str(error.value)
    assert "'b'" not in str(error.value)


def test_what_is_right_passes_and_the_fixtures_are_asked_for() -> None:
    @every("number", [1, 2])
    def check(number: int, limit: int) -> None:
        assert number < limit

    check(limit=3)
    assert list(inspect.signature(check).parameters) == ["limit"]


def test_an_empty_table_is_a_fault() -> None:
    @every("number", [])
    def check(number: int) -> None:
        """Try nothing."""

    with pytest.raises(AssertionError, match="no rows"):
        check()
