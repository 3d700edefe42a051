"""One GPU of the node: opened, read, found lost, and opened again."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tachograph.node.driver.nvml import WHOLE, GpuFailed, Nvml, NvmlFailure
from tachograph.node.gpu.open_gpu import OpenGpu
from tachograph.node.gpu.reading_table import RETRY_SECONDS, SLOW_SECONDS
from tachograph.node.gpu.worker_protocol import GpuReading
from tachograph.node.samples import GpuIdentity, unzipped

Clock: TypeAlias = Callable[[], float]
GPM = "activity of SMs and tensor cores"


class GpuCollector:
    """Collects one GPU by its NVML index, again and again; `known` is a reading with its identity and no values."""

    def __init__(self, nvml: Nvml, index: int, clock: Clock, detail: bool = False) -> None:
        self.known = GpuReading(GpuIdentity(str(index), "", ""))
        self._nvml = nvml
        self._clock = clock
        self._detail = detail
        self._gpu: OpenGpu | None = None
        self._open_at: float | None = clock()  # None: its handle and its name are good
        self._failure = GpuFailed("not opened yet")

    def collect(self, driver_version: str, cuda_version: str) -> GpuReading:
        """Return a reading of this GPU; raise DriverAbsent or DriverMismatch if the driver as a whole is gone."""
        now = self._clock()
        failures: dict[str, str] = {}
        try:
            gpu = self._opened(now, driver_version, cuda_version)
            rows = gpu.read(now, failures)
        except GpuFailed as failure:
            self._failure = failure
            if self._gpu is not None:
                self._gpu.forget()
            # Opening a lost GPU makes the kernel log a line each time, so its handle is seldom renewed.
            if self._open_at is None or not now < self._open_at <= now + SLOW_SECONDS:
                self._open_at = now + SLOW_SECONDS
            return self.known.down(failure.word, str(failure))
        self.known = replace(self.known, notes=self._notes(gpu, driver_version))
        return GpuReading(
            self.known.identity,
            "",
            *unzipped(rows),
            self.known.info,
            gpu.pids,
            gpu.gpm.word,
            {f"{subject} of GPU {self.known.identity.index}": why for subject, why in failures.items()},
            self.known.notes,
        )

    def close(self) -> None:
        """Release the driver's resources for this GPU."""
        if self._gpu is not None:
            self._gpu.close()

    def _opened(self, now: float, driver_version: str, cuda_version: str) -> OpenGpu:
        if self._open_at is not None and self._open_at <= now:
            index = self.known.identity.index
            try:
                gpu = self._nvml.gpu(int(index))
                uuid, name, bus_id = gpu.identity()
                serial, vbios = gpu.imprint("nvmlDeviceGetSerial"), gpu.imprint("nvmlDeviceGetVbiosVersion")
            except WHOLE:
                raise
            except NvmlFailure as failure:  # a GPU without a UUID cannot be reported, whatever the cause
                raise GpuFailed(str(failure)) from None
            self.close()
            identity = GpuIdentity(index, uuid, name)
            info = (index, uuid, name, bus_id, serial, vbios, driver_version, cuda_version)
            self.known = GpuReading(identity, info=info, notes=self.known.notes)
            self._gpu = OpenGpu(self._nvml, gpu, identity, _version(driver_version), self._detail)
            self._open_at = None if name else now + RETRY_SECONDS  # its peak goes by its name
        if self._gpu is None:
            raise self._failure
        return self._gpu

    def _notes(self, gpu: OpenGpu, driver_version: str) -> dict[str, str]:
        """Return what the GPU lacks, by subject, in words that are the same for every GPU of its model."""
        name = self.known.identity.name
        notes = {}
        if name and (lacks := gpu.lacks):
            notes[name] = f"no {', '.join(lacks)} with driver {driver_version}"
        if name and not gpu.has_peak:
            notes[f"peak of {name}"] = (
                "unknown, so there is no MFU: pass Recorder(peak_flops=…), or add a row to tachograph/node/peaks.py"
            )
        if gpu.gpm.reason:
            notes[GPM] = gpu.gpm.reason
        return notes


def _version(driver_version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", driver_version))
