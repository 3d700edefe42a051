"""Faults of GPUs, nodes and networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tachograph.catalog.gpu import RECOVERY_ACTIONS
from tachograph_lab.scenario import values
from tachograph_lab.scenario.faults.fault import Claim, Fault
from tachograph_lab.scenario.values import optional, place, places, size


@dataclass(frozen=True, kw_only=True)
class ThrottledGpus(Fault):
    """The GPUs of these ranks run at `to` of their clock because of heat or a power cap."""

    word = "throttle"
    sets = ("clock",)
    ranks: tuple[int, ...] = places("ranks")
    to: float = size(values.share)
    cause: str = optional(values.choice("thermal", "power"), "thermal")


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
class RecoveryAction(Fault):
    """NVML says that a rank's GPU needs this."""

    word = "recovery_action"
    sets = ("recovery action",)
    rank: int = place("rank")
    action: str = size(values.choice(*RECOVERY_ACTIONS[1:]))


@dataclass(frozen=True, kw_only=True)
class Leak(Fault):
    """Memory of these ranks grows steadily: reserved memory of the device, or memory of the host."""

    word = "leak"
    sets = ("memory of the {kind}",)
    ranks: tuple[int, ...] = places("ranks")
    bytes_per_hour: float = size(values.positive)
    kind: str = optional(values.choice("device", "host"), "device")


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
class ClockSkew(Fault):
    """The clocks of these nodes are ahead by `by` seconds, or behind."""

    word = "clock_skew"
    sets = ("wall clock",)
    nodes: tuple[int, ...] = places("nodes")
    by: float = size(values.offset)


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
