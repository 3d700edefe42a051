"""Model floating-point operations per token, from a decoder's shape: what `Recorder(flops_per_token=…)` takes.

Counted: matrix multiplications, at 2 operations (a multiplication and an addition) per weight and token. With `h`
hidden size, `a` query heads of size `d`, `g` key and value heads, `f` the MLP's inner width, `V` the vocabulary, `K`
the mean number of keys a query meets, forward, per token:

    projections of a layer   2 · (h·(a+2g)·d + a·d·h)
    scores of a layer        2 · a·(d+d)·K             queries by keys, then scores by values
    MLP of a layer           2 · 3·h·f                 2·h·f where it is not gated
    experts instead          2 · (k·3·h·f + h·E)       k active experts and the router over E; shared ones always
    lm head                  2 · h·V                   tied or not; the embedding is a lookup and costs nothing

Backward is twice that: each product has two gradients. Frozen weights (adapters) have one fewer, and are not known
here. Norms, activations, biases, rotary embeddings and the optimizer are left out, as everybody does.

Sources: Narayanan et al. 2021 (arXiv 2104.04473, appendix) for the products; Chowdhery et al. 2022 (PaLM, arXiv
2204.02311, appendix B) for MFU and HFU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from tachograph.client.flops.model_shape import ModelShape, shape_of, size_faults

BASES = ("full", "causal", "packed")
CONVENTIONS = (*BASES, "causal_window", "packed_window")
"""How scores are counted. Figures of two conventions must never be compared: of Llama-3-8B, `full` is 1.07
times `causal` at 4096 tokens and 1.70 times at 131072."""


class ModelFlops(NamedTuple):
    """Floating-point operations per token without recomputation; `head` is the part of `forward` of the lm head."""

    forward: float
    backward: float
    total: float
    head: float
    convention: str


def model_flops(
    shape: ModelShape, *, sequence_length: int, convention: str, documents: float | Iterable[int] | None = None
) -> ModelFlops:
    """Return the operations per token of a model trained on sequences of `sequence_length` tokens.

    Conventions (no default: they differ by up to twice the scores):

    - `full`: every query meets every key, whatever the mask: K = T. PaLM, TorchTitan, nanoGPT, FlopCounterMode.
    - `causal`: only the pairs the mask leaves: K = (T+1)/2. Megatron halves, which is 1/T less.
    - `packed`: several documents share a sequence and do not see each other: K = Σ L(L+1)/2 / Σ L over `documents`,
      their lengths in tokens. A single number is the mean length, as if all had it: a lower bound, as long
      documents cost more than short ones save; the true K is higher by the lengths' variance / mean².

    `causal` and `packed` count sliding windows as the model has them, and are then called `causal_window` and
    `packed_window` if that left pairs out. ValueError for a convention or a length that cannot be.
    """
    if convention not in BASES:
        raise ValueError(f"convention is {convention!r}, not one of {', '.join(BASES)}")
    faults = size_faults({"sequence_length": sequence_length}, 1)
    if faults:
        raise ValueError(faults[0])
    if (documents is not None) != (convention == "packed"):
        raise ValueError(
            f"convention {convention!r} and documents={documents!r}: lengths are for packed, and it needs them"
        )
    lengths = [float(sequence_length)] if documents is None else _lengths(documents, sequence_length)
    tokens = math.fsum(lengths)
    everywhere = sequence_length if convention == "full" else math.fsum(map(_triangle, lengths)) / tokens
    windowed, name = everywhere, convention
    if convention != "full" and shape.windowed_layers and shape.window < max(lengths):
        unseen = math.fsum(_triangle(length - shape.window) for length in lengths if length > shape.window)
        windowed, name = everywhere - unseen / tokens, f"{convention}_window"
    keys = windowed * shape.windowed_layers + everywhere * (shape.layers - shape.windowed_layers)
    scores = 2.0 * shape.heads * (shape.head + (shape.value or shape.head)) * keys
    forward = 2.0 * active_parameters(shape) + scores
    return ModelFlops(forward, 2 * forward, 3 * forward, 2.0 * shape.hidden * shape.vocabulary, name)


def of_config(
    config: object,
    *,
    sequence_length: int,
    convention: str,
    documents: float | Iterable[int] | None = None,
    gated: bool | None = None,
) -> ModelFlops:
    """Return the operations per token of the model a Hugging Face configuration (object or dict) describes.

    ValueError names what is missing in it or not countable; see `model_shape.shape_of`, and `model_flops` for the rest.
    """
    shape = shape_of(config, gated=gated)
    return model_flops(shape, sequence_length=sequence_length, convention=convention, documents=documents)


def active_parameters(shape: ModelShape) -> int:
    """Return how many weights multiply each token: active experts only, the lm head once, no lookup tables."""
    attention = shape.layers * _projections(shape)
    matrices = 3 if shape.gated else 2
    dense, sparse = shape.layers, 0
    if shape.experts is not None:
        experts = shape.experts
        dense -= experts.layers
        width = experts.active * experts.width + experts.shared
        sparse = experts.layers * shape.hidden * (matrices * width + experts.routed + experts.shared_gate)
    return attention + dense * matrices * shape.hidden * shape.mlp + sparse + shape.hidden * shape.vocabulary


def hardware_flops(flops: ModelFlops, *, layers: float = 1.0, head: bool = False) -> float:
    """Return operations per token with what activation checkpointing computes again: for HFU, never for MFU.

    `layers` is the share of layers that are checkpointed (1: full checkpointing), `head` whether the lm head is, too:
    then full checkpointing adds one whole forward, 4/3 of the model's operations. PyTorch's checkpoint stops once it
    has what backward needs, so a layer's last product is not computed again unless its early stop is off; and
    FlashAttention computes scores again in backward, half a forward of theirs. Neither is counted here.
    """
    if not 0 <= layers <= 1:
        raise ValueError(f"layers is {layers!r}, not a share from 0 to 1")
    return flops.total + layers * (flops.forward - flops.head) + head * flops.head


def six_n(parameters: int, *, looked_up: int = 0) -> float:
    """Return the approximation 6·N operations per token (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).

    `looked_up` are the parameters that are looked up and never multiplied: an input embedding that is not tied to the
    head, a table of positions. What is left of N should be `active_parameters`; then the error is that scores are left
    out: too low by K / (6h + K) of the true total where a layer has 12·h² weights. Llama-3-8B, `causal`: 7 % too low at
    4096 tokens, 36 % at 32768. Lookups left in N add V / (12·L·h + V), experts that a token does not visit multiply
    the figure (by 3.7 for Mixtral 8x7B).
    """
    if looked_up < 0 or parameters <= looked_up:
        raise ValueError(f"parameters is {parameters!r} with looked_up {looked_up!r}: nothing is left to multiply")
    return 6.0 * (parameters - looked_up)


def _projections(shape: ModelShape) -> int:
    value = shape.value or shape.head
    queries, output = shape.heads * shape.head, shape.heads * value * shape.hidden
    if shape.latent is None:
        return shape.hidden * (queries + shape.kv_heads * (shape.head + value)) + output
    query_rank, rank, rotary = shape.latent
    query = query_rank * (shape.hidden + queries) if query_rank else shape.hidden * queries
    return query + shape.hidden * (rank + rotary) + rank * shape.heads * (shape.head - rotary + value) + output


def _lengths(documents: float | Iterable[int], longest: int) -> list[float]:
    try:
        given = [float(length) for length in ([documents] if isinstance(documents, (int, float)) else documents)]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"documents is {documents!r}, neither a mean length nor lengths") from error
    wrong = [length for length in given if not 1 <= length <= longest]
    if wrong or not given:
        raise ValueError(f"documents: {wrong[:3] or 'none'}, not lengths from 1 to the sequence's {longest} tokens")
    return given


def _triangle(length: float) -> float:
    return length * (length + 1) / 2
