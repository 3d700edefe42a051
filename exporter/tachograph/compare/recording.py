"""A run to be compared: samples of each measure, and the file that `--save` keeps them in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tachograph.files import atomic_file
from tachograph.files.plain_file import read_plain
from tachograph.files.unreadable import UNREADABLE, wrong_form

VERSION = 1
KEY = "tachograph_compare"
LARGEST_FILE = 256 << 20
LARGEST_NUMBER = 1e30
"""Of FLOPs a run makes less."""

Sample = tuple[float, float]
"""Where it was taken, and its value: a Unix time, or a step; in one recording always the same of them."""


class RecordingError(Exception):
    """A recording cannot be had; the text says in one line why."""


@dataclass(frozen=True)
class Condition:
    """An alert's expression, asked of the run over its window: for how long it must hold, and when it did.

    `held` are pairs of Unix times. `severity` is that of the rule.
    """

    expression: str
    seconds: float
    severity: str
    held: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class RecordedRun:
    """A run between two Unix times. `facts` are numbers and words that say whether two runs can be compared.

    `loss` has the step in place of the time. `conditions` are those of the alerts that were asked for, by name.
    """

    run: str
    source: str
    start: float
    end: float
    facts: Mapping[str, float | str] = field(default_factory=dict)
    measures: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    loss: tuple[Sample, ...] = ()
    conditions: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Return the length of what was recorded."""
        return self.end - self.start


def save(recording: RecordedRun, path: Path) -> int:
    """Write a recording as a whole or not at all; return its size in bytes. Raise RecordingError."""
    content = {
        KEY: VERSION, "run": recording.run, "source": recording.source, "start": recording.start, "end": recording.end,
        "facts": dict(recording.facts), "measures": {name: rows for name, rows in recording.measures.items() if rows},
        "loss": recording.loss,
        "conditions": {name: [vars(one) for one in found] for name, found in recording.conditions.items()},
    }  # fmt: skip
    data = json.dumps(content, allow_nan=False).encode()
    target = path.resolve()
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        atomic_file.replace(target, data, mode)
    except OSError as error:
        raise RecordingError(f"cannot write {path}: {error.strerror or error}") from error
    return len(data)


def read_text(path: Path) -> str:
    """Return the text of a file; raise RecordingError for what cannot be one of ours."""
    try:
        if not path.is_file():
            raise RecordingError(f"{path} is not a file")
        text = read_plain(path, LARGEST_FILE).decode("utf-8")
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise RecordingError(f"{path} is no text") from None
    if not text.strip():
        raise RecordingError(f"{path} is empty")
    return text


def load(path: Path, text: str) -> RecordedRun:
    """Return the recording that `save` wrote as this text; raise RecordingError."""
    try:
        content = json.loads(text)
        if content[KEY] != VERSION:
            raise RecordingError(
                f"{path} has version {content[KEY]!r:.20} of a saved run, this program reads {VERSION}"
            )
        return RecordedRun(
            _text(content["run"]),
            _text(content["source"]),
            number(content["start"]),
            number(content["end"]),
            {_text(name): fact if isinstance(fact, str) else number(fact) for name, fact in content["facts"].items()},
            {_text(name): _samples(rows) for name, rows in content["measures"].items()},
            _samples(content["loss"]),
            {_text(name): tuple(map(_condition, found)) for name, found in content["conditions"].items()},
        )
    except UNREADABLE as error:
        raise RecordingError(f"{path} is damaged, or no run that tachograph saved: {wrong_form(error)}") from error


def number(value: object) -> float:
    """Return a number that others can be multiplied with; raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"{value!r:.40} is not a number")
    return float(value)


def _samples(rows: Sequence[Sequence[Any]]) -> tuple[Sample, ...]:
    return tuple((number(at), number(value)) for at, value in rows)


def _condition(found: Mapping[str, Any]) -> Condition:
    return Condition(
        _text(found["expression"]), number(found["seconds"]), _text(found["severity"]), _samples(found["held"])
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of a string")
    return value
