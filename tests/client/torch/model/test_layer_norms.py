"""Gradient norms per layer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.torch.model.device_readings import DeviceReadings
from tachograph.client.torch.model.layer_norms import LEAST_LOOKS, WINDOW, LayerNorms
from tachograph.client.torch.model.layers import NAME_LENGTH, layer_of, modules_by_layer

torch_test = pytest.mark.torch
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [
        ("model.layers.17.self_attn.q_proj.weight", "model.layers.17"),
        ("module._orig_mod.model.layers.0._checkpoint_wrapped_module.mlp.up.weight", "model.layers.0"),
        ("layer1.0.conv1.weight", "layer1.0"),
        ("0.weight", "0"),
        ("model.embed_tokens.weight", "model.embed_tokens"),
        ("encoder.norm.inner.weight", "encoder.norm"),
        ("lm_head.weight", "lm_head"),
        ("scale", "scale"),
        ("module", "module"),
        ("x" * 200 + ".weight", "x" * NAME_LENGTH),
    ],
)
def test_names(parameter: str, layer: str) -> None:
    """A layer is a path up to its first number, else two modules, without what wrappers put in; it fits a label."""
    assert layer_of(parameter) == layer


class Model:
    """A model of layers `a`, `b` and so on, each with two parameters, whose gradients are given."""

    def __init__(self, torch: Any, *names: str, dtype: Any = None, frozen: str = "") -> None:
        self.torch = torch
        self.layers = {
            name: [
                torch.nn.Parameter(torch.ones(4, dtype=dtype or torch.float32), requires_grad=name != frozen)
                for _ in range(2)
            ]
            for name in names
        }

    def named_parameters(self) -> Any:
        return [(f"{name}.{end}", one) for name, two in self.layers.items()
                for end, one in zip(("weight", "bias"), two, strict=True)]  # fmt: skip

    def gradients(self, **values: float | None) -> None:
        """Let the weight's gradient be all `value`, the bias's zero."""
        for name, value in values.items():
            weight, bias = self.layers[name]
            weight.grad = None if value is None else self.torch.full_like(weight, value)
            bias.grad = None if value is None else self.torch.zeros_like(bias)


class Optimizer:
    """Has nothing to say."""


@pytest.fixture
def torch() -> Any:
    """PyTorch."""
    return pytest.importorskip("torch")


def watch(model: Model, top: int = 8) -> LayerNorms:
    return LayerNorms(model, top, DeviceReadings(Counter()))  # type: ignore[arg-type]


def look(norms: LayerNorms, optimizer: Any = None) -> dict[str, Any]:
    norms.look(optimizer or Optimizer())
    return dict(norms.metrics())


@torch_test
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_norms_are_those_of_the_whole_layer(torch: Any, dtype: str) -> None:
    """Over all its parameters, in every precision, also where half precision could not hold the norm."""
    model = Model(torch, "a", "b", dtype=getattr(torch, dtype))
    model.gradients(a=3.0, b=60000.0)
    said = look(watch(model))
    assert said["layer_grad_norm"]["a"] == 6.0
    assert said["layer_grad_norm"]["b"] == pytest.approx(120000, rel=0.01)
    assert (said["dead_layers"], "layer_grad_ratio" in said) == (0, False)


@torch_test
def test_the_layer_that_stands_out_is_first(torch: Any) -> None:
    """By the ratio to its own past, not by size; before eight looks there is no past."""
    model = Model(torch, "large", "small", "still")
    model.gradients(large=100.0, small=0.01, still=1.0)
    norms = watch(model, top=1)
    for _ in range(LEAST_LOOKS):
        said = look(norms)
        assert (said["layer_grad_norm"], "layer_grad_ratio" in said) == ({"large": 200.0}, False)
    model.gradients(small=0.05)
    said = look(norms)
    assert (said["layer_grad_norm"], said["layer_grad_ratio"]) == (
        {"small": pytest.approx(0.1)}, {"small": pytest.approx(5.0)},
    )  # fmt: skip


@torch_test
def test_what_is_not_finite_comes_first_and_enters_no_past(torch: Any) -> None:
    """A layer of NaN is shown as NaN; when it heals its ratio is what it was before."""
    model = Model(torch, "a", "b")
    model.gradients(a=1.0, b=1.0)
    norms = watch(model, top=1)
    for _ in range(LEAST_LOOKS + 1):
        look(norms)
    for bad in (math.nan, math.inf):
        model.gradients(b=bad, a=1000.0)
        for _ in range(WINDOW):
            said = look(norms)
        assert said["layer_grad_norm"].keys() == {"b"}
        assert not math.isfinite(said["layer_grad_norm"]["b"])
        model.gradients(a=1.0)
        look(norms)
    model.gradients(a=1e-9, b=1.0)
    assert look(norms)["layer_grad_ratio"] == {"b": 1.0}


@torch_test
def test_dead_layers(torch: Any) -> None:
    """Zero gradients and none at all are dead, tiny ones live; a frozen layer is no layer here."""
    model = Model(torch, "a", "b", "c", "frozen", frozen="frozen")
    model.gradients(a=0.0, b=None, c=1e-15)
    said = look(watch(model))
    assert (said["dead_layers"], set(said["layer_grad_norm"])) == (2, {"a", "b", "c"})
    model.gradients(a=None, c=None)
    assert look(watch(model))["dead_layers"] == 3


@torch_test
def test_scaled_gradients_are_unscaled(torch: Any) -> None:
    """A fused optimizer gets the gradients as they are scaled, and the scale."""
    model = Model(torch, "a")
    model.gradients(a=1024.0)
    optimizer = Optimizer()
    optimizer.grad_scale = torch.tensor(512.0)  # type: ignore[attr-defined]
    assert look(watch(model), optimizer)["layer_grad_norm"] == {"a": 4.0}


@torch_test
def test_nothing_is_waited_for_and_nothing_kept_alive(torch: Any) -> None:
    """Parameters that are gone are left out."""
    model = Model(torch, "a", "b")
    model.gradients(a=1.0, b=1.0)
    norms = watch(model)
    del model.layers["b"]
    assert look(norms)["layer_grad_norm"] == {"a": 2.0, "b": 0.0}


@torch_test
def test_modules_of_layers(torch: Any) -> None:
    """Each layer's own module, never a list of them; of too many an even selection."""
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(10)),
                                 "head": torch.nn.Linear(1, 1)})  # fmt: skip
    found = modules_by_layer(model, 100)
    assert list(found) == [f"layers.{position}" for position in range(10)] + ["head"]
    assert found["layers.3"]() is model["layers"][3]
    assert list(modules_by_layer(model, 3)) == ["layers.0", "layers.3", "layers.7"]
