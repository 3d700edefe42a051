"""A recording from the steps that a rank wrote itself (`tachograph.export.step_file`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tachograph.compare.measures import HOST, LOSS, PEAK, PHASE, RESERVED, SAMPLES, STEP, STEPS, TOKENS, WAIT
from tachograph.compare.recording import RecordedRun, RecordingError, Sample, number
from tachograph.files.unreadable import UNREADABLE, wrong_form

KEY = "tachograph_steps"
VERSION = 1


@dataclass
class _Process:
    """The lines of one recorder: its first, its steps, what was logged, and its totals."""

    who: Mapping[str, Any]
    steps: list[Mapping[str, Any]] = field(default_factory=list)
    loss: list[Sample] = field(default_factory=list)
    totals: list[Mapping[str, float]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def is_one(text: str) -> bool:
    """Return whether a file's text begins as a rank's steps do."""
    return text.lstrip()[:40].startswith(f'{{"{KEY}"')


def recording(path: Path, text: str) -> RecordedRun:
    """Return the steps of the process with most of them; raise RecordingError where there are none.

    A last line that is cut off, of a process that was killed, is left out.
    """
    processes = _processes(path, text)
    if not processes or not (chosen := max(processes, key=lambda each: len(each.steps))).steps:
        raise RecordingError(f"{path} has no ordinary step: did the script make at least three?")
    try:
        return _recording(chosen)
    except UNREADABLE as error:
        raise RecordingError(f"{path} is damaged: {wrong_form(error)}") from error


def _processes(path: Path, text: str) -> list[_Process]:
    found: list[_Process] = []
    lines = text.splitlines()
    for count, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if KEY in row:
                if row[KEY] != VERSION:
                    raise RecordingError(f"{path} has version {row[KEY]!r:.20}, this program reads {VERSION}")
                found.append(_Process(row))
                continue
            into = found[-1]
            if "seconds" in row:
                into.steps.append(row)
            elif "logged" in row:
                if (loss := row["logged"].get(LOSS)) is not None:
                    into.loss.append((number(row["step"]), number(loss)))
            elif "totals" in row:
                into.times.append(number(row["time"]))
                into.totals.append({str(name): number(value) for name, value in row["totals"].items()})
        except UNREADABLE as error:
            if count == len(lines):
                break
            raise RecordingError(f"{path}:{count}: {wrong_form(error)}") from error
    return found


def _recording(process: _Process) -> RecordedRun:
    measures: dict[str, tuple[Sample, ...]] = {STEP: tuple(_of(process, lambda row: row["seconds"]))}
    waits = tuple(_of(process, lambda row: row["wait"]))
    if any(value for _, value in waits):
        measures[WAIT] = waits
    for name in sorted({name for row in process.steps for name in row["phases"]}):
        measures[PHASE + name] = tuple(_of(process, partial(_in_phase, name)))
    ranks = max(1.0, number(process.who["world_size"]))
    facts: dict[str, float | str] = {"ranks": ranks, STEPS: float(len(process.steps))}
    for total, series, fact in (
        ("tokens_total", TOKENS, "tokens_per_step"), ("samples_total", SAMPLES, "samples_per_step"),
    ):  # fmt: skip
        if work := _per_step(process, total):
            facts[fact] = work * ranks
            measures[series] = tuple((step, work / seconds) for step, seconds in measures[STEP] if seconds > 0)
    for name in (PEAK, RESERVED, HOST):
        levels = [(at, row[name]) for at, row in zip(process.times, process.totals, strict=True) if row.get(name)]
        measures |= {name: tuple(levels)} if levels else {}
    times = [number(process.who["time"]), *process.times]
    return RecordedRun(
        str(process.who["run"]), "a rank's steps", min(times), max(times), facts, measures, tuple(process.loss)
    )


def _of(process: _Process, value: Callable[[Mapping[str, Any]], object]) -> Iterator[Sample]:
    return ((number(row["step"]), number(value(row))) for row in process.steps)


def _in_phase(name: str, row: Mapping[str, Any]) -> object:
    return row["phases"].get(name, 0.0)


def _per_step(process: _Process, total: str) -> float | None:
    """Return what a rank's step is worth on average, None where nothing was counted."""
    known = [(row["steps_total"], row[total]) for row in process.totals if total in row and row.get("steps_total")]
    steps, work = known[-1] if known else (0, 0)
    return work / steps if steps > 0 and work > 0 else None
