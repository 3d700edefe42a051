"""The state of a rank, and the frames that the sender thread makes of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from math import isfinite
from operator import methodcaller

from tachograph.catalog.rank import PHASES, USUAL_PHASES
from tachograph.catalog.train import TRAIN_METRICS
from tachograph.client.core.arguments import LARGEST
from tachograph.client.core.batches import LoaderWatch
from tachograph.client.core.counters import Counter
from tachograph.client.core.misuse import Misuse
from tachograph.client.core.notice import notice
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.step_histogram import StepHistogram
from tachograph.client.core.steps import Step, step_record
from tachograph.client.hello.batch_job import batch_job
from tachograph.client.hello.coordinates import Coordinates
from tachograph.client.hello.groups import GroupProgress
from tachograph.client.hello.identity import Identity
from tachograph.client.hello.visible_devices import visible_devices
from tachograph.client.hello.workload import GIVEN, Workload, framework
from tachograph.client.signals.checkpoints import Checkpoints
from tachograph.client.signals.last_steps import LastSteps
from tachograph.client.signals.logged import Logged
from tachograph.client.signals.ordinary_totals import OrdinaryTotals
from tachograph.client.signals.phase_excess import PhaseExcess
from tachograph.client.signals.standstill import Standstill
from tachograph.client.signals.work import WorkCounters
from tachograph.client.torch.accelerator import Accelerator
from tachograph.client.torch.collectives import Collectives
from tachograph.client.torch.device_time import DeviceTime
from tachograph.client.transport import stack_dump
from tachograph.client.transport.guarded import Guarded
from tachograph.client.transport.interfaces import MetricSource, Sink, StepObserver
from tachograph.client.transport.standing_failure import standing_failure
from tachograph.wire import MAX_NOTICE_BYTES, MAX_NOTICES, VERSION, cut, encode_number

_LABELLED = {key: row.own_label is not None for key, row in TRAIN_METRICS.items()}
"""Whether a metric has one number for each value of a label of its own, by wire key."""

SINK_SECONDS = 1.0
"""Events may send ten frames a second; sinks get one of them."""

STATM = "/proc/self/statm"
"""Sizes in pages; the second number is what is resident, the third how much of it is shared or of files (proc(5)).
Reading it takes 5 µs."""

BATCHES_WITHOUT_STEP = 300
"""Batches after which a loop that has not completed a step is taken for one that does not mark its steps."""

UNMARKED_SECONDS = 5.0
"""Time in the middle of a step and outside every phase that is worth a series: a healthy rank has none."""

_OPTIMIZER = PHASES.index("optimizer")

BOX_VERSION = 1

Frame = dict[str, object]
Number = int | float
Metrics = dict[str, Number | dict[str, Number]]


class RankState:
    """All state of one rank. Each part is written by the training thread or by the sender thread, never by both.

    `sources` give metrics for each frame, in this order; a later one's value takes precedence. `observers` receive
    every completed step, `sinks` the metrics of a frame.
    """

    def __init__(
        self, identity: Identity, workload: Workload, misuse: Misuse | None = None, *, device_time: bool = True
    ) -> None:
        self.misuse = misuse or Misuse()
        self.box_trouble = ""
        """Why the rank's last box is in no file."""
        self.faults: Collection[str] = ()
        """What is sent where it may not be logged."""
        self.identity = identity
        self.workload = workload
        self.clock = PhaseClock()
        self.dropped = Counter()
        self.batches = Counter()
        self.loaders = LoaderWatch()
        self.collectives = Collectives(identity.world_size)
        self.step = Step(self.clock, self.dropped, self.collectives.wait)
        self.checkpoints = Checkpoints()
        self.accelerator = Accelerator()
        self.coordinates = Coordinates()
        self._work = WorkCounters(self.step, workload.per_step, workload.per_token, identity.world_size)
        self.logged = Logged(self.step, self.misuse, workload.own_metrics, self._work)
        self._histogram = StepHistogram()
        self._groups = GroupProgress()
        self.standstill = Standstill()
        self._last_steps = LastSteps()
        excess, ordinary = PhaseExcess(), OrdinaryTotals(self.collectives.wait_by_lengths)
        self.added_sources: Guarded[MetricSource] = Guarded(self.dropped)
        self.sources: Guarded[MetricSource] = Guarded(
            self.dropped,
            self.loaders,
            self.logged,
            self._work,
            self._histogram,
            excess,
            ordinary,
            self.checkpoints,
            self.collectives,
            self._groups,
            self.misuse,
        )
        if device_time:
            self.sources.add(DeviceTime(self.clock))
        self.observers: Guarded[StepObserver] = Guarded(
            self.dropped, self._histogram, excess, ordinary, self.standstill, self._last_steps
        )
        self.sinks: Guarded[Sink] = Guarded(self.dropped)
        self._refused = 0
        self._sequence = 0
        self._sunk_at = -SINK_SECONDS
        self._phase_seconds: dict[str, float] = {}
        self._optimizer_seconds = 0.0
        self._unmarked = 0.0
        self._progress: tuple[float, float] | None = None

    def hello(self) -> Frame:
        """Return the first frame of a connection, made by the thread that sends it."""
        who = self.identity
        frame: Frame = {
            "v": VERSION, "type": "hello", "run": who.run, "rank": who.rank, "local_rank": who.local_rank,
            "world_size": who.world_size, "attempt": who.attempt, "pid": os.getpid(), "facts": self._facts(),
            **visible_devices(os.environ),
        }  # fmt: skip
        if who.role:
            frame["role"] = who.role
        if self.accelerator.uuid is not None:
            frame["uuid"] = self.accelerator.uuid
        if job := batch_job(os.environ):
            frame["job"] = job
        if coordinates := self.coordinates.read():
            frame["coordinates"] = coordinates
        if self.workload.own_metrics:
            frame["metrics"] = self.workload.own_metrics
        if not self.standstill.is_off and stack_dump.is_possible():
            frame["stacks"] = {"thread": self.standstill.thread, "sender": threading.get_native_id()}
        return frame

    def frame(self) -> Frame:
        """Return the whole state now, and give it to the sinks."""
        self.catch_up()
        phase, since, seconds = self.clock.read()
        now, present = time.time(), time.perf_counter()
        unix = now - present
        self._phase_seconds = seconds
        # Only where earlier steps show their optimizer: without, what comes after it may be a save.
        before_optimizer = 0 < self._optimizer_seconds == seconds["optimizer"]
        in_middle = phase == "other" and self.step.entered and before_optimizer
        self._unmarked = present - since if in_middle else 0.0
        metrics: Metrics = {}
        special: set[str] = set()
        take = partial(self._take, metrics, special)
        self.added_sources.each(take)  # what is measured here stands above what added_sources say
        self.sources.each(take)
        take(self)
        step = self.step.next
        if self.sinks and present - self._sunk_at >= SINK_SECONDS:
            self._sunk_at = present
            flat = dict(_flat(metrics))
            self.sinks.each(lambda sink: sink.write(now, step, flat))
        self._sequence += 1
        encoded: dict[str, object] = {**metrics}
        for key in special:
            encoded[key] = _encoded(metrics[key])
        frame: Frame = {
            "v": VERSION, "type": "state", "seq": self._sequence, "time": now, "step": step,
            "phase": phase, "phase_since": unix + since, "phase_seconds": max(0.0, present - since),
            "metrics": encoded,
            "histograms": {"step_seconds": self._histogram.frame()}, "events": list(self.checkpoints.events),
            "dropped": self._dropped(),
        }  # fmt: skip
        if (ended := self.step.ended) is not None:
            if self._progress is None or self._progress[0] != ended:
                self._progress = ended, unix + ended  # once a step: a clock that is set, or noise, is no progress
            frame["progress_time"] = self._progress[1]
            frame["progress_seconds"] = max(0.0, present - ended)
        if (failure := standing_failure(self.clock)) is not None:
            at = unix + failure.since
            frame["raised"] = {"category": failure.category, "message": failure.message, "time": at}
        if where := self.standstill.where(phase, since):
            frame["where"] = where
        if path := self.checkpoints.path:
            frame["checkpoint_path"] = path
        if self.standstill.still >= 1.0:
            frame["still"] = self.standstill.still
        trouble = [cut(self.box_trouble, MAX_NOTICE_BYTES)] if self.box_trouble else []
        faults = [cut(text, MAX_NOTICE_BYTES) for text in tuple(self.faults)]
        if notices := list(dict.fromkeys(trouble + self.misuse.notices() + faults))[:MAX_NOTICES]:
            frame["notices"] = notices
        return frame

    def box_facts(self) -> dict[str, object]:
        """Return what a rank's box says of the rank itself: who it is, where it stands, its last steps, its groups."""
        self.catch_up()
        phase, since, seconds = self.clock.read()
        now, who = time.time(), self.identity
        unix = now - time.perf_counter()
        facts: dict[str, object] = {
            "box": BOX_VERSION, "run": who.group, "rank": who.rank, "local_rank": who.local_rank,
            "world_size": who.world_size, "attempt": who.attempt, "pid": os.getpid(), "time": now,
            "step": self.step.next, "phase": phase, "phase_since": unix + since, "phase_seconds": seconds,
            "progress_time": None if self.step.ended is None else unix + self.step.ended,
            "steps": self._last_steps.read(unix), "memory": self.accelerator.memory(),
            "coordinates": self.coordinates.read(), "job": batch_job(os.environ),
        }  # fmt: skip
        try:
            facts["groups"] = self._groups.described()
        except Exception as error:  # noqa: BLE001 - PyTorch's private names cost the groups only
            facts["groups_unreadable"] = type(error).__name__
        return facts

    def sent(self) -> None:
        """Note that the last frame, with all events so far, has been sent."""
        self.checkpoints.sent()

    def hello_state(self) -> object:
        """Return what of the hello may change later: the device, the coordinates and the facts."""
        return self.accelerator.uuid, self.coordinates.read(), self._facts()

    def _facts(self) -> dict[str, object]:
        logged = {"flops_convention": GIVEN} if "flops_total" in self._work.logged else {}
        return {**framework(), **logged, **self.workload.facts}

    def idle(self) -> None:
        """Do what a frame would: while there is no exporter, rings are emptied and sinks written all the same."""
        if self.sinks:
            self.frame()
        else:
            self.catch_up()
            phase, since, _ = self.clock.read()
            self.standstill.where(phase, since)

    def catch_up(self) -> None:
        """Take over what the training thread left: logged values and completed steps, in order."""
        if self.clock.failed:
            self.clock.failed = False
            self.dropped.count += 1
            notice("clock", "a phase or a step could not be recorded: out of memory or of stack")
        self.logged.read()
        records = self.step.records
        for _ in range(len(records)):
            record = step_record(records.popleft())
            self._optimizer_seconds = record.seconds[_OPTIMIZER]
            self.observers.each(methodcaller("observe", record))
        if self.batches.count >= BATCHES_WITHOUT_STEP and not (self.step.completed or self.step.under_way):
            self._note_missing_steps()
        self.misuse.tell()

    def conclude(self) -> None:
        """Log, at the end of the record, what could not be recorded."""
        self.catch_up()
        self.misuse.conclude()

    def metrics(self) -> dict[str, object]:
        """Return what is measured here: steps, phases, batches, checkpoints and memory."""
        phase_seconds = self._phase_seconds
        measured: dict[str, object] = {"steps_total": self.step.completed}
        measured["phase_seconds_total"] = {
            phase: seconds for phase, seconds in phase_seconds.items() if seconds or phase in USUAL_PHASES
        }
        measured["batches_total"] = self.batches.count
        measured["checkpoint_seconds_total"] = phase_seconds["checkpoint"]
        measured["checkpoint_failures_total"] = self.clock.checkpoint.failures + self.checkpoints.failures
        if self._unmarked >= UNMARKED_SECONDS:
            measured["step_unmarked_seconds"] = self._unmarked
        measured.update(self.accelerator.memory())
        if (resident := host_memory()) is not None:
            measured["host_memory_bytes"] = resident
        return measured

    def _take(self, metrics: Metrics, special: set[str], source: MetricSource) -> None:
        """Put what a source gives into `metrics`; keys that the catalog lacks and values of a wrong kind are counted.

        Numbers that JSON does not have, or that are of no plain type, have their keys noted in `special`.
        """
        given = source.metrics()
        for key, value in given.items() if type(given) is dict or isinstance(given, Mapping) else given:
            labelled = _LABELLED.get(key) if isinstance(key, str) else None
            if labelled and (type(value) is dict or isinstance(value, Mapping)):
                if numbers := self._numbers(value):
                    metrics[key] = numbers
                    if not all(map(isfinite, numbers.values())):
                        special.add(key)
            elif labelled is False and (number := value if type(value) is float else _carried(value)) is not None:
                metrics[key] = number
                if not isfinite(number):
                    special.add(key)
            else:
                self._refused += 1

    def _numbers(self, given: Mapping[object, object]) -> dict[str, Number]:
        numbers = {
            str(label): number
            for label, each in given.items()
            if (number := each if type(each) is float else _carried(each)) is not None
        }
        self._refused += len(given) - len(numbers)
        return numbers

    def _note_missing_steps(self) -> None:
        if not self.misuse.has("no_steps"):
            self.misuse.note(
                "no_steps",
                f"{BATCHES_WITHOUT_STEP} batches of recorder.data(…)",
                "and no step completed: put each optimizer step into `with recorder.step():`, evaluation into "
                '`with recorder.phase("eval"):`',
            )

    def _dropped(self) -> int:
        at_start = self.identity.refused + self.workload.refused
        return at_start + self.dropped.count + self.logged.refused + self._refused + self.checkpoints.overwritten


def host_memory(path: str = STATM) -> int | None:
    """Return the bytes of this process alone, without its children; None if the kernel does not report it."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 3 ms and 0.7 MB to import
            _, resident, shared, *_ = file.read().split()
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _carried(value: object) -> Number | None:
    """Return what a frame carries of `value`, None for what is no number.

    An integer beyond 2^53, as FLOPs are within half a minute, is carried as the nearest double: not every reader has
    more than 64 bits for integers.
    """
    if type(value) is not int:
        if isinstance(value, float):
            return value
        return _carried(int(value)) if isinstance(value, int) and type(value) is not bool else None
    if -LARGEST <= value <= LARGEST:
        return value
    try:
        return float(value)
    except OverflowError:
        return None


def _encoded(value: Number | dict[str, Number]) -> object:
    if isinstance(value, dict):
        return {label: encode_number(each) for label, each in value.items()}
    return encode_number(value)


def _flat(metrics: Metrics) -> Iterator[tuple[str, float]]:
    for key, value in metrics.items():
        if isinstance(value, dict):
            yield from ((f"{key}/{label}", each) for label, each in value.items())
        else:
            yield key, value
