"""FLOPs per token: equal to PyTorch's own count, by every convention, and with recomputation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tachograph.client.flops.model_flops import (
    BASES,
    CONVENTIONS,
    ModelFlops,
    active_parameters,
    hardware_flops,
    model_flops,
    of_config,
    six_n,
)
from tachograph.client.flops.model_shape import Experts, Latent, ModelShape

BATCH, LENGTH = 2, 32
DENSE = ModelShape(layers=2, hidden=48, heads=4, kv_heads=4, head=12, mlp=192, vocabulary=100, gated=False)
GROUPED = ModelShape(layers=2, hidden=48, heads=6, kv_heads=2, head=16, mlp=128, vocabulary=100, gated=True)
MIXTURE = replace(
    GROUPED, layers=3, experts=Experts(routed=8, active=2, width=40, layers=2, shared=24, shared_gate=True)
)
LATENT = replace(GROUPED, kv_heads=6, value=8, latent=Latent(query_rank=20, rank=12, rotary=4))
SHAPES = {
    "dense": DENSE,
    "grouped": GROUPED,
    "mixture": MIXTURE,
    "latent": LATENT,
    "latent, queries not compressed": replace(LATENT, latent=Latent(query_rank=0, rank=12, rotary=4)),
}

TIED = ("dense", "latent")
"""Whose embedding is their head: shapes do not say that, and the counter counts the same."""


def decoder(shape: ModelShape, *, tied: bool = False, checkpointed: bool = False) -> Any:
    """A transformer of plain linear layers and PyTorch's attention, built independently of the formulas."""
    torch = pytest.importorskip("torch")
    nn, functional = torch.nn, torch.nn.functional
    value = shape.value or shape.head

    def linear(inputs: int, outputs: int) -> Any:
        return nn.Linear(inputs, outputs, bias=False)

    class Attention(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.query = linear(shape.hidden, shape.heads * shape.head)
            self.key = linear(shape.hidden, shape.kv_heads * shape.head)
            self.value = linear(shape.hidden, shape.kv_heads * value)
            self.output = linear(shape.heads * value, shape.hidden)

        def keys_and_values(self, x: Any) -> tuple[Any, Any]:
            return self.key(x).view(*x.shape[:2], shape.kv_heads, -1), self.value(x).view(
                *x.shape[:2], shape.kv_heads, -1
            )

        def forward(self, x: Any) -> Any:
            query = self.query(x).view(*x.shape[:2], shape.heads, -1)
            heads = (part.transpose(1, 2) for part in (query, *self.keys_and_values(x)))
            seen = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
            return self.output(seen.transpose(1, 2).flatten(2))

    class LatentAttention(Attention):
        def __init__(self, latent: Latent) -> None:
            super().__init__()
            self.latent, self.rest = latent, shape.head - latent.rotary
            if latent.query_rank:
                self.query = nn.Sequential(
                    linear(shape.hidden, latent.query_rank), linear(latent.query_rank, shape.heads * shape.head)
                )
            self.key = linear(shape.hidden, latent.rank + latent.rotary)
            self.value = linear(latent.rank, shape.heads * (self.rest + value))

        def keys_and_values(self, x: Any) -> tuple[Any, Any]:
            compressed, rotary = self.key(x).split([self.latent.rank, self.latent.rotary], -1)
            both = self.value(compressed).view(*x.shape[:2], shape.heads, -1)
            keys, values = both.split([self.rest, value], -1)
            rotary = rotary.unsqueeze(2).expand(-1, -1, shape.heads, -1)
            return torch.cat([keys, rotary], -1), values

    class Mlp(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.up, self.down = linear(shape.hidden, width), linear(width, shape.hidden)
            self.gate = linear(shape.hidden, width) if shape.gated else None

        def forward(self, x: Any) -> Any:
            inner = self.up(x)
            return self.down(functional.gelu(inner) if self.gate is None else functional.silu(self.gate(x)) * inner)

    class Mixture(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, experts: Experts) -> None:
            super().__init__()
            self.active = experts.active
            self.router = linear(shape.hidden, experts.routed)
            self.experts = nn.ModuleList(Mlp(experts.width) for _ in range(experts.routed))
            self.shared, self.shared_gate = Mlp(experts.shared), linear(shape.hidden, 1)

        def forward(self, x: Any) -> Any:
            tokens = x.flatten(0, 1)
            weights, chosen = self.router(tokens).softmax(-1).topk(self.active)
            out = self.shared(tokens) * self.shared_gate(tokens).sigmoid()
            for number, expert in enumerate(self.experts):
                rows, slots = (chosen == number).nonzero(as_tuple=True)
                out = out.index_add(0, rows, expert(tokens[rows]) * weights[rows, slots, None])
            return out.view_as(x)

    class Layer(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, number: int) -> None:
            super().__init__()
            self.attention = Attention() if shape.latent is None else LatentAttention(shape.latent)
            experts = shape.experts
            dense = experts is None or number < shape.layers - experts.layers
            self.mlp = Mlp(shape.mlp) if dense or experts is None else Mixture(experts)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(functional.layer_norm(x, x.shape[-1:]))
            return x + self.mlp(functional.layer_norm(x, x.shape[-1:]))

    class Decoder(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
            self.layers = nn.ModuleList(Layer(number) for number in range(shape.layers))
            self.head = linear(shape.hidden, shape.vocabulary)
            if tied:
                self.head.weight = self.embedding.weight

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
            return self.head(x)

    torch.manual_seed(1)
    return Decoder()


def counted(model: Any, vocabulary: int) -> tuple[float, float]:
    """Forward and total operations per token as PyTorch counts them.

    With the attention that is made of matrix products: the counter does not know the CPU's fused one and finds nothing
    in it; and of the GPU's fused ones it counts the scores that their backward computes again.
    """
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    tokens = torch.randint(vocabulary, (BATCH, LENGTH))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        out = model(tokens)
        forward = counter.get_total_flops()
        out.sum().backward()
        return forward / (BATCH * LENGTH), counter.get_total_flops() / (BATCH * LENGTH)


def full(shape: ModelShape, length: int = LENGTH) -> ModelFlops:
    return model_flops(shape, sequence_length=length, convention="full")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SHAPES)
def test_equal_to_the_counter(name: str) -> None:
    """`full` is what FlopCounterMode counts, forward and with backward, whatever is tied; `causal` is less, exactly."""
    shape = SHAPES[name]
    forward, total = counted(decoder(shape, tied=name in TIED), shape.vocabulary)
    said = full(shape)
    assert said.forward == pytest.approx(forward, rel=1e-9)
    assert said.total == said.forward + said.backward == pytest.approx(total, rel=1e-9)
    # the counter does not see the mask: of LENGTH keys a query meets (LENGTH + 1) / 2
    unseen = 2 * shape.layers * shape.heads * (shape.head + (shape.value or shape.head)) * (LENGTH - 1) / 2
    causal = model_flops(shape, sequence_length=LENGTH, convention="causal")
    assert causal.forward == pytest.approx(forward - unseen, rel=1e-9)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_recomputation_is_what_checkpointing_adds() -> None:
    """Checkpointed layers compute their forward twice, the head only once; an early stop spares their last product."""
    checkpoint = pytest.importorskip("torch.utils.checkpoint")
    said = full(GROUPED)
    with checkpoint.set_checkpoint_early_stop(False):
        _, total = counted(decoder(GROUPED, checkpointed=True), GROUPED.vocabulary)
    assert hardware_flops(said) == pytest.approx(total, rel=1e-9)
    _, stopped = counted(decoder(GROUPED, checkpointed=True), GROUPED.vocabulary)
    assert stopped == pytest.approx(total - 2 * GROUPED.layers * GROUPED.mlp * GROUPED.hidden, rel=1e-9)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tied", [False, True])
def test_six_n_leaves_the_scores_out(tied: bool) -> None:
    """6·N of a model's own parameters, less what is only looked up, is its operations but for the scores."""
    parameters = sum(parameter.numel() for parameter in decoder(DENSE, tied=tied).parameters())
    approximate = six_n(parameters, looked_up=0 if tied else DENSE.vocabulary * DENSE.hidden)
    assert approximate == 6 * active_parameters(DENSE)
    scores = 3 * 4 * DENSE.layers * DENSE.hidden * LENGTH
    assert full(DENSE).total == approximate + scores
    # the documented error, of a model that is all layers of 12·h² weights
    share = LENGTH / (6 * DENSE.hidden + LENGTH)
    head = 6 * DENSE.vocabulary * DENSE.hidden
    assert scores / (approximate - head + scores) == pytest.approx(share)


SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 128,
    "vocab_size": 100,
}
SPARSE = {**SMALL, "num_key_value_heads": 2, "num_experts_per_tok": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT2Config": {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 100},
    "LlamaConfig": {**SMALL, "num_key_value_heads": 2},
    "MixtralConfig": {**SPARSE, "num_local_experts": 8},
    "Qwen2MoeConfig": {
        **SPARSE, "num_experts": 8, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 24,
    },
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_the_counter_on_models_of_others(family: str) -> None:
    """Dense, grouped and sparse models as Hugging Face builds them, read from their own configuration: within 1 %.

    Their experts in a plain loop: the counter does not know the grouped product that is the default, and finds nothing
    in it – three quarters of a Mixtral.
    """
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, family)(**FAMILIES[family], bos_token_id=1, eos_token_id=2)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    forward, total = counted(lambda tokens: model(tokens).logits, config.vocab_size)
    said = of_config(model.config, sequence_length=LENGTH, convention="full")
    assert said.forward == pytest.approx(forward, rel=0.01)
    assert said.total == pytest.approx(total, rel=0.01)


def pairs(length: int, window: int) -> int:
    """Query and key pairs under a causal mask, counted one by one."""
    return sum(key <= query < key + window for query in range(length) for key in range(length))


@pytest.mark.parametrize("window", [1, 2, 7, 31, 32, 33, 1000])
@pytest.mark.parametrize("windowed_layers", [1, 2])
def test_sliding_windows(window: int, windowed_layers: int) -> None:
    """Windowed layers count the pairs their mask leaves; the name tells if that were fewer; `full` ignores any mask."""
    shape = replace(GROUPED, window=window, windowed_layers=windowed_layers)
    said = model_flops(shape, sequence_length=LENGTH, convention="causal")
    met = windowed_layers * pairs(LENGTH, window) + (2 - windowed_layers) * pairs(LENGTH, LENGTH)
    scores = 4 * shape.heads * shape.head * met / LENGTH
    assert said.forward == pytest.approx(2 * active_parameters(shape) + scores)
    assert said.convention == ("causal_window" if window < LENGTH else "causal")
    assert full(shape) == full(GROUPED)


@pytest.mark.parametrize("window", [0, 5])
def test_packed_documents(window: int) -> None:
    """Documents do not see each other; one document is `causal`, equal ones their mean, unequal ones cost more."""
    shape = replace(GROUPED, window=window, windowed_layers=2 if window else 0)

    def packed(documents: Any) -> ModelFlops:
        return model_flops(shape, sequence_length=LENGTH, convention="packed", documents=documents)

    lengths = [3, 20, 9]
    met = sum(pairs(length, window or LENGTH) for length in lengths) / sum(lengths)
    said = packed(lengths)
    assert said.forward == pytest.approx(2 * active_parameters(shape) + 2 * 4 * shape.heads * shape.head * met)
    assert said.convention == ("packed_window" if window else "packed")
    assert packed([LENGTH])[:4] == model_flops(shape, sequence_length=LENGTH, convention="causal")[:4]
    assert packed(8.0) == packed([8, 8, 8, 8]) == packed(iter((8, 8)))
    assert packed(32 / 3).total < packed(lengths).total
    assert packed([4, 4]).convention == "packed"


def test_conventions_are_bounded() -> None:
    """No other name comes out than `CONVENTIONS` has: it is a label."""
    windows = [replace(GROUPED, window=4, windowed_layers=1), GROUPED]
    names = {
        model_flops(shape, sequence_length=8, convention=name, documents=[8] if name == "packed" else None).convention
        for shape in windows
        for name in BASES
    }
    assert names == set(CONVENTIONS)


def test_recomputed_shares() -> None:
    """None, a half, each layer, and the head as well: then it is one more forward."""
    said = full(GROUPED)
    assert hardware_flops(said, layers=0) == said.total
    assert hardware_flops(said, layers=0.5) == said.total + (said.forward - said.head) / 2
    assert hardware_flops(said, head=True) == pytest.approx(said.total + said.forward)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="share from 0 to 1"):
            hardware_flops(said, layers=wrong)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"convention": "palm"}, "not one of full, causal, packed"),
        ({"convention": "causal_window"}, "not one of"),
        ({"sequence_length": 0}, "sequence_length is 0"),
        ({"sequence_length": True}, "sequence_length is True"),
        ({"sequence_length": 2.0}, "sequence_length is 2.0"),
        ({"sequence_length": 10**400}, "sequence_length is 1000"),
        ({"convention": "packed"}, "it needs them"),
        ({"documents": [4]}, "lengths are for packed"),
        *(
            ({"convention": "packed", "documents": wrong}, "documents")
            for wrong in (
                [],
                [0, 4],
                [-3],
                [33],
                0.5,
                33.0,
                math.nan,
                math.inf,
                10**400,
                [10**400],
                "some",
                [None],
                object(),
            )
        ),
    ],
)
def test_lengths_that_cannot_be(given: dict[str, Any], said: str) -> None:
    """A convention nobody knows, no tokens, documents that do not fit: ValueError with the reason."""
    with pytest.raises(ValueError, match=said):
        model_flops(GROUPED, **{"sequence_length": LENGTH, "convention": "causal", **given})


@pytest.mark.parametrize(("parameters", "looked_up"), [(0, 0), (-1, 0), (5, 5), (5, -1)])
def test_six_n_of_nothing(parameters: int, looked_up: int) -> None:
    """No parameters left to multiply is no model."""
    with pytest.raises(ValueError, match="nothing is left"):
        six_n(parameters, looked_up=looked_up)
