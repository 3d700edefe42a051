"""The results of a check: what is wrong, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

FAIL, WARN = "fail", "warn"
OK, SKIPPED = "ok", "skipped"

Untyped: TypeAlias = Any
"""A tensor, a store, the user's loader or model, a value that travels as JSON: what has no types here."""

Facts: TypeAlias = Mapping[str, Any]
"""The measurements of one rank: plain JSON."""

ERROR = "error"
"""The key of facts that are only the reason why a rank has none."""


@dataclass(frozen=True)
class PreflightFinding:
    """One thing that is wrong, on which ranks (none: on the run as a whole), and what to do about it.

    `severity` is `fail` or `warn`; only the first makes the command fail.
    """

    severity: str
    what: str
    then: str = ""
    ranks: tuple[int, ...] = ()


class Measurement(NamedTuple):
    """One number in base units, under a name of the table in `textfile.py`; `labels` tell it from its siblings."""

    name: str
    value: float
    rank: int
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Conclusion:
    """The result of a check: a line for a person, what is wrong, the numbers; `skipped`: why there is none.

    `slow_ranks` are ranks that were found slow, so that later comparisons leave them out.
    """

    summary: str
    findings: Sequence[PreflightFinding] = ()
    measured: Sequence[Measurement] = ()
    skipped: str = ""
    slow_ranks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class CheckReport:
    """The result of one check: its state is `ok`, `warn`, `fail` or `skipped`; `seconds` are those that it took."""

    check: str
    state: str
    summary: str
    seconds: float
    findings: Sequence[PreflightFinding] = ()
    measured: Sequence[Measurement] = field(default=(), repr=False)


def skip(why: str) -> Conclusion:
    """Return that a check says nothing, and why."""
    return Conclusion("", skipped=why)


def state_of(conclusion: Conclusion) -> str:
    """Return the state that a conclusion stands for, the worst of its findings."""
    severities = {finding.severity for finding in conclusion.findings}
    if FAIL in severities:
        return FAIL
    if WARN in severities:
        return WARN
    return SKIPPED if conclusion.skipped else OK
