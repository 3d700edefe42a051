"""An exception with which the training thread is still busy is told at once; one that it has done with is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.recorder import Recorder

Make = Callable[..., Recorder]


class EarlyStopError(Exception):
    """What a loop ends by on purpose."""


def step_that_raises(recorder: Recorder, error: BaseException) -> None:
    with recorder.step():
        raise error


def hung_cleanup(recorder: Recorder, exporter: Any, seen: list[Any]) -> None:
    """Train as a script does whose `destroy_process_group` hangs."""
    try:
        step_that_raises(recorder, RuntimeError("NCCL error: unhandled system error"))
    finally:
        seen.append(exporter.wait_for(where=lambda frame: "raised" in frame))


def test_what_a_finally_hangs_with_is_told(exporter: Any, record: Make) -> None:
    """With its category, its text and when it left the step; no longer once the program has caught it."""
    recorder = record()
    with recorder.step():
        pass
    seen: list[Any] = []
    with pytest.raises(RuntimeError):
        hung_cleanup(recorder, exporter, seen)
    (frame,) = seen
    said = frame["raised"]
    assert (said["category"], said["message"]) == ("collective", "RuntimeError: NCCL error: unhandled system error")
    assert frame["progress_time"] <= said["time"] <= frame["time"]
    assert "raised" not in exporter.next_state()


@pytest.mark.parametrize("error", [StopIteration(), KeyboardInterrupt(), SystemExit(0), GeneratorExit()])
def test_what_is_no_failure_is_not_told(error: BaseException, exporter: Any, record: Make) -> None:
    """A loop may end by StopIteration, and an interrupt is the end of a process, which says so itself."""
    recorder = record()
    try:
        step_that_raises(recorder, error)
    except BaseException:  # noqa: BLE001 - the cases are no Exceptions
        assert "raised" not in exporter.next_state()


def test_a_program_that_goes_on_has_not_failed(exporter: Any, record: Make) -> None:
    """While it handles the exception, it saves, or makes a step: what stands behind it now is not the exception."""
    recorder = record()
    try:
        step_that_raises(recorder, RuntimeError("CUDA out of memory"))
    except RuntimeError:
        assert exporter.next_state()["raised"]["category"] == "oom"
        with recorder.phase("checkpoint"):
            assert "raised" not in exporter.next_state()
        with recorder.step():
            pass
        assert "raised" not in exporter.next_state()


def test_an_exception_of_another_kind_of_thing_is_none(exporter: Any, record: Make) -> None:
    """Only what left a step, a save, an evaluation or a loader counts."""
    record()
    try:
        raise EarlyStopError
    except EarlyStopError:
        assert "raised" not in exporter.next_state()


def test_a_thread_that_an_exception_ends_fails_its_rank(exporter: Any, start: Callable[..., Any]) -> None:
    """The process lives on, as a host of training threads does; the hook that was there before still runs."""
    process = start(
        """
        def train():
            with recorder.step(): pass
            with recorder.step(): raise RuntimeError("CUDA out of memory")
        def other(): raise ValueError("a thread that trains nothing")
        for target in (other, train):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        say("alive")
        threading.Event().wait()
        """
    )
    frame = exporter.wait_for("bye")
    assert (frame["outcome"], frame["category"]) == ("failed", "oom")
    process.hear("alive")
    assert process.popen.poll() is None
    process.popen.terminate()
    _, errors = process.popen.communicate(timeout=90)
    assert "a thread that trains nothing" in errors
    assert "CUDA out of memory" in errors


def test_the_hook_of_threads_is_put_back_nowhere(record: Make) -> None:
    """A second recorder does not hook again: the first hook calls what was there before."""
    record()
    first = threading.excepthook
    record(rank=1)
    assert threading.excepthook is first
