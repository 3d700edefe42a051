"""The signals of the supervisor, which wait to be asked for together with the training's end."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence
from typing import Protocol

from tachograph.supervise.training import RunningAttempt

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that the training gets, too: its own session gets none from the terminal."""

ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
"""Those of them that end the run."""


class Readable(Protocol):
    """Something with a descriptor."""

    def fileno(self) -> int:
        """Return it."""


class Signals:
    """Catches the signals that are passed on, as a context manager; those that were ignored remain so."""

    def __enter__(self) -> Signals:
        self._read, self._written = os.pipe()
        for end in (self._read, self._written):
            os.set_blocking(end, False)
        self._wakeup = signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        self._before = {}
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._written)

    def wait(self, others: Sequence[Readable], seconds: float) -> list[int]:
        """Return the signals that arrived, once there are some, one of the others is readable, or time is up."""
        descriptors = [self._read, *(other.fileno() for other in others)]
        ready, _, _ = select.select(descriptors, [], [], max(seconds, 0.0))
        if self._read not in ready:
            return []
        return [number for number in os.read(self._read, 1024) if number in PASSED_ON]


class EndSignals:
    """The signals that came for this attempt and end the run: `told`, in their order."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self.told: list[int] = []

    def begin(self) -> None:
        """Forget those of the attempt before."""
        self.told = []

    def came_within(self, seconds: float) -> bool:
        """Wait so long without a training, and return whether one has come."""
        arrived = self._signals.wait([], max(seconds, 0.0))
        self.told += [number for number in arrived if number in ENDING]
        return bool(self.told)

    def pass_on(self, training: RunningAttempt, seconds: float, *, wake: bool = False) -> None:
        """Wait so long, and pass on to a training what comes; with `wake` until it has ended at most."""
        for number in self._signals.wait([training] if wake else [], seconds):
            if number in ENDING:
                self.told.append(number)
            training.send_signal(number)
