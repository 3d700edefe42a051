"""Frames of a rank whose exporter starts late, is slow, is stopped, misbehaves or is gone."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.client.recorder import Recorder
from tachograph.client.transport import sender as module
from tachograph.client.transport.exporter_socket import ExporterSocket

Make = Callable[..., Recorder]
Train = Callable[[Recorder, int], None]


def test_a_late_exporter_gets_everything(
    exporter: Any, record: Make, train: Train, caplog: pytest.LogCaptureFixture, until: Callable[..., Any]
) -> None:
    """No exporter at start: one line in the log, steps are recorded, and sent once somebody listens."""
    exporter.stop()
    exporter.path.unlink()
    with caplog.at_level(logging.DEBUG, "tachograph"):
        recorder = record()
        train(recorder, 5)
        until(lambda: caplog.records)
        exporter.start()
        assert exporter.wait_for()["metrics"]["steps_total"] == 5
    assert len(caplog.records) == 1
    assert str(exporter.path) in caplog.text


def test_counters_are_exact_after_the_exporter_restarts(exporter: Any, record: Make, train: Train) -> None:
    """The exporter dies and returns: the rank comes back by itself, loses nothing and counts nothing twice."""
    recorder = record()
    train(recorder, 10)
    exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 10)
    exporter.stop()
    train(recorder, 7)
    recorder.checkpoint_saved(step=17)
    exporter.restart()
    state = exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 17)
    assert state["histograms"]["step_seconds"]["count"] == 16
    assert [event["step"] for event in state["events"]] == [17]
    sequence = [frame["seq"] for frame in exporter.frames()]
    assert sequence == sorted(set(sequence))


def test_a_refusal_is_logged_once_and_no_state_is_sent(
    exporter: Any, record: Make, caplog: pytest.LogCaptureFixture, until: Callable[..., Any]
) -> None:
    """A run that belongs to another user: the reason is in the log once, however often the rank asks again."""
    exporter.answer = {"ok": False, "error": "run test belongs to uid 7"}
    recorder = record()
    until(lambda: exporter.talks and exporter.talks[0].ended_at)
    until(lambda: len(exporter.talks) >= 2)
    until(lambda: exporter.talks[1].ended_at)
    sender, ended = recorder._calls.sender, exporter.talks[1].ended_at
    until(lambda: sender._retry_at > ended)
    assert sender._retry_at - ended > module.LAST_RETRY_SECONDS / 4, "it asks as often as if nobody had answered"
    assert exporter.frames() == []
    assert len([line for line in caplog.records if "belongs to uid 7" in line.getMessage()]) == 1


@pytest.mark.parametrize(
    "answer",
    [
        "not JSON", "[]", '{"fine": 1}', "5", "x" * 200_000, "[" * 60_000, '{"ok":' * 10_000, "9" * 60_000, "\udcff",
        '{"ok":false,"error":' + "[" * 900 + "]" * 900 + "}", '{"ok":false,"error":"\\ud800\\u001b"}', '{"ok":NaN}',
    ],
    ids=range(12),
)  # fmt: skip
def test_nonsense_from_the_exporter(
    exporter: Any, record: Make, train: Train, answer: str, until: Callable[..., Any]
) -> None:
    """Whatever listens there, the rank disconnects, retries soon, never fails, and is connected once it is answered."""
    exporter.answer = None
    recorder = record()
    until(lambda: exporter.frames("hello"))
    exporter.answer = {"ok": True, "last_step": None}
    exporter._sockets[0].sendall(answer.encode(errors="surrogateescape") + b"\n")
    until(lambda: exporter.talks[0].ended_at)
    train(recorder, 3)
    exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 3)
    assert len(exporter.talks) >= 2


@pytest.mark.parametrize(
    ("last_step", "ended"),
    [
        (10**300, 1.0),
        (-1, float("inf")),
        (True, False),
        ("7", "7"),
        ([[]], {}),
        (2**53 + 1, -float("inf")),
        (7.5, None),
    ],
)
def test_what_an_answer_says_is_checked(last_step: object, ended: object, exporter: Any, record: Make) -> None:
    """A step that cannot be, or a time, is not handed on to the training code as if it were one."""
    exporter.answer = {"ok": True, "last_step": last_step, "ended": ended}
    recorder = record()
    exporter.wait_for()
    assert recorder.last_step is None
    ended_at = recorder._calls.sender.ended  # the longest ago that a Unix time can be
    assert ended_at is None or (ended == 1.0 and ended_at < 0)


def test_ranks_come_back_within_two_seconds_and_not_together(exporter: Any, record: Make) -> None:
    """However long an exporter was gone: no retry is further away than that, and sixteen ranks draw sixteen moments."""
    exporter.stop()
    sender = record()._calls.sender
    now, waits = time.monotonic(), []
    for _ in range(64):
        sender._schedule_retry(now, OSError())
        waits.append(sender._retry_at - now)
    assert max(waits) <= 2.0
    assert min(waits[-16:]) >= 1.0
    assert len(set(waits[-16:])) > 8
    exporter.restart()
    exporter.wait_for()


def test_a_fault_of_our_own_costs_a_turn(exporter: Any, record: Make, train: Train, until: Callable[..., Any]) -> None:
    """Telemetry lives through what it did not expect; it is counted, and the rank comes back."""
    recorder = record()
    exporter.wait_for()
    recorder._calls.state.step.records.append(("no", "record"))
    faults = iter([MemoryError(), RecursionError(), SystemExit(), ValueError()])

    class Faulty:
        """A connection that fails in ways that no socket has."""

        idle = True

        def __getattr__(self, name: str) -> Any:
            raise next(faults, OSError())

    recorder._calls.sender._connection, real = Faulty(), recorder._calls.sender._connection
    recorder._calls.sender.wake()
    until(lambda: recorder._calls.sender._connection is None)
    real.close()
    train(recorder, 3)
    state = exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 3)
    assert state["dropped"] > 0
    assert not recorder._calls.sender.over


def test_half_a_character_reaches_the_exporter_as_a_question_mark(exporter: Any, record: Make) -> None:
    """A label with a lone surrogate is no UTF-8: it costs itself, and not the frame, which no reader would take."""

    class Source:
        def metrics(self) -> dict[str, object]:
            return {"collective_wait_seconds_total": {"\ud800 训": 1.0}}

    recorder = record()
    recorder.add_source(Source())
    state = exporter.wait_for(where=lambda frame: frame["metrics"].get("collective_wait_seconds_total"))
    assert state["metrics"]["collective_wait_seconds_total"] == {"? 训": 1.0}
    assert b"\\u" not in exporter.talks[0].lines[-1]


def test_no_answer_ends_the_connection(
    exporter: Any, record: Make, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any]
) -> None:
    """An exporter that never answers hello is given up and tried again; no state goes to it."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.2)
    exporter.answer = None
    record()
    until(lambda: len(exporter.talks) >= 2)
    assert exporter.frames() == []


def test_a_second_hello_may_take_as_long_as_the_first(
    exporter: Any, record: Make, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any]
) -> None:
    """Its answer is waited for from when it was said, not from when the connection was made long ago."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)
    recorder = record()
    exporter.wait_for()
    recorder._calls.sender._connected_at -= module.ANSWER_SECONDS
    exporter.stall(recorder)
    recorder._calls.state.accelerator.uuid = "GPU-1234"
    until(lambda: recorder.checkpoint_saved(step=0) or not recorder._calls.sender._answered)
    until(lambda: recorder.checkpoint_saved(step=1) or time.monotonic() - recorder._calls.sender._hello_sent_at > 0.25)
    recorder.checkpoint_saved(step=2)
    exporter.stalled.clear()
    exporter.wait_for("hello", lambda frame: frame.get("uuid"))
    exporter.wait_for(where=lambda frame: any(event.get("step") == 2 for event in frame["events"]))
    assert len(exporter.talks) == 1


def test_a_stalled_exporter_gets_whole_frames_afterwards(
    exporter: Any, record: Make, train: Train, monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any]
) -> None:
    """A full socket buffer holds up nobody; what was begun is finished; what was skipped is in the next frame."""
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(module, "_LEAST_GAP", 0.0)
    recorder = record()
    exporter.wait_for()
    exporter.stalled.set()
    until(lambda: recorder._calls.sender._connection is not None and not recorder._calls.sender._connection.idle)
    stuck = len(exporter.frames())
    train(recorder, 20)
    exporter.stalled.clear()
    exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 20)
    assert len(exporter.talks) == 1
    assert len(exporter.frames()) > stuck
    sequence = [frame["seq"] for frame in exporter.frames()]
    assert sequence == sorted(set(sequence))


def test_a_torn_frame_is_finished_before_the_next(tmp_path: Path) -> None:
    """Two frames through a socket that takes a few bytes at a time arrive one after the other, whole."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(tmp_path / "s"))
    server.listen()
    connection = ExporterSocket()
    connection.open(str(tmp_path / "s"))
    reader, _ = server.accept()
    first, second = b"1" * 1_000_000 + b"\n", b"2\n"
    assert connection.offer(first)
    assert not connection.idle
    assert not connection.offer(second)
    received = b""
    while not connection.idle:
        received += reader.recv(65536)
        connection.flush()
    assert connection.offer(second)
    connection.close()
    while data := reader.recv(65536):
        received += data
    assert received == first + second
    reader.close()
    server.close()


@pytest.mark.parametrize("path", ["/nonexistent/rank.sock", "x" * 300, "a\0b", "", "."])
def test_a_socket_that_cannot_be(path: str, train: Train) -> None:
    """A wrong path is no exporter, nothing more."""
    recorder = Recorder(socket=path)
    train(recorder, 2)
    recorder.close()
    assert recorder._calls.sender.over
