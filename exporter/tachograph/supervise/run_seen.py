"""A run as the exporters of its nodes show it, or that nothing is known of it now."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tachograph.catalog.rank import ALIVE

WITHHELD = "(shown to the run's owner"
"""How a message begins that this reader may not see, the same for all of them."""


LONGEST_PATH = 4096
"""Bytes of a path that Linux takes, with its end."""


def is_path(text: str) -> bool:
    """Return whether a file can have a text for its path, or the empty one; a program cannot even be given others."""
    try:
        return "\0" not in text and len(os.fsencode(text)) < LONGEST_PATH
    except UnicodeEncodeError:  # half of a character
        return False


@dataclass(frozen=True)
class RankSeen:
    """A rank as the exporter shows it; `ended_seconds` is None while its process runs.

    `node` is the one whose exporter shows it, empty in a run of one node.
    """

    rank: int
    restarts: int
    state: str
    ended_seconds: float | None
    end_reason: str
    message: str
    step: int | None
    phase: str
    phase_seconds: float
    pid: str
    where: str
    process: str
    uuid: str
    is_lost: bool
    nonfinite_step: int | None
    steps: int | None = None
    """Those that its process has completed."""
    job_id: str = ""
    node: str = ""
    has_gpu_trouble: bool = False
    own_pid: str = ""
    process_started: str = ""
    """The number of its process in its own container, and when it began, in clock ticks since boot."""


class NodeProblem(NamedTuple):
    """Something that is wrong, in words, what usually helps, and the node that says so."""

    text: str
    remedy: str
    node: str = ""


@dataclass(frozen=True)
class CheckpointSeen:
    """A checkpoint: its step, when it was saved by the day's clock, and where, as far as that is known.

    Durable once all ranks have saved it; suspect if the loss was in trouble by then.
    """

    step: int
    time: float
    path: str
    is_durable: bool = True
    is_suspect: bool = False


@dataclass(frozen=True)
class AlertSeen:
    """An alert of the run that Alertmanager has as active: since when, in its own words, and who is to blame.

    `ranks` are those that it names, or that are on the node which it names; `node` is theirs. Both may be empty.
    """

    name: str
    trigger: str
    starts: float
    text: str
    ranks: tuple[int, ...] = ()
    node: str = ""


@dataclass(frozen=True)
class RunSeen:
    """A run, or its part on one node; `gpu_trouble` is in words, `times` are those at which these nodes answered.

    `hang_limit_of`: why it may go for so long without a step (`catalog.PAUSE_LIMITS`), if it may for a pause.
    `checkpoints` are its last ones, the newest last; `spiked_step` is that at which the loss began to spike, once that
    does not recover; `alerts` are those that began in this attempt, None if Alertmanager is not asked or says nothing.
    """

    name: str
    times: Mapping[str, float]
    state: str
    world_size: int
    seconds_without_step: float | None
    hang_limit: float
    saving_seconds: float | None
    culprit: int | None
    checkpoints: tuple[CheckpointSeen, ...]
    ranks: tuple[RankSeen, ...]
    problems: tuple[NodeProblem, ...]
    gpu_trouble: tuple[str, ...]
    node: str = ""
    spiked_step: int | None = None
    alerts: tuple[AlertSeen, ...] | None = None
    hang_limit_of: str = ""

    @property
    def step(self) -> int | None:
        """The furthest step of its ranks."""
        return max((rank.step for rank in self.ranks if rank.step is not None), default=None)

    @property
    def is_alive(self) -> bool:
        """Whether a rank's process is there."""
        return any(rank.state in ALIVE for rank in self.ranks)

    def follows(self, before: RunSeen) -> bool:
        """Return whether each node that was asked has concluded anew since it answered before."""
        return all(time != before.times.get(node) for node, time in self.times.items())


@dataclass(frozen=True)
class Unknown:
    """Nothing is known of the run now, and why: no reason to do anything."""

    why: str


class NotThere(Unknown):
    """The exporter answers, and has no rank of the run."""


class Silent(Unknown):
    """A node of the run does not answer: it may be lost as a whole, which a scheduler knows some minutes later."""


def nothing_seen(name: str) -> RunSeen:
    """Return a run of which no rank was ever seen."""
    return RunSeen(
        name, {}, "dead", 0, None, math.inf, None, None, (), ranks=(), problems=(), gpu_trouble=()
    )  # fmt: skip


def whole(seen: RunSeen | Unknown) -> RunSeen | Unknown:
    """Return a run all of whose ranks are known, or that some are not."""
    if isinstance(seen, Unknown):
        return Unknown(seen.why)
    if not seen.ranks:
        return Unknown(f"no rank of this attempt of run {seen.name} has reported to the exporter yet")
    if len(seen.ranks) < seen.world_size:
        return Unknown(
            f"only {len(seen.ranks)} of the {seen.world_size} ranks of run {seen.name} have reported to the exporter: "
            "the others begin, have no recorder, or are on another node"
        )
    return seen
