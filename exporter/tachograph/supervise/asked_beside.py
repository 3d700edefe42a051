"""A question to Alertmanager that is asked beside the supervisor's loop, which goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

KNOWN_SECONDS = 60.0
"""Age up to which an answer counts."""
WAIT_SECONDS = 5.0
"""How long an answer of now is waited for where nothing else is to be done meanwhile, or something is to be ended."""
OPEN_SECONDS = 60.0
"""Age of a question from which it counts as not answered: a server may send an answer byte by byte, for hours."""


@dataclass(frozen=True)
class LastAnswer(Generic[T]):
    """The answer to a question that was asked at this time, by a monotonic clock."""

    asked: float
    content: T


class AskedBeside(Generic[T]):
    """Asks in a thread of its own, one question at a time; `error` is why the last one had no answer, empty if it had.

    `on_error` is called with the first error after an answer.
    """

    def __init__(
        self, name: str, ask: Callable[[], T], clock: Callable[[], float], on_error: Callable[[str], None]
    ) -> None:
        self._name, self._question, self._clock, self._on_error = name, ask, clock, on_error
        self._thread: threading.Thread | None = None
        self.answer: LastAnswer[T] | None = None
        self.asked = 0.0
        """When the last question was asked."""
        self.error = ""

    def age(self) -> float:
        """Return how many seconds old the last answer is, infinity if there is none."""
        return float("inf") if self.answer is None else self._clock() - self.answer.asked

    def ask(self, wait: float = 0.0) -> None:
        """Ask again, unless the last question is still open; wait for an answer for so many seconds."""
        if self._thread is None or not self._thread.is_alive():
            self.asked = self._clock()
            self._thread = threading.Thread(target=self._take, name=self._name, daemon=True)
            self._thread.start()
        elif self._clock() - self.asked > OPEN_SECONDS:
            self._fail(f"the question to Alertmanager for {self._name} has had no answer for {OPEN_SECONDS:g} s")
        if wait:
            self._thread.join(wait)

    def _take(self) -> None:
        asked = self._clock()
        try:
            self.answer = LastAnswer(asked, self._question())
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no answer, and that must be said
            self._fail(str(error) or type(error).__name__)
        else:
            self.error = ""

    def _fail(self, error: str) -> None:
        if not self.error:
            self._on_error(error)
        self.error = error
