"""The learning-rate schedule's own count."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from tachograph.client.torch.model.model_watch import ScheduleWatch


class Scheduler:
    """Counts as PyTorch's do."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"last_epoch": 0}, {"schedule_step": 0}),
        ({"last_epoch": 7}, {"schedule_step": 7}),
        ({"last_batch_iteration": 3}, {"schedule_step": 3}),
        ({"last_epoch": -1}, {}),
        ({"last_epoch": True}, {}),
        ({"last_epoch": "7"}, {}),
        ({}, {}),
    ],
)
def test_the_count(fields: dict[str, object], told: dict[str, int]) -> None:
    """Zero is a count; what is none is not told."""
    scheduler = Scheduler(**fields)
    assert dict(ScheduleWatch(scheduler).metrics()) == told


def test_a_wrapped_schedule() -> None:
    """Accelerate's wrapper has the schedule inside."""
    inner = Scheduler(last_epoch=4)
    assert dict(ScheduleWatch(SimpleNamespace(scheduler=inner)).metrics()) == {"schedule_step": 4}


def test_the_schedule_is_not_kept_alive() -> None:
    """A schedule that is gone is no longer reported."""
    scheduler = Scheduler(last_epoch=4)
    watch = ScheduleWatch(scheduler)
    del scheduler
    gc.collect()
    assert dict(watch.metrics()) == {}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_real_schedule() -> None:
    """One step of the schedule is one step of the count."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    watch = ScheduleWatch(scheduler)
    for expected in range(3):
        assert dict(watch.metrics()) == {"schedule_step": expected}
        optimizer.step()
        scheduler.step()
