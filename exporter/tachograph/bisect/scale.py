"""Everything that changes between the largest value that works and the smallest that fails: where to look first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tachograph.text import humanize

FELT = 1.2
"""By how much an effective batch must grow to ask for another rate."""


def changes(kind: str, works: int, fails: int, by_node: int) -> Iterator[str]:
    """Yield a sentence on each thing that changes with the scale; `by_node` is the number of ranks on a node."""
    factor = max(works, fails) / max(1, min(works, fails))
    if kind == "ranks":
        yield from _nodes(works, fails, by_node)
        yield from _shape(works, fails, by_node)
        yield (
            "Memory of a rank: sharded over all ranks (FSDP, ZeRO), the 16 bytes a parameter of mixed precision with "
            f"Adam become {16 / fails:.3g} on {fails} ranks after {16 / works:.3g} on {works}; replicated they stay. "
            "NCCL's connections and buffers grow with a rank's peers."
        )
        yield from _batch(works, fails, f"with the same batch by rank it is {factor:.3g} times")
    elif kind == "batch":
        yield (
            f"Memory of a rank: activations grow with the batch, here {factor:.3g} times; parameters, gradients "
            "and optimizer do not. Smaller micro-batches with accumulation, or activation checkpointing, need less."
        )
        yield "Kernels: another shape may take another kernel, with a workspace of its own, or none that is compiled."
        yield from _batch(works, fails, f"it is {factor:.3g} times")
    elif kind == "layers":
        yield (
            f"Memory of a rank: parameters, gradients, optimizer and activations of a layer come {factor:.3g} times; "
            "embeddings stay."
        )
        yield (
            f"Pipeline: {fails} layers over a number of stages that does not divide them leave stages of different "
            f"length, or are refused ({works} were not)."
        )
        yield (
            "Numbers: a deeper network starts with larger outputs and gradients unless the initialisation of its "
            "residual branches shrinks with the depth; look at the gradient norm of the first steps."
        )


def _nodes(works: int, fails: int, by_node: int) -> Iterator[str]:
    before, after = math.ceil(works / by_node), math.ceil(fails / by_node)
    if before == after:
        yield (
            f"Nodes: {humanize.plural(after, 'node')} of {by_node} ranks before and after (--ranks-per-node says how "
            "many ranks a node has): no node boundary is crossed."
        )
        return
    if min(before, after) == 1:
        yield (
            f"Node boundary: {fails} ranks are {humanize.plural(after, 'node')}, {works} were "
            f"{humanize.plural(before, 'node')}. Collectives now go through NICs: interface (NCCL_SOCKET_IFNAME, "
            "NCCL_IB_HCA), firewall, MASTER_ADDR as the other node resolves it, and the same environment there."
        )
    else:
        yield (
            f"Nodes: {after} instead of {before}: another node, and perhaps another switch, is in the path. "
            "`tachograph bisect nodes` finds out whether it is one of them."
        )
    yield (
        "NCCL chooses its algorithm and protocol by the number of nodes, ranks by node and the size of a message: "
        "ring, tree and, where NVSwitch can add, NVLS within a node and NVLSTree between nodes. One trial with "
        "NCCL_ALGO=Ring says whether that choice matters; NCCL_DEBUG=INFO shows the rings and trees."
    )


def _shape(works: int, fails: int, by_node: int) -> Iterator[str]:
    if fails > by_node and fails % by_node:
        yield f"Placement: {fails} ranks do not fill nodes of {by_node}: the last one has {fails % by_node}."
    if fails & (fails - 1) and not works & (works - 1):
        yield (
            f"Divisors: {works} is a power of two, {fails} is not: tensor, pipeline and data parallel sizes must "
            f"multiply to {fails}, and batch and heads must divide by theirs."
        )


def _batch(works: int, fails: int, how: str) -> Iterator[str]:
    factor = fails / works
    if factor < FELT:
        return
    yield (
        f"Effective batch: {how} as large. With SGD the learning rate is usually multiplied by as much, {factor:.3g} "
        f"(Goyal et al. 2017), with Adam by something between its root, {math.sqrt(factor):.3g}, and that; a run that "
        "diverges early needs a longer warm-up at the higher rate. Warm-up and schedules counted in steps now cover "
        f"{factor:.3g} times as many samples. For the same batch, accumulate fewer micro-batches."
    )
