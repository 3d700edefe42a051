"""GPU seconds of each phase, by pooled CUDA events; a GPU runs behind the host, so the phase clock cannot know them.

Where a phase ends and another begins, one event is recorded on the current stream; the time between two such events is
the earlier phase's. An event is only ever asked `query()`, by the training thread at a later phase: nothing waits for
the GPU, and no other thread makes CUDA calls, which would break the capture of a CUDA graph. During a capture nothing
is recorded at all. Tested with stand-ins for events, and by `make test-gpu`.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

from tachograph.client.core.notice import notice
from tachograph.client.core.phases import PhaseClock
from tachograph.client.torch.loaded_torch import loaded_torch

POOL_LIMIT = 256
"""Events in use at once; a GPU that is further behind than this loses times, never memory."""

RESOLVE_FROM = 8
"""Events on their way before one is asked: about two steps, when the answer is mostly yes."""

SAME_MOMENT = 20e-6
"""Seconds; a phase that begins so soon after another ended shares its event. No GPU work of note fits in between."""

NEVER = float("-inf")


class DeviceTime:
    """GPU seconds of the phases of a clock; a MetricSource.

    As long as CUDA is not in use nothing is recorded. Once it is, `metrics`, which the sender thread calls before each
    frame, becomes the clock's `device`: from then on every phase also records events when it begins and ends.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self.seconds: dict[str, float] = {}
        self.lost = 0
        self._clock = clock
        self._cuda: Any = None
        self._free: list[Any] = []
        self._made = 0
        self._pending: deque[tuple[Any, str | None]] = deque()
        self._chained = False
        self._begin: Any = None
        self._marked = NEVER

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return `phase_device_seconds_total` by phase; empty without CUDA."""
        if self._cuda is None:
            self._watch()
        return {"phase_device_seconds_total": dict(self.seconds)} if self.seconds else {}

    def begins(self, left: str) -> None:
        """Mark that a phase begins inside phase `left`, unless one has ended this very moment."""
        if left != "other" or perf_counter() - self._marked > SAME_MOMENT:
            self.ends(left)

    def ends(self, left: str) -> None:
        """Mark that phase `left` ends; called by the training thread, never raises."""
        try:
            if self._cuda.is_current_stream_capturing():
                self._break()
                return
            if len(self._pending) >= RESOLVE_FROM:
                self._resolve()
            event = self._event()
            if event is None:
                self.lost += 1
                self._break()
                return
            event.record()
            self._pending.append((event, left if self._chained else None))
            self._chained = True
            self._marked = perf_counter()
        except Exception as error:  # noqa: BLE001 - a CUDA error is the training code's to meet, not ours to raise
            self._stop(error)

    def _break(self) -> None:
        """Begin anew with the next event: what lies between is nobody's."""
        self._chained = False
        self._marked = NEVER

    def _resolve(self) -> None:
        pending = self._pending
        while pending and pending[0][0].query():
            event, phase = pending.popleft()
            if phase is not None:
                self.seconds[phase] = self.seconds.get(phase, 0.0) + self._begin.elapsed_time(event) / 1000
            if self._begin is not None:
                self._free.append(self._begin)
            self._begin = event

    def _event(self) -> Any:  # noqa: ANN401 - a torch.cuda.Event
        if self._free:
            return self._free.pop()
        if self._made >= POOL_LIMIT:
            return None
        self._made += 1
        return self._cuda.Event(enable_timing=True)

    def _watch(self) -> None:
        try:
            cuda = loaded_torch().cuda
            if not cuda.is_initialized():
                return
        except AttributeError:  # torch absent, or half imported
            return
        self._cuda = cuda
        self._clock.device = self

    def _stop(self, error: Exception) -> None:
        self._clock.device = None
        self._pending.clear()
        self.seconds = {}
        notice("device time", "GPU time of phases is no longer measured", error)
