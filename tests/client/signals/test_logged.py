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
