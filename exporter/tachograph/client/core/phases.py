"""The phase clock: at any moment the training thread is in exactly one phase, whose seconds it counts."""

from __future__ import annotations

from contextlib import nullcontext
from threading import get_ident
from time import perf_counter
from types import TracebackType
from typing import NamedTuple, Protocol, TypeVar

from tachograph.catalog.rank import PHASES

Self = TypeVar("Self", bound="Uncopied")

OURS = (MemoryError, RecursionError, IndexError, AttributeError, TypeError)
"""The exceptions that entering and leaving a phase or a step can raise: out of memory or stack, interrupted by a signal
handler that records itself, or late at the end of the interpreter, when modules have lost their contents. Nothing
wider: a signal handler of the training code may raise anything between two lines, and that must pass."""


class Uncopied:
    """Part of a record, of which there is one in a process: a copy is the same object.

    The teacher or the average of a model, made by `copy.deepcopy`, continues in the same loop and reports to the same
    recorder. A pickle goes to another process, whose record is its own: each class returns from `__reduce__` a
    replacement that does nothing.
    """

    __slots__ = ()

    def __copy__(self: Self) -> Self:
        return self

    def __deepcopy__(self: Self, memo: object) -> Self:
        return self


Outer = tuple["Phase", "Outer | None"]
"""The phases around the current one, innermost first. Linked tuples: cheaper than a list, and restored by one store."""


class DeviceMarks(Protocol):
    """Marks on a GPU's timeline where one phase ends and another begins; neither call raises."""

    def begins(self, left: str) -> None:
        """Mark that phase `left` is interrupted by one that begins inside it."""

    def ends(self, left: str) -> None:
        """Mark that phase `left` ends."""


class Phase(Uncopied):
    """One phase's seconds; `with phase:` puts the clock into it and back, and never raises.

    One object per phase, used again and again. What is inside stays in the order written
    here: the sender thread may look between any two lines, and must never see a second counted twice
    (see `PhaseClock.read`).
    """

    __slots__ = ("_clock", "name", "seconds")

    def __init__(self, name: str, clock: PhaseClock) -> None:
        self.name = name
        self.seconds = 0.0
        self._clock = clock

    def __enter__(self) -> None:
        try:
            clock = self._clock
            if (device := clock.device) is not None:
                device.begins(clock.current.name)
            now = perf_counter()
            left = clock.current
            elapsed = now - clock.since
            clock.outer = left, clock.outer
            clock.since = now
            clock.current = self
            left.seconds += elapsed
        except OURS:
            self._clock.failed = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            clock = self._clock
            if (device := clock.device) is not None:
                device.ends(clock.current.name)
            now = perf_counter()
            left = clock.current
            elapsed = now - clock.since
            clock.since = now
            if (outer := clock.outer) is not None:  # None only if phases were left in another order than entered
                clock.current, clock.outer = outer
            left.seconds += elapsed
        except OURS:
            self._clock.failed = True

    def failed(self) -> None:
        """Note that what a caller does around this phase could not be recorded."""
        self._clock.failed = True

    def __reduce__(self) -> tuple[type[nullcontext[None]], tuple[()]]:
        return nullcontext, ()


class TaggingPhase(Phase):
    """A phase that tags the step it lies in with its own name, unless that step has a tag already.

    It lies outside of steps, as a rule, and so notes itself which exception left it.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        try:
            clock = self._clock
            if clock.tag is None:
                clock.tag = self.name
            Phase.__enter__(self)
        except OURS:
            self._clock.failed = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            Phase.__exit__(self, kind, error, traceback)
            if error is not None:
                self._clock.leave_by(error)
        except OURS:
            self._clock.failed = True


class CheckedPhase(TaggingPhase):
    """A phase that also counts how often it ended with an exception."""

    __slots__ = ("failures",)

    def __init__(self, name: str, clock: PhaseClock) -> None:
        super().__init__(name, clock)
        self.failures = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                self.failures += 1
            TaggingPhase.__exit__(self, kind, error, traceback)
        except OURS:
            self._clock.failed = True


class Left(NamedTuple):
    """The last exception that left what is recorded: its id, when, and in which thread."""

    error: int
    at: float
    thread: int


class PhaseClock:
    """Shares out the wall time since its creation: every second belongs to exactly one phase.

    It starts in `init`; from the first step on, time outside every named phase is `other`. It belongs to the thread
    that trains. `since` and all seconds are of `time.perf_counter`. `tag` says why the step under way is no ordinary
    one (`STEP_TAGS`); each step begins without. `failed`: a phase or a step could not be recorded; a flag and no count,
    so that noting it takes neither memory nor stack. `device`: marks phases on a GPU, too, once one is in use. `left`:
    the last exception that left what is recorded, without what it holds.
    """

    __slots__ = (
        "_reported", "checkpoint", "current", "device", "failed", "left", "other", "outer", "phases",
        "since", "tag",
    )  # fmt: skip

    def __init__(self) -> None:
        self.checkpoint = CheckedPhase("checkpoint", self)
        self.phases = {name: Phase(name, self) for name in PHASES}
        self.phases |= {"eval": TaggingPhase("eval", self), "checkpoint": self.checkpoint}
        self.other = self.phases["other"]
        self.outer: Outer | None = None
        self.since = perf_counter()
        self.current = self.phases["init"]
        self.tag: str | None = None
        self.failed = False
        self.device: DeviceMarks | None = None
        self.left: Left | None = None
        self._reported = dict.fromkeys(PHASES, 0.0)

    def leave_by(self, error: BaseException) -> None:
        """Note which exception left a step, an evaluation, a save or a loader."""
        try:
            self.left = Left(id(error), self.since, get_ident())
        except OURS:
            self.failed = True

    def left_by(self, error: BaseException, ended: float | None) -> bool:
        """Return whether this exception, which is still there, is that one, and no step has `ended` since."""
        left = self.left
        return left is not None and left.error == id(error) and (ended is None or ended <= left.at)

    def checkpoint_seconds(self) -> float:
        """Return the seconds in phase `checkpoint` up to now; asked by the training thread."""
        running = perf_counter() - self.since if self.current is self.checkpoint else 0.0
        return self.checkpoint.seconds + running

    def claim(self, name: str) -> None:
        """Count the time since the last change of phase as `name`'s: what it was is known only now."""
        self.current = self.phases[name]

    def read(self) -> tuple[str, float, dict[str, float]]:
        """Return the current phase, the moment it began, and every phase's seconds up to now, never less than before.

        Called by the sender thread while the training thread runs. Seconds are read before the time, the time before
        `current`, `current` before `since`, the other way round from how they are written: a change in between hides
        the last moments from this reading, and the maximum bridges that. A training thread held up between reading the
        time and writing it down makes a phase run ahead by that moment; the maximum then stands still until the phase
        has caught up.
        """
        seconds = {name: phase.seconds for name, phase in self.phases.items()}
        now = perf_counter()
        current = self.current
        since = self.since
        seconds[current.name] += max(0.0, now - since)
        self._reported = {name: max(told, seconds[name]) for name, told in self._reported.items()}
        return current.name, since, self._reported
