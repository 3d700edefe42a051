"""The findings of an analysis of dumps: culprits, groups that do not get on, questions that stay open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tachograph.text.humanize import coordinates

HOST, GPU, NO_DUMP, SLOW, FAILED = "host_stuck", "gpu_stuck", "no_dump", "slow", "failed"


@dataclass(frozen=True)
class Culprit:
    """One rank that holds the run up."""

    rank: int
    kind: str
    reason: str
    line: str | None = None
    missed_line: str | None = None
    """Where the other ranks called what this one did not."""
    node: str | None = None
    gpu: str | None = None
    coordinates: Mapping[str, int] | None = None
    """Where the rank is in the run's parallelism, by the name of the dimension."""

    @property
    def place(self) -> str:
        """Return where the rank runs: `node-27, GPU 1, dp 5`; empty where nothing is known."""
        parts = (self.node, f"GPU {self.gpu}" if self.gpu else "", coordinates(self.coordinates or {}, ""))
        return ", ".join(part for part in parts if part)


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
    run: str = ""
    """Its name, where boxes of ours say it."""

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


def read_verdict(said: Mapping[str, Any]) -> Verdict:
    """Return the verdict that `dataclasses.asdict` and JSON made this of."""
    first = said["blocked_first"]
    return Verdict(
        **{
            **said,
            "culprits": [Culprit(**one) for one in said["culprits"]],
            "blocked_first": None if first is None else _group(first),
            "cascade": [_group(one) for one in said["cascade"]],
            "undecided": [Open(one["what"], one["why"], tuple(one["ranks"])) for one in said["undecided"]],
            "ranks": tuple(said["ranks"]),
            "absent": tuple(said["absent"]),
            "backends": tuple(said["backends"]),
            "versions": tuple(said["versions"]),
        }
    )


def _group(said: Mapping[str, Any]) -> BlockedGroup:
    return BlockedGroup(**{**said, "waiting": tuple(said["waiting"]), "missing": tuple(said["missing"])})
