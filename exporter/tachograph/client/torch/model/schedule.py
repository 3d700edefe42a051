"""How far a learning-rate schedule has come, by its own count."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import ref

_COUNTS = ("last_epoch", "last_batch_iteration")
"""Where PyTorch's schedulers and DeepSpeed's keep it."""


class ScheduleWatch:
    """Reads the count from the sender thread: plain attributes, on the host."""

    def __init__(self, scheduler: object) -> None:
        inner = getattr(scheduler, "scheduler", None)  # Accelerate wraps it
        self._scheduler = ref(scheduler if inner is None else inner)

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield `schedule_step`; nothing for a schedule that is gone or keeps no count."""
        scheduler = self._scheduler()
        for name in _COUNTS:
            count = getattr(scheduler, name, None)
            if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
                yield "schedule_step", count
                return
