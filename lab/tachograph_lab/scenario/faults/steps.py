"""Faults of the pace of steps: slow phases and collectives, standstills, saves, a change of the batch."""

from __future__ import annotations

from dataclasses import dataclass

from tachograph.catalog.rank import PAUSES, PHASES
from tachograph_lab.scenario import values
from tachograph_lab.scenario.faults.fault import Fault
from tachograph_lab.scenario.values import optional, place, places, size

STEP_PHASES = tuple(phase for phase in PHASES if phase not in (*PAUSES, "other"))
"""The phases of an ordinary step, which a fault can lengthen."""


@dataclass(frozen=True, kw_only=True)
class SlowPhase(Fault):
    """A phase takes longer on these ranks: × factor, + seconds, or until the rank's whole step computes for `takes`."""

    word = "slow_phase"
    sets = ("phase {phase}",)
    one_of = ("factor", "adds", "takes")
    ranks: tuple[int, ...] = places("ranks")
    phase: str = size(values.choice(*STEP_PHASES))
    factor: float = optional(values.positive, 1.0)
    adds: float = optional(values.duration, 0.0)
    takes: float | None = optional(values.some_time, None)


@dataclass(frozen=True, kw_only=True)
class TakingTurns(Fault):
    """On each step another rank, in order, takes `adds` seconds longer in a phase, as where a slow shard goes round."""

    word = "turns"
    sets = ("phase {phase}",)
    phase: str = size(values.choice(*STEP_PHASES))
    adds: float = size(values.duration)


@dataclass(frozen=True, kw_only=True)
class Slowing(Fault):
    """All that a step is made of takes longer, on all ranks: by this share of its usual length more each minute."""

    word = "slowing"
    sets = ("pace",)
    per_minute: float = size(values.share)


@dataclass(frozen=True, kw_only=True)
class SlowCollective(Fault):
    """The all-reduce is slower through these nodes; their NICs may count errors.

    A ring is as slow as its slowest link, and every data-parallel ring passes through every node: all ranks wait
    equally long, at the same bus bandwidth, and none arrives late. Only the NICs' errors point to the cause.
    """

    word = "slow_collective"
    sets = ("collective",)
    one_of = ("factor", "adds")
    nodes: tuple[int, ...] = places("nodes")
    factor: float = optional(values.positive, 1.0)
    adds: float = optional(values.duration, 0.0)
    nic_errors: float = optional(values.not_negative, 0.0)


@dataclass(frozen=True, kw_only=True)
class Stuck(Fault):
    """A rank enters a phase and does not leave it; the others wait in the collective that it never enters.

    In phase checkpoint that is the barrier behind the next save, in which the others wait in phase checkpoint, too.
    """

    word = "stuck"
    sets = ("process",)
    rank: int = place("rank")
    phase: str = size(values.choice(*STEP_PHASES, "checkpoint"))


@dataclass(frozen=True, kw_only=True)
class PauseOnce(Fault):
    """Ranks pause between two steps; the others wait for them in the next collective, or go on without them."""

    word = "pause"
    sets = ("process",)
    one_of = ("for",)
    ranks: tuple[int, ...] = places("ranks")
    phase: str = optional(
        values.choice("other", "checkpoint", "eval", "generate", "reward", "data", "collective"), "other"
    )
    alone: bool = optional(values.flag, False)


@dataclass(frozen=True, kw_only=True)
class SlowLoader(Fault):
    """Every rank waits for input: data is `share` of the step, or takes `adds` longer, and the queue is empty."""

    word = "slow_loader"
    sets = ("phase data",)
    one_of = ("share", "adds")
    share: float = optional(values.share, 0.0)
    adds: float = optional(values.duration, 0.0)


@dataclass(frozen=True, kw_only=True)
class SlowCheckpoint(Fault):
    """Each checkpoint takes this long."""

    word = "slow_checkpoint"
    sets = ("checkpoint",)
    takes: float = size(values.some_time)


@dataclass(frozen=True, kw_only=True)
class NoCheckpoint(Fault):
    """No more checkpoints are saved."""

    word = "no_checkpoint"
    sets = ("checkpoint",)


@dataclass(frozen=True, kw_only=True)
class BatchChange(Fault):
    """A step changes by design, on every rank: its tokens and its compute × factor.

    It has so many times the batch, which the run says as its configuration, too; or the same of longer sequences.
    """

    word = "batch_change"
    sets = ("batch",)
    lasting = False
    factor: float = size(values.positive)
    of: str = optional(values.choice("batch", "sequences"), "batch")

    @property
    def until(self) -> float:
        """The second at which it ends; another change may follow at once."""
        return self.at
