"""Stands in for pynvml, passes every call on, and records questions and answers."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial

from tachograph.node.driver.nvml import Untyped, decoded

FIELDS, METRICS = "nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"

# What a call's result, a pointer, is called; arguments by position.
_POINTERS = {
    "nvmlDeviceGetHandleByIndex": "gpu {0}",
    "nvmlDeviceGetMigDeviceHandleByIndex": "{0} mig {1}",
    "nvmlGpmSampleAlloc": "sample",
}
# What a sample is called once it is taken, and which argument it is.
_SAMPLES = {"nvmlGpmSampleGet": ("{0}", 1), "nvmlGpmMigSampleGet": ("{0} instance {1}", 2)}

_UNSPOKEN = {"nvmlShutdown", "nvmlGpmSampleFree"}
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t
_GPU = re.compile(_POINTERS["nvmlDeviceGetHandleByIndex"].format(r"(\d+)"))
_CLUSTER_UUID = "clusterUuid"


class Names:
    """Names for handles and samples: an address means nothing in another process."""

    def __init__(self) -> None:
        self._names: dict[int | None, str] = {}

    def of(self, pointer: Untyped) -> str:
        """Return the name of a handle or sample."""
        return self._names.get(address(pointer), "unknown")

    def learn(self, call: str, arguments: Sequence[Untyped], result: Untyped) -> None:
        """Take note of a handle that a call returned, or a sample that it filled."""
        words = [self.of(argument) if is_pointer(argument) else argument for argument in arguments]
        if call in _POINTERS:
            self._names[address(result)] = _POINTERS[call].format(*words)
        elif call in _SAMPLES:
            name, position = _SAMPLES[call]
            self._names[address(arguments[position])] = name.format(*words)


class Disguise:
    """Made-up UUIDs, serial numbers and pids, the same for the same throughout a capture."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}
        self._serials: dict[str, str] = {}
        self._pids: dict[int, int] = {}

    def text(self, text: str, gpu: int | None = None) -> str:
        """Return a text with other UUIDs; that of a GPU, by its index, is the same in each capture."""
        return _UUID.sub(lambda found: self._uuid(found[0], gpu), text)

    def serial(self, serial: str, gpu: int) -> str:
        """Return another serial number for a GPU, by its index."""
        return self._serials.setdefault(serial, str(1650000000000 + gpu))

    def pid(self, pid: int) -> int:
        """Return another process number."""
        return self._pids.setdefault(pid, 1000 + len(self._pids))

    def _uuid(self, uuid: str, gpu: int | None) -> str:
        number = 0x1000 + len(self._uuids) if gpu is None else gpu
        return self._uuids.setdefault(uuid, f"fa4e0000-0000-4000-8000-{number:012x}")


class CallRecorder:
    """Has what the module pynvml has; its calls may come from any thread."""

    def __init__(self, pynvml: Untyped) -> None:
        self.disguise = Disguise()
        self._pynvml = pynvml
        self._names = Names()
        self._lock = threading.Lock()
        self._answers: dict[str, list[dict[str, Untyped]]] = {}  # by call and arguments

    def __getattr__(self, name: str) -> Untyped:
        found = getattr(self._pynvml, name)
        is_call = name.startswith("nvml") and callable(found) and not isinstance(found, type)
        return partial(self._pass_on, name, found) if is_call else found

    def calls(self) -> list[dict[str, Untyped]]:
        """Return what was recorded: each call's answers in order, the calls in an order that is always the same."""
        with self._lock:
            return [answer for _, answers in sorted(self._answers.items()) for answer in answers]

    def _pass_on(self, name: str, function: Callable[..., Untyped], *arguments: Untyped) -> Untyped:
        asked = questions(self._names, name, arguments)
        try:
            result = decoded(function, *arguments)
        except self._pynvml.NVMLError as error:
            for question in asked:
                self._note(name, question, {"error": error.value})
            raise
        with self._lock:
            self._names.learn(name, arguments, result)
            answers = self._answers_to(name, arguments, result)
        for question, answer in zip(asked, answers, strict=True):
            self._note(name, question, answer)
        return result

    def _answers_to(self, name: str, arguments: Sequence[Untyped], result: Untyped) -> list[dict[str, Untyped]]:
        if name == FIELDS:
            return [{"result": _field(field)} for field in result]
        if name == METRICS:
            (asked,) = arguments
            metrics = (asked.metrics[position] for position in range(asked.numMetrics))
            return [{"result": {"nvmlReturn": metric.nvmlReturn, "value": metric.value}} for metric in metrics]
        if name in {"nvmlDeviceGetSerial", "nvmlDeviceGetUUID"} and (
            gpu := _GPU.fullmatch(self._names.of(arguments[0]))
        ):
            hide = self.disguise.serial if name == "nvmlDeviceGetSerial" else self.disguise.text
            return [{"result": hide(result, int(gpu[1]))}]
        answer = {"result": self._encode(result)}
        if written := [self._encode(structure) for structure in map(referred, arguments) if structure is not None]:
            answer["written"] = written
        return [answer]

    def _note(self, name: str, question: list[Untyped], answer: dict[str, Untyped]) -> None:
        if name in _UNSPOKEN:
            return
        call = {"call": name, "arguments": question, **answer}
        with self._lock:
            answers = self._answers.setdefault(key(name, question), [])
            if not answers or answers[-1] != call:
                answers.append(call)

    def _encode(self, value: Untyped) -> Untyped:
        """Return a value in the terms of JSON, with nothing in it that belongs to this machine alone."""
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, str):
            return self.disguise.text(value)
        if isinstance(value, (list, tuple, ctypes.Array)):
            return [self._encode(one) for one in value]
        if isinstance(value, ctypes.Structure):
            return {"struct": type(value).__name__, "members": self._members(value)}
        if is_pointer(value):
            return {"pointer": self._names.of(value)}
        return {"object": {name: self._member(name, one) for name, one in vars(value).items()}}

    def _members(self, structure: ctypes.Structure) -> dict[str, Untyped]:
        members: dict[str, Untyped] = {}
        for name, *_ in structure._fields_:
            value = decoded(getattr, structure, name)
            nested = isinstance(value, ctypes.Structure)
            members[name] = self._members(value) if nested else self._member(name, value)
        return members

    def _member(self, name: str, value: Untyped) -> Untyped:
        if name == "pid":
            return self.disguise.pid(value)
        if name == _CLUSTER_UUID:
            return [0xFA if byte else 0 for byte in value]
        return self._encode(value)


def _field(field: Untyped) -> dict[str, Untyped]:
    """Return a field value without its time of reading."""
    if field.nvmlReturn:
        return {"nvmlReturn": field.nvmlReturn}
    value = getattr(field.value, VALUE_MEMBERS[field.valueType])
    return {"nvmlReturn": 0, "valueType": field.valueType, "value": value}


def questions(names: Names, call: str, arguments: Sequence[Untyped]) -> list[list[Untyped]]:
    """Return the questions of a call, ready for JSON: its arguments, or those of each value that it asks for."""
    if call == FIELDS:
        handle, ids = arguments
        pairs = (one if isinstance(one, tuple) else (one, 0) for one in ids)
        return [[names.of(handle), number, scope] for number, scope in pairs]
    if call == METRICS:
        (asked,) = arguments
        return [[names.of(asked.sample2), asked.metrics[position].metricId] for position in range(asked.numMetrics)]
    return [[_argument(names, argument) for argument in arguments]]


def _argument(names: Names, value: Untyped) -> Untyped:
    structure = referred(value)
    if structure is not None:
        return {"struct": type(structure).__name__}
    return names.of(value) if is_pointer(value) else value


def key(call: str, question: list[Untyped]) -> str:
    """Return a key that is unique to a question, and sorts questions by GPU."""
    first, *rest = question or [""]
    return f"{first} {call} " + " ".join(f"{one:>10}" if isinstance(one, int) else str(one) for one in rest)


def referred(value: Untyped) -> ctypes.Structure | None:
    """Return the structure that an argument is or, by byref, refers to."""
    structure = getattr(value, "_obj", value)
    return structure if isinstance(structure, ctypes.Structure) else None


def is_pointer(value: Untyped) -> bool:
    """Return whether a value is a handle or a sample."""
    return isinstance(value, ctypes._Pointer)


def address(pointer: Untyped) -> int | None:
    """Return where a pointer points."""
    return ctypes.cast(pointer, ctypes.c_void_p).value
