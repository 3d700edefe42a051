"""The step: counted, timed, and what the training code says about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from types import TracebackType

from tachograph.client.phases import Phase, PhaseClock
from tachograph.client.scalars import Copy, Reading, read
from tachograph.client.tally import Tally
from tachograph.wire import HISTOGRAM_SCHEMA, bucket_index, encode_number

RING_LIMIT = 4096
"""Steps kept for the sender thread, which empties the ring every second: more per second are dropped and counted."""

PENDING_LIMIT = 64
"""Logged steps whose CUDA copies may be under way; a GPU further behind than this loses readings, never memory."""


class Step:
    """One optimizer step as a context manager, the same object every time.

    `number` is the step this is, from 0. A step that ends with an exception is not completed and not counted.
    """

    __slots__ = (
        "_began", "_clock", "_depth", "_dropped", "_other", "_pending", "completed", "durations", "ended", "logged",
        "next", "number",
    )  # fmt: skip

    def __init__(self, clock: PhaseClock, dropped: Tally) -> None:
        self.number = 0
        self.next = 0
        self.completed = 0
        self.ended: float | None = None
        self.durations: deque[float] = deque()
        self.logged: deque[tuple[int, dict[str, Reading]]] = deque()
        self._pending: deque[tuple[int, dict[str, Reading]]] = deque()
        self._clock = clock
        self._other: Phase = clock.other
        self._began = 0.0
        self._depth = 0
        self._dropped = dropped

    def __enter__(self) -> Step:
        clock = self._clock
        now = perf_counter()
        left = clock.current
        elapsed = now - clock.since
        # Outside the outermost step and every named phase the clock returns to `other`: `init` ends here, for good.
        outer = clock.outer
        outer.append(left if outer else self._other)
        self._depth = len(outer)
        clock.since = now
        clock.current = self._other
        left.seconds += elapsed
        self._began = now
        self.number = self.next
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        clock = self._clock
        now = perf_counter()
        left = clock.current
        elapsed = now - clock.since
        clock.since = now
        outer = clock.outer
        if len(outer) != self._depth:  # phases entered inside by hand and never left, or left twice
            del outer[self._depth :]
        clock.current = outer.pop() if outer else self._other
        left.seconds += elapsed
        if kind is None:
            self.next = self.number + 1
            self.completed += 1
            self.ended = now
            durations = self.durations
            if len(durations) < RING_LIMIT:
                durations.append(now - self._began)
            else:
                self._dropped.count += 1

    def log(self, /, **values: object) -> None:
        """Record scalars of this step by their catalog name: `loss`, `grad_norm`, `learning_rate` and so on.

        Takes numbers and one-element tensors. A CPU tensor is read at once (0.1 µs); a CUDA tensor is copied
        asynchronously and read at a later `log`, when the copy is done: the training thread never waits for the GPU.
        Names that the catalog does not hold, and values that are no numbers, are dropped and counted.
        """
        deferred = False
        for name, value in values.items():
            if value.__class__ is not float:
                reading = values[name] = read(value)
                if reading.__class__ is Copy:
                    deferred = True
        if deferred or self._pending:
            self._defer(values)  # type: ignore[arg-type]
        elif len(self.logged) < RING_LIMIT:
            self.logged.append((self.number, values))  # type: ignore[arg-type]
        else:
            self._dropped.count += 1

    def _defer(self, values: dict[str, Reading]) -> None:
        """Queue behind the copies under way, so that steps stay in order, and pass on those that are done.

        Asked here and not by the sender thread: a CUDA call from another thread would break a graph capture.
        """
        pending = self._pending
        while pending and len(self.logged) < RING_LIMIT and all(_ready(value) for value in pending[0][1].values()):
            self.logged.append(pending.popleft())
        if len(pending) < PENDING_LIMIT:
            pending.append((self.number, values))
        else:
            self._dropped.count += 1


def _ready(value: Reading) -> bool:
    return not isinstance(value, Copy) or value.ready()


class StepHistogram:
    """Durations in the wire's exponential buckets; the sender thread fills it."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._buckets: dict[int, int] = {}

    def drain(self, durations: deque[float]) -> None:
        """Count every duration in the ring, and take it out."""
        take: Callable[[], float] = durations.popleft
        for _ in range(len(durations)):
            seconds = take()
            index = bucket_index(seconds)
            self._buckets[index] = self._buckets.get(index, 0) + 1
            self._sum += seconds

    def frame(self) -> dict[str, object]:
        """Return the histogram as the wire carries it."""
        return {
            "schema": HISTOGRAM_SCHEMA,
            "sum": encode_number(self._sum),
            "count": sum(self._buckets.values()),
            "buckets": {str(index): count for index, count in sorted(self._buckets.items())},
        }
