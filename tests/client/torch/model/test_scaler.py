"""Mixed precision's scale and its skipped steps."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.torch.model.device_readings import DeviceReadings
from tachograph.client.torch.model.scaler import COPY_SECONDS, ScalerWatch

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def torch() -> Any:
    """PyTorch."""
    return pytest.importorskip("torch")


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Loop:
    """A training loop of mixed precision whose gradients overflow when told to."""

    def __init__(self, torch: Any, fused: bool = False, attach_at: int = 0, **scaler: Any) -> None:
        self.torch = torch
        self.model = torch.nn.Linear(2, 1)
        kind = torch.optim.Adam if fused else torch.optim.SGD
        self.optimizer = kind(self.model.parameters(), lr=1e-3, **({"fused": True} if fused else {}))
        self.scaler = torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, **scaler})
        self.clock = Clock()
        self.steps = 0
        for _ in range(attach_at):
            self.step(overflow=True)
        self.watch = ScalerWatch(self.scaler, DeviceReadings(Counter()), self.clock)
        self.optimizer.register_step_pre_hook(lambda optimizer, *_: self.watch.before(0, optimizer))

    def step(self, overflow: bool = False) -> dict[str, Any]:
        """Make one step; return the values reported in the middle of it, before the scaler's update."""
        self.optimizer.zero_grad()
        loss = self.model(self.torch.ones(1, 2)).sum() * (math.inf if overflow else 1.0)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        said = self.told() if hasattr(self, "watch") else {}
        self.scaler.update()
        return said

    def told(self) -> dict[str, Any]:
        return dict(self.watch.metrics())


@pytest.mark.parametrize("fused", [False, True])
def test_skips_are_counted_exactly(torch: Any, fused: bool) -> None:
    """One by one and many in a row, from the first step on, whether the optimizer is called for them or not."""
    loop = Loop(torch, fused)
    assert loop.told() == {}
    expected = 0
    for overflow in [True, True, False, False, True, False, True, True, True, False, False]:
        loop.clock.now += COPY_SECONDS
        before = loop.told().get("amp_skipped_steps_total", 0)
        middle = loop.step(overflow).get("amp_skipped_steps_total", 0)
        expected += overflow
        assert before <= middle <= loop.told()["amp_skipped_steps_total"]
        if not fused or not overflow:
            assert loop.told()["amp_skipped_steps_total"] == expected


def test_the_scale_follows_while_every_step_is_skipped(torch: Any) -> None:
    """No hook is called then; the scale told is nevertheless the scale there is."""
    loop = Loop(torch)
    loop.step()
    for skips in range(1, 6):
        loop.step(overflow=True)
        assert loop.told() == {"amp_loss_scale": 1024.0 / 2**skips, "amp_skipped_steps_total": skips}
        assert loop.told()["amp_loss_scale"] == loop.scaler.get_scale()


def test_growth_is_no_skip(torch: Any) -> None:
    """A scale that grows, and one set by the user, are reported with the next copy; neither is a skipped step."""
    loop = Loop(torch, growth_interval=2)
    for _ in range(5):
        loop.clock.now += COPY_SECONDS
        loop.step()
    assert loop.told() == {"amp_loss_scale": 4096.0, "amp_skipped_steps_total": 0}


def test_a_copy_a_second(torch: Any) -> None:
    """Between copies the scale of the last one stands."""
    loop = Loop(torch, growth_interval=1)
    loop.step()
    loop.step()
    assert loop.told()["amp_loss_scale"] == 1024.0
    loop.clock.now += COPY_SECONDS
    loop.step()
    assert loop.told()["amp_loss_scale"] == 4096.0


def test_watched_from_the_middle_on(torch: Any) -> None:
    """Steps skipped before are not counted."""
    loop = Loop(torch, attach_at=3)
    assert loop.told() == {"amp_skipped_steps_total": 0}
    loop.step()
    loop.step(overflow=True)
    assert loop.told()["amp_skipped_steps_total"] == 1


def test_scalers_that_do_nothing(torch: Any) -> None:
    """One that is off, and one that was never used, tell nothing; nor does one that is gone."""
    loop = Loop(torch, enabled=False)
    loop.step()
    assert loop.told() == {}
    assert Loop(torch).told() == {}
    gone = Loop(torch)
    gone.step()
    gone.scaler = None
    assert gone.told() == {}
