"""A program that evaluates the expressions on its stdin, with the real pynvml at hand: the other side of `Asked`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pynvml

MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t
handles: dict[int, Any] = {}
samples: dict[str, Any] = {}
sets: dict[str, Any] = {}
later: dict[str, Any] = {}


def gpu(index: int) -> Any:
    """Return a GPU's handle; always the same one, which stays when the GPU is unplugged."""
    if index not in handles:
        handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
    return handles[index]


def uuids() -> list[str]:
    """Return the UUIDs in the order of the driver's list."""
    handle = pynvml.nvmlDeviceGetHandleByIndex
    return [pynvml.nvmlDeviceGetUUID(handle(index)) for index in range(pynvml.nvmlDeviceGetCount())]


def fields(handle: Any, ids: Sequence[int | tuple[int, int]]) -> list[Any]:
    """Return field values read in one call; a failed one is its negated code in a list."""
    return [
        [-one.nvmlReturn] if one.nvmlReturn else getattr(one.value, MEMBERS[one.valueType])
        for one in pynvml.nvmlDeviceGetFieldValues(handle, ids)
    ]


def sample(name: str, handle: Any, gpu_instance: int | None = None) -> None:
    """Take a GPM sample and keep it under a name."""
    samples[name] = pynvml.nvmlGpmSampleAlloc()
    if gpu_instance is None:
        pynvml.nvmlGpmSampleGet(handle, samples[name])
    else:
        pynvml.nvmlGpmMigSampleGet(handle, gpu_instance, samples[name])


def gpm(first: str, second: str, ids: Sequence[int], version: int = 1, count: int | None = None) -> list[Any]:
    """Return GPM metrics between two samples; a failed one is its negated code in a list."""
    request = pynvml.c_nvmlGpmMetricsGet_t(version=version, numMetrics=len(ids) if count is None else count)
    request.sample1, request.sample2 = samples[first], samples[second]
    for metric, own_id in zip(request.metrics, [*ids, 2], strict=False):
        metric.metricId, metric.nvmlReturn = own_id, 77
    pynvml.nvmlGpmMetricsGet(request)
    assert request.metrics[len(ids)].nvmlReturn == 77, "written past numMetrics"
    return [[-m.nvmlReturn] if m.nvmlReturn else m.value for m in request.metrics[: len(ids)]]


def structure(function: str, kind: str, *arguments: Any) -> dict[str, Any]:
    """Return the simple members of a structure that a function fills in."""
    made = getattr(pynvml, kind)()
    getattr(pynvml, function)(*arguments, pynvml.byref(made))
    return members(made)


def members(made: Any) -> dict[str, Any]:
    """Return the simple members of a structure."""
    return {name: value for name, *_ in made._fields_ if isinstance(value := getattr(made, name), int | float | str)}


def watch(name: str, index: int, types: int) -> None:
    """Make an event set for one GPU."""
    sets[name] = sets.get(name) or pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu(index), types, sets[name])


def event(name: str, milliseconds: int) -> Any:
    """Wait for an event; return GPU, type and data."""
    data = pynvml.nvmlEventSetWait_v2(sets[name], milliseconds)
    return pynvml.nvmlDeviceGetMinorNumber(data.device), data.eventType, data.eventData


def begin(name: str, expression: str) -> None:
    """Evaluate in a thread; `later[name]` will be the result."""
    threading.Thread(target=lambda: later.update({name: evaluate(expression)}), daemon=True).start()


def timed(expression: str) -> tuple[float, Any]:
    """Return how many seconds an expression takes, and its answer."""
    began = time.monotonic()
    answer = evaluate(expression)
    return time.monotonic() - began, answer


def evaluate(expression: str) -> Any:
    """Return an answer: a value or NVML's code."""
    try:
        return {"value": eval(expression, {**vars(pynvml), **globals()})}
    except pynvml.NVMLError as error:
        return {"error": error.value}


if __name__ == "__main__":
    pynvml.nvmlInit()
    for line in sys.stdin:
        print(json.dumps(evaluate(json.loads(line))), flush=True)
