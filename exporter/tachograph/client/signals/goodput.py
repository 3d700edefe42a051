"""Goodput: how much of a rank's time was productive training, and what the rest was lost to.

Every second since the recorder was made is in exactly one of productive seconds and the causes of LOST_CAUSES; the gap
to an earlier process of the rank is added, as `restart`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

from tachograph.catalog.rank import GENERATION, LOST_CAUSES, PHASES

if TYPE_CHECKING:
    from tachograph.client.core.phases import PhaseClock
    from tachograph.client.core.steps import Step, StepRecord

HANG_SECONDS = 15.0
HANG_STEPS = 3.0
"""A stall is a hang beyond 15 s and three usual steps: long after every collective that is only slow has completed.

Whatever limit the run has for its alerts: goodput is compared between runs.
"""

MEDIAN_OF = 65
"""Ordinary steps whose median is the usual one."""

LONGEST_GAP = 86_400.0
"""A longer gap between two processes is another run under the same name."""

UNDECIDED_STEPS = 512
"""Steps that are kept apart while no exporter has said what an earlier process did; later ones are taken as new."""

PRODUCTIVE = "productive"
COLLECTIVE, REWORK, HANG, RESTART = "collective", "rework", "hang", "restart"
_PLACES = (PRODUCTIVE, *LOST_CAUSES)
_CAUSES = tuple(phase if phase in LOST_CAUSES else PRODUCTIVE for phase in PHASES)
_COLLECTIVE = PHASES.index(COLLECTIVE)
_GENERATION = tuple(map(PHASES.index, GENERATION))

Seconds = dict[str, float]


class Goodput:
    """Attributes a rank's time to causes; used by the sender thread only.

    Steps are booked as they are completed. What came after the last completed one is booked by its phases until then,
    so that a hang shows while it lasts. `last_step` and `ended` return what the exporter knows of an earlier process:
    its last step, and when it was last heard, by `time.perf_counter`; None if there was none, or before `answered`
    returns True.

    - A step below `last_step` repeats what was done: all of its time but `init` is rework, as is what lies between it
      and the step before.
    - What lies before the first step of a process was not done before, whatever that step repeats: a resumed loader
      that skips batches for hours is in phase `data`.
    - Time is booked as rework once the number of its step is certain, since no counter can take it back.
    - Exposed wait for collectives is taken from the step's compute, as far as it is not in phase `collective`.
    - `other` between two steps belongs to the step that follows.
    """

    def __init__(
        self,
        clock: PhaseClock,
        step: Step,
        last_step: Callable[[], int | None],
        ended: Callable[[], float | None],
        *,
        answered: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        self._clock = clock
        self._step = step
        self._last_step = last_step
        self._ended = ended
        self._answered = answered
        self._began = now() - sum(clock.read()[2].values())
        self._gap: float | None = None
        self._seconds = [0.0] * len(PHASES)
        self._wait = 0.0
        self._settled: Seconds = dict.fromkeys(_PLACES, 0.0)
        self._reported: Seconds = dict.fromkeys(_PLACES, 0.0)
        self._usual: deque[float] = deque(maxlen=MEDIAN_OF)
        self._limit: float | None = None
        self._completed = False
        self._undecided: list[tuple[int, Seconds]] = []

    def observe(self, record: StepRecord) -> None:
        """Book a completed step, with all that came between it and the one before."""
        self._book_start()
        self._completed = True
        wait = record.wait - self._wait if self._wait < record.wait < inf else 0.0
        booked, stalled = self._book(self._take(record.seconds), wait)
        if self._answered() or len(self._undecided) >= UNDECIDED_STEPS:
            self._settle(record.number, booked)
        else:
            self._undecided.append((record.number, booked))
        self._wait += wait
        if record.tag is None:
            self._usual.append(stalled)
        self._limit = None

    def metrics(self) -> dict[str, object]:
        """Return both families by wire key; neither ever falls, and together they are the time that passed."""
        self._learn_gap()
        self._book_start()
        if self._undecided and self._answered():
            for number, booked in self._undecided:
                self._settle(number, booked)
            self._undecided.clear()
        seconds = self._clock.read()[2]
        open_, _ = self._book(self._since_last([seconds[phase] for phase in PHASES]), 0.0)
        # A first step that has no number yet may get one late; before it begins, nothing is done again.
        if self._completed or (self._step.before is not None and self._step.next):
            open_ = self._judged(self._step.next, open_)
        known = (self._settled, open_, *(booked for _, booked in self._undecided))
        self._report({place: sum(each[place] for each in known) for place in _PLACES})
        return {
            "productive_seconds_total": self._reported[PRODUCTIVE],
            "lost_seconds_total": {cause: self._reported[cause] for cause in LOST_CAUSES},
        }

    def _book_start(self) -> None:
        """Book what came before the first step, by its phases, once that has begun, or begun anew."""
        if not self._completed and (before := self._step.before) is not None:
            self._add(self._book(self._take(before), 0.0)[0])

    def _settle(self, number: int, booked: Seconds) -> None:
        self._add(self._judged(number, booked))

    def _add(self, booked: Seconds) -> None:
        for place, seconds in booked.items():
            self._settled[place] += seconds

    def _take(self, seconds: Sequence[float]) -> list[float]:
        """Return what each phase gained since it was last taken, given its cumulative seconds."""
        spent = self._since_last(seconds)
        for phase, gained in enumerate(spent):
            self._seconds[phase] += gained
        return spent

    def _since_last(self, seconds: Sequence[float]) -> list[float]:
        """Return what each phase gained since the last completed step, given its cumulative seconds."""
        return [
            now - before if before < now < inf else 0.0  # nothing for one that fell or is not finite
            for now, before in zip(seconds, self._seconds, strict=True)
        ]

    def _book(self, spent: Sequence[float], wait: float) -> tuple[Seconds, float]:
        """Return the seconds spent on new work by their place, and how many of them count as a stall."""
        booked = dict.fromkeys(_PLACES, 0.0)
        for cause, seconds in zip(_CAUSES, spent, strict=True):
            booked[cause] += seconds
        exposed = min(max(0.0, wait - spent[_COLLECTIVE]), booked[PRODUCTIVE])  # marked ones are in their phase already
        booked[PRODUCTIVE] -= exposed
        booked[COLLECTIVE] += exposed
        stalled = booked[PRODUCTIVE] + booked["data"] + booked[COLLECTIVE]  # the others have a known cause
        stalled -= sum(spent[phase] for phase in _GENERATION)  # which is new work, however long it takes
        self._move_hang(booked, max(0.0, stalled - self._longest_step()) if stalled > HANG_SECONDS else 0.0)
        return booked, stalled

    def _judged(self, number: int, booked: Seconds) -> Seconds:
        """Return what was spent on step `number`, as rework if an earlier process has done that step."""
        last_step = self._last_step()
        if last_step is None or number >= last_step:
            return booked
        kept = {place: booked[place] for place in ("init", HANG)}
        return {**dict.fromkeys(_PLACES, 0.0), **kept, REWORK: sum(booked.values()) - sum(kept.values())}

    @staticmethod
    def _move_hang(booked: Seconds, hang: float) -> None:
        """Take the seconds of a hang from where most are: it sits in one place."""
        for place in sorted((PRODUCTIVE, "data", COLLECTIVE), key=lambda place: -booked[place]):
            part = min(hang, booked[place])
            booked[place] -= part
            booked[HANG] += part
            hang -= part

    def _longest_step(self) -> float:
        """Return the seconds without a completed step that are not a hang yet; infinite before an ordinary step."""
        if self._limit is None:
            usual = sorted(self._usual)
            self._limit = HANG_SECONDS + HANG_STEPS * usual[len(usual) // 2] if usual else inf
        return self._limit

    def _learn_gap(self) -> None:
        """Book the time between an earlier process and this one, once it is known."""
        if self._gap is None and (ended := self._ended()) is not None:
            gap = self._began - ended
            self._gap = gap if 0.0 <= gap <= LONGEST_GAP else 0.0  # NaN is neither
            self._settled[RESTART] += self._gap

    def _report(self, target: Seconds) -> None:
        """Move the reported seconds towards the known ones; none of them falls, and their sum does not run ahead.

        Booked by phases first, a step's time may turn out to be a wait, or rework, once it is completed: the seconds
        already reported then stay constant until they are true, and the other causes share the rest.
        """
        short = {place: max(0.0, target[place] - self._reported[place]) for place in _PLACES}
        missing = sum(short.values())
        room = min(missing, max(0.0, sum(target.values()) - sum(self._reported.values())))
        if missing > 0:
            for place, seconds in short.items():
                self._reported[place] += seconds * (room / missing)
