"""How long a GPU's stream waited, by pairs of pooled CUDA events; asked with `query()`, never synchronised.

During the capture of a CUDA graph it does nothing: an event with timing must not be part of one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tachograph.client.core.notice import notice
from tachograph.client.torch.operation_totals import OperationTotals

PENDING_LIMIT = 2048
"""Waits whose events may be under way; a GPU further behind than this loses waits, never memory. A micro-batch of FSDP2
with 100 layers has 300."""

SETTLED_FROM = 64
"""Waits under way from which on those that are over are added up as the next begins, and their events used again."""


class StreamWait:
    """Waits of the current stream between `begin` and `end`; `cuda` is torch.cuda, `entered` whether there was one.

    Two threads use it, one after the other: the one that runs the backward pass, and the one that ends the step.
    """

    def __init__(self, cuda: Any) -> None:  # noqa: ANN401
        self._cuda = cuda
        self._free: list[Any] = []
        self._pending: deque[tuple[Any, Any]] = deque()
        self._known = 0.0
        self.entered = False

    def begin(self) -> Any:  # noqa: ANN401 - a torch.cuda.Event
        """Return the event that marks where a wait begins; None where it is not to be measured."""
        if self._cuda.is_current_stream_capturing():
            return None
        if len(self._pending) >= SETTLED_FROM:
            self._settle()
        if len(self._pending) >= PENDING_LIMIT:
            return None
        self.entered = True
        began = self._event()
        began.record()
        return began

    def end(self, began: Any) -> None:  # noqa: ANN401
        """Mark where the wait ends that began there; never raises."""
        try:
            if not self._cuda.is_current_stream_capturing():
                ended = self._event()
                ended.record()
                self._pending.append((began, ended))
        except Exception as error:  # noqa: BLE001 - a CUDA error is the training code's to meet, not ours to raise
            notice("gpu wait", "a wait for collectives could not be measured", error)

    def resolve(self, totals: OperationTotals) -> None:
        """Add the waits that are known by now; called by the training thread at the end of a step."""
        try:
            if self._cuda.is_current_stream_capturing():
                return
            self._settle()
            if self._known:
                totals.wait, self._known = (totals.wait or 0.0) + self._known, 0.0
        except Exception as error:  # noqa: BLE001 - as above; what cannot be measured any more must not stand still
            self._pending.clear()
            self._known = 0.0
            totals.wait = None
            notice("gpu wait", "exposed wait is no longer measured", error)

    @property
    def pending(self) -> bool:
        """Whether there is something to resolve."""
        return bool(self._pending or self._known)

    def _settle(self) -> None:
        while self._pending and self._pending[0][1].query():
            began, ended = self._pending.popleft()
            self._known += began.elapsed_time(ended) / 1000
            self._free += (began, ended)

    def _event(self) -> Any:  # noqa: ANN401
        return self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
