"""Whether this process does anything: what all of its threads together have written and computed, by the kernel."""

from __future__ import annotations

import os
from time import process_time

WRITTEN_BYTES, COMPUTED_SECONDS = 2.0**20, 1.0
"""A process that writes and computes less stands still: threads that log and watch come to as much in a minute."""

_COUNTERS = "/proc/self/io"
_WRITTEN = b"wchar: "
"""All that was given to write calls that succeeded: one that blocks, or finds the disk full, adds nothing."""


class ProcessActivity:
    """Remembers when the process was last seen to do something; each call reads two counters."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._did = self._written = self._computed = 0.0

    def still_seconds(self, now: float, since: float) -> float:
        """Return the seconds up to `now` for which it has done nothing, looked at from `since` on.

        0 where the kernel does not say what it writes.
        """
        written, computed = _written_bytes(), process_time()
        if (
            since != self._since
            or not written
            or written - self._written >= WRITTEN_BYTES
            or computed - self._computed >= COMPUTED_SECONDS
        ):
            self._since, self._did, self._written, self._computed = since, now, written, computed
        return now - self._did


def _written_bytes() -> float:
    """Return what this process has written so far; 0 where the kernel does not say."""
    try:
        file = os.open(_COUNTERS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(file, 4096)
        finally:
            os.close(file)
    except OSError:
        return 0.0
    _, _, rest = text.partition(_WRITTEN)
    number = rest.partition(b"\n")[0]
    return float(number) if number.isdigit() else 0.0
