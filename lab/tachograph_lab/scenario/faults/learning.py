"""Faults of what a run learns: its loss, its batches, its optimizer, its parameters."""

from __future__ import annotations

from dataclasses import dataclass

from tachograph_lab.scenario import values
from tachograph_lab.scenario.faults.fault import Fault
from tachograph_lab.scenario.values import optional, place, size

CHECKSUM_EVERY = 10
"""Steps between two checksums of the parameters, of which one may be wrong."""


@dataclass(frozen=True, kw_only=True)
class LossSpike(Fault):
    """The loss jumps by `by` for `steps` steps (unless it never recovers), the gradient norm × `gradient_factor`."""

    word = "loss_spike"
    sets = ("loss", "grad_norm")
    lasting = False
    by: float = size(values.positive)
    steps: int = optional(values.count, 1)
    recovers: bool = optional(values.flag, True)
    gradient_factor: float = optional(values.positive, 1.0)

    @property
    def until(self) -> float:
        """The second at which it ends; after one that recovers another spike may follow at once."""
        return self.at if self.recovers else super().until


@dataclass(frozen=True, kw_only=True)
class LossClimb(Fault):
    """The loss stops falling and climbs by this share of itself per minute."""

    word = "loss_climb"
    sets = ("loss",)
    per_minute: float = size(values.share)


@dataclass(frozen=True, kw_only=True)
class Nan(Fault):
    """One rank's loss or gradient norm is NaN; a loss makes everyone's so.

    `skipped`: mixed precision skips these steps, so it heals when the fault ends. `unlogged`: the loop leaves NaN out
    of what it logs of the loss.
    """

    word = "nan"
    sets = ("{what}",)
    rank: int = place("rank")
    what: str = optional(values.choice("loss", "grad_norm"), "loss")
    skipped: bool = optional(values.flag, False)
    unlogged: bool = optional(values.flag, False)


@dataclass(frozen=True, kw_only=True)
class SkipBatches(Fault):
    """A rank silently skips batches, one every 10 steps: its batch count falls behind."""

    word = "skip_batches"
    sets = ("batches",)
    rank: int = place("rank")


@dataclass(frozen=True, kw_only=True)
class StaleOptimizer(Fault):
    """A rank continues from an older optimizer state: its optimizer's step count differs."""

    word = "stale_optimizer"
    sets = ("optimizer",)
    rank: int = place("rank")


@dataclass(frozen=True, kw_only=True)
class WrongGlobalBatch(Fault):
    """The run comes back with another world size, and its global batch is no longer the configured one."""

    word = "wrong_global_batch"
    sets = ("global batch",)


@dataclass(frozen=True, kw_only=True)
class WrongChecksum(Fault):
    """A rank's checksum of replicated parameters differs from all others: its GPU returned wrong numbers."""

    word = "wrong_checksum"
    sets = ("checksum",)
    rank: int = place("rank")
