"""Shapes read from configurations: published figures come out, and what would be a guess is refused by name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.flops.model_flops import active_parameters, of_config
from tachograph.client.flops.model_shape import Experts, Latent, ModelShape, shape_of

SHAPE = ModelShape(layers=2, hidden=48, heads=6, kv_heads=2, head=16, mlp=128, vocabulary=100, gated=True)

LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL_8X7B = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": None,
    "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "head_dim": 64, "intermediate_size": 18432, "vocab_size": 129280,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "num_nextn_predict_layers": 1,
}  # fmt: skip
QWEN_MOE = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 5632, "vocab_size": 151936, "num_experts": 60, "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "use_sliding_window": False,
    "sliding_window": 4096,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None, "vocab_size": 50257}


def test_gpt2_as_nanogpt_has_it() -> None:
    """karpathy/nanoGPT, transformer_sizing.ipynb: a sequence of 1024 tokens, full attention."""
    said = of_config(GPT2, sequence_length=1024, convention="full")
    assert (said.forward * 1024, said.backward * 1024, said.total * 1024) == (291648307200, 583296614400, 874944921600)
    assert said.head * 1024 == 79047426048


@pytest.mark.parametrize(("length", "ratio"), [(4096, 1.067), (8192, 1.125), (32768, 1.364), (131072, 1.696)])
def test_what_the_convention_alone_does(length: int, ratio: float) -> None:
    """Llama-3-8B: how much more `full` counts than `causal`; the reason why a figure carries its convention's name."""
    whole, causal = (of_config(LLAMA_3_8B, sequence_length=length, convention=name) for name in ("full", "causal"))
    assert whole.total / causal.total == pytest.approx(ratio, abs=6e-4)
    assert whole.head == causal.head


@pytest.mark.parametrize(
    ("config", "total", "active", "unit"),
    [
        (MIXTRAL_8X7B, 46.7, 12.9, 0.1),  # mistral.ai/news/mixtral-of-experts; the paper, arXiv 2401.04088: 47 and 13
        (DEEPSEEK_V3, 671, 37, 1),  # arXiv 2412.19437
        (QWEN_MOE, 14.3, 2.7, 0.1),  # huggingface.co/Qwen/Qwen1.5-MoE-A2.7B
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_published_parameters(config: dict[str, Any], total: float, active: float, unit: float) -> None:
    """All and active parameters are what their makers say, in 10⁹; some count the lookup as active."""
    shape = shape_of(config)
    experts = shape.experts
    assert experts is not None
    lookup = shape.hidden * shape.vocabulary / 1e9
    visited = active_parameters(shape) / 1e9
    assert visited - unit / 2 < active < visited + lookup + unit / 2
    everything = active_parameters(replace(shape, experts=experts._replace(active=experts.routed)))
    assert everything / 1e9 + lookup == pytest.approx(total, abs=unit / 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"layers": -1, "hidden": 2.5, "heads": True}, "layers is -1.*hidden is 2.5.*heads is True"),
        ({"kv_heads": 4}, "heads 6 are no multiple of kv_heads 4"),
        ({"vocabulary": 10**30}, "vocabulary is 1000"),
        ({"window": -4}, "window is -4"),
        ({"windowed_layers": 1}, "without a window"),
        ({"window": 4, "windowed_layers": 3}, "windowed_layers 3 > layers 2"),
        ({"experts": Experts(4, 5, 8, 2)}, "experts.active > experts.routed"),
        ({"experts": Experts(4, 2, 8, 3)}, "experts.layers > layers"),
        (
            {"experts": Experts(0, -2, 8, 2, shared=-1)},
            "experts.routed is 0.*experts.active is -2.*experts.shared is -1",
        ),
        ({"latent": Latent(0, 0, 4)}, "latent.rank is 0"),
        ({"latent": Latent(0, 8, 17)}, "latent.rotary > head"),
    ],
)
def test_shapes_that_cannot_be(given: dict[str, Any], said: str) -> None:
    """Refused with everything that is wrong, never counted as something."""
    with pytest.raises(ValueError, match=said):
        replace(SHAPE, **given)


def test_objects_and_dicts_read_alike() -> None:
    """A configuration object gives what its dict gives; widths that need no key follow from others."""
    for config in (LLAMA_3_8B, MIXTRAL_8X7B, DEEPSEEK_V3, QWEN_MOE, GPT2):
        assert shape_of(SimpleNamespace(**config)) == shape_of(config)
        assert shape_of({**config, "tie_word_embeddings": True}) == shape_of(config)
    assert shape_of(LLAMA_3_8B).head == 128
    assert shape_of({**LLAMA_3_8B, "num_key_value_heads": None}).kv_heads == 32
    assert shape_of({**LLAMA_3_8B, "head_dim": 64}).head == 64
    assert shape_of(GPT2).mlp == 4 * 768


def test_experts_by_family() -> None:
    """Each family's own keys: where the width stands, what is shared, which layers stay dense."""
    assert shape_of(MIXTRAL_8X7B).experts == Experts(8, 2, 14336, 32)
    assert shape_of(DEEPSEEK_V3).experts == Experts(256, 8, 2048, 58, shared=2048)
    assert shape_of(DEEPSEEK_V3).head == 192
    assert shape_of(QWEN_MOE).experts == Experts(60, 4, 1408, 24, shared=5632, shared_gate=True)
    assert shape_of({**QWEN_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1, 3]}).experts.layers == 10  # type: ignore[union-attr]
    assert shape_of({**DEEPSEEK_V3, "moe_layer_freq": 3}).experts.layers == 20  # type: ignore[union-attr]
    kinds = ["dense"] + ["sparse"] * 23
    assert shape_of({**QWEN_MOE, "mlp_layer_types": kinds}).experts.layers == 23  # type: ignore[union-attr]
    assert shape_of({**QWEN_MOE, "num_experts": 0}).experts is None
    assert shape_of({**DEEPSEEK_V3, "first_k_dense_replace": 61}).experts is None
    with pytest.raises(
        ValueError, match="mlp_layer_types: 'other' is not counted here; mlp_layer_types has 25 entries"
    ):
        shape_of({**QWEN_MOE, "mlp_layer_types": [*kinds, "other"]})
    olmoe = {**LLAMA_3_8B, "model_type": "olmoe", "num_experts": 64, "num_experts_per_tok": 8}
    assert shape_of(olmoe).experts == Experts(64, 8, 14336, 32)


def test_windows_by_family() -> None:
    """Everywhere, by the list of layer types, or switched off; a window whose layers nobody names is refused."""

    def window(**more: Any) -> tuple[int, int]:
        shape = shape_of({**LLAMA_3_8B, **more})
        return shape.window, shape.windowed_layers

    kinds = ["sliding_attention", "full_attention"] * 16
    assert window(model_type="mistral", sliding_window=4096) == (4096, 32)
    assert window(model_type="mistral", sliding_window=None) == window(sliding_window=0) == (0, 0)
    assert window(model_type="gemma2", sliding_window=4096, layer_types=kinds) == (4096, 16)
    assert window(model_type="qwen2", sliding_window=4096, use_sliding_window=False) == (0, 0)
    assert window(layer_types=["full_attention"] * 32, sliding_window=4096) == (0, 0)
    for more, said in (
        ({"sliding_window": 4096}, "layer_types is missing"),
        ({"layer_types": kinds}, "sliding_window is missing"),
        ({"layer_types": kinds[1:], "sliding_window": 8}, "31 entries for 32 layers"),
        ({"layer_types": ["linear_attention"] * 32}, "'linear_attention' is not counted"),
        ({"layer_types": [[]] * 32}, r"\[\] is not counted"),
        ({"layer_types": "full_attention"}, "not a list"),
    ):
        with pytest.raises(ValueError, match=said):
            window(model_type="gemma2", **more)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"hidden_size": None, "vocab_size": None}, "hidden_size is missing; vocab_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": -8}, "num_attention_heads is -8"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"num_attention_heads": 33}, "head_dim is missing"),
        ({"num_key_value_heads": 5}, "no multiple of kv_heads 5"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"n_routed_experts": 8, "num_experts_per_tok": 2}, "moe_intermediate_size is missing"),
        ({"num_local_experts": 8}, "num_experts_per_tok is missing"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "active > experts.routed"),
        ({"num_local_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": 3}, "mlp_only_layers is 3"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing; .*qk_nope_head_dim is missing; v_head_dim is missing"),
        ({"model_type": "mamba"}, "'mamba' is not known: say gated="),
        ({"model_type": None}, "say gated="),
        ({"model_type": []}, "say gated="),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is not counted"),
        ({"multi_query": True}, "multi_query is not counted"),
        ({"hidden_size": None, "text_config": {}}, "give its text_config"),
    ],
)
def test_configurations_that_do_not_say(more: dict[str, Any], said: str) -> None:
    """The key that is missing or wrong is named; nothing is guessed."""
    with pytest.raises(ValueError, match=said):
        of_config({**LLAMA_3_8B, **more}, sequence_length=32, convention="causal")


@pytest.mark.parametrize("config", [{}, None, object(), []], ids=["dict", "none", "object", "list"])
def test_no_configuration_at_all(config: object) -> None:
    """Anything may be passed; all that is missing is said at once."""
    with pytest.raises(
        ValueError, match=r"model_type.*num_hidden_layers.*hidden_size.*heads.*vocab_size.*intermediate"
    ):
        shape_of(config)


def test_a_family_of_ones_own() -> None:
    """Who says `gated` may bring any model_type, and overrules the table."""
    mine = {**LLAMA_3_8B, "model_type": "mine"}
    assert shape_of(mine, gated=True) == shape_of(LLAMA_3_8B)
    assert not shape_of(LLAMA_3_8B, gated=False).gated
