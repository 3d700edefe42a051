"""The step: counted, timed, and the scalars that the training code logs with it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from tachograph.catalog.rank import PHASES
from tachograph.catalog.train import WORK
from tachograph.client.core.compiled import UnseenStep, in_graph, whole_graph
from tachograph.client.core.counters import Counter
from tachograph.client.core.notice import notice
from tachograph.client.core.phases import OURS, Outer, Phase, PhaseClock, Uncopied
from tachograph.client.core.scalars import Copy, Reading, read

FIRST_TAG = "warm-up"
"""The first step of a process compiles, allocates and connects: it is not an ordinary one."""

RING_LIMIT = 4096
"""Steps kept for the sender thread, which empties the ring every second: more per second are dropped and counted."""

PENDING_LIMIT = 64
"""Logged steps whose CUDA copies may be under way; a GPU further behind than this loses readings, never memory."""

VOID: dict[str, Reading] = {}
"""Stands in `Step.logged` behind what was logged with a step that then ended with an exception."""

_WORK = frozenset(WORK)


class StepRecord(NamedTuple):
    """A completed step: when it was, whether it was an ordinary one, and what its rank had counted up to its end.

    `began` and `ended` are of `time.perf_counter`; with gradient accumulation the step began with its first micro-step.
    `tag` is one of `catalog.rank.STEP_TAGS`, None for an ordinary step. `seconds` are cumulative wall seconds per
    phase in the order of `catalog.rank.PHASES`, `wait` cumulative exposed wait for collectives, both at `ended`:
    what a step cost is the difference from the record before it.
    """

    number: int
    began: float
    ended: float
    tag: str | None
    seconds: tuple[float, ...]
    wait: float


def step_record(fields: tuple[Any, ...]) -> StepRecord:
    """Return the record that a step left in `Step.records`."""
    number, began, ended, tag, wait, *seconds = fields
    return StepRecord(number, began, ended, tag, tuple(seconds), wait)


class ExposedWait:
    """Seconds in which the training thread only waited for collectives.

    `seconds` are those of marked collectives; `more` returns those of watched models, None without one.
    """

    __slots__ = ("more", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.more: Callable[[], float] | None = None

    def total(self) -> float:
        """Return all of it so far; for the training thread."""
        return self.seconds + (self.more() if self.more is not None else 0.0)


class Step(Uncopied):
    """One optimizer step as a context manager, the same object every time.

    `number` is the step this is, from 0. A step that ends with an exception is not completed and not counted; one that
    is entered inside itself is one step, from the inner entry on. `given` is the tag that the next step begins with,
    `accumulating` marks what ends next as a micro-step: its time belongs to the step that completes. `before` are the
    seconds per phase, in the order of `PHASES`, that came before the first step, one that was given up not counted.
    `records` are the fields of a `StepRecord` for every completed step, for the sender thread to take out.
    """

    __slots__ = (
        "_began", "_clock", "_dropped", "_other", "_outer", "_partial", "_pending", "_phases", "_wait", "accumulating",
        "before", "completed", "ended", "given", "logged", "next", "number", "records",
    )  # fmt: skip

    def __init__(self, clock: PhaseClock, dropped: Counter, wait: ExposedWait | None = None) -> None:
        self.number = 0
        self.next = 0
        self.completed = 0
        self.before: tuple[float, ...] | None = None
        self.ended: float | None = None
        self.given: str | None = FIRST_TAG
        self.accumulating = False
        self.records: deque[tuple[Any, ...]] = deque()  # flat: one object for the garbage collector
        self.logged: deque[tuple[int, dict[str, Reading]]] = deque()
        self._pending: deque[tuple[int, dict[str, Reading]]] = deque()
        self._clock = clock
        self._phases = tuple(clock.phases[name] for name in PHASES)
        self._other: Phase = clock.other
        self._wait = wait or ExposedWait()
        self._began = 0.0
        self._partial = False
        self._outer: Outer | None = None  # what the clock returns to at the end; None while no step is under way
        self._dropped = dropped

    def __enter__(self) -> Step:
        try:
            clock = self._clock
            now = perf_counter()
            left = clock.current
            elapsed = now - clock.since
            outer = self._outer
            if outer is None:  # else it was entered before and not left: it begins anew
                # Outside the outermost step and every named phase the clock returns to `other`: `init` ends, for good.
                outer = self._outer = (self._other if clock.outer is None else left), clock.outer
            clock.outer = outer
            clock.since = now
            clock.current = self._other
            left.seconds += elapsed
            if not self._partial:
                self._began = now
                clock.tag = self.given
                if self.before is None:
                    self.before = tuple([phase.seconds for phase in self._phases])
            self.number = self.next
        except OURS:
            self._clock.failed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            outer = self._outer
            if outer is None:  # left before: by the inner end of a step inside itself
                return
            clock = self._clock
            now = perf_counter()
            left = clock.current
            elapsed = now - clock.since
            clock.since = now
            self._outer = None
            clock.current, clock.outer = outer  # also out of phases entered inside by hand and never left
            left.seconds += elapsed
            if kind is not None or self.accumulating:
                self._stay(kind is None)
                if error is not None:
                    clock.leave_by(error)
                return
            self.next = self.number + 1
            self.completed += 1
            self.ended = now
            records = self.records
            if len(records) < RING_LIMIT:
                wait = self._wait
                waited = wait.seconds if wait.more is None else wait.total()
                a, b, c, d, e, f, g, h, i, j, k, m, n = self._phases  # written out: a loop takes twice the time
                records.append((
                    self.number, self._began, now, clock.tag, waited, a.seconds, b.seconds, c.seconds, d.seconds,
                    e.seconds, f.seconds, g.seconds, h.seconds, i.seconds, j.seconds, k.seconds, m.seconds, n.seconds,
                ))  # fmt: skip
            else:
                self._dropped.count += 1
            self.given = None
            self._partial = False
        except OURS:
            self._clock.failed = True

    @property
    def entered(self) -> bool:
        """Whether a step, or a micro-step of one, is open: between micro-steps none is."""
        return self._outer is not None

    @property
    def under_way(self) -> bool:
        """Whether a step, or a micro-step of one, has begun and not ended."""
        return self._outer is not None or self._partial

    def _stay(self, ended_well: bool) -> None:
        """End a micro-step, or one that failed: what it belonged to begins again, with the tag that it would have."""
        self._partial = ended_well
        self.accumulating = False
        if not ended_well:
            self.given = None if self.completed else FIRST_TAG
            if not self.completed:
                self.before = None
            if len(self.logged) < RING_LIMIT:
                self.logged.append((self.number, VOID))

    def log(self, /, *excess: NoReturn, **values: object) -> None:
        """Record scalars of this step by their catalog name: `loss`, `grad_norm`, `learning_rate` and so on.

        Takes numbers and one-element tensors. A CPU tensor is read at once (0.1 µs); a CUDA tensor is copied
        asynchronously and read at a later `log`, when the copy is done: the training thread never waits for the GPU.
        Names that are not in the catalog, and values that are not numbers, are dropped and counted.

        `tokens`, `samples` and `flops` are what **this rank** does in this step, as it is known where batches differ;
        `tokens_per_step` and its like are for the whole run. Ranks that share a batch (tensor, context or pipeline
        parallelism) each log their part of it, so that the sum over the ranks is the run's. Each is added to its
        counter as given once the step is completed, in place of the constructor's; several in one step, as with
        micro-batches, add up. FLOPs that are not logged follow the tokens logged (`flops_per_token`), else the samples.
        """
        try:
            deferred = False
            for value in values.values():
                if type(value) is not float and type(value) is not int:
                    deferred = self._read(values)
                    break
            if deferred or self._pending:
                self._defer(values)  # type: ignore[arg-type]
            elif len(self.logged) < RING_LIMIT:
                self.logged.append((self.number, values))  # type: ignore[arg-type]
            else:
                self._dropped.count += 1
            if excess:
                self._misuse()
        except OURS:
            self._clock.failed = True

    @staticmethod
    def _read(values: dict[str, object]) -> bool:
        """Put readings in place of values; return whether one of them is still being copied from a GPU."""
        deferred = False
        for name, value in values.items():
            reading = values[name] = read(value)
            if type(reading) is Copy:
                deferred = True
        return deferred

    def _misuse(self) -> None:
        self._dropped.count += 1
        notice("log", "step.log() takes values by name, as in step.log(loss=loss): the others are dropped")

    def __reduce__(self) -> tuple[type[UnseenStep], tuple[()]]:
        return UnseenStep, ()

    def _defer(self, values: dict[str, Reading]) -> None:
        """Queue behind the copies under way, if any, so that steps stay in order, and pass on those that are done.

        Asked here and not by the sender thread: a CUDA call from another thread would break a graph capture.
        """
        pending = self._pending
        if not _WORK.isdisjoint(values) and len(self.logged) < RING_LIMIT:  # what is known is counted with its step
            known = {name: values.pop(name) for name in WORK if type(values.get(name)) in {int, float}}
            self.logged.append((self.number, known))
        if not sys.modules["torch"].cuda.is_current_stream_capturing():  # else the question would break the capture
            while pending and len(self.logged) < RING_LIMIT and all(_ready(value) for value in pending[0][1].values()):
                self.logged.append(pending.popleft())
        if len(pending) < PENDING_LIMIT:
            pending.append((self.number, values))
        else:
            self._dropped.count += 1


def _ready(value: Reading) -> bool:
    return type(value) is not Copy or value.ready()


def _log_in_graph(step: Step, /, *excess: NoReturn, **values: object) -> None:
    if not whole_graph("step.log()"):
        _log(step, *excess, **values)


_log = in_graph(Step.log, _log_in_graph)
