"""Replaces pynvml by the answers of a capture: call `stand_in(path)`, then import the module that imports pynvml.

Functions, errors, constants and structures are those of the real pynvml; only the answers come from the capture. A
repeated call gets the next recorded answer, then the last one forever. Calls that were not recorded are not supported.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from tachograph.node.driver.call_recorder import FIELDS, METRICS, VALUE_MEMBERS, Names, key, questions, referred
from tachograph.node.gpu.capture import FORMAT

INVALID_ARGUMENT, FUNCTION_NOT_FOUND = 2, 13
OUTCOMES = ("result", "error")


class CaptureError(ValueError):
    """A capture cannot be read; the message names file and line."""


def load(path: Path) -> list[dict[str, Any]]:
    """Return the calls of a capture; raise CaptureError at the first mistake."""
    text = path.read_text(encoding="utf-8")
    try:
        capture = json.loads(text)
    except json.JSONDecodeError as error:
        raise CaptureError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    if not isinstance(capture, dict) or capture.get("format") != FORMAT:
        raise CaptureError(f'{path}:1: expected an object with "format": {FORMAT}')
    calls = capture.get("calls")
    if not isinstance(calls, list) or not calls:
        raise CaptureError(f'{path}:1: expected a list of "calls"')
    for call, line in zip(calls, _lines(text), strict=True):
        if fault := _fault(call):
            raise CaptureError(f"{path}:{line}: {fault}")
    return calls


def _lines(text: str) -> list[int]:
    """Return the line on which each call begins."""
    decoder = json.JSONDecoder()
    place = text.index("[", text.index('"calls"')) + 1
    lines: list[int] = []
    while True:
        place += len(text[place:]) - len(text[place:].lstrip(" \t\r\n,"))
        if text[place] == "]":
            return lines
        lines.append(text.count("\n", 0, place) + 1)
        _, place = decoder.raw_decode(text, place)


def _fault(call: object) -> str:
    if not isinstance(call, dict):
        return "a call is not an object"
    if not isinstance(call.get("call"), str) or not callable(getattr(pynvml, call["call"], None)):
        return f"call {call.get('call')!r} is not a function of pynvml"
    if not isinstance(call.get("arguments"), list):
        return "arguments are not a list"
    if sum(outcome in call for outcome in OUTCOMES) != 1:
        return f"expected one of {' and '.join(OUTCOMES)}"
    if "error" in call and (type(call["error"]) is not int or call["error"] <= 0):
        return f"error {call['error']!r} is not a positive number"
    return ""


class Replay:
    """A replacement for the module pynvml; calls may come from any thread."""

    def __init__(self, calls: Sequence[Mapping[str, Any]]) -> None:
        self._names = Names()
        self._lock = threading.Lock()
        self._pointers: dict[str, Any] = {}
        self._samples = 0
        self._answers: dict[str, list[Mapping[str, Any]]] = {}
        for call in calls:
            self._answers.setdefault(key(call["call"], call["arguments"]), []).append(call)

    def __getattr__(self, name: str) -> Any:
        found = getattr(pynvml, name)
        is_call = name.startswith("nvml") and callable(found) and not isinstance(found, type)
        return partial(self._answer, name) if is_call else found

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name in {"nvmlShutdown", "nvmlGpmSampleFree"}:
            return None
        with self._lock:
            answers = [self._next(name, question) for question in questions(self._names, name, arguments)]
            if name in {FIELDS, METRICS}:
                return self._list(name, arguments, answers)
            (answer,) = answers
            if "error" in answer:
                raise pynvml.NVMLError(answer["error"])
            for structure, written in zip(
                filter(None, map(referred, arguments)), answer.get("written", ()), strict=True
            ):
                fill(structure, written["members"])
            result = self._decode(answer["result"])
            self._names.learn(name, arguments, result)
            return result

    def _next(self, name: str, question: list[Any]) -> Mapping[str, Any]:
        answers = self._answers.get(key(name, question))
        if not answers:
            return {"error": FUNCTION_NOT_FOUND}
        return answers[0] if len(answers) == 1 else answers.pop(0)

    def _list(self, name: str, arguments: Sequence[Any], answers: Sequence[Mapping[str, Any]]) -> Any:
        """Return a list of answers; the call failed as a whole if none of them succeeded."""
        if all("error" in answer for answer in answers):
            raise pynvml.NVMLError(answers[0]["error"])
        unknown = {"nvmlReturn": INVALID_ARGUMENT}  # a driver's answer to an unknown id
        results = [answer.get("result", unknown) for answer in answers]
        if name == METRICS:
            for position, result in enumerate(results):
                fill(arguments[0].metrics[position], result)
            return arguments[0]
        values = (pynvml.c_nvmlFieldValue_t * len(results))()
        for field, result in zip(values, results, strict=True):
            field.nvmlReturn, field.valueType = result["nvmlReturn"], result.get("valueType", 0)
            if "value" in result:
                setattr(field.value, VALUE_MEMBERS[field.valueType], result["value"])
        return values

    def _decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._decode(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "object" in value:
            return pynvml.nvmlFriendlyObject(value["object"])
        if "pointer" in value:
            return self._pointer(value["pointer"])
        structure = getattr(pynvml, value["struct"])()
        fill(structure, value["members"])
        return structure

    def _pointer(self, name: str) -> Any:
        """Return the handle of that name, or a new sample: addresses that are never dereferenced."""
        if name == "sample":
            self._samples += 1
            return ctypes.cast(0x200000 + 16 * self._samples, pynvml.c_nvmlGpmSample_t)
        place = 0x100000 + 16 * len(self._pointers)
        return self._pointers.setdefault(name, ctypes.cast(place, pynvml.c_nvmlDevice_t))


def fill(structure: Any, members: Mapping[str, Any]) -> None:
    """Write recorded members into a structure; those it does not have are skipped."""
    kinds = {name: kind for name, kind, *_ in structure._fields_}
    for name, value in members.items():
        if name not in kinds:
            continue
        if isinstance(value, dict):
            fill(getattr(structure, name), value)
        elif isinstance(value, list):
            array = getattr(structure, name)
            for position, one in enumerate(value):
                array[position] = one
        elif value is not None:
            setattr(structure, name, value)


def stand_in(path: Path) -> None:
    """Replace pynvml by the capture, for this process."""
    sys.modules["pynvml"] = Replay(load(path))  # type: ignore[assignment]


if __name__ == "__main__":
    # A NodeCollector on the clock that stdin dictates: a time per line in, a collection per line out.
    try:
        stand_in(Path(sys.argv[1]))
    except (OSError, CaptureError) as error:
        sys.exit(str(error))
    from tachograph.node.gpu.node_collector import NodeCollector
    from tachograph.node.gpu.worker_protocol import LineWriter

    now = 0.0
    collector, writer = NodeCollector(lambda: now, answer_seconds=5.0), LineWriter()
    for tick in sys.stdin:
        now = float(tick)
        print(writer.line(collector.collect()), flush=True)
