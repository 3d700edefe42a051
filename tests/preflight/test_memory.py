"""The memory that a model needs: published sizes, what each option changes, and which term does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tachograph.preflight import memory_budget
from tachograph.preflight.model_memory import budget, checkpoint_bytes, planned_model
from tachograph.preflight.options import PreflightOptions
from tachograph.preflight.site import PreflightSite

MakeSite = Callable[..., PreflightSite]
GIB = 2**30
LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    def write(content: object) -> str:
        path = tmp_path / "config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    return write


def terms(options: PreflightOptions, world: int = 1) -> dict[str, float]:
    model = planned_model(options)
    assert model is not None
    return {term.name: term.size for term in budget(model, options, world, 0.0)}


@pytest.mark.parametrize(("model", "parameters"), [(LLAMA_8B, 8.03e9), (MIXTRAL, 46.7e9)])
def test_parameters_are_the_published_ones(config: Callable[..., str], model: object, parameters: float) -> None:
    """Llama 3 8B has 8.03 billion, Mixtral 8x7B 46.7 billion."""
    planned = planned_model(PreflightOptions(model_config=config(model)))
    assert planned is not None
    assert planned.parameters == pytest.approx(parameters, rel=2e-3)


def test_zero_spreads_what_it_says(config: Callable[..., str]) -> None:
    """2 + 2 + 12 bytes a parameter; stage 1 spreads the 12, stage 2 the gradients, stage 3 all."""
    options = PreflightOptions(model_config=config(LLAMA_8B), micro_batch=1)
    whole = 8.03e9
    for stage, (weights, gradients, states) in enumerate([(2, 2, 12), (2, 2, 1.5), (2, 0.25, 1.5), (0.25, 0.25, 1.5)]):
        found = terms(replace(options, zero=stage), 8)
        assert found["parameters"] == pytest.approx(weights * whole, rel=2e-3)
        assert found["gradients"] == pytest.approx(gradients * whole, rel=2e-3)
        assert found["optimizer states"] == pytest.approx(states * whole, rel=2e-3)
        assert ("gathered layers" in found) == (stage == 3)


def test_activations_of_gpt3_are_the_published_ones() -> None:
    """Korthikanti et al., table 2, without the masks of dropout: 34 bytes less 3 for each token and hidden number."""
    gpt = PreflightOptions(layers=96, hidden=12288, heads=96, vocabulary=51200, sequence=2048, tensor=8, ffn=4 * 12288)
    gated = terms(gpt, 8)["activations"]  # four of 4 x hidden instead of two: 16 bytes more
    assert gated == pytest.approx(96 * 2048 * 12288 * (34 - 2 + 16) / 8, rel=0.02)
    full = terms(replace(gpt, recompute="full"), 8)["activations"]
    assert full == pytest.approx(96 * 2048 * 12288 * 2 / 8 + gated / 96, rel=1e-6)
    none = terms(replace(gpt, recompute="none"), 8)["activations"]
    assert none - gated == pytest.approx(96 * 96 * 2048 * 2048 * 2 / 8, rel=0.02)


def test_each_way_to_spread_makes_its_terms_smaller(config: Callable[..., str]) -> None:
    """And none larger, but for what pipeline stages keep in flight."""
    base = PreflightOptions(model_config=config(LLAMA_8B), micro_batch=2, sequence=4096)
    start = terms(base, 8)
    tensor = terms(replace(base, tensor=8), 8)
    assert all(tensor[name] == pytest.approx(size / 8, rel=0.01) for name, size in start.items())
    pipeline = terms(replace(base, pipeline=4), 8)
    assert pipeline["parameters"] < start["parameters"] / 3
    assert pipeline["activations"] == pytest.approx(start["activations"])
    context = terms(replace(base, context=4), 8)
    assert context["activations"] == pytest.approx(start["activations"] / 4)
    assert context["parameters"] == start["parameters"]
    experts = PreflightOptions(model_config=config(MIXTRAL))
    assert terms(replace(experts, expert=8), 8)["parameters"] < terms(experts, 8)["parameters"] / 5


def test_a_checkpoint_has_weights_and_states(config: Callable[..., str]) -> None:
    """14 bytes a parameter with AdamW in mixed precision, 2 for weights alone; nothing where the model is not known."""
    assert checkpoint_bytes(PreflightOptions(parameters=1e9)) == 14e9
    assert checkpoint_bytes(PreflightOptions(parameters=1e9, optimizer="sgd", precision="bf16")) == 2e9
    assert checkpoint_bytes(PreflightOptions(model_config=config("no JSON"))) is None
    assert checkpoint_bytes(PreflightOptions()) is None


@pytest.mark.parametrize(
    ("capacity", "options", "what"),
    [
        (80, {}, "the model does not fit: optimizer states take 89.7 GiB, and 48.1 of 80.0 GiB are left for them"),
        (24, {"zero": 1}, "the model does not fit: gradients take 15.0 GiB, and 7.0 of 24.0 GiB are left for them"),
        (16, {}, "the model does not fit: parameters take 15.0 GiB, and 14.0 of 16.0 GiB are left for them"),
        (60, {"zero": 3, "micro_batch": 8}, "the model does not fit: activations take"),
        (36, {"zero": 3, "recompute": "full", "micro_batch": 2}, ""),
        (1, {"device_memory": GIB}, "the model does not fit: reserve for CUDA and NCCL take 2.0 GiB"),
    ],
)
def test_the_term_that_does_not_fit_is_named(
    site: MakeSite, config: Callable[..., str], capacity: float, options: dict[str, Any], what: str
) -> None:
    """In the order in which they are allocated, over 8 ranks."""
    facts = {rank: {"capacity": capacity * GIB, "of": "of the GPU"} for rank in range(8)}
    found = memory_budget.conclude(facts, site(8, 8, model_config=config(LLAMA_8B), sequence=4096, **options)).findings
    assert [one.severity for one in found] == (["fail"] if what else [])
    assert all(one.what.startswith(what) for one in found)


def test_a_tight_fit_warns(site: MakeSite) -> None:
    """Above nine tenths; the smallest device is the one that counts."""
    facts: dict[int, dict[str, Any]] = {rank: {"capacity": 80 * GIB, "of": "of the GPU"} for rank in range(4)}
    facts[2]["capacity"] = 17 * GIB
    found = memory_budget.conclude(facts, site(4, parameters=0.95e9)).findings
    assert [(one.severity, one.what) for one in found] == [
        ("warn", "the model takes 95% of the memory on rank 2, most of it optimizer states")
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("no JSON", "config.json is no JSON"),
        ("[" * 100_000, "config.json is no JSON"),
        ([1], "config.json is no JSON object"),
        ({}, "model_type None is not known"),
        (LLAMA_8B | {"hidden_size": "x"}, "hidden_size is 'x', not a whole number"),
        (LLAMA_8B | {"num_key_value_heads": 7}, "heads 32 are no multiple of kv_heads 7"),
        (LLAMA_8B | {"max_position_embeddings": None}, "the length of a sequence is not known"),
    ],
)
def test_a_bad_configuration_is_one_line(site: MakeSite, config: Callable[..., str], content: object, why: str) -> None:
    """It names the file and what was expected, and no check is made with it."""
    facts = {0: {"capacity": GIB, "of": "of the GPU"}}
    (found,) = memory_budget.conclude(facts, site(1, model_config=config(content))).findings
    assert why in found.what


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tensor": 3}, "8 ranks are no multiple of tensor x pipeline x context = 3"),
        ({"expert": 3}, "8 data-parallel ranks are no multiple of --expert 3"),
    ],
)
def test_a_layout_that_cannot_be_is_named(site: MakeSite, options: dict[str, int], why: str) -> None:
    """Before anybody starts it."""
    facts = {0: {"capacity": 1e15, "of": "of the GPU"}}
    assert [one.what for one in memory_budget.conclude(facts, site(8, parameters=1e9, **options)).findings] == [why]


def test_a_shape_by_hand_says_what_it_lacks() -> None:
    """All at once."""
    with pytest.raises(ValueError, match="lacks --heads, --vocabulary"):
        planned_model(PreflightOptions(layers=2, hidden=64))


def test_the_hosts_memory_is_what_is_available() -> None:
    """Not more than the kernel says."""
    total = int(Path("/proc/meminfo").read_text().splitlines()[0].split()[1]) * 1024
    assert 0 < memory_budget.host_memory() <= total


MEASURED = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=4, vocab_size=2000, max_position_embeddings=512, tie_word_embeddings=False)
model = LlamaForCausalLM(config)
own = {one.untyped_storage().data_ptr() for one in model.parameters()}
kept = {}
def pack(tensor):
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in own:
        kept[storage.data_ptr()] = storage.nbytes()
    return tensor
tokens = torch.randint(0, 2000, (2, 512))
with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
    loss = model(input_ids=tokens, labels=tokens).loss
print("KEPT", sum(kept.values()))
"""


@pytest.mark.slow
@pytest.mark.torch
def test_a_real_model_keeps_no_less(torch_programs: Any, config: Callable[..., str]) -> None:
    """The estimate is below what autograd keeps of a Llama of Transformers, by no more than two fifths."""
    kept = int(torch_programs(MEASURED).end().rpartition("KEPT ")[2])
    shape = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 688, "vocab_size": 2000, "max_position_embeddings": 512,
    }  # fmt: skip
    found = terms(PreflightOptions(model_config=config(shape), precision="fp32", micro_batch=2))
    estimate = found["activations"] + found["logits"] / 3  # of the logits, autograd keeps one copy of three
    assert 0.6 * kept < estimate <= kept
