"""The frames a rank sends: everything it knows of itself, put together by the sender thread."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping

from tachograph.catalog.rank import TRAIN_METRICS
from tachograph.client.core.batches import LoaderWatch
from tachograph.client.core.counters import Counter
from tachograph.client.core.notice import notice
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.step_histogram import StepHistogram
from tachograph.client.core.steps import Step, StepRecord
from tachograph.client.hello.batch_job import batch_job
from tachograph.client.hello.groups import GroupProgress
from tachograph.client.hello.identity import Identity
from tachograph.client.hello.visible_devices import visible_devices
from tachograph.client.hello.workload import Workload
from tachograph.client.signals.checkpoints import Checkpoints
from tachograph.client.signals.logged import Logged
from tachograph.client.signals.phase_excess import PhaseExcess
from tachograph.client.torch.accelerator import Accelerator
from tachograph.client.torch.collectives import Collectives
from tachograph.client.torch.device_time import DeviceTime
from tachograph.client.transport.guarded import Guarded
from tachograph.client.transport.interfaces import MetricSource, Sink, StepObserver
from tachograph.wire import VERSION, encode_number

SINK_SECONDS = 1.0
"""Events may send ten frames a second; sinks get one of them."""

STATM = "/proc/self/statm"
"""Sizes in pages; the second number is what is resident, the third how much of it is shared or of files (proc(5)).
Reading it takes 5 µs."""

Frame = dict[str, object]
Number = int | float
Metrics = dict[str, Number | dict[str, Number]]


class RankState:
    """All state of one rank. Each part is written by the training thread or by the sender thread, never by both.

    `sources` are asked for metrics before each frame, in this order, where a later one's value stands; `observers` hear
    of every completed step; `sinks` get what the frame says.
    """

    def __init__(self, identity: Identity, workload: Workload, *, device_time: bool = True) -> None:
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
        self.logged = Logged(self.step)
        self._histogram = StepHistogram()
        self._groups = GroupProgress()
        excess = PhaseExcess()
        self.guests: Guarded[MetricSource] = Guarded(self.dropped)
        self.sources: Guarded[MetricSource] = Guarded(
            self.dropped,
            self.loaders,
            self.logged,
            self._histogram,
            excess,
            self.checkpoints,
            self.collectives,
            self._groups,
        )
        if device_time:
            self.sources.add(DeviceTime(self.clock))
        self.observers: Guarded[StepObserver] = Guarded(self.dropped, self._histogram, excess)
        self.sinks: Guarded[Sink] = Guarded(self.dropped)
        self._refused = 0
        self._sequence = 0
        self._sunk_at = 0.0
        self._progress: tuple[float, float] | None = None

    def hello(self) -> Frame:
        """Return the first frame of a connection."""
        who = self.identity
        frame: Frame = {
            "v": VERSION, "type": "hello", "run": who.run, "rank": who.rank, "local_rank": who.local_rank,
            "world_size": who.world_size, "attempt": who.attempt, "pid": os.getpid(), "facts": self.workload.facts,
            **visible_devices(os.environ),
        }  # fmt: skip
        if self.accelerator.uuid is not None:
            frame["uuid"] = self.accelerator.uuid
        if job := batch_job(os.environ):
            frame["job"] = job
        return frame

    def frame(self) -> Frame:
        """Return the whole state now, and give it to the sinks."""
        self.catch_up()
        phase, since, seconds = self.clock.read()
        now = time.time()
        unix = now - time.perf_counter()
        metrics = self._metrics(seconds)
        step = self.step.next
        if self.sinks and now - self._sunk_at >= SINK_SECONDS:
            self._sunk_at = now
            flat = dict(_flat(metrics))
            self.sinks.each(lambda sink: sink.write(now, step, flat))
        self._sequence += 1
        frame: Frame = {
            "v": VERSION, "type": "state", "seq": self._sequence, "time": now, "step": step,
            "phase": phase, "phase_since": unix + since,
            "metrics": {key: _encoded(value) for key, value in metrics.items()},
            "histograms": {"step_seconds": self._histogram.frame()}, "events": list(self.checkpoints.events),
            "dropped": self._dropped(),
        }  # fmt: skip
        if (ended := self.step.ended) is not None:
            if self._progress is None or self._progress[0] != ended:
                self._progress = ended, unix + ended  # once a step: a clock that is set, or noise, is no progress
            frame["progress_time"] = self._progress[1]
        return frame

    def sent(self) -> None:
        """Note that the last frame, with all events so far, has been sent."""
        self.checkpoints.sent()

    def greeting(self) -> object:
        """Return what of the hello may change later: the device and the facts."""
        return self.accelerator.uuid, dict(self.workload.facts)

    def idle(self) -> None:
        """Do what a frame would: while there is no exporter, rings are emptied and sinks written all the same."""
        if self.sinks:
            self.frame()
        else:
            self.catch_up()

    def catch_up(self) -> None:
        """Take over what the training thread left: logged values and completed steps, in order."""
        if self.clock.failed:
            self.clock.failed = False
            self.dropped.count += 1
            notice("clock", "a phase or a step could not be recorded: out of memory or of stack")
        self.logged.read()
        records = self.step.records
        for _ in range(len(records)):
            record = StepRecord(*records.popleft())
            self.observers.each(lambda observer: observer.observe(record))  # noqa: B023 - called before the next one

    def _metrics(self, phase_seconds: Mapping[str, float]) -> Metrics:
        """Return wire key and value: what guests say first, what is measured here last."""
        metrics: Metrics = {}

        def ask(source: MetricSource) -> None:
            given = source.metrics()
            self._take(metrics, given.items() if isinstance(given, Mapping) else given)

        self.guests.each(ask)
        self.sources.each(ask)
        self._take(metrics, self._measured(phase_seconds))
        return metrics

    def _measured(self, phase_seconds: Mapping[str, float]) -> Iterator[tuple[str, object]]:
        steps = self.step.completed
        yield "steps_total", steps
        for key, amount in dict(self.workload.per_step).items():  # counted FLOPs may join it meanwhile
            yield key, steps * amount
        yield "phase_seconds_total", phase_seconds
        yield "batches_total", self.batches.count
        yield "checkpoint_seconds_total", phase_seconds["checkpoint"]
        yield "checkpoint_failures_total", self.clock.checkpoint.failures + self.checkpoints.failures
        yield from self.accelerator.memory().items()
        if (resident := host_memory()) is not None:
            yield "host_memory_bytes", resident

    def _take(self, metrics: Metrics, given: Iterable[tuple[str, object]]) -> None:
        """Put what a source says into `metrics`; keys that the catalog lacks and values of a wrong kind are counted."""
        for key, value in given:
            row = TRAIN_METRICS.get(key) if isinstance(key, str) else None
            if row is None or (row.own_label is not None) != isinstance(value, Mapping):
                self._refused += 1
            elif isinstance(value, Mapping):
                numbers = {str(label): each for label, each in value.items() if _is_number(each)}
                self._refused += len(value) - len(numbers)
                if numbers:
                    metrics[key] = numbers
            elif _is_number(value):
                metrics[key] = value  # type: ignore[assignment]
            else:
                self._refused += 1

    def _dropped(self) -> int:
        at_start = self.identity.refused + self.workload.refused
        return at_start + self.dropped.count + self.logged.refused + self._refused + self.checkpoints.overwritten


def host_memory(path: str = STATM) -> int | None:
    """Return the bytes of this process alone, without its children; None where the kernel does not say."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 3 ms and 0.7 MB to import
            _, resident, shared, *_ = file.read().split()
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _is_number(value: object) -> bool:
    """Return whether a frame can carry `value`: an integer beyond 2^53 would not arrive as it left."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53


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
