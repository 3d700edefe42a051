"""PyTorch's memory figures, on a stand-in for `torch.cuda`: there is no GPU here."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.torch.accelerator import MEMORY_SECONDS, Accelerator
from tachograph.client.torch.loaded_torch import in_use


class Cuda:
    """The allocator's books as `torch.cuda` shows them, and how often they were opened."""

    def __init__(self) -> None:
        self.reads = 0
        self.books: Any = {
            "allocated_bytes": {"all": {"current": 5, "peak": 9}, "small_pool": {"current": 1, "peak": 1}},
            "reserved_bytes": {"all": {"current": 20, "peak": 20}},
            "inactive_split_bytes": {"all": {"current": 0, "peak": 4}},
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 1

    def get_device_properties(self, index: int) -> object:
        return SimpleNamespace(uuid="abc")

    def memory_stats_as_nested_dict(self, index: int) -> Any:
        assert index == 1
        self.reads += 1
        if isinstance(self.books, Exception):
            raise self.books
        return self.books


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """CUDA in use."""
    made = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))  # type: ignore[arg-type]
    return made


def located(clock: Clock) -> Accelerator:
    accelerator = Accelerator(clock)
    accelerator.locate()
    return accelerator


def test_figures(cuda: Cuda) -> None:
    """Zero is a figure; retries and out-of-memory errors are told from the first one on."""
    clock = Clock()
    accelerator = located(clock)
    plain = {
        "memory_allocated_bytes": 5, "memory_reserved_bytes": 20, "memory_peak_bytes": 9, "memory_inactive_bytes": 0,
    }  # fmt: skip
    assert (accelerator.uuid, accelerator.memory()) == ("GPU-abc", plain)
    cuda.books |= {"num_alloc_retries": 3, "num_ooms": 1}
    clock.now += MEMORY_SECONDS
    assert accelerator.memory() == plain | {"memory_retries_total": 3, "memory_ooms_total": 1}


def test_the_books_are_opened_every_5_s(cuda: Cuda) -> None:
    """A frame a second, or ten, does not open them more often."""
    clock = Clock()
    accelerator = located(clock)
    for _ in range(50):
        accelerator.memory()
        clock.now += 0.1
    assert cuda.reads == 1
    clock.now += 0.1
    accelerator.memory()
    assert cuda.reads == 2


def test_the_peak_is_of_the_whole_process(cuda: Cuda) -> None:
    """Training code that sets PyTorch's peak back does not set ours back."""
    clock = Clock()
    accelerator = located(clock)
    accelerator.memory()
    cuda.books["allocated_bytes"]["all"] = {"current": 2, "peak": 2}
    clock.now += MEMORY_SECONDS
    assert accelerator.memory()["memory_peak_bytes"] == 9


def test_another_allocator(cuda: Cuda) -> None:
    """Books that are kept otherwise give what they have; a driver that breaks gives nothing, not the last value."""
    clock = Clock()
    accelerator = located(clock)
    cuda.books = {"allocated_bytes": {"all": {"current": 5, "peak": 9}}}
    assert accelerator.memory() == {"memory_allocated_bytes": 5, "memory_peak_bytes": 9}
    cuda.books = RuntimeError("lost")
    clock.now += MEMORY_SECONDS
    assert accelerator.memory() == {}


def test_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing located, nothing told."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert (located(Clock()).memory(), located(Clock()).uuid) == ({}, None)


def test_cuda_is_not_initialised_by_asking_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`is_available()` initialises the driver: a script that forks its ranks afterwards would fail in each of them."""
    asked: list[str] = []
    cuda = SimpleNamespace(is_initialized=lambda: False, is_available=lambda: asked.append("driver") or True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert in_use("cuda") is None
    assert not asked
