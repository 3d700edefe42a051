"""Whether this process does anything: what all of its threads together have written and computed, by the kernel."""

from __future__ import annotations

import os
from time import process_time

WRITTEN_BYTES, COMPUTED_SECONDS = 2.0**20, 1.0
"""A process that writes and computes less stands still: threads that log and watch come to as much in a minute."""

MOST_APART = 5.0
"""Seconds between two looks; what is beyond was no look at all: the process was stopped, or kept Python's lock."""

_COUNTERS = "/proc/self/io"
_WRITTEN = b"\nwchar: ", b"\nwrite_bytes: "
"""What was given to write calls that succeeded: one that blocks, or finds the disk full, adds nothing. And what became
a file's pages: a gigabyte in one call adds to these on the way, to the other at its end."""


class ProcessActivity:
    """Remembers when the process was last seen to do something; each call reads two counters."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._did = self._looked = self._computed = 0.0
        self._written: tuple[float, ...] = ()

    def still_seconds(self, now: float, since: float) -> float:
        """Return the seconds up to `now` for which it has done nothing, looked at from `since` on once a second.

        0 where the kernel does not say what it writes.
        """
        written, computed = _written_bytes(), process_time()
        self._did += max(0.0, now - self._looked - MOST_APART)
        self._looked = now
        if (
            since != self._since
            or not (written and self._written)
            or any(count - before >= WRITTEN_BYTES for count, before in zip(written, self._written, strict=True))
            or computed - self._computed >= COMPUTED_SECONDS
        ):
            self._since, self._did, self._written, self._computed = since, now, written, computed
        return now - self._did


def _written_bytes() -> tuple[float, ...]:
    """Return what this process has written so far, counted in both ways; nothing where the kernel does not say."""
    try:
        file = os.open(_COUNTERS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(file, 4096)
        finally:
            os.close(file)
    except OSError:
        return ()
    counts = tuple(text.partition(name)[2].partition(b"\n")[0] for name in _WRITTEN)
    return tuple(map(float, counts)) if all(map(bytes.isdigit, counts)) and counts[0] != b"0" else ()
