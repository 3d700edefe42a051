"""The state of a bisection: a JSON file, replaced after every trial, from which another start goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tachograph.bisect.tally import Trial
from tachograph.files import atomic_file
from tachograph.files.unreadable import wrong_form

VERSION = 1
LARGEST = 16 << 20


class StateError(Exception):
    """The state cannot be read or written, or is that of another bisection; the text says what to do."""


@dataclass
class BisectState:
    """A bisection as it was asked for, and its trials so far."""

    asked: Mapping[str, Any]
    trials: list[Trial] = field(default_factory=list)


def load(path: Path, asked: Mapping[str, Any]) -> BisectState:
    """Return the state at a path, or a new one; raise StateError."""
    if not path.exists():
        return BisectState(asked)
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise StateError(f"{path} is no state of a bisection: give another with --state")
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["tachograph_bisect"] != VERSION:
            raise StateError(f"{path} is of version {content['tachograph_bisect']!r:.20}: remove it, or give --state")
        trials = [_trial(row) for row in content["trials"]]
        before = dict(content["asked"])
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StateError(f"{path} is damaged, or no state of a bisection ({wrong_form(error)}): remove it") from error
    if differing := [name for name in asked if before.get(name) != asked[name]]:
        raise StateError(
            f"{path} is of another bisection ({', '.join(differing)} differ): remove it to begin again, or give --state"
        )
    return BisectState(asked, trials)


def save(path: Path, state: BisectState) -> None:
    """Replace the file as a whole; raise StateError."""
    content = {"tachograph_bisect": VERSION, "asked": state.asked, "trials": [asdict(one) for one in state.trials]}
    try:
        atomic_file.replace(path, json.dumps(content, indent=1).encode(), 0o600)
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror or error}") from error


def asked_for(kind: str, command: Sequence[str], **figures: object) -> dict[str, Any]:
    """Return what must be alike for a bisection to be continued, as JSON has it."""
    found: dict[str, Any] = json.loads(json.dumps({"kind": kind, "command": list(command), **figures}))
    return found


def _trial(row: Mapping[str, Any]) -> Trial:
    value, works, status, seconds, log = (row[name] for name in ("value", "works", "status", "seconds", "log"))
    if not (isinstance(value, str) and isinstance(works, bool) and isinstance(log, str)):
        raise TypeError("a trial of wrong types")
    return Trial(value, works, None if status is None else int(status), float(seconds), log)
