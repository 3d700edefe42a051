"""The journal of a run: a line of JSON for each decision, intention and outcome, on disk before anything is done.

It is only ever appended to, by the supervisor that holds its lock. A line that a crash cut short is no entry.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tachograph.process_tree import started_at

VERSION = 1
NAME = "journal.jsonl"
LOCK_SECONDS, LOCK_POLL_SECONDS = 30.0, 0.1
"""How long the training of a supervisor that was killed may take to end; until then it holds the lock."""

MOST_BYTES = 64 << 20
"""Of a journal that is read: a decision takes 500 bytes."""

LONGEST_BYTES = 1 << 20
"""Of an entry: the command is the longest part of one, and Linux takes 128 KiB of a word."""

Entry = Mapping[str, Any]

# Kinds of entries.
SUPERVISOR, ATTEMPT, STARTED, BLIND, DECISION, INTENT, OUTCOME, ENDED, FAULT = (
    "supervisor", "attempt", "started", "blind", "decision", "intent", "outcome", "ended", "fault",
)  # fmt: skip


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
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._lock(sleep)
            self.entries = read(self.path)
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
        """Take away what a crash left of a last line."""
        size = os.fstat(self.descriptor).st_size
        begin = max(size - LONGEST_BYTES, 0)
        end = os.pread(self.descriptor, LONGEST_BYTES, begin)
        if end and not end.endswith(b"\n"):
            os.ftruncate(self.descriptor, begin + end.rfind(b"\n") + 1)


def identity() -> dict[str, object]:
    """Return who this process is, for `is_alive`."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": started_at(os.getpid())}


def is_alive(owner: Entry) -> bool:
    """Return whether the supervisor that wrote an entry runs, or is on another node, where nobody here can tell."""
    return bool(owner["host"] != socket.gethostname() or started_at(owner["pid"]) == owner["started"])


def read(path: Path) -> list[Entry]:
    """Return the entries of a journal; what is not one is left out. Raise OSError."""
    found: list[Entry] = []
    with path.open("rb") as file:
        lines = file.read(MOST_BYTES).split(b"\n")
    for line in lines[:-1]:  # the last one has no end
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and entry.get("v") == VERSION and isinstance(entry.get("kind"), str):
                found.append(entry)
    return found
