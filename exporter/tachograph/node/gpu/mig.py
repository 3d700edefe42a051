"""The MIG instances of one GPU.

tachograph_gpu_mig_info{gpu="0",uuid="GPU-…",mig="1/0",mig_uuid="MIG-…",profile="3g.40gb"} 1
tachograph_gpu_mig_memory_used_bytes{gpu="0",uuid="GPU-…",mig="1/0"} 2.1e+10

A compute instance shares memory and activity with the others of its GPU instance, so these are given once, with the
first of them: a sum over instances counts nothing twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tachograph.node.driver.nvml import NoPermission, NotSupported, Nvml, NvmlGpu
from tachograph.node.gpu.gpm import Gpm, GpmWindow
from tachograph.node.gpu.reading_table import MIG_ACTIVITIES, MIG_MEMORY, Value

Reading: TypeAlias = tuple[Value, tuple[str, ...], float | None]
"""What the driver gave for a value of an instance, with the labels after gpu and uuid."""

_SHARES = 8  # a profile is named by eighths of the GPU's memory


@dataclass(frozen=True)
class _Instance:
    gpu_instance: int
    label: str
    uuid: str
    profile: str
    device: NvmlGpu


class MigInstances:
    """The MIG instances of a GPU, as last found, and their readings."""

    def __init__(self, nvml: Nvml, gpu: NvmlGpu) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._instances: list[_Instance] = []
        self._windows: dict[int, GpmWindow] = {}

    def find(self) -> None:
        """Look for the instances that exist now."""
        memory = _memory(self._gpu)[0] or 0
        self._instances = sorted(
            (_instance(device, memory) for device in self._gpu.mig_devices()), key=lambda one: one.label
        )
        kept = {instance.gpu_instance for instance in self._instances}
        for gone in self._windows.keys() - kept:
            self._windows.pop(gone).close()
        for number in kept - self._windows.keys():
            self._windows[number] = GpmWindow(self._nvml, self._gpu, MIG_ACTIVITIES, number)

    def infos(self) -> Iterator[tuple[str, str, str]]:
        """Yield the instances: name, UUID and profile."""
        return ((instance.label, instance.uuid, instance.profile) for instance in self._instances)

    def read(self, gpm: Gpm, now: float, failures: dict[str, str]) -> Iterator[Reading]:
        """Yield the memory of the instances, and their GPM readings."""
        seen = set()
        for instance in self._instances:
            labels = (instance.label,)
            if instance.gpu_instance in seen:
                continue
            seen.add(instance.gpu_instance)
            for value, memory in zip(MIG_MEMORY, _memory(instance.device), strict=True):
                yield value, labels, memory
            for value, number in gpm.read(self._windows[instance.gpu_instance], now, failures):
                yield value, labels, number

    def close(self) -> None:
        """Forget the instances and free the memory of their GPM samples."""
        self._instances = []
        for window in self._windows.values():
            window.close()
        self._windows.clear()


def _memory(device: NvmlGpu) -> tuple[float | None, float | None]:
    """Return total and used bytes; a container without CAP_SYS_ADMIN may not see those of the whole GPU."""
    try:
        total, used, *_ = device.memory()
    except NoPermission:
        return None, None
    return total, used


def _instance(device: NvmlGpu, gpu_memory: float) -> _Instance:
    gpu_instance = int(device.call("nvmlDeviceGetGpuInstanceId"))
    compute_instance = int(device.call("nvmlDeviceGetComputeInstanceId"))
    return _Instance(
        gpu_instance,
        f"{gpu_instance}/{compute_instance}",
        str(device.call("nvmlDeviceGetUUID")),
        _profile(device, gpu_memory),
        device,
    )


def _profile(device: NvmlGpu, gpu_memory: float) -> str:
    """Return a name as nvidia-smi gives it, 1g.10gb or 1c.3g.40gb; empty where the driver does not report it."""
    try:
        shape = device.call("nvmlDeviceGetAttributes_v2")
    except NotSupported:
        return ""
    if not gpu_memory:
        return ""
    shares = round(shape.memorySizeMB * 2**20 / gpu_memory * _SHARES)
    if not 0 < shares <= _SHARES:
        return ""
    gigabytes = math.floor(shares / _SHARES * math.ceil(gpu_memory / 2**30) + 0.5)  # 22.5 is 23, not the even 22
    whole = f"{shape.gpuInstanceSliceCount}g.{gigabytes}gb"
    part = shape.computeInstanceSliceCount
    return whole if part == shape.gpuInstanceSliceCount else f"{part}c.{whole}"
