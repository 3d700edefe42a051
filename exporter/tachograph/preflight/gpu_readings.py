"""Reads every GPU of the node once: in a process apart from the command.

A process of its own, because a driver call that hangs holds up the end of its process.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

from tachograph.catalog.metric import Metric
from tachograph.node.driver.nvml import DriverAbsent, Nvml, NvmlFailure
from tachograph.node.gpu.open_gpu import OpenGpu
from tachograph.node.samples import GpuIdentity

PREFIX = re.compile(r"^tachograph_")


def readings() -> dict[str, Any]:
    """Return the driver's version and each GPU's identity, readings (name, or name{label,…} -> base unit) and failures.

    `absent` says why there is no driver to ask, and is empty else.
    """
    try:
        nvml = Nvml()
        count = nvml.count()
    except DriverAbsent as failure:
        return {"absent": str(failure), "driver": "", "gpus": []}
    except NvmlFailure as failure:
        return {"absent": "", "driver": "", "gpus": [], "failure": str(failure)}
    driver = nvml.driver_version()
    version = tuple(int(part) for part in re.findall(r"\d+", driver))
    return {"absent": "", "driver": driver, "gpus": [_gpu(nvml, index, version) for index in range(count)]}


def _gpu(nvml: Nvml, index: int, driver: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "index": index,
        "uuid": "",
        "name": "",
        "failure": "",
        "values": {},
        "failed": {},
        "pids": [],
    }
    try:
        gpu = nvml.gpu(index)
        found["uuid"], found["name"], found["bus"] = gpu.identity()
        found["vbios"] = gpu.imprint("nvmlDeviceGetVbiosVersion")
        identity = GpuIdentity(str(index), found["uuid"], found["name"])
        opened = OpenGpu(nvml, gpu, identity, driver, detail=True)
        rows = opened.read(time.monotonic(), found["failed"])
        found["pids"] = list(opened.pids)
    except NvmlFailure as failure:
        return found | {"failure": str(failure)}
    found["values"] = {_key(metric, labels[2:]): value for (metric, labels), value in rows}
    return found


def _key(metric: Metric, labels: tuple[str, ...]) -> str:
    name = PREFIX.sub("", metric.name)
    return f"{name}{{{','.join(labels)}}}" if labels else name


def main() -> None:
    """Print what was read."""
    json.load(sys.stdin)
    json.dump(readings(), sys.stdout)
