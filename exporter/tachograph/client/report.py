"""The frames a rank sends: everything it knows of itself, put together by the sender thread."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from weakref import ref

from tachograph.client.accelerator import Accelerator
from tachograph.client.batch_job import batch_job
from tachograph.client.checkpoints import Checkpoints
from tachograph.client.collectives import Collectives
from tachograph.client.groups import GroupProgress
from tachograph.client.identity import Identity
from tachograph.client.learning import LossWatch, NonfiniteWatch
from tachograph.client.phases import PhaseClock
from tachograph.client.scalars import number, read
from tachograph.client.steps import Step, StepHistogram
from tachograph.client.tally import Tally
from tachograph.client.visible_devices import visible_devices
from tachograph.client.workload import Workload
from tachograph.metric import GAUGE
from tachograph.training_catalog import TRAIN_METRICS
from tachograph.wire import VERSION, encode_number

_OWN = frozenset({"step", "loss_zscore", "loss_spike_steps"})
LOGGABLE = frozenset(key for key, row in TRAIN_METRICS.items() if row.kind == GAUGE and row.own_label is None) - _OWN
"""What `step.log` takes: the plain gauges that are not worked out here."""

Frame = dict[str, object]


class Report:
    """All state of one rank. Each part is written by the training thread or by the sender thread, never by both."""

    def __init__(self, identity: Identity, workload: Workload) -> None:
        self.identity = identity
        self.workload = workload
        self.clock = PhaseClock()
        self.dropped = Tally()
        self.batches = Tally()
        self.step = Step(self.clock, self.dropped)
        self.collectives = Collectives()
        self.checkpoints = Checkpoints()
        self.accelerator = Accelerator()
        self.optimizer: ref[object] | None = None
        self._histogram = StepHistogram()
        self._loss = LossWatch()
        self._nonfinite = NonfiniteWatch()
        self._groups = GroupProgress()
        self._logged: dict[str, float] = {}
        self._unreadable = 0
        self._sequence = 0

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

    def state(self) -> Frame:
        """Return the whole state now."""
        self._read_logged()
        self._histogram.drain(self.step.durations)
        phase, since, seconds = self.clock.read()
        now = time.time()
        unix = now - time.perf_counter()
        self._sequence += 1
        frame: Frame = {
            "v": VERSION, "type": "state", "seq": self._sequence, "time": now, "step": self.step.next,
            "phase": phase, "phase_since": unix + since, "metrics": dict(self._metrics(seconds)),
            "histograms": {"step_seconds": self._histogram.frame()}, "events": list(self.checkpoints.events),
            "dropped": self._dropped(),
        }  # fmt: skip
        if self.step.ended is not None:
            frame["progress_time"] = unix + self.step.ended
        return frame

    def _metrics(self, phase_seconds: Mapping[str, float]) -> Iterator[tuple[str, object]]:
        """Yield wire key and value: what the loop logged first, what is measured here last."""
        yield from ((key, encode_number(value)) for key, value in self._logged.items())
        if "learning_rate" not in self._logged and (rate := self._learning_rate()) is not None:
            yield "learning_rate", encode_number(rate)
        steps = self.step.completed
        yield "steps_total", steps
        for key, amount in self.workload.per_step.items():
            yield key, steps * amount
        yield "phase_seconds_total", phase_seconds
        yield "batches_total", self.batches.count
        yield "loss_spikes_total", self._loss.spikes
        if "loss" in self._logged:
            yield "loss_spike_steps", self._loss.spike_steps
        if self._loss.score is not None:
            yield "loss_zscore", encode_number(self._loss.score)
        yield "nonfinite_total", self._nonfinite.totals
        if self._nonfinite.first_steps:
            yield "nonfinite_step", self._nonfinite.first_steps
        yield "checkpoint_seconds_total", phase_seconds["checkpoint"]
        yield "checkpoint_failures_total", self.clock.checkpoint.failures
        yield from self.checkpoints.metrics().items()
        yield from ((key, values) for key, values in self.collectives.metrics().items() if values)
        yield from self._groups.metrics().items()
        yield from self.accelerator.memory().items()

    def _dropped(self) -> int:
        at_start = self.identity.refused + self.workload.refused
        return at_start + self.dropped.count + self._unreadable + self.checkpoints.overwritten

    def _read_logged(self) -> None:
        """Take over what the training thread logged since the last frame, step by step in order."""
        ring = self.step.logged
        for _ in range(len(ring)):
            step, readings = ring.popleft()
            values: dict[str, float] = {}
            for key, reading in readings.items():
                value = number(reading) if key in LOGGABLE else None
                if value is None:
                    self._unreadable += 1
                else:
                    values[key] = value
            self._logged.update(values)
            self._nonfinite.observe(step, values)
            if "loss" in values:
                self._loss.observe(step, values["loss"])

    def _learning_rate(self) -> float | None:
        optimizer = self.optimizer() if self.optimizer is not None else None
        try:
            rate = optimizer.param_groups[0]["lr"]  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001 - no optimizer, or one that keeps its rate elsewhere
            return None
        return None if getattr(rate, "is_cuda", False) else number(read(rate))
