"""The work of recording on the training thread, with an exporter that answers, none, and a stopped one.

Counted in calls, Python's and C's, which are the same on a busy machine; `make bench` measures the time they take.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tachograph.client.recorder import Recorder

STEP_CALLS, BATCH_CALLS, TENSOR_CALLS = 31, 7, 12
"""Of a step with four phases and four scalars, of a batch of the wrapped loader, and of a step that logs a tensor."""
SLICE_CALLS = 10
"""Additional calls of the step that begins a new slice of recent steps."""
BUILTINS = {"perf_counter", "len", "append", "values"}
"""All that a step needs of C: the clock and its own lists. No socket, no JSON, no file."""


def calls(work: Callable[[], object]) -> tuple[int, set[str]]:
    """Return how many functions the work calls, and the names of those written in C."""
    python, builtins = 0, []

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal python
        python += event == "call"
        if event == "c_call":
            builtins.append(argument.__name__)

    gc.disable()  # what it finds may be other tests', with callbacks of their own
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    builtins.remove("setprofile")
    return python - 1 + len(builtins), set(builtins)  # without the work itself


def stuck(recorder: Recorder) -> bool:
    """Whether the kernel takes no more of a frame."""
    return recorder._calls.sender._connection is not None and not recorder._calls.sender._connection.idle


@pytest.mark.parametrize("state", ["answering", "absent", "stopped"])
def test_a_step(state: str, exporter: Any, record: Callable[..., Recorder], until: Callable[..., Any]) -> None:
    """Whatever the exporter does, a step makes the same few calls, and no others."""
    if state == "absent":
        exporter.stop()
    recorder = record()
    if state != "absent":
        exporter.wait_for()
    if state == "stopped":
        exporter.stall(recorder)
        recorder._calls.sender._connection._socket._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        for step in range(1000):  # events make long frames, at 10 Hz, until the kernel takes no more
            recorder.checkpoint_saved(step=step)
        until(lambda: recorder.checkpoint_saved(step=0) or stuck(recorder))

    def train() -> None:
        with recorder.step() as step:
            with recorder.phase("data"):
                pass
            with recorder.phase("forward"):
                pass
            with recorder.phase("backward"):
                pass
            with recorder.phase("optimizer"):
                pass
            step.log(loss=2.3, grad_norm=0.9, learning_rate=1e-4, memory_allocated_bytes=2.0)

    for _ in range(2000):  # until every window is full
        train()
    made = [calls(train) for _ in range(1000)]
    assert stuck(recorder) == (state == "stopped")
    assert set().union(*(builtins for _, builtins in made)) <= BUILTINS
    numbers = sorted(number for number, _ in made)
    assert numbers[len(numbers) // 2] <= STEP_CALLS
    assert numbers[-1] <= STEP_CALLS + SLICE_CALLS


def test_a_batch(record: Callable[..., Recorder]) -> None:
    """The wrapped loader adds a clock before the batch and one after it."""
    batches = iter(record().data(range(100)))
    for _ in range(98):
        number, builtins = calls(lambda: next(batches))
        assert builtins == {"next", "perf_counter"}
        assert number <= BATCH_CALLS


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_logged_tensor(record: Callable[..., Recorder]) -> None:
    """A CPU loss with its graph is read by two calls of PyTorch: how many numbers it has, and which."""
    torch = pytest.importorskip("torch")
    recorder = record()
    loss = torch.ones(4, requires_grad=True).sum()
    recorder.step().log(loss=loss)
    for _ in range(100):
        number, builtins = calls(lambda: recorder.step().log(loss=loss))
        assert builtins <= BUILTINS | {"items", "get", "numel", "item"}
        assert number <= TENSOR_CALLS + SLICE_CALLS
