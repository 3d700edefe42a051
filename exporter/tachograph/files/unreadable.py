"""The exceptions that reading an answer or a file of an unexpected form may raise, and what they say in words."""

from __future__ import annotations

from json import JSONDecodeError

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Of JSON that is taken apart field by field; OSError is not among them."""


def wrong_form(error: BaseException) -> str:
    """Return what one of them found, for a person who did not write the program that reads."""
    if isinstance(error, JSONDecodeError):
        return f"no JSON at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return f"it has no {error.args[0]!r:.60}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if type(error) is ValueError and error.args:
        return f"{error.args[0]!s:.120}"
    return "a part of it has another form"
