"""The findings of an analysis of dumps: culprits, groups that do not get on, questions that stay open."""

from __future__ import annotations

from dataclasses import dataclass, field

HOST, GPU, NO_DUMP, SLOW = "host_stuck", "gpu_stuck", "no_dump", "slow"


@dataclass(frozen=True)
class Culprit:
    """One rank that holds the run up."""

    rank: int
    kind: str
    reason: str
    line: str | None = None
    missed_line: str | None = None
    """Where the other ranks called what this one did not."""


@dataclass(frozen=True)
class Open:
    """A question that stays open, and why."""

    what: str
    why: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class BlockedGroup:
    """A group that does not get on."""

    group: str
    members: int
    operation: str
    number: int
    line: str | None
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    since: float | None
    """Unix time of the first call of what is pending."""


@dataclass
class Verdict:
    """The result of an analysis: who holds the run up, why, and which questions stay open."""

    directory: str
    state: str = "moving"
    """`stuck`, `slow`, `moving` (nothing is pending that holds anyone up) or `unreadable`."""
    culprits: list[Culprit] = field(default_factory=list)
    blocked_first: BlockedGroup | None = None
    cascade: list[BlockedGroup] = field(default_factory=list)
    undecided: list[Open] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ranks: tuple[int, ...] = ()
    world: int = 0
    absent: tuple[int, ...] = ()
    damaged: dict[str, str] = field(default_factory=dict)
    other_attempts: list[str] = field(default_factory=list)
    backends: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
