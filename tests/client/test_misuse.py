"""A wrong word is said once in the log, the right one beside it, and counted; the call returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.recorder import Recorder


class Undecided:
    """Neither true nor false, as a tensor of two elements is."""

    def __bool__(self) -> bool:
        raise RuntimeError


@pytest.mark.parametrize(
    ("misuse", "wrong", "right"),
    [
        (lambda recorder: recorder.phase("fwd"), "'fwd'", "forward"),
        (lambda recorder: recorder.step(tag="garbage"), "'garbage'", "gc"),
        (lambda recorder: recorder.step(accumulate=True), "accumulate", "accumulating"),
        (lambda recorder: recorder.step(1, 2), "too many", "number"),
        (lambda recorder: recorder.tag("warmup"), "'warmup'", "warm-up"),
        (lambda recorder: recorder.collective("allreduce"), "'allreduce'", "all_reduce"),
        (lambda recorder: recorder.threshold("hang", 5), "'hang'", "hang_seconds"),
        (lambda recorder: recorder.watch(optimiser=1), "optimiser", "optimizer"),
        (lambda recorder: recorder.step().log(2.5), "by name", "loss=loss"),
        (lambda recorder: recorder.step(accumulating=Undecided()), "accumulating", ""),
        (lambda recorder: Recorder(socket="/nonexistent", rnk=3).close(), "rnk", "rank"),
        (lambda recorder: Recorder("run", socket="/nonexistent").close(), "too many", "run"),
    ],
)
def test_misuse_is_said_once(
    misuse: Callable[[Recorder], Any], wrong: str, right: str, record: Callable[..., Recorder],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The right word stands beside the wrong one, in one line, however often it is said; and it is counted."""
    recorder = record()
    before = recorder._calls.state.dropped.count
    misuse(recorder)
    misuse(recorder)
    lines = [line.getMessage() for line in caplog.records if wrong in line.getMessage()]
    assert len(lines) == 1
    assert right in lines[0]
    if "Recorder(" not in inspect.getsource(misuse):
        assert recorder._calls.state.dropped.count >= before + 2


def test_a_wrong_name_of_a_scalar_is_said_once(
    record: Callable[..., Recorder], caplog: pytest.LogCaptureFixture, until: Callable[..., Any]
) -> None:
    """By the sender thread, which reads what was logged."""
    recorder = record()
    for _ in range(3):
        recorder.step().log(los=1.0, loss="2")
    until(lambda: len(caplog.records) >= 2)
    texts = sorted(line.getMessage() for line in caplog.records)
    assert len(texts) == 2
    assert "'los'" in texts[0]
    assert "loss" in texts[0]
    assert texts[1].startswith("loss was logged")


def test_the_log_does_not_grow_with_made_up_words(record: Callable[..., Recorder], caplog: Any) -> None:
    """A program that makes new names without end is told of a hundred."""
    recorder = record()
    for number in range(1000):
        recorder.phase(f"phase {number}")
    assert len(caplog.records) <= 100
