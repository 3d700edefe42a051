"""The checkpoints that a rank reported as saved, failed or resumed from, and the last few as events."""

from __future__ import annotations

import os
import time
from collections import deque
from math import isfinite

from tachograph.wire import MAX_EVENTS


class Checkpoints:
    """Counts and facts of checkpoints; `overwritten` counts events that were overwritten before any frame was sent.

    `saved` and `failures` count what was reported; `last_id` is the id of the newest event.
    """

    def __init__(self) -> None:
        self.saved = 0
        self.failures = 0
        self.overwritten = 0
        self.last_id = 0
        self.events: deque[dict[str, int | float | str]] = deque(maxlen=MAX_EVENTS)
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
        if path is not None and (free := free_share(path)) is not None:
            last["checkpoint_free_ratio"] = free
        self._last = last
        self._event("checkpoint_saved", now, step)

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
        return {"checkpoints_total": self.saved, **self._last, **self._resumed}


def free_share(path: str) -> float | None:
    """Return the share of the file system with `path` that is free for this user; None if not known.

    A file that was renamed since is looked for in its folder; an address such as `s3://…` is nowhere.
    """
    for place in (path, os.path.dirname(path) or "."):  # noqa: PTH120 - pathlib costs 3 ms and 0.7 MB to import
        try:
            found = os.statvfs(place)
        except OSError:
            continue
        except ValueError:  # a null byte
            return None
        return found.f_bavail / found.f_blocks if found.f_blocks else None
    return None
