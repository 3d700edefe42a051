"""Logged values, and the figures derived from several of them."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any
from weakref import ref

from tachograph.client.core.misuse import Misuse
from tachograph.client.signals.logged import Logged


class Optimizer:
    """Something with a learning rate."""

    def __init__(self, rate: float) -> None:
        self.param_groups = [{"lr": rate}]


def test_the_jump_of_an_optimizers_rate_is_known_before_the_losses_after_it() -> None:
    """Both are read once a second; losses that moved with the rate within that second are no spike."""
    step: Any = SimpleNamespace(next=0, logged=deque())
    optimizer = Optimizer(1e-3)
    logged = Logged(step, Misuse())
    logged.optimizer = ref(optimizer)

    def train(count: int, loss: float) -> dict[str, Any]:
        for _ in range(count):
            step.logged.append((step.next, {"loss": loss + 0.01 * (step.next % 3)}))
            step.next += 1
        logged.read()
        return dict(logged.metrics())

    train(60, 2.0)
    optimizer.param_groups[0]["lr"] = 1e-2
    assert train(10, 5.0)["loss_spikes_total"] == 0
    assert train(100, 3.0)["loss_spikes_total"] == 0
    assert train(3, 9.0)["loss_spikes_total"] == 1


def test_a_validation_loss_is_judged_by_the_evaluations_before_it() -> None:
    """However many steps lie between two; nothing is said while it is normal, and the next normal one ends a spike."""
    step: Any = SimpleNamespace(next=0, logged=deque())
    logged = Logged(step, Misuse())
    found = []
    for number, loss in enumerate(
        [3.0, 2.8, 2.7, 2.6, 2.55, 2.5, 2.48, 2.47, 2.45, 2.44, 3.6, 3.7, float("nan"), 2.43]
    ):
        step.logged.append((1000 * number, {"val_loss": loss}))
        logged.read()
        found.append(logged.metrics().get("val_loss_spike_evaluations"))
    assert found == [None] * 10 + [1, 2, 2, None]
    assert logged.metrics()["loss_spikes_total"] == 0
