"""How much memory a device needs for training a decoder, term by term, from its shape and how it is spread.

Parameters, gradients and optimizer states: Rajbhandari et al. 2020, "ZeRO", section 3.1 (2 + 2 + 12 bytes a parameter
in mixed precision). Activations: Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4, without
dropout, for grouped queries, gated MLPs and experts; with tensor parallelism the sequence is parallel, too. Where a
framework needs more, the estimate is too low: what it refuses does not fit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tachograph.client.flops.model_flops import active_parameters
from tachograph.client.flops.model_shape import ModelShape, shape_of
from tachograph.preflight.options import PreflightOptions

RESERVE = 2 * 2**30
"""CUDA's context, NCCL's buffers and libraries' workspaces take 1 to 3 GiB of a GPU."""

FULL, HALF = 4, 2
TIED = ("gpt2", "gemma", "gemma2", "gemma3_text", "cohere", "cohere2")
"""Families whose embedding and head are one matrix unless their configuration says otherwise."""

_KEYS = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "ffn": "intermediate_size", "vocabulary": "vocab_size",
}  # fmt: skip
_GPT2_KEYS = {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "ffn": "n_inner"}
_MOMENTS = {"adamw": 2.0, "adamw-8bit": 0.5, "sgd-momentum": 1.0, "sgd": 0.0, "adafactor": 0.01}
"""Full-precision numbers that an optimizer keeps for each parameter; Adafactor's are a row and a column."""


@dataclass(frozen=True)
class PlannedModel:
    """A model to be trained: its shape (None: only its size is known), its parameters, and tokens in a sequence."""

    shape: ModelShape | None
    parameters: float
    tied: bool
    sequence: int


@dataclass(frozen=True)
class MemoryTerm:
    """Bytes that one thing takes on the fullest device, and what makes it smaller."""

    name: str
    size: float
    remedy: str


def planned_model(options: PreflightOptions) -> PlannedModel | None:
    """Return the model that the options describe, None for none; raise ValueError for one that cannot be."""
    given = {name: getattr(options, name) for name in _KEYS if getattr(options, name) is not None}
    if options.parameters is not None and not options.model_config and not given:
        return PlannedModel(None, options.parameters, tied=False, sequence=0)
    if not options.model_config and not given:
        return None
    config = _config(options.model_config) if options.model_config else _by_hand(given)
    family = config.get("model_type")
    for name, value in given.items():
        own = _GPT2_KEYS.get(name, _KEYS[name]) if family == "gpt2" else _KEYS[name]
        config[own] = value
    try:
        shape = shape_of(config, gated=config.get("gated"))
    except ValueError as error:
        raise ValueError(f"{options.model_config or 'the shape'}: {error}") from None
    longest = next((config[key] for key in ("max_position_embeddings", "n_positions", "n_ctx") if config.get(key)), 0)
    sequence = options.sequence or longest
    if not isinstance(sequence, int) or not 0 < sequence < 1 << 40:
        raise ValueError("the length of a sequence is not known: --sequence N")
    tied = bool(config.get("tie_word_embeddings", family in TIED))
    return PlannedModel(shape, options.parameters or _parameters(shape, tied), tied, sequence)


def _config(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            config = json.loads(file.read(1 << 22))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no JSON") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is no JSON object")
    inner = config.get("text_config")
    return dict(inner) if isinstance(inner, dict) and "hidden_size" not in config else config


def _by_hand(given: Mapping[str, int]) -> dict[str, Any]:
    missing = [f"--{name}" for name in ("layers", "hidden", "heads", "vocabulary") if name not in given]
    if missing:
        raise ValueError(f"the model's shape lacks {', '.join(missing)}")
    width = 256 * math.ceil(given["hidden"] * 8 / 3 / 256)  # as Llama's, whose gated MLP has the weights of 4 hidden
    return {"model_type": "llama", "intermediate_size": width}


def _parameters(shape: ModelShape, tied: bool) -> float:
    lookup = shape.vocabulary * shape.hidden
    return _matrices(shape) + (0 if tied else lookup)


def _matrices(shape: ModelShape) -> float:
    """Return the weights of all layers, all experts included, and of the head."""
    if shape.experts is not None:
        shape = replace(shape, experts=shape.experts._replace(active=shape.experts.routed))
    return float(active_parameters(shape))


def checkpoint_bytes(options: PreflightOptions) -> float | None:
    """Return the size of a checkpoint with optimizer states, None where the model is not known."""
    try:
        model = planned_model(options)
    except ValueError:
        return None
    if model is None:
        return None
    weights, _, states = _bytes_each(options)
    return model.parameters * (weights + states)


def _bytes_each(options: PreflightOptions) -> tuple[float, float, float]:
    """Return the bytes of a parameter, of its gradient, and of its optimizer states with the master copy."""
    mixed = options.precision.endswith("-mixed")
    moment = HALF if options.precision == "bf16" else FULL
    weights = FULL if options.precision == "fp32" else HALF
    return weights, weights, _MOMENTS[options.optimizer] * moment + (FULL if mixed else 0)


def shards(options: PreflightOptions, world_size: int) -> int:
    """Return over how many ranks ZeRO spreads; raise ValueError if the world cannot be divided like this."""
    model_parallel = options.tensor * options.pipeline * options.context
    if options.data is None and world_size % model_parallel:
        raise ValueError(f"{world_size} ranks are no multiple of tensor x pipeline x context = {model_parallel}")
    data = options.data if options.data is not None else world_size // model_parallel
    if (data * options.context) % options.expert:
        raise ValueError(f"{data * options.context} data-parallel ranks are no multiple of --expert {options.expert}")
    return data * options.context


def budget(model: PlannedModel, options: PreflightOptions, world_size: int, reserve: float) -> list[MemoryTerm]:
    """Return the terms of the fullest device, in the order in which they are allocated; raise ValueError."""
    over = shards(options, world_size)
    dense, experts = _held(model, options)
    weights, gradients, states = _bytes_each(options)
    expert_over = max(over // options.expert, 1)

    def spread(each: float, stage: int) -> float:
        return each * (dense / over + experts / expert_over if options.zero >= stage else dense + experts)

    terms = [
        MemoryTerm("reserve for CUDA and NCCL", reserve, "nothing: it is what the driver and NCCL take"),
        MemoryTerm("parameters", spread(weights, 3), "--zero 3 (FSDP), or more tensor or pipeline parallelism"),
        MemoryTerm("gradients", spread(gradients, 2), "--zero 2 or 3, or more tensor or pipeline parallelism"),
        MemoryTerm(
            "optimizer states",
            spread(states, 1),
            "--zero 1 or more over more ranks, or --optimizer adamw-8bit or adafactor",
        ),
    ]
    shape = model.shape
    if shape is None:
        return [term for term in terms if term.size]
    if options.zero == 3:
        layer = (_matrices(shape) - shape.vocabulary * shape.hidden) / shape.layers / options.tensor
        if shape.experts is not None:
            layer /= options.expert
        gathered = max(2 * layer, shape.vocabulary * shape.hidden / options.tensor) * weights
        terms.append(MemoryTerm("gathered layers", gathered, "wrap smaller units in FSDP, or more tensor parallelism"))
    return [term for term in [*terms, *_activations(model, shape, options)] if term.size]


def _held(model: PlannedModel, options: PreflightOptions) -> tuple[float, float]:
    """Return the dense and the expert parameters of the fullest rank before ZeRO spreads them."""
    shape = model.shape
    if shape is None:
        return model.parameters / (options.tensor * options.pipeline), 0.0
    share = math.ceil(shape.layers / options.pipeline) / shape.layers
    lookup = shape.vocabulary * shape.hidden
    ends = lookup if model.tied or options.pipeline > 1 else 2 * lookup
    experts = 0.0
    if shape.experts is not None:
        matrices = 3 if shape.gated else 2
        experts = float(shape.experts.layers * shape.experts.routed * matrices * shape.experts.width * shape.hidden)
    dense = _matrices(shape) - lookup - experts
    dense_held = (dense * share + ends) / options.tensor
    return dense_held, experts * share / options.tensor / options.expert


def _activations(model: PlannedModel, shape: ModelShape, options: PreflightOptions) -> list[MemoryTerm]:
    tokens = options.micro_batch * model.sequence / options.context
    each = FULL if options.precision == "fp32" else HALF
    layer = tokens * _layer_bytes(model, shape, options, each) / options.tensor
    stage = math.ceil(shape.layers / options.pipeline)
    if options.recompute == "full":
        kept = tokens * shape.hidden * each / options.tensor * stage
        first, last = kept * options.pipeline + layer, kept + layer
    else:
        first, last = layer * stage * options.pipeline, layer * stage
    logits = tokens * shape.vocabulary / options.tensor * (each + 2 * FULL)  # as computed, in full precision, gradient
    if options.pipeline > 1 and first >= last + logits:
        last, logits = first, 0.0
    remedy = "--recompute full, a smaller --micro-batch or --sequence, or more tensor or context parallelism"
    return [
        MemoryTerm("activations", last, remedy),
        MemoryTerm("logits", logits, "a smaller --micro-batch or --sequence, or a loss that computes logits in parts"),
    ]


def _layer_bytes(model: PlannedModel, shape: ModelShape, options: PreflightOptions, each: int) -> float:
    """Return what a layer keeps of one token for the backward pass: the inputs of its norms and matrices."""
    value = shape.value or shape.head
    attention = 2 * shape.hidden + shape.heads * (shape.head + value) + shape.kv_heads * (shape.head + value)
    wide = 4 if shape.gated else 2  # gate, up, activated gate, product; or before and after the activation
    dense = float(wide * shape.mlp)
    if shape.experts is not None:
        one = float(wide) * (shape.experts.active * shape.experts.width + shape.experts.shared)
        one += shape.experts.active * shape.hidden
        dense = (one * shape.experts.layers + dense * (shape.layers - shape.experts.layers)) / shape.layers
    numbers = attention + 2 * shape.hidden + dense
    extra = float(shape.heads * FULL)  # the sums of FlashAttention's softmax
    if options.recompute == "none":
        extra = shape.heads * model.sequence / options.context * each  # the softmax itself
    return numbers * each + extra
