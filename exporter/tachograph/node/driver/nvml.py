"""The only door to pynvml: typed answers in NVML's own units, and errors that say what failed.

`pynvml` comes with the distribution nvidia-ml-py. It loads `libnvidia-ml.so.1` by the loader's rules, keeps it for the
life of the process, and raises NVMLError, which cannot be hashed and is translated here for that reason too.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident
from typing import Any, TypeAlias

Untyped: TypeAlias = Any
"""A value from pynvml, which has no types: a handle, a ctypes structure, a number."""


class NvmlFailure(Exception):  # noqa: N818 - named a failure everywhere here
    """An NVML call failed and nothing more is known than its message: this reading is lost, others may succeed."""


class NotSupported(NvmlFailure):
    """The part or its driver does not have the reading."""


class InvalidArgument(NvmlFailure):
    """The driver does not understand what it was asked, as an old one does not know a new id."""


class NotFound(NvmlFailure):
    """There is no such thing, as at an index where no MIG instance was made."""


class NoPermission(NvmlFailure):
    """The reading is there, but not for this user."""


class GpuFailed(NvmlFailure):
    """The GPU itself cannot be talked to, though NVML may not say so; `word` is one of UNAVAILABLE_REASONS."""

    word = "error"


class GpuIsLost(GpuFailed):
    """The GPU has fallen off the bus."""

    word = "lost"


class ResetRequired(GpuFailed):
    """The GPU answers nothing before it is reset."""

    word = "reset_required"


class DriverAbsent(NvmlFailure):
    """NVML as a whole cannot be used: no pynvml, no library, no driver loaded, or it was unloaded meanwhile."""


class DriverMismatch(NvmlFailure):
    """The driver was replaced under the loaded library; only a new process can load the new one."""


WHOLE = (GpuFailed, DriverAbsent, DriverMismatch)
"""Failures that leave nothing to believe of a GPU, whatever was asked."""

# nvmlReturn_t -> error (nvml.h). 13 is a symbol that an old driver lacks, 25 a struct version that it does not know,
# 26 what a new driver no longer has. 999, the unknown error, is not among them: it comes from a GPU that is broken, but
# from a single broken sensor too.
_ERRORS: dict[int, type[NvmlFailure]] = {
    1: DriverAbsent,  # uninitialized: the driver was reloaded
    2: InvalidArgument,
    3: NotSupported,
    4: NoPermission,
    6: NotFound,
    9: DriverAbsent,
    12: DriverAbsent,
    13: NotSupported,
    15: GpuIsLost,
    16: ResetRequired,
    18: DriverMismatch,
    22: NotSupported,
    25: NotSupported,
    26: NotSupported,
}
_WORDS = {
    4: "no permission",
    9: "the NVIDIA driver is not loaded",
    12: "no NVIDIA driver: libnvidia-ml.so.1 is not found",
    15: "GPU is lost",
    16: "GPU requires a reset",
    18: "the NVIDIA driver was replaced: its library and kernel module differ",
    999: "NVML reports an unknown error",
}
_FIELD_MEMBERS = dict(enumerate(("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")))  # by nvmlValueType_t
_NARROW_TYPE = 1  # unsigned int

_LINK_COUNT, _LINK_STATE = 91, 165  # NVML_FI_DEV_NVLINK_*
_LINK_STATES: dict[float, float] = {0: 0.0, 1: 1.0, 2: 1.0, 3: 0.0}  # inactive, active, asleep; 3 carries no traffic
_RETURN_CODES = frozenset((*range(64), 999))  # nvmlReturn_t: up to 29 in driver 580, with room for later ones
_FABRIC_COMPLETED = 3  # 0: the part has none, 1: not started, 2: in progress

ALL_LINKS = 0xFFFFFFFF
"""The scope of a field that adds up all NVLink links."""

MOST = 256
"""More GPUs of a node, links of a GPU or MIG instances than that are a blank value, which nobody must count up to."""

MOST_PIDS = 1 << 22
"""Linux has no process with a higher number (PID_MAX_LIMIT)."""


_member = object.__getattribute__  # pynvml's own, in Python, looks for bytes; of a GPU 40 numbers are read each second


def decoded(function: Callable[..., Untyped], *arguments: object) -> Untyped:
    """Return what a function of pynvml returns; each byte of a text that is not UTF-8 becomes a replacement character.

    pynvml decodes strictly, and drivers have given names that are not UTF-8 (555.85 under WSL: gpustat issue 170).
    """
    try:
        result = function(*arguments)
    except UnicodeDecodeError as error:
        result = error.object
    return result.decode("utf-8", "replace") if isinstance(result, bytes) else result


class Narrow(int):
    """A number that the driver counts in 32 bits, so that a counter wraps."""


class Nvml:
    """An initialised NVML; opening it raises DriverAbsent or DriverMismatch. Any thread may call it."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            from tachograph import extras

            raise DriverAbsent(f"pynvml is not installed: {extras.command('exporter')}") from None
        self.pynvml: Untyped = pynvml
        self._calling: dict[int, tuple[str, float]] = {}
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
        function = getattr(self.pynvml, name, None)
        if function is None:
            raise NotSupported(f"this nvidia-ml-py has no {name}")
        thread = get_ident()
        self._calling[thread] = name, time.monotonic()
        try:
            return decoded(function, *arguments)
        except self.pynvml.NVMLError as error:
            raise self.failure(error.value) from None
        except self.pynvml.NVMLLibraryMismatchError:  # and not an NVMLError: the driver is older than the function
            raise NotSupported(f"this driver has no {name}") from None
        except (MemoryError, OverflowError):  # pynvml makes room for as many as the driver says there are
            raise NvmlFailure(f"{name}: the driver gives an impossible length") from None
        finally:
            del self._calling[thread]

    def calling(self, thread: int) -> tuple[str, float] | None:
        """Return the driver call a thread (threading.get_ident) is in, and its start on time.monotonic()."""
        return self._calling.get(thread)

    def failure(self, code: int) -> NvmlFailure:
        """Return the error that an nvmlReturn_t stands for."""
        words = _WORDS.get(code) or decoded(str, self.pynvml.NVMLError(code))
        return _ERRORS.get(code, NvmlFailure)(words)

    def refusal(self, code: int) -> NvmlFailure:
        """Return why one id of a list has no value; an id that the driver never heard of is not supported."""
        failure = self.failure(code)
        return NotSupported(str(failure)) if isinstance(failure, InvalidArgument) else failure

    def struct(self, name: str) -> Untyped:
        """Return a new structure of pynvml, its version filled in."""
        return getattr(self.pynvml, name)()

    def driver_version(self) -> str:
        """Return the driver's version, such as 580.95.05; empty if it does not report it."""
        try:
            return str(self.call("nvmlSystemGetDriverVersion"))
        except (DriverAbsent, DriverMismatch):
            raise
        except NvmlFailure:
            return ""

    def cuda_version(self) -> str:
        """Return the newest CUDA that the driver serves, such as 13.0; empty if it does not report it."""
        try:
            version = int(self.call("nvmlSystemGetCudaDriverVersion"))
        except (DriverAbsent, DriverMismatch):
            raise
        except NvmlFailure:
            return ""
        if not 0 < version < 1000 * MOST:
            return ""
        return f"{version // 1000}.{version % 1000 // 10}"

    def count(self) -> int:
        """Return how many GPUs the driver shows."""
        return _few(self.call("nvmlDeviceGetCount"), "GPUs")

    def gpu(self, index: int) -> NvmlGpu:
        """Return a GPU by its NVML index; raise GpuFailed for one that cannot be opened."""
        return NvmlGpu(self, self.call("nvmlDeviceGetHandleByIndex", index))

    def gpm_sample(self) -> Untyped:
        """Return memory for one GPM sample, to be given back with `free_gpm_sample`."""
        return self.call("nvmlGpmSampleAlloc")

    def free_gpm_sample(self, sample: Untyped) -> None:
        """Give a sample's memory back; a failure to do so changes nothing for the caller."""
        with suppress(NvmlFailure):
            self.call("nvmlGpmSampleFree", sample)

    def gpm_query(self, ids: Sequence[int]) -> Untyped:
        """Return a query for GPM metrics (NVML_GPM_METRIC_*), to be asked again and again."""
        query = self.struct("c_nvmlGpmMetricsGet_t")
        query.version = self.pynvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(ids)
        for metric, metric_id in zip(query.metrics, ids, strict=False):
            metric.metricId = metric_id
        return query

    def gpm_values(self, query: Untyped, before: Untyped, after: Untyped) -> list[float | NvmlFailure]:
        """Return what a query asks for between two samples, in order; a failed one is its error."""
        query.sample1, query.sample2 = before, after
        self.call("nvmlGpmMetricsGet", query)
        metrics = query.metrics
        values: list[float | NvmlFailure] = []
        for position in range(query.numMetrics):
            answer = metrics[position]
            code = _member(answer, "nvmlReturn")
            values.append(self.refusal(code) if code else _member(answer, "value"))
        return values


class NvmlGpu:
    """One GPU, or one MIG instance; what it answers is raw, in NVML's units, and every method raises NvmlFailure."""

    def __init__(self, nvml: Nvml, handle: Untyped) -> None:
        self._nvml = nvml
        self.handle = handle

    def call(self, name: str, *arguments: object) -> Untyped:
        """Return what a pynvml function returns for this GPU."""
        return self._nvml.call(name, self.handle, *arguments)

    def fields(self, ids: Sequence[tuple[int, int]]) -> list[float | NvmlFailure]:
        """Return field values by (NVML_FI_*, scope) in order, read in one driver call; a failed one is its error."""
        values: list[float | NvmlFailure] = []
        for field in self.call("nvmlDeviceGetFieldValues", ids):
            code, kind = _member(field, "nvmlReturn"), _member(field, "valueType")
            if code:
                values.append(self._nvml.refusal(code))
            elif (name := _FIELD_MEMBERS.get(kind)) is None:
                values.append(NotSupported(f"this nvidia-ml-py has no value type {kind}"))
            else:
                number = _member(_member(field, "value"), name)
                values.append(Narrow(number) if kind == _NARROW_TYPE else number)
        return values

    def links(self) -> list[float | None]:
        """Return for each NVLink link 1 if it is up or asleep, else 0; NaN where its state is none that there is.

        None where the driver does not report it.
        """
        count = _few(self._answer(_LINK_COUNT), "links")
        asked = [(_LINK_STATE, link) for link in range(count)]
        states = self.fields(asked) if asked else []
        return [self._link(link, state) for link, state in enumerate(states)]

    def _link(self, link: int, state: float | NvmlFailure) -> float | None:
        if isinstance(state, NvmlFailure):
            try:
                state = self.call("nvmlDeviceGetNvLinkState", link)  # drivers that lack the field
            except (NotSupported, NoPermission):
                return None
            return math.nan if state not in (0, 1) else float(state)
        return _LINK_STATES.get(state, math.nan)

    def _answer(self, field_id: int) -> float:
        (answer,) = self.fields([(field_id, 0)])
        if isinstance(answer, NvmlFailure):
            raise answer
        return answer

    def identity(self) -> tuple[str, str, str]:
        """Return UUID, product name and PCI bus id; name and bus id are empty where the driver does not report them."""
        uuid, name = str(self.call("nvmlDeviceGetUUID")), self.imprint("nvmlDeviceGetName")
        try:
            return uuid, name, self.bus_id()
        except WHOLE:
            raise
        except NvmlFailure:
            return uuid, name, ""

    def bus_id(self) -> str:
        """Return the PCI bus id, such as 00000000:1B:00.0."""
        return str(decoded(_member, self.call("nvmlDeviceGetPciInfo"), "busId"))

    def imprint(self, name: str) -> str:
        """Return a text that a call by this name gives, such as the serial number; empty where the call fails."""
        try:
            return str(self.call(name))
        except WHOLE:
            raise
        except NvmlFailure:  # whatever the code: a corrupted infoROM is no lost GPU
            return ""

    def memory(self) -> Sequence[float | None]:
        """Return total, used, free and reserved bytes; an old driver counts reserved as used and gives None for it."""
        try:
            memory = self.call("nvmlDeviceGetMemoryInfo", self._nvml.pynvml.nvmlMemory_v2)
        except NotSupported:
            memory = self.call("nvmlDeviceGetMemoryInfo")
            return memory.total, memory.used, memory.free, None
        return memory.total, memory.used, memory.free, memory.reserved

    def temperature(self) -> Sequence[float]:
        """Return the die's temperature in degrees Celsius; the older call leaves NVML with CUDA 14."""
        try:
            return (self.call("nvmlDeviceGetTemperature", 0),)
        except NotSupported:
            return (self.call("nvmlDeviceGetTemperatureV", 0),)

    def clock_events(self) -> int:
        """Return the bits of what holds the clocks down; drivers before 535 know them as throttle reasons."""
        try:
            return int(self.call("nvmlDeviceGetCurrentClocksEventReasons"))
        except NotSupported:
            return int(self.call("nvmlDeviceGetCurrentClocksThrottleReasons"))

    def sram_threshold_exceeded(self) -> Sequence[float]:
        """Return 1 if the SRAM had more uncorrectable errors than the vendor allows."""
        status = self._nvml.struct("c_nvmlEccSramErrorStatus_v1_t")
        self.call("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
        return (status.bThresholdExceeded,)

    def fabric(self) -> tuple[int, int, int]:
        """Return the state of registration with the NVLink fabric (NVML_GPU_FABRIC_STATE_*), nvmlReturn_t, and health.

        The last two mean something once the registration is over; the health is NVML_GPU_FABRIC_HEALTH_MASK_*.
        """
        info = self._nvml.struct("c_nvmlGpuFabricInfoV_t")
        self.call("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info))
        if not 0 <= info.state <= _FABRIC_COMPLETED:
            raise NvmlFailure("not possible: the fabric has no such state")
        if info.state == _FABRIC_COMPLETED and info.status not in _RETURN_CODES:
            raise NvmlFailure("not possible: NVML has no such return code")
        return info.state, info.status, info.healthMask

    def processes(self) -> tuple[int, ...]:
        """Return the pids, as the host sees them, that have a compute context here, those behind MPS too."""
        pids = {process.pid for process in self.call("nvmlDeviceGetComputeRunningProcesses")}
        with suppress(NotSupported, NoPermission):
            pids |= {process.pid for process in self.call("nvmlDeviceGetMPSComputeRunningProcesses")}
        return tuple(sorted(pid for pid in pids if 0 < pid <= MOST_PIDS))  # 0: one that this container cannot see

    def has_gpm(self) -> bool:
        """Return whether the GPU measures itself by GPM."""
        return bool(self.call("nvmlGpmQueryDeviceSupport").isSupportedDevice)

    def sample_gpm(self, sample: Untyped, gpu_instance: int | None = None) -> None:
        """Take a GPM sample of the GPU, or of one GPU instance of it."""
        if gpu_instance is None:
            self.call("nvmlGpmSampleGet", sample)
        else:
            self.call("nvmlGpmMigSampleGet", gpu_instance, sample)

    def mig_enabled(self) -> bool:
        """Return whether the GPU is cut into MIG instances; False for a part that knows no MIG."""
        try:
            current, _ = self.call("nvmlDeviceGetMigMode")
        except NotSupported:
            return False
        if current not in (0, 1):
            raise NvmlFailure("not possible: there is no such MIG mode")
        return bool(current)

    def mig_devices(self) -> list[NvmlGpu]:
        """Return the MIG instances that were made."""
        devices = []
        for index in range(_few(self.call("nvmlDeviceGetMaxMigDeviceCount"), "MIG instances")):
            with suppress(NotFound):
                devices.append(NvmlGpu(self._nvml, self.call("nvmlDeviceGetMigDeviceHandleByIndex", index)))
        return devices


def _few(number: float, things: str) -> int:
    """Return a number of things; raise NvmlFailure for one that there cannot be."""
    if not 0 <= number <= MOST:
        raise NvmlFailure(f"not possible: the driver counts more than {MOST} {things}")
    return int(number)
