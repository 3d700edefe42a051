"""A thread for driver calls: one that never returns blocks nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")
Outcomes: TypeAlias = "SimpleQueue[tuple[DriverThread, Callable[[], None]]]"
"""The results of threads: the thread, and the call that delivers its result."""


class DriverThread:
    """Does one piece of work at a time; its result is put into `outcomes`.

    A daemon, for the driver may never let it end. `since` is when its work was handed in, None while it has none.
    """

    def __init__(self, name: str, outcomes: Outcomes, clock: Callable[[], float]) -> None:
        self.since: float | None = None
        self._outcomes = outcomes
        self._clock = clock
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def id(self) -> int:
        """The number that threading.get_ident() gives in it."""
        return self._thread.ident or 0

    def ask(self, work: Callable[[], Result], deliver: Callable[[Result | Exception], None]) -> None:
        """Hand in work; `deliver` gets what it returned or raised, in the thread that reads `outcomes`."""
        self.since = self._clock()
        self._work.put(partial(self._do, work, deliver))

    def end(self) -> None:
        """Let the thread end once its work is done."""
        self._work.put(None)

    def busy_for(self) -> float:
        """Return for how many seconds it has been at its work; 0 while it has none."""
        return 0.0 if self.since is None else self._clock() - self.since

    def _run(self) -> None:
        while (step := self._work.get()) is not None:
            step()

    def _do(self, work: Callable[[], Result], deliver: Callable[[Result | Exception], None]) -> None:
        outcome: Result | Exception
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001 - a thread that died of a fault of ours would look like a hung driver
            outcome = error
        self._outcomes.put((self, partial(deliver, outcome)))


def gather(outcomes: Outcomes, awaited: Collection[DriverThread], seconds: float) -> None:
    """Deliver results, waiting up to `seconds` for the awaited threads; later ones wait for the next call."""
    deadline = time.monotonic() + seconds
    while True:
        late = any(thread.since is not None for thread in awaited)
        try:
            thread, deliver = outcomes.get(late, max(deadline - time.monotonic(), 0.0))
        except Empty:
            return
        thread.since = None
        deliver()
