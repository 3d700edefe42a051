"""The only door to pynvml: typed readings in NVML's own units, and errors that say what failed.

`pynvml` comes with the distribution nvidia-ml-py. It loads `libnvidia-ml.so.1` by the loader's rules, keeps it for the
life of the process, and raises NVMLError, which cannot be hashed and is translated here for that reason too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

Untyped: TypeAlias = Any
"""What comes out of pynvml, which has no types: handles, ctypes structures, numbers."""


class NvmlFailure(Exception):  # noqa: N818 - a failure is what it is called everywhere here
    """An NVML call failed and nothing more is known than its message: this reading is lost, others may succeed."""


class NotSupported(NvmlFailure):
    """The part or its driver does not have the reading."""


class GpuFailed(NvmlFailure):
    """The GPU itself cannot be talked to: lost from the bus, waiting for a reset, or failing for an unknown reason."""


class DriverAbsent(NvmlFailure):
    """NVML as a whole cannot be used: no pynvml, no library, no driver loaded, or it was unloaded meanwhile."""


class DriverMismatch(NvmlFailure):
    """The driver was replaced under the loaded library; only a new process can load the new one."""


# nvmlReturn_t -> error (nvml.h). 13 is a symbol that an old driver lacks, 25 a struct version that it does not know.
_ERRORS: dict[int, type[NvmlFailure]] = {
    1: DriverAbsent,  # uninitialized: the driver was reloaded
    3: NotSupported,
    9: DriverAbsent,
    12: DriverAbsent,
    13: NotSupported,
    15: GpuFailed,
    16: GpuFailed,
    18: DriverMismatch,
    22: NotSupported,
    25: NotSupported,
    999: GpuFailed,
}
_WORDS = {
    9: "the NVIDIA driver is not loaded",
    12: "no NVIDIA driver: libnvidia-ml.so.1 is not found",
    15: "GPU is lost",
    16: "GPU requires a reset",
    18: "the NVIDIA driver was replaced: its library and kernel module differ",
    999: "NVML reports an unknown error",
}
_FIELD_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


class Nvml:
    """An initialised NVML; opening it raises DriverAbsent or DriverMismatch."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise DriverAbsent("pynvml is not installed: pip install tachograph[exporter]") from None
        self.pynvml: Untyped = pynvml
        try:
            self.call("nvmlInit")
        except DriverMismatch:
            raise
        except NvmlFailure as failure:
            raise DriverAbsent(str(failure)) from None

    def close(self) -> None:
        """Shut NVML down, so that it can be opened afresh; a failure to do so changes nothing for the caller."""
        with suppress(NvmlFailure):
            self.call("nvmlShutdown")

    def call(self, name: str, *arguments: object) -> Untyped:
        """Return what a pynvml function returns; raise the NvmlFailure its error stands for."""
        try:
            return getattr(self.pynvml, name)(*arguments)
        except self.pynvml.NVMLError as error:
            raise self.failure(error.value) from None

    def failure(self, code: int) -> NvmlFailure:
        """Return the error that an nvmlReturn_t stands for."""
        words = _WORDS.get(code) or str(self.pynvml.NVMLError(code))
        return _ERRORS.get(code, NvmlFailure)(words)

    def driver_version(self) -> str:
        """Return the driver's version, such as 550.54.15."""
        return str(self.call("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        """Return how many GPUs the driver shows."""
        return int(self.call("nvmlDeviceGetCount"))

    def gpu(self, index: int) -> Gpu:
        """Return a GPU by its NVML index; raise GpuFailed for one that cannot be opened."""
        return Gpu(self, self.call("nvmlDeviceGetHandleByIndex", index))


class Gpu:
    """One GPU; each reading is one driver call, gives raw numbers in NVML's units, and raises NvmlFailure."""

    def __init__(self, nvml: Nvml, handle: Untyped) -> None:
        self._nvml = nvml
        self._handle = handle

    def _call(self, name: str, *arguments: object) -> Untyped:
        return self._nvml.call(name, self._handle, *arguments)

    def identity(self) -> tuple[str, str, str]:
        """Return UUID, product name and PCI bus id."""
        bus_id = self._call("nvmlDeviceGetPciInfo").busId
        return (
            str(self._call("nvmlDeviceGetUUID")),
            str(self._call("nvmlDeviceGetName")),
            bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id),  # which one depends on pynvml's version
        )

    def utilization(self) -> Sequence[float]:
        """Return GPU and memory-controller utilization in percent."""
        rates = self._call("nvmlDeviceGetUtilizationRates")
        return rates.gpu, rates.memory

    def memory(self) -> Sequence[float | None]:
        """Return total, used, free and reserved bytes; an old driver counts reserved as used and gives None for it."""
        try:
            memory = self._call("nvmlDeviceGetMemoryInfo", self._nvml.pynvml.nvmlMemory_v2)
        except NotSupported:
            memory = self._call("nvmlDeviceGetMemoryInfo")
            return memory.total, memory.used, memory.free, None
        return memory.total, memory.used, memory.free, memory.reserved

    def temperature(self) -> Sequence[float]:
        """Return the die's temperature in degrees Celsius."""
        return (self._call("nvmlDeviceGetTemperature", 0),)

    def temperature_thresholds(self) -> Sequence[float | None]:
        """Return slowdown and shutdown temperature in degrees Celsius; None where the part states none."""
        return tuple(self._threshold(kind) for kind in (1, 0))

    def _threshold(self, kind: int) -> float | None:
        try:
            return float(self._call("nvmlDeviceGetTemperatureThreshold", kind))
        except NotSupported:
            return None

    def power(self) -> Sequence[float]:
        """Return board power in milliwatts."""
        return (self._call("nvmlDeviceGetPowerUsage"),)

    def power_limit(self) -> Sequence[float]:
        """Return the enforced power limit in milliwatts."""
        return (self._call("nvmlDeviceGetEnforcedPowerLimit"),)

    def clocks(self) -> Sequence[float]:
        """Return SM and memory clock in MHz."""
        return tuple(self._call("nvmlDeviceGetClockInfo", domain) for domain in (1, 2))

    def max_clocks(self) -> Sequence[float]:
        """Return the highest SM and memory clock in MHz."""
        return tuple(self._call("nvmlDeviceGetMaxClockInfo", domain) for domain in (1, 2))

    def clock_events(self) -> int:
        """Return the bits of what holds the clocks down; drivers before 535 know them as throttle reasons."""
        try:
            return int(self._call("nvmlDeviceGetCurrentClocksEventReasons"))
        except NotSupported:
            return int(self._call("nvmlDeviceGetCurrentClocksThrottleReasons"))

    def mig_enabled(self) -> bool:
        """Return whether the GPU is cut into MIG instances; False for a part that knows no MIG."""
        try:
            current, _ = self._call("nvmlDeviceGetMigMode")
        except NotSupported:
            return False
        return bool(current)

    def fields(self, ids: Sequence[int]) -> list[float | NvmlFailure]:
        """Return field values (NVML_FI_*) in order, read in one driver call; a failed one is its error."""
        return [
            self._nvml.failure(field.nvmlReturn)
            if field.nvmlReturn
            else getattr(field.value, _FIELD_MEMBERS[field.valueType])
            for field in self._call("nvmlDeviceGetFieldValues", list(ids))
        ]
