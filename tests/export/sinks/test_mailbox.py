"""The thread that a slow service may hold up, so that nothing else is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.export.sinks.mailbox import Mailbox, MetricsFrame

Until = Callable[[Callable[[], Any]], Any]


def test_a_dead_service_holds_nobody_up(until: Until) -> None:
    """Writing returns at once while a delivery hangs, and what is sent next is the latest frame, not the oldest."""
    sent: list[MetricsFrame] = []
    hanging = threading.Event()

    def send(frame: MetricsFrame) -> None:
        sent.append(frame)
        hanging.wait(20)

    mailbox = Mailbox("test", send, seconds=0.001)
    mailbox.write(1.0, 1, {"loss": 3.0})
    until(lambda: sent)
    for step in range(2, 1000):
        mailbox.write(float(step), step, {"loss": 3.0})
    assert len(sent) == 1, "a write waited for the delivery that hangs"
    hanging.set()
    until(lambda: len(sent) > 1)
    mailbox.close()
    assert sent[1].step == 999


def test_the_last_frame_leaves_at_the_end() -> None:
    """A run that ends between two deliveries loses nothing."""
    sent: list[int] = []
    mailbox = Mailbox("test", lambda frame: sent.append(frame.step), seconds=60)
    mailbox.write(1.0, 1, {})
    mailbox.write(2.0, 2, {})
    mailbox.close()
    assert sent[-1] == 2


def test_closing_does_not_wait_for_a_dead_service(until: Until) -> None:
    """The end of a process is not held up by a delivery that hangs."""
    began_send, release, delivered = threading.Event(), threading.Event(), threading.Event()

    def send(frame: MetricsFrame) -> None:
        began_send.set()
        release.wait(20)
        delivered.set()

    mailbox = Mailbox("test", send, seconds=60)
    mailbox.write(1.0, 1, {})
    until(began_send.is_set)
    mailbox.close()
    assert not delivered.is_set()
    release.set()


def test_a_failure_is_told_once_and_the_next_frame_is_tried(until: Until, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the service costs the frame, not the sink, and not a line a frame."""
    tried: list[int] = []

    def send(frame: MetricsFrame) -> None:
        tried.append(frame.step)
        raise ConnectionError("refused")

    mailbox = Mailbox("test", send, seconds=0.001)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            mailbox.write(0.0, step, {})
            until(lambda step=step: tried and tried[-1] == step)  # type: ignore[misc]
        mailbox.close()
    assert tried == [0, 1, 2, 3, 4]
    told = [record.getMessage() for record in caplog.records]
    ours = [text for text in told if "no exporter" not in text]  # which a recorder of an earlier test may still say
    assert ours == ["tachograph: metrics do not reach test: ConnectionError('refused')"]


def test_no_frame_no_thread() -> None:
    """A sink that is never written to, as in a forked child, starts nothing."""
    before = threading.active_count()
    mailbox = Mailbox("test", lambda frame: None, seconds=1)
    assert threading.active_count() == before
    mailbox.close()


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_pace_must_be_above_zero(seconds: float) -> None:
    """A mistake in the configuration is reported at start."""
    with pytest.raises(ValueError, match="above 0"):
        Mailbox("test", lambda frame: None, seconds)
