"""A thread that sends the latest frame at a steady pace, for sinks that would otherwise wait for a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tachograph.client.core.notice import notice

CLOSE_SECONDS = 2.0
"""Seconds that a sink's last frame may take at the end; a service that is down does not delay a process longer."""


class MetricsFrame(NamedTuple):
    """A rank's metrics at one moment: Unix seconds, its step, and its numbers by `name` or `name/label`."""

    time: float
    step: int
    metrics: Mapping[str, float]


class Mailbox:
    """Holds one frame, the latest, and hands it to `send` at most every `seconds`, from a daemon thread.

    A frame that is overtaken by the next is not sent: frames hold totals, so nothing is lost but resolution. What
    `send` raises is logged once; the next frame is still tried.
    """

    def __init__(self, name: str, send: Callable[[MetricsFrame], None], seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds is {seconds!r}: the time between two frames must be above 0")
        self._name = name
        self._send = send
        self._seconds = seconds
        self._frame: MetricsFrame | None = None
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tachograph-{name}", daemon=True)
        self._started = False

    def write(self, time: float, step: int, metrics: Mapping[str, float]) -> None:
        """Leave a frame and return at once."""
        self._frame = MetricsFrame(time, step, metrics)
        if not self._started:  # with the first frame: a forked child that never writes has no thread
            self._thread.start()
            self._started = True
        self._news.set()

    def close(self) -> None:
        """Send what is left, for at most `CLOSE_SECONDS`."""
        self._closing.set()
        self._news.set()
        if self._started:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._news.wait()
            self._news.clear()
            self._deliver()
            self._closing.wait(self._seconds)
        self._deliver()

    def _deliver(self) -> None:
        frame, self._frame = self._frame, None
        if frame is None:
            return
        try:
            self._send(frame)
        except Exception as error:  # noqa: BLE001 - a library's network may fail in any way: it costs this frame
            notice(f"sink {self._name}", f"metrics do not reach {self._name}", error)
