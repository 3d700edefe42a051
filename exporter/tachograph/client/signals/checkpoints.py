"""The checkpoints that a rank reported as saved, failed or resumed from, and the last few as events."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from math import isfinite

from tachograph.wire import MAX_EVENTS, MAX_PATH_BYTES, fits


class Checkpoints:
    """Counts and facts of checkpoints; `overwritten` counts events that were overwritten before any frame was sent.

    `saved` and `failures` count what was reported; `last_id` is the id of the newest event.
    """

    def __init__(self) -> None:
        self.saved = 0
        self.failures = 0
        self.overwritten = 0
        self.last_id = 0
        self.path = ""
        """Where the last one is, for the exporter; empty where that is not known."""
        self.events: deque[dict[str, int | float | str]] = deque(maxlen=MAX_EVENTS)
        self._free = FreeSpace()
        self._last: dict[str, float] = {}
        self._resumed: dict[str, float] = {}
        self._seconds = 0.0
        self._sent = 0

    def add(
        self, now: float, step: int, size: int | None, seconds: float | None = None, path: str | None = None
    ) -> None:
        """Note a checkpoint of `step`, of `size` bytes (None: not known), saved at Unix time `now` to `path`.

        `seconds` are the rank's so far in phase `checkpoint`, all together: what came since the last saved or failed
        one is how long this one took. None, or none since: how long is not known.
        """
        self.saved += 1
        last: dict[str, float] = {"checkpoint_timestamp_seconds": now, "checkpoint_step": step}
        if size is not None:
            last["checkpoint_bytes"] = size
        if seconds is not None and isfinite(seconds) and seconds > self._seconds:
            last["checkpoint_duration_seconds"] = seconds - self._seconds
            self._seconds = seconds
        self._last = last
        self.path = "" if path is None else absolute(path)
        self._event("checkpoint_saved", now, step)
        if path is not None:
            self._free.look_up(path)

    def failed(self, seconds: float | None = None) -> None:
        """Note a checkpoint that could not be saved; `seconds` as for `add`: they are none of the next one's."""
        self.failures += 1
        if seconds is not None and isfinite(seconds):
            self._seconds = max(self._seconds, seconds)
        self._event("checkpoint_failed", time.time())

    def resumed(self, step: int, seconds: float | None = None) -> None:
        """Note that this process goes on from the checkpoint of `step`, which took `seconds` to load (None: unknown).

        A later call replaces an earlier one: a run may roll back without a new process.
        """
        resumed: dict[str, float] = {"resume_step": step}
        if seconds is not None and isfinite(seconds) and seconds >= 0:
            resumed["checkpoint_load_duration_seconds"] = seconds
        self._resumed = resumed
        self._event("resumed", time.time(), step)

    def _event(self, kind: str, now: float, step: int | None = None) -> None:
        if len(self.events) == MAX_EVENTS and int(self.events[0]["id"]) > self._sent:
            self.overwritten += 1
        self.last_id += 1
        event: dict[str, int | float | str] = {"id": self.last_id, "kind": kind, "time": now}
        if step is not None:
            event["step"] = step
        self.events.append(event)

    def sent(self) -> None:
        """Note that a frame with all events so far has been sent."""
        self._sent = self.last_id

    def metrics(self) -> dict[str, float]:
        """Return the counters and gauges by wire key; failures are for the caller to add to those it saw itself."""
        free = self._free.share
        room = {} if free is None else {"checkpoint_free_ratio": free}
        return {"checkpoints_total": self.saved, **self._last, **room, **self._resumed}


def absolute(path: str) -> str:
    """Return a path as other processes find it; an address as it is; empty where it is too long, or not text."""
    try:
        whole = path if "://" in path else os.path.abspath(path)  # noqa: PTH100 - pathlib costs 3 ms and 0.7 MB to import
        return whole if fits(whole, MAX_PATH_BYTES) else ""
    except (OSError, ValueError):  # the working directory is gone; a byte that is no UTF-8
        return ""


class FreeSpace:
    """The free share of the file system that was last saved to; looked up in a thread of its own.

    A file system that hangs keeps that thread, and nobody else: no further one is started then.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self._thread: threading.Thread | None = None

    def look_up(self, path: str) -> None:
        """Look up the file system of `path`; the share follows."""
        if self._thread is None or not self._thread.is_alive():
            self.share = None
            self._thread = threading.Thread(target=self._set, args=(path,), name="tachograph-disk", daemon=True)
            self._thread.start()

    def _set(self, path: str) -> None:
        self.share = free_share(path)


def free_share(path: str) -> float | None:
    """Return the share of the file system with `path` that is free for this user; None if not known.

    A file that was renamed since is looked for in its folder. A key such as `step_100`, or an address, is nowhere.
    """
    for place in filter(None, (path, os.path.dirname(path))):  # noqa: PTH120 - pathlib costs 3 ms and 0.7 MB to import
        try:
            found = os.statvfs(place)
        except OSError:
            continue
        except ValueError:  # a null byte
            return None
        return found.f_bavail / found.f_blocks if found.f_blocks else None
    return None
