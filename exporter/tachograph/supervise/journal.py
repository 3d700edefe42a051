"""The journal of a run: a line of JSON for each decision, intention and outcome, on disk before anything is done.

It is only ever appended to, by the supervisor that holds its lock. A line that a crash cut short is no entry.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tachograph.files.unreadable import UNREADABLE
from tachograph.processes.process_tree import started_at
from tachograph.supervise.policy import FIRST
from tachograph.supervise.run_seen import is_path

VERSION = 1
NAME = "journal.jsonl"
LOCK_SECONDS, LOCK_POLL_SECONDS = 120.0, 0.1
"""How long the training of a supervisor that was killed may take to end; until then it holds the lock. If its node is
gone, an NFS server holds it for 90 s."""

MOST_BYTES = 64 << 20
"""Of a journal that is read, from its end: a decision takes 500 bytes."""

BLOCK_BYTES = 1 << 16

LAST_SECOND = 2.5e11
"""Of a time that can be written as a date, in the year 9892."""

MOST_WHOLE = 1 << 53
"""A whole number beyond it was not counted, and may be too large for a float."""

Entry = Mapping[str, Any]

# Kinds of entries.
SUPERVISOR, ATTEMPT, STARTED, BLIND, DECISION, INTENT, OUTCOME, ENDED, FAULT, RECOVERED, JUDGED, QUEUED = (
    "supervisor", "attempt", "started", "blind", "decision", "intent", "outcome", "ended", "fault", "recovered",
    "judged", "queued",
)  # fmt: skip
CHECKPOINT, IGNORED, PLACED = "checkpoint", "ignored", "placed"


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


def _are(is_one: Callable[[object], bool], length: int | None = None) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, list) and all(map(is_one, value)) and (length is None or len(value) == length)
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and abs(value) <= MOST_WHOLE


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MOST_WHOLE


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < LAST_SECOND


def _is_path(value: object) -> bool:
    return isinstance(value, str) and is_path(value)


def _is_step(value: object) -> bool:
    return value is None or _is_whole(value)


_TEXT = _is(str)
_FACTS: Mapping[str, Callable[[object], bool]] = {
    "run": _TEXT, "mode": _TEXT, "pid": _is_whole, "host": _TEXT, "started": _TEXT, "attempt": _is_whole,
    "reason": _TEXT, "resume_step": _is_step, "over": _is(bool), "why": _TEXT, "id": _TEXT,
    "outcome": _TEXT, "guard": _TEXT, "ranks": _are(_is_whole), "step": _is_step, "text": _TEXT, "trigger": _TEXT,
    "action": _TEXT, "cost": _is_count, "signature": _are(_is(object), 3), "line": _TEXT, "ok": _is(bool), "how": _TEXT,
    "nodes": _are(_TEXT), "left_out": _are(_TEXT), "job": _TEXT, "mark": _TEXT,
    "addresses": _are(_TEXT),
    "seconds": _is_seconds, "lost_steps": _is_count, "gpus": _is_count, "verdict": _TEXT,
    "checkpoint": _is_count, "saved": _is_seconds, "path": _is_path, "suspect": _is(bool), "skip": _are(_is_whole, 2),
}  # fmt: skip
_OF_RESTART = ("trigger", "action", "cost", "signature", "line", "resume_step")
_OPTIONAL = ("nodes", "left_out", "job", "mark", "skip", "gpus")
"""What some entries have beside that: those of a run in a Slurm job or in pods, of steps that are left out, and of a
recovery."""
_NEEDED: Mapping[str, Sequence[str]] = {
    SUPERVISOR: ("run", "mode", "pid", "host", "started"), ATTEMPT: ("attempt", "reason", "resume_step"), STARTED: (),
    BLIND: ("over", "why"), INTENT: ("id", "action"), OUTCOME: ("id", "action", "ok", "text"), FAULT: ("text",),
    DECISION: ("id", "outcome", "guard", "ranks", "step", "text", "why", *_OF_RESTART),
    ENDED: ("how", "step", "why"), RECOVERED: ("attempt", "seconds", "lost_steps"),
    QUEUED: ("why", "left_out"), JUDGED: ("id", "action", "verdict", "why"),
    CHECKPOINT: ("checkpoint", "saved", "path", "suspect"), IGNORED: ("attempt", "why"),
    PLACED: ("attempt", "nodes", "addresses"),
}  # fmt: skip
"""Kind -> what an entry of it has; an intention has `text` or else all of a restart."""


class JournalTakenError(Exception):
    """Another supervisor has the journal; the text says which."""


class Journal:
    """The journal in a folder, locked; `full` says why it could not be written, empty while it can."""

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Open it, made if it is not there; raise OSError, JournalTakenError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / NAME
        self._clock = clock
        if self.path.is_symlink():
            raise OSError(
                f"{NAME} is a link and not a regular file: anyone who may write to the folder can have made it"
            )
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(self.path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
                raise OSError(f"{NAME} is not a regular file")
            self._lock(sleep)
            said = list(_said(self.path))
            self.entries: list[Entry] = [one for one in said if _is_entry(one)]
            if why := _why_foreign(said, self.entries):
                raise OSError(f"{NAME} {why}")
            self._end_line()
        except BaseException:
            os.close(self.descriptor)
            raise
        self.full = ""

    def close(self) -> None:
        """Give the lock back, unless a training still holds it."""
        os.close(self.descriptor)

    def write(self, kind: str, **facts: object) -> bool:
        """Add an entry, on disk when this returns; return False where that failed, and nothing of it is there."""
        entry = {"v": VERSION, "time": round(self._clock(), 3), "kind": kind, **facts}
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(self.descriptor).st_size
        try:
            if not os.path.samestat(os.stat(self.path), os.fstat(self.descriptor)):  # noqa: PTH116 - beside fstat
                raise OSError("it is another file than when the supervisor began")
            if os.write(self.descriptor, line) != len(line):
                raise OSError(f"the disk took a part of {len(line)} bytes")
            os.fsync(self.descriptor)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self.descriptor, size)
            self.full = error.strerror or str(error)
            return False
        self.entries.append(entry)
        self.full = ""
        return True

    def _lock(self, sleep: Callable[[float], None]) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                owner = next((one for one in reversed(read(self.path)) if one["kind"] == SUPERVISOR), None)
                if owner is None or is_alive(owner) or time.monotonic() > deadline:
                    who = f"process {owner['pid']} on {owner['host']}" if owner else "another process"
                    raise JournalTakenError(f"{who} already supervises this run, by {self.path}") from None
            sleep(LOCK_POLL_SECONDS)

    def _end_line(self) -> None:
        """Take away what a crash left of a last line, however long that is."""
        size = kept = os.fstat(self.descriptor).st_size
        while kept:
            begin = max(kept - BLOCK_BYTES, 0)
            if end := os.pread(self.descriptor, kept - begin, begin).rfind(b"\n") + 1:
                kept = begin + end
                break
            kept = begin
        if kept < size:
            os.ftruncate(self.descriptor, kept)


def identity() -> dict[str, object]:
    """Return who this process is, for `is_alive`."""
    job = {"job": number} if (number := os.environ.get("SLURM_JOB_ID")) else {}
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": started_at(os.getpid()), **job}


def is_alive(owner: Entry) -> bool:
    """Return whether the supervisor that wrote an entry runs, or is on another node, where nobody here can tell.

    A batch script is never there twice: where this one runs, that of the same job on another node has ended.
    """
    if owner["host"] != socket.gethostname():
        return not owner.get("job") or owner["job"] != os.environ.get("SLURM_JOB_ID")
    return bool(started_at(owner["pid"]) == owner["started"])


def read(path: Path) -> list[Entry]:
    """Return the entries of a journal; what is not one is left out. Raise OSError."""
    return [one for one in _said(path) if _is_entry(one)]


def _said(path: Path) -> Iterator[Any]:
    """Yield what each line of a file says, None for one that is no JSON. Raise OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a pipe is not waited for
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        file.seek(max(status.st_size - MOST_BYTES, 0))
        lines = file.read(MOST_BYTES).split(b"\n")
    for line in lines[:-1]:  # the last one has no end
        try:
            yield json.loads(line)
        except UNREADABLE:
            yield None


def _why_foreign(said: Sequence[Any], entries: Sequence[Entry]) -> str:
    """Return why a file with these lines and entries must not be gone on with, empty if it may be.

    What a newer release has spent and left out would be forgotten, and another program's file spoilt.
    """
    if any(isinstance(one, dict) and isinstance(one.get("v"), int) and one["v"] > VERSION for one in said):
        return "is of a newer release, whose entries this one does not know"
    return "" if entries or not said else "is no journal of a supervisor"


def owners(path: Path) -> tuple[int, int]:
    """Return who may answer what a journal asks: root, and the user whose it is. Raise OSError."""
    return 0, path.stat().st_uid


def _is_entry(said: Any) -> bool:  # noqa: ANN401 - whatever JSON can say
    """Return whether a line is an entry with all that is needed."""
    try:
        return _has_all(said)
    except UNREADABLE:
        return False


def _has_all(said: Mapping[str, Any]) -> bool:
    """Return the same; raise one of UNREADABLE for some that are not."""
    kind = said["kind"]
    needed = _NEEDED[kind]
    if kind == INTENT:
        needed = (*needed, *(("text",) if said["action"] in FIRST else _OF_RESTART))
    return (
        said["v"] == VERSION
        and _is_seconds(said["time"])
        and all(_FACTS[name](said[name]) for name in (*needed, *(name for name in _OPTIONAL if name in said)))
    )
