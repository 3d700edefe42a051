"""Activation statistics."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.torch.model.activations import Activations
from tachograph.client.torch.model.device_readings import DeviceReadings

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def torch() -> Any:
    """PyTorch."""
    return pytest.importorskip("torch")


def build(torch: Any, answer: Any) -> Any:
    """Make a model of one layer with given outputs."""

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self) -> Any:
            return answer() if callable(answer) else answer

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer()

        def forward(self) -> Any:
            return self.layer()

    return Model()


def sampled(model: Any) -> dict[str, Any]:
    """Return what one sampled step tells."""
    watch = Activations(model, DeviceReadings(Counter()))
    watch.arm()
    model()
    watch.look(None)  # type: ignore[arg-type]
    return dict(watch.metrics())


def test_a_model_can_be_copied_and_saved_while_it_is_watched(torch: Any) -> None:
    """Averaged weights are copies, and whole models are saved: also between two steps of which the next is sampled."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    watch = Activations(model, DeviceReadings(Counter()))
    watch.arm()
    torch.save(model, io.BytesIO())
    copy.deepcopy(model)(torch.ones(2))
    watch.look(None)  # type: ignore[arg-type]
    assert not dict(watch.metrics()), "the copy was observed"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_root_mean_square_and_zeros(torch: Any, dtype: str) -> None:
    """Of the output as it is, in every precision, also where the squares would not fit."""
    output = torch.tensor([[3.0, 0.0], [-3.0, 0.0]], dtype=getattr(torch, dtype)) * 1024
    said = sampled(build(torch, output))
    assert said["layer_activation_rms"] == {"layer": pytest.approx(3072 / math.sqrt(2), rel=1e-4)}
    assert said["layer_activation_zero_ratio"] == {"layer": 0.5}


def test_zero_and_not_finite_are_told(torch: Any) -> None:
    """A layer that is all zero has RMS 0 and a share of 1; NaN is NaN and not zero."""
    assert sampled(build(torch, torch.zeros(4)))["layer_activation_rms"] == {"layer": 0.0}
    assert sampled(build(torch, torch.zeros(4)))["layer_activation_zero_ratio"] == {"layer": 1.0}
    assert math.isnan(sampled(build(torch, torch.full((4,), math.nan)))["layer_activation_rms"]["layer"])


def test_outputs_of_any_shape(torch: Any) -> None:
    """The first floating-point tensor of a tuple, list or mapping; a layer that gives none is left out."""
    ones = torch.ones(3)
    for output in ((ones,), [torch.tensor([1]), (ones, None)], {"hidden": ones}):
        assert sampled(build(torch, output))["layer_activation_rms"] == {"layer": 1.0}
    for nothing in ((), {}, None, torch.tensor([1]), torch.ones(0), "text", object()):
        assert sampled(build(torch, nothing)) == {}


def test_hooks_hang_for_the_sampled_step_alone(torch: Any) -> None:
    """Before and after it a forward pass costs nothing, and evaluation is not looked at."""
    model = build(torch, torch.ones(2))
    watch = Activations(model, DeviceReadings(Counter()))
    assert not model.layer._forward_hooks
    watch.arm()
    assert len(model.layer._forward_hooks) == 1
    model.eval()
    model()
    watch.look(None)  # type: ignore[arg-type]
    assert (dict(watch.metrics()), len(model.layer._forward_hooks)) == ({}, 0)


def test_an_error_of_the_layer_is_its_own(torch: Any) -> None:
    """An exception of forward passes through unchanged, and the hooks are removed at the next step."""

    def fail() -> None:
        raise KeyError("mine")

    model = build(torch, fail)
    watch = Activations(model, DeviceReadings(Counter()))
    watch.arm()
    with pytest.raises(KeyError, match="mine"):
        model()
    watch.look(None)  # type: ignore[arg-type]
    assert not model.layer._forward_hooks


def test_gradients_are_the_same(torch: Any) -> None:
    """Looking adds nothing to the graph."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    data = torch.randn(8, 4)
    model(data).sum().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    watch = Activations(model, DeviceReadings(Counter()))
    watch.arm()
    model(data).sum().backward()
    watch.look(None)  # type: ignore[arg-type]
    assert all(torch.equal(one, parameter.grad) for one, parameter in zip(plain, model.parameters(), strict=True))
    assert set(dict(watch.metrics())["layer_activation_rms"]) == {"0", "2"}  # type: ignore[call-overload]
