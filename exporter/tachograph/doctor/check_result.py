"""The result of one check."""

from __future__ import annotations

from typing import NamedTuple

OK, FAIL, UNKNOWN = "ok", "FAIL", "?"


class CheckResult(NamedTuple):
    """A verdict, the facts, and what to do next; where nothing could be checked, why not."""

    verdict: str
    what: str
    then: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:4} {self.what}" + (f" – {self.then}" if self.then else "")


def ok(what: str) -> CheckResult:
    """Return that something is right."""
    return CheckResult(OK, what)


def fail(what: str, then: str = "") -> CheckResult:
    """Return that something is wrong, and the next command unless the text has it."""
    return CheckResult(FAIL, what, then)


def unknown(what: str, then: str) -> CheckResult:
    """Return that something was not checked, and why or how it can be."""
    return CheckResult(UNKNOWN, what, then)
