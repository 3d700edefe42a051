"""The faults of a scenario (`docs/scenarios.md`): a dataclass for each, with its parameters and what it changes.

Long, as it is a table: one class after another, each of which is read alone.

A fault that changes steps takes effect with the first step that begins at or after `at`; the others exactly at `at`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from tachograph.catalog.gpu import RECOVERY_ACTIONS
from tachograph.catalog.rank import PAUSES, PHASES
from tachograph_lab.scenario import values
from tachograph_lab.scenario.values import optional, place, places, size

STEP_PHASES = tuple(phase for phase in PHASES if phase not in (*PAUSES, "other"))
"""The phases of an ordinary step, which a fault can lengthen."""

CHECKSUM_EVERY = 10
"""Steps between two checksums of the parameters, of which one may be wrong."""

RUN = -1
"""The place of a fault that affects the whole run."""

Claim = tuple[str, frozenset[int]]
"""A quantity and the places at which a fault sets it; two faults must not claim the same at the same time."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that begins at second `at` and lasts for `lasts` seconds (None: to the end)."""

    word: ClassVar[str]
    lasting: ClassVar[bool] = True
    """Whether it can be given an end (`for:`)."""
    one_of: ClassVar[tuple[str, ...]] = ()
    """Exactly one of these keys is given."""
    sets: ClassVar[tuple[str, ...]] = ()
    """The quantities that it sets, to detect contradictions; may refer to its own fields."""

    at: float = size(values.duration)
    lasts: float | None = optional(values.some_time, None, key="for")

    @property
    def until(self) -> float:
        """The second at which it ends."""
        return math.inf if self.lasts is None else self.at + self.lasts

    @property
    def where(self) -> frozenset[int]:
        """The ranks or nodes that it affects."""
        for part in fields(self):
            if "place" in part.metadata:
                value = getattr(self, part.name)
                return frozenset(value if isinstance(value, tuple) else (value,))
        return frozenset({RUN})

    def claims(self, gpus_per_node: int) -> Iterator[Claim]:
        """Yield the quantities that it sets, and where."""
        for quantity in self.sets:
            yield quantity.format_map(vars(self)), self.where


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
class ThrottledGpus(Fault):
    """The GPUs of these ranks run at `to` of their clock because of heat or a power cap."""

    word = "throttle"
    sets = ("clock",)
    ranks: tuple[int, ...] = places("ranks")
    to: float = size(values.share)
    cause: str = optional(values.choice("thermal", "power"), "thermal")


@dataclass(frozen=True, kw_only=True)
class SlowLoader(Fault):
    """Every rank waits for input: data is `share` of the step, or takes `adds` longer, and the queue is empty."""

    word = "slow_loader"
    sets = ("phase data",)
    one_of = ("share", "adds")
    share: float = optional(values.share, 0.0)
    adds: float = optional(values.duration, 0.0)


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
class Kill(Fault):
    """A rank's process dies without a bye. After 10 s the others hang forever, abort, or end with a bye."""

    word = "kill"
    sets = ("process",)
    lasting = False
    rank: int = place("rank")
    cause: str = optional(values.choice("oom", "segfault"), "oom")
    others: str = optional(values.choice("hang", "abort", "end"), "abort")


@dataclass(frozen=True, kw_only=True)
class Exit(Fault):
    """Ranks leave with an exit status; 2 s later the others fail, or they hang for ever, or train on without them.

    If the bye is lost, the exporter learns of the status from the process alone.
    """

    word = "exit"
    sets = ("process",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")
    code: int = size(values.whole)
    others: str = optional(values.choice("end", "hang", "train"), "end")
    bye: str = optional(values.choice("said", "lost"), "said")


@dataclass(frozen=True, kw_only=True)
class Fail(Fault):
    """These ranks fail one after the other within `within` seconds, all for one reason; the others hang."""

    word = "fail"
    sets = ("process",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")
    category: str = optional(values.choice("oom", "collective", "data", "exception"), "collective")
    within: float = optional(values.duration, 0.0)


@dataclass(frozen=True, kw_only=True)
class Sigterm(Fault):
    """Ranks end on SIGTERM, the others without them; the next attempt starts `requeued` seconds later, or never.

    The others may wait for them instead. If they ignore it, they are killed half a minute later, all at once.
    """

    word = "sigterm"
    sets = ("attempt",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")
    requeued: float = size(values.some_time_or_never)
    ignored: bool = optional(values.flag, False)
    others: str = optional(values.choice("end", "hang"), "end")

    @property
    def until(self) -> float:
        """The second at which the next attempt begins."""
        return self.at + self.requeued

    def claims(self, gpus_per_node: int) -> Iterator[Claim]:
        """Yield the whole run's attempt."""
        yield "attempt", frozenset({RUN})


@dataclass(frozen=True, kw_only=True)
class LeaveEarly(Fault):
    """Ranks leave the loop after their next step and say that they have finished; the others wait for them."""

    word = "leave_early"
    sets = ("process",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")


@dataclass(frozen=True, kw_only=True)
class NoShow(Fault):
    """Ranks are not started with the attempts that begin from then on; the others wait for them in init."""

    word = "no_show"
    sets = ("process",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")


@dataclass(frozen=True, kw_only=True)
class Freeze(Fault):
    """A rank's process is frozen: its connection stays open, and nothing is sent on it."""

    word = "freeze"
    sets = ("process",)
    rank: int = place("rank")


@dataclass(frozen=True, kw_only=True)
class Gil(Fault):
    """A thread of these ranks holds the interpreter's lock: they compute and send nothing, still connected."""

    word = "gil"
    sets = ("process",)
    one_of = ("for",)
    ranks: tuple[int, ...] = places("ranks")

    def freezes(self) -> Iterator[Freeze]:
        """Yield it as a freeze of each rank, which it is to everyone else."""
        for rank in self.ranks:
            yield Freeze(at=self.at, lasts=self.lasts, rank=rank)


@dataclass(frozen=True, kw_only=True)
class SkipCollective(Fault):
    """A rank skips one all-reduce: it waits in the next one while the others wait for it in this one."""

    word = "skip_collective"
    sets = ("process",)
    lasting = False
    rank: int = place("rank")


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


@dataclass(frozen=True, kw_only=True)
class Ecc(Fault):
    """A rank's GPU counts one uncorrectable memory error."""

    word = "ecc"
    lasting = False
    rank: int = place("rank")


@dataclass(frozen=True, kw_only=True)
class LoggedXid(Fault):
    """The driver logs this Xid for a rank's GPU."""

    word = "xid"
    lasting = False
    rank: int = place("rank")
    number: int = size(values.count)


@dataclass(frozen=True, kw_only=True)
class LostGpu(Fault):
    """NVML reports "GPU is lost" for a rank's GPU; the rank hangs in its next step."""

    word = "gpu_lost"
    sets = ("gpu",)
    rank: int = place("rank")


@dataclass(frozen=True, kw_only=True)
class HungGpu(Fault):
    """NVML calls for a rank's GPU never return; the rank hangs in its next step."""

    word = "gpu_hung"
    sets = ("gpu",)
    rank: int = place("rank")


@dataclass(frozen=True, kw_only=True)
class Leak(Fault):
    """Memory of these ranks grows steadily: reserved memory of the device, or memory of the host."""

    word = "leak"
    sets = ("memory of the {kind}",)
    ranks: tuple[int, ...] = places("ranks")
    bytes_per_hour: float = size(values.positive)
    kind: str = optional(values.choice("device", "host"), "device")


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
class RestartLoop(Fault):
    """Attempts of `every` seconds make no progress: one rank fails with `category`, its peers then with collective."""

    word = "restart_loop"
    sets = ("attempt",)
    lasting = False
    every: float = size(values.some_time)
    attempts: int = size(values.count)
    category: str = optional(values.choice("oom", "collective", "data", "exception"), "oom")

    @property
    def until(self) -> float:
        """The second at which the last attempt has failed."""
        return self.at + self.every * self.attempts


@dataclass(frozen=True, kw_only=True)
class PlannedRestart(Fault):
    """All ranks end on SIGTERM; the next attempt starts from the last checkpoint `takes` seconds later."""

    word = "planned_restart"
    sets = ("attempt",)
    lasting = False
    takes: float = size(values.some_time)

    @property
    def until(self) -> float:
        """The second at which the next attempt begins."""
        return self.at + self.takes


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


@dataclass(frozen=True, kw_only=True)
class ScrapeFailure(Fault):
    """One scrape of a node's exporter fails: once, or again every `every` seconds."""

    word = "scrape_failure"
    sets = ("scrape failure",)
    node: int = place("node")
    every: float | None = optional(values.some_time, None)


@dataclass(frozen=True, kw_only=True)
class ScrapeLost(Fault):
    """One scrape of each of these nodes fails: the first from `at` on."""

    word = "scrape_lost"
    sets = ("scrape failure",)
    lasting = False
    nodes: tuple[int, ...] = places("nodes")


@dataclass(frozen=True, kw_only=True)
class Vanish(Fault):
    """Service discovery drops the exporters of these nodes: Prometheus does not scrape them, nor miss them."""

    word = "vanish"
    sets = ("discovery",)
    nodes: tuple[int, ...] = places("nodes")


@dataclass(frozen=True, kw_only=True)
class DuplicateTarget(Fault):
    """A second job of Prometheus scrapes these nodes' exporters, too; with `port`, under an instance of its own."""

    word = "duplicate_target"
    sets = ("second target",)
    nodes: tuple[int, ...] = places("nodes")
    job: str = optional(values.text, "kubernetes-pods")
    port: int | None = optional(values.count, None)

    def instance(self, node: str) -> str:
        """Return the instance under which the second job has a node's exporter."""
        return node if self.port is None else f"{node}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Rollout(Fault):
    """The exporters of these nodes are replaced one after the other, `between` apart, each gone for `each`."""

    word = "rollout"
    sets = ("reach",)
    lasting = False
    nodes: tuple[int, ...] = places("nodes")
    each: float = size(values.some_time)
    between: float = size(values.duration)

    @property
    def until(self) -> float:
        """The second at which the last new exporter is up."""
        return self.at + (len(self.nodes) - 1) * self.between + self.each

    def downs(self) -> Iterator[ExporterDown]:
        """Yield it as what happens to each node's exporter."""
        for number, node in enumerate(self.nodes):
            yield ExporterDown(at=self.at + number * self.between, lasts=self.each, node=node)


@dataclass(frozen=True, kw_only=True)
class PrometheusRestart(Fault):
    """Prometheus starts anew, without its data."""

    word = "prometheus_restart"
    sets = ("Prometheus",)
    lasting = False

    @property
    def until(self) -> float:
        """The second at which it is over; another may follow."""
        return self.at


@dataclass(frozen=True, kw_only=True)
class PrometheusAway(Fault):
    """Prometheus is stopped, and returns after `for` with its data; in virtual time without."""

    word = "prometheus_away"
    sets = ("Prometheus",)
    one_of = ("for",)


@dataclass(frozen=True, kw_only=True)
class ClockSkew(Fault):
    """The clocks of these nodes are ahead by `by` seconds, or behind."""

    word = "clock_skew"
    sets = ("wall clock",)
    nodes: tuple[int, ...] = places("nodes")
    by: float = size(values.offset)


@dataclass(frozen=True, kw_only=True)
class ExporterDown(Fault):
    """A node's exporter is killed while its ranks train; after `for` a new one starts, and the ranks reconnect."""

    word = "exporter_down"
    sets = ("reach",)
    node: int = place("node")


@dataclass(frozen=True, kw_only=True)
class NodeDown(Fault):
    """A node dies with its ranks, and ranks elsewhere wait for them. After `for` it is back, without its ranks."""

    word = "node_down"
    node: int = place("node")

    def claims(self, gpus_per_node: int) -> Iterator[Claim]:
        """Yield the node's reachability and the processes of its ranks."""
        yield "reach", frozenset({self.node})
        first = self.node * gpus_per_node
        yield "process", frozenset(range(first, first + gpus_per_node))


@dataclass(frozen=True, kw_only=True)
class ScrapeBlocked(Fault):
    """Prometheus cannot reach a node; on the node everything runs as before."""

    word = "scrape_blocked"
    sets = ("reach",)
    node: int = place("node")


@dataclass(frozen=True, kw_only=True)
class LinkDown(Fault):
    """A node's InfiniBand port goes down: the next all-reduce hangs, and all ranks wait in it."""

    word = "link_down"
    sets = ("link",)
    node: int = place("node")


@dataclass(frozen=True, kw_only=True)
class IdlePortDown(Fault):
    """A network port of a node that no rank uses goes down."""

    word = "idle_port_down"
    sets = ("port {device}",)
    node: int = place("node")
    device: str = size(values.text)


@dataclass(frozen=True, kw_only=True)
class RecoveryAction(Fault):
    """NVML says that a rank's GPU needs this."""

    word = "recovery_action"
    sets = ("recovery action",)
    rank: int = place("rank")
    action: str = size(values.choice(*RECOVERY_ACTIONS[1:]))


@dataclass(frozen=True, kw_only=True)
class Finish(Fault):
    """All ranks say bye: the run is finished."""

    word = "finish"
    lasting = False


def freezes(faults: Iterable[Fault]) -> list[Freeze]:
    """Return everything that freezes a rank, one by one."""
    found: list[Freeze] = []
    for fault in faults:
        found += [fault] if isinstance(fault, Freeze) else fault.freezes() if isinstance(fault, Gil) else []
    return found


FAULTS: dict[str, type[Fault]] = {kind.word: kind for kind in Fault.__subclasses__()}
"""Every fault by its word in a scenario file."""
