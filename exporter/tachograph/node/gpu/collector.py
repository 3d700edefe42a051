"""One GPU of the node: opened, read, found lost, and opened again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from tachograph.catalog import index as catalog
from tachograph.node.driver.nvml import WHOLE, GpuFailed, Nvml, NvmlFailure
from tachograph.node.gpu.device import OpenGpu
from tachograph.node.gpu.readings import SLOW_SECONDS
from tachograph.node.peaks import peaks_of
from tachograph.node.samples import GpuIdentity, Row

Clock: TypeAlias = Callable[[], float]


class GpuCollector:
    """Collects one GPU by its NVML index, again and again.

    Beside the samples it tells, as of the last collection that succeeded: `pids`, the processes on the GPU; `notes`,
    by subject, what this model or its driver does not have; `failures`, by subject, what could not be read.
    """

    def __init__(self, nvml: Nvml, index: int, clock: Clock, detail: bool = False) -> None:
        self.identity = GpuIdentity(str(index), "", "")
        self.info_row: Row | None = None
        self.failures: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.pids: tuple[int, ...] = ()
        self._nvml = nvml
        self._clock = clock
        self._detail = detail
        self._gpu: OpenGpu | None = None
        self._open_at: float | None = clock()  # None: its handle is good
        self._failure = GpuFailed("not opened yet")

    @property
    def gpm(self) -> str:
        """Why GPM is not read, one of COLLECTOR_REASONS; empty while it is, or while the GPU is not read at all."""
        return self._gpu.gpm.word if self._gpu is not None else ""

    @property
    def gpm_reason(self) -> str:
        """Why GPM is not read, as a sentence."""
        return self._gpu.gpm.reason if self._gpu is not None else ""

    def collect(self, driver_version: str, cuda_version: str) -> list[Row]:
        """Return every sample of this GPU; raise GpuFailed if it cannot be talked to, and then none is believed."""
        now = self._clock()
        failures: dict[str, str] = {}
        self.failures = {}
        try:
            gpu = self._opened(now, driver_version, cuda_version)
            rows = gpu.read(now, failures)
        except GpuFailed as failure:
            self._failure = failure
            if self._gpu is not None:
                self._gpu.forget()
            # Opening a lost GPU makes the kernel log a line each time, so its handle is renewed seldom.
            if self._open_at is None or self._open_at <= now:
                self._open_at = now + SLOW_SECONDS
            raise
        self.failures = {f"{subject} of GPU {self.identity.index}": why for subject, why in failures.items()}
        self.pids = gpu.pids
        self.notes = self._noted(gpu, driver_version)
        return rows if self.info_row is None else [self.info_row, *rows]

    def close(self) -> None:
        """Give back what the driver holds for this GPU."""
        if self._gpu is not None:
            self._gpu.close()

    def _opened(self, now: float, driver_version: str, cuda_version: str) -> OpenGpu:
        if self._open_at is not None and self._open_at <= now:
            index = self.identity.index
            try:
                gpu = self._nvml.gpu(int(index))
                uuid, name, bus_id = gpu.identity()
                serial, vbios = gpu.imprint("nvmlDeviceGetSerial"), gpu.imprint("nvmlDeviceGetVbiosVersion")
            except WHOLE:
                raise
            except NvmlFailure as failure:  # a GPU without a name cannot be reported, whatever the cause
                raise GpuFailed(str(failure)) from None
            self.close()
            self.identity = GpuIdentity(index, uuid, name)
            labels = (index, uuid, name, bus_id, serial, vbios, driver_version, cuda_version)
            self.info_row = catalog.GPU_INFO.name, labels, 1.0
            self._gpu = OpenGpu(self._nvml, gpu, self.identity, _version(driver_version), self._detail)
            self._open_at = None
        if self._gpu is None:
            raise self._failure
        return self._gpu

    def _noted(self, gpu: OpenGpu, driver_version: str) -> dict[str, str]:
        """Return what the GPU lacks, in words that are the same for every GPU of its model."""
        name = self.identity.name
        notes = {}
        if lacks := gpu.lacks():
            notes[name] = f"no {', '.join(lacks)} with driver {driver_version}"
        if not peaks_of(name):
            notes[f"peak of {name}"] = (
                "not known, so it gives no MFU: pass Recorder(peak_flops=…), or add a row to tachograph/node/peaks.py"
            )
        return notes


def _version(driver_version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", driver_version))
