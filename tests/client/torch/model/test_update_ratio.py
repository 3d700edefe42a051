"""The size of an update beside the size of what it updates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.torch.model.device_readings import DeviceReadings
from tachograph.client.torch.model.update_ratio import TENSORS, UpdateRatio, _choose

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def torch() -> Any:
    """PyTorch."""
    return pytest.importorskip("torch")


def step(torch: Any, parameters: list[Any], rate: float, every: int = 1, steps: int = 1) -> dict[str, Any]:
    """Make steps of plain gradient descent whose gradient is the parameter itself; return the reported values."""
    optimizer = torch.optim.SGD(parameters, lr=rate)
    watch = UpdateRatio(every, DeviceReadings(Counter()))
    for number in range(steps):
        for parameter in parameters:
            parameter.grad = parameter.detach().clone()
        watch.before(number, optimizer)
        optimizer.step()
        watch.after(number + 1, optimizer)
    return dict(watch.metrics())


def parameter(torch: Any, value: float, *shape: int, dtype: Any = None) -> Any:
    return torch.nn.Parameter(torch.full(shape, value, dtype=dtype or torch.float32))


def test_the_ratio(torch: Any) -> None:
    """A step of 1/1000 of every parameter has ratio 1e-3, in half precision too; one of 0 has 0, a lost one NaN."""
    assert step(torch, [parameter(torch, 3.0, 4, 4), parameter(torch, -2.0, 7, 3)], 1e-3) == {
        "update_ratio": pytest.approx(1e-3, rel=1e-3)
    }
    assert step(torch, [parameter(torch, 2.0, 4, 4, dtype=torch.bfloat16)], 0.5) == {"update_ratio": 0.5}
    assert step(torch, [parameter(torch, 2.0, 4, 4)], 0.0) == {"update_ratio": 0.0}
    assert math.isnan(step(torch, [parameter(torch, math.nan, 4, 4)], 1e-3)["update_ratio"])


def test_no_ratio_to_nothing(torch: Any) -> None:
    """Parameters that are all zero, and a model without gradients, have none."""
    assert step(torch, [parameter(torch, 0.0, 4, 4)], 1.0) == {}
    optimizer = torch.optim.SGD([parameter(torch, 1.0, 2, 2)], lr=1.0)
    watch = UpdateRatio(1, DeviceReadings(Counter()))
    watch.before(0, optimizer)
    watch.after(1, optimizer)
    assert dict(watch.metrics()) == {}


def test_only_every_nth_step(torch: Any) -> None:
    """Steps between cost no clone."""
    assert step(torch, [parameter(torch, 1.0, 2, 2)], 0.5, every=3, steps=2) == {}
    assert step(torch, [parameter(torch, 1.0, 2, 2)], 0.5, every=3, steps=3) == {"update_ratio": 0.5}


def test_the_sample_is_small_and_even(torch: Any) -> None:
    """Eight matrices from all over the model, and vectors only where there is no matrix."""
    parameters = [parameter(torch, 1.0, *(2, 2) if number % 2 else (2,)) for number in range(100)]
    for one in parameters:
        one.grad = torch.ones_like(one)
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    chosen = [next(number for number, one in enumerate(parameters) if one is chosen) for chosen in _choose(optimizer)]
    assert (len(chosen), all(number % 2 for number in chosen), chosen[0] < 13, chosen[-1] > 85) == (
        TENSORS, True, True, True,
    )  # fmt: skip
    assert step(torch, [parameter(torch, 1.0, 5)], 0.5) == {"update_ratio": 0.5}
