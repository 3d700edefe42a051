"""The checkpoints a rank reported, and the last few as events."""

from __future__ import annotations

from collections import deque

from tachograph.wire import MAX_EVENTS


class Checkpoints:
    """Counts and facts of saved checkpoints; `overwritten` counts events that left before any frame carried them."""

    def __init__(self) -> None:
        self.saved = 0
        self.overwritten = 0
        self.events: deque[dict[str, int | float | str]] = deque(maxlen=MAX_EVENTS)
        self._last: dict[str, float] = {}
        self._carried = 0

    def add(self, now: float, step: int, size: int | None) -> None:
        """Note a checkpoint of `step`, of `size` bytes (None: not known), saved at Unix time `now`."""
        if len(self.events) == MAX_EVENTS and int(self.events[0]["id"]) > self._carried:
            self.overwritten += 1
        self.saved += 1
        last: dict[str, float] = {"checkpoint_timestamp_seconds": now, "checkpoint_step": step}
        if size is not None:
            last["checkpoint_bytes"] = size
        self._last = last
        self.events.append({"id": self.saved, "kind": "checkpoint_saved", "time": now, "step": step})

    def carried(self, last_id: int) -> None:
        """Note that a frame with the events up to `last_id` has left."""
        self._carried = last_id

    def metrics(self) -> dict[str, float]:
        """Return the counters and gauges by wire key."""
        return {"checkpoints_total": self.saved, **self._last}
