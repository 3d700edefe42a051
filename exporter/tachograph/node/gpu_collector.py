"""Collects the GPUs of a node through the table of readings, and keeps going when some, or all, cannot be read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypedDict

from tachograph import catalog
from tachograph.node.nvml import DriverAbsent, DriverMismatch, Gpu, GpuFailed, NotSupported, Nvml, NvmlFailure
from tachograph.node.peaks import peaks_of
from tachograph.node.readings import CALLS, FIELDS, RETRY_SECONDS, SLOW_SECONDS, Call, Field, GpuIdentity, Value

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0

Row = tuple[str, tuple[str, ...], float]
Clock = Callable[[], float]


class Collection(TypedDict):
    """One collection, ready for JSON: samples, who was asked, seconds it took, and what could not be read."""

    samples: list[Row]
    gpus: list[tuple[str, str, str]]
    duration: float
    ok: bool
    reason: str
    failures: dict[str, str]


class GpuCollector:
    """Reads one GPU, remembering what it does not have and what is read seldom."""

    def __init__(self, nvml: Nvml, index: int, clock: Clock) -> None:
        self.identity = GpuIdentity(str(index), "", "")
        self.failures: dict[str, str] = {}
        self._nvml = nvml
        self._clock = clock
        self._gpu: Gpu | None = None
        self._bus_id = ""
        self._open_at: float | None = clock()  # None: its handle is good
        self._failure = GpuFailed("not opened yet")
        self._slow_at = clock()
        self._slow_rows: list[Row] = []
        self._absent_until: dict[Call | Field, float] = {}

    def collect(self, driver_version: str) -> list[Row]:
        """Return every sample of this GPU; raise GpuFailed if it cannot be talked to, and then none is believed."""
        now = self._clock()
        self.failures = {}
        try:
            gpu = self._opened(now)
            rows = self._fast(gpu, now)
            if now >= self._slow_at:
                self._slow_rows = self._slow(gpu, now, driver_version)
                self._slow_at = now + SLOW_SECONDS
        except GpuFailed as failure:
            self._failure = failure
            self._slow_at = now
            # Opening a lost GPU makes the kernel log a line each time, so its handle is renewed seldom.
            if self._open_at is None or self._open_at <= now:
                self._open_at = now + SLOW_SECONDS
            raise
        return rows + self._slow_rows

    def _opened(self, now: float) -> Gpu:
        if self._open_at is not None and self._open_at <= now:
            try:
                gpu = self._nvml.gpu(int(self.identity.index))
                uuid, name, self._bus_id = gpu.identity()
            except (DriverAbsent, DriverMismatch):
                raise
            except NvmlFailure as failure:  # a GPU without a name cannot be reported, whatever the cause
                raise GpuFailed(str(failure)) from None
            self.identity = GpuIdentity(self.identity.index, uuid, name)
            self._gpu = gpu
            self._open_at = None
        if self._gpu is None:
            raise self._failure
        return self._gpu

    def _row(self, value: Value, number: float) -> Row:
        return value.metric.name, (self.identity.index, self.identity.uuid, *value.labels), number * value.scale

    def _fast(self, gpu: Gpu, now: float) -> list[Row]:
        rows = [row for call in CALLS if not call.slow for row in self._call(gpu, call, now)]
        return rows + self._fields(gpu, now)

    def _slow(self, gpu: Gpu, now: float, driver_version: str) -> list[Row]:
        labels = (self.identity.index, self.identity.uuid)
        rows: list[Row] = [(catalog.GPU_INFO.name, (*labels, self.identity.name, self._bus_id, driver_version), 1.0)]
        rows += [row for call in CALLS if call.slow for row in self._call(gpu, call, now)]
        if not gpu.mig_enabled():  # the peak is the whole GPU's, and a rank then computes on a slice of it
            peaks = peaks_of(self.identity.name)
            rows += [(catalog.GPU_PEAK_FLOPS.name, (*labels, dtype), peak) for dtype, peak in peaks.items()]
        return rows

    def _call(self, gpu: Gpu, call: Call, now: float) -> list[Row]:
        if self._absent_until.get(call, now) > now:
            return []
        try:
            numbers = call.read(gpu)
        except (GpuFailed, DriverAbsent, DriverMismatch):
            raise
        except NvmlFailure as failure:
            self._lack(call, call.values[0], failure, now)
            return []
        pairs = zip(call.values, numbers, strict=True)
        return [self._row(value, number) for value, number in pairs if number is not None]

    def _fields(self, gpu: Gpu, now: float) -> list[Row]:
        asked = [field for field in FIELDS if self._absent_until.get(field, now) <= now]
        if not asked:
            return []
        try:
            answers = gpu.fields([field.id for field in asked])
        except (GpuFailed, DriverAbsent, DriverMismatch):
            raise
        except NvmlFailure as failure:
            answers = [failure] * len(asked)
        rows = []
        for field, answer in zip(asked, answers, strict=True):
            if isinstance(answer, NvmlFailure):
                self._lack(field, field.value, answer, now)
            else:
                rows.append(self._row(field.value, answer))
        return rows

    def _lack(self, reading: Call | Field, value: Value, failure: NvmlFailure, now: float) -> None:
        """Remember a reading the part does not have; report any other that failed."""
        if isinstance(failure, NotSupported):
            self._absent_until[reading] = now + RETRY_SECONDS
        else:
            self.failures[f"{value.metric.name} of GPU {self.identity.index}"] = str(failure)


class NodeCollector:
    """Collects all GPUs; opens NVML when it can, and again with back-off (1 to 30 s) once nothing answers."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._nvml: Nvml | None = None
        self._gpus: list[GpuCollector] = []
        self._driver_version = ""
        self._count_at = 0.0
        self._retry_at = clock()
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._reason = ""

    def collect(self) -> Collection:
        """Return one collection, a failed one with its reason; raise DriverMismatch where only a new process helps."""
        started = self._clock()
        rows: list[Row] = []
        failures: dict[str, str] = {}
        try:
            self._open(started)
            for gpu in self._gpus:
                rows += self._read(gpu, failures)
            self._reason = self._judge(rows, failures, started)
        except DriverMismatch:
            raise
        except NvmlFailure as failure:
            rows.clear()
            failures.clear()
            self._reason = str(failure)
            self._give_up(started)
        identities = [gpu.identity for gpu in self._gpus]
        return {
            "samples": rows,
            "gpus": [(identity.index, identity.uuid, identity.name) for identity in identities],
            "duration": self._clock() - started,
            "ok": not self._reason,
            "reason": self._reason,
            "failures": failures,
        }

    def _open(self, now: float) -> None:
        """Open NVML if it is not and its time has come; look for added or removed GPUs now and then."""
        if self._nvml is None:
            if now < self._retry_at:
                raise DriverAbsent(self._reason)
            self._nvml = Nvml()
            self._driver_version = self._nvml.driver_version()
            self._gpus = []
            self._count_at = now
        if now >= self._count_at:
            count = self._nvml.count()
            if count != len(self._gpus):
                self._gpus = [GpuCollector(self._nvml, index, self._clock) for index in range(count)]
            self._count_at = now + SLOW_SECONDS

    def _read(self, gpu: GpuCollector, failures: dict[str, str]) -> list[Row]:
        try:
            rows = gpu.collect(self._driver_version)
            failures.update(gpu.failures)
            labels = (gpu.identity.index, gpu.identity.uuid)
            rows.append((catalog.GPU_READINGS_FAILED.name, labels, float(len(gpu.failures))))
            up = 1.0
        except GpuFailed as failure:
            failures[f"GPU {gpu.identity.index} ({gpu.identity.uuid or 'never opened'})"] = str(failure)
            rows, up = [], 0.0
        return [(catalog.GPU_UP.name, (gpu.identity.index, gpu.identity.uuid), up), *rows]

    def _judge(self, rows: list[Row], failures: dict[str, str], now: float) -> str:
        """Return why the collection as a whole failed, "" when at least one GPU could be read."""
        if not self._gpus:
            return "the driver shows no GPU"
        if any(name == catalog.GPU_UP.name and value for name, _, value in rows):
            self._retry_seconds = FIRST_RETRY_SECONDS
            return ""
        self._give_up(now)  # after a driver reload or a reset of all, the old initialisation never works again
        return f"no GPU can be read: {next(iter(failures.values()))}"

    def _give_up(self, now: float) -> None:
        if self._nvml is not None or now >= self._retry_at:
            self._retry_at = now + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
