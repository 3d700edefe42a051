"""Where a check runs: this rank among the others, its node and its devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tachograph.node.node_name import node_name
from tachograph.preflight.exchange import Exchange
from tachograph.preflight.finding import Conclusion, Facts
from tachograph.preflight.options import PreflightOptions

CPU = "cpu"


@dataclass
class PreflightSite:
    """Everything that a check may know. `node_of` is complete on rank 0 alone, and so is `slow_ranks`, which grows."""

    options: PreflightOptions
    exchange: Exchange
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    under_launcher: bool = False
    torch_problem: str = ""
    """Why no check can use PyTorch here; empty where they can."""
    devices: Sequence[str] = (CPU,)
    """Where this process computes: its rank's device, or without ranks every GPU of the node."""
    node: str = field(default_factory=node_name)
    node_of: dict[int, str] = field(default_factory=dict)
    slow_ranks: frozenset[int] = frozenset()
    group: bool = False
    """Whether this process is in a process group with the others."""
    progress: int = 0
    """How far this process has come in the check that it makes, in exchanges with others."""
    left_behind: bool = False
    """Whether work of this process that took too long still goes on in a thread."""

    @property
    def device(self) -> str:
        """The device of this rank, the first one without ranks."""
        return self.devices[0]

    def who(self, ranks: Collection[int]) -> str:
        """Return how a person names these ranks: by node where they are all of a node's, without ranks by nothing."""
        if not self.under_launcher:
            return self.node
        chosen = set(ranks)
        if chosen >= set(self.node_of):
            return "all ranks" if len(chosen) > 1 else f"rank {min(chosen)}"
        parts = []
        by_node: dict[str, set[int]] = {}
        for rank, node in self.node_of.items():
            by_node.setdefault(node, set()).add(rank)
        for node, members in by_node.items():
            there = chosen & members
            if not there:
                continue
            whole = there == members and len(by_node) > 1
            parts.append(f"node {node}" if whole else numbered(there) + (f" of {node}" if len(by_node) > 1 else ""))
        return ", ".join(parts) or numbered(chosen)

    def who_does(self, ranks: Collection[int], one: str, several: str) -> str:
        """Return these ranks as the subject of a sentence, with the form of its verb: `rank 2 has`."""
        subject = self.who(ranks)
        return f"{subject} {several if subject.startswith(('ranks', 'all')) or ', ' in subject else one}"


@dataclass(frozen=True)
class PreflightCheck:
    """One check: what every rank measures, and what rank 0 concludes from all of it.

    `missing` returns what the check lacks, such as an option that was not given; with it the check is skipped. `turns`:
    ranks that share the CPUs of a node measure one after another. `grouped`: it communicates in the process group.
    `better` makes one of two measurements: ranks found slow measure once more, for what disturbed them may be over.
    """

    name: str
    title: str
    measure: Callable[[PreflightSite], Facts]
    conclude: Callable[[Mapping[int, Facts], PreflightSite], Conclusion]
    missing: Callable[[PreflightOptions], str] = lambda options: ""
    needs_torch: bool = False
    needs_ranks: bool = False
    grouped: bool = False
    turns: bool = False
    better: Callable[[Facts, Facts], Facts] | None = None


def numbered(ranks: Collection[int]) -> str:
    """Return ranks as `rank 2` or `ranks 0-3, 8`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def placed(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int, int] | None:
    """Return rank, world size, local rank and local world size as torchrun sets them; None without a launcher.

    Raise ValueError for numbers that cannot be.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    usual = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    numbers = []
    for name in names:
        text = environment.get(name) or usual.get(name, "")
        if not text.isdecimal():
            raise ValueError(f"{name}={text!r}: expected a whole number")
        numbers.append(int(text))
    rank, world, local_rank, local_world = numbers
    if not rank < world:
        raise ValueError(f"RANK={rank} is not below WORLD_SIZE={world}")
    if not local_rank < local_world:
        raise ValueError(f"LOCAL_RANK={local_rank} is not below LOCAL_WORLD_SIZE={local_world}")
    return rank, world, local_rank, local_world
