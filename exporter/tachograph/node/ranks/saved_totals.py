"""The totals that the exporter keeps across its own restart: sums over the ranks of a run, and each process's part.

Totals of one rank live in the rank's process and need not be saved. A sum over ranks also contains the counts of
processes that have ended; if it restarted lower, Prometheus would take that for a reset and count all of it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, TypeVar

import msgspec

from tachograph.node.ranks.frames import Hello, Peer

VERSION = 1
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_log = logging.getLogger(__name__)
Kind = TypeVar("Kind")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Sum = Annotated[float, msgspec.Meta(ge=0)]


class SavedEnd(msgspec.Struct, frozen=True):
    """How a process ended, and what is shown of it after that; times are by the monotonic clock."""

    outcome: Literal["dead", "failed", "finished"]
    reason: str
    ended: float
    at: float
    category: str
    line: str
    note: str
    world_size: Count
    local_rank: Count
    config: list[str]
    gpu: tuple[str, str, str]
    """Index, UUID and name, empty where they are not known."""
    confirmed: bool


class SavedProcess(msgspec.Struct, frozen=True):
    """A process of a rank: its identity, its progress, and the part of its merged families that the sums contain."""

    rank: int
    uid: int
    pid: int
    hello_pid: int
    attempt: int
    restarts: Count
    seq: int
    step: int | None
    heartbeat: float
    finished: bool
    merged: dict[str, dict[str, Sum]]
    observed: dict[str, tuple[dict[int, Count], Sum]]
    """Wire key → counts by bucket index at schema 3, which an earlier release reads, and sum."""
    heard: float | None = None
    steps: float = 0.0
    progress: float | None = None
    """When its last step was completed, by the monotonic clock, and as it told by its own."""
    began: float | None = None
    """When it said hello first, by the monotonic clock."""
    started: float | None = None
    started_wall: float = 0.0
    end: SavedEnd | None = None
    progress_told: float | None = None
    fine: dict[str, dict[int, Count]] = {}
    """Wire key → the same counts at FINE_SCHEMA, of a rank that sends those."""

    def is_of(self, hello: Hello, peer: Peer) -> bool:
        """Return whether a hello comes from this process, in the same attempt."""
        known = (self.uid, self.pid, self.hello_pid, self.attempt)
        return known == (peer.uid, peer.pid, hello.pid, hello.attempt)


class SavedRun(msgspec.Struct, frozen=True):
    """A run: its owner, its sums, the restarts of ranks that were forgotten, and its processes."""

    run: str
    owner: int
    totals: dict[str, dict[str, Sum]]
    histograms: dict[str, tuple[list[Count], Sum]]
    """Wire key → counts of the classic buckets, which an earlier release reads, and sum."""
    restarts: dict[int, Count]
    processes: list[SavedProcess]
    role: str = ""
    fine: dict[str, dict[int, Count]] = {}
    """Wire key → the same counts by bucket index at FINE_SCHEMA."""


class SavedRank(msgspec.Struct, frozen=True):
    """A rank that was forgotten; its last step is sent in the answer if it comes back."""

    uid: int
    run: str
    rank: int
    step: int | None
    heartbeat: float
    attempt: int
    finished: bool
    heard: float | None = None


class SavedTotals(msgspec.Struct, frozen=True):
    """The content of the state file; that of an earlier boot is of no use, since none of its processes is left."""

    version: int
    boot: str
    runs: list[SavedRun]
    lives: list[SavedRank]


class _File(msgspec.Struct, frozen=True):
    """The content of the state file, of which each run and each rank is yet to be decoded."""

    version: int
    boot: str
    runs: list[msgspec.Raw]
    lives: list[msgspec.Raw]


def encode(totals: SavedTotals) -> bytes:
    """Return the totals as JSON."""
    return msgspec.json.encode(totals)


def decode(data: bytes) -> SavedTotals:
    """Return what `encode` was given; raise ValueError for anything else.

    An invalid run or rank is left out alone: its numbers were chosen by ranks.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except _UNREADABLE as error:
        raise ValueError(f"invalid content: {error}") from error
    if file.version != VERSION:
        raise ValueError(f"version {file.version}: this exporter reads version {VERSION}")
    return SavedTotals(file.version, file.boot, list(_each(file.runs, SavedRun)), list(_each(file.lives, SavedRank)))


def _each(raws: Iterable[msgspec.Raw], kind: type[Kind]) -> Iterator[Kind]:
    for raw in raws:
        try:
            yield msgspec.json.decode(raw, type=kind)
        except _UNREADABLE as error:
            _log.warning("part of the state file not used", extra={"kind": kind.__name__, "error": error})
