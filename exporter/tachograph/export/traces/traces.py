"""Which steps are traced, and where their spans go."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from tachograph.client.core.notice import notice
from tachograph.client.core.steps import StepRecord
from tachograph.client.hello.identity import Identity
from tachograph.export.traces.chrome import ChromeTrace
from tachograph.export.traces.otlp import OtlpTrace
from tachograph.export.traces.spans import RING_LIMIT, Span, TracedPhase


class Output(Protocol):
    """Somewhere that traces go."""

    def write(self, steps: Span, phases: list[Span], facts: dict[str, object], unix: float) -> None:
        """Write one step and its phases."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class Traces:
    """Traces one step in `every` (0: none), and `burst` steps each time the file `trigger` is touched.

    `chrome` is the file for Perfetto, `otlp` the address of an OTLP/HTTP receiver (True: from the SDK's variables).
    A step's trace begins where the step before it ended, so that the wait for its batch is in it. An output that cannot
    be opened, or fails, is logged once and closed; training continues. ValueError for numbers that cannot be:
    this runs at start.
    """

    def __init__(
        self,
        every: int = 0,
        *,
        chrome: str | os.PathLike[str] | None = None,
        otlp: str | bool = False,
        trigger: str | os.PathLike[str] | None = None,
        burst: int = 5,
    ) -> None:
        if every < 0 or burst < 1:
            raise ValueError(f"every is {every!r} and burst {burst!r}: expected 0 or more, and 1 or more")
        self._every = every
        self._chrome = chrome
        self._otlp = otlp
        self._trigger = trigger
        self._burst = burst
        self._wanted = 0
        self._touched = self._touch_time()
        self._ring: deque[Span] = deque(maxlen=RING_LIMIT)
        self._outputs: list[Output] = []
        self._before = 0.0
        self._wait_before = 0.0

    def start(self, identity: Identity) -> None:
        """Open the outputs; the Recorder calls it once."""
        if self._chrome is not None:
            self._open(ChromeTrace, self._chrome, identity)
        if self._otlp:
            self._open(OtlpTrace, self._otlp if isinstance(self._otlp, str) else None, identity)

    def phase(self, inner: AbstractContextManager[None], name: str) -> TracedPhase:
        """Return a phase (or a collective inside one) that does what `inner` does and is traced as `name`."""
        return TracedPhase(inner, name, self._ring)

    def observe(self, record: StepRecord) -> None:
        """Look at a completed step, and write it if it is wanted; called in the sender thread."""
        touched = self._touch_time()
        if touched != self._touched:
            self._touched, self._wanted = touched, self._burst
        spans = self._spans_until(record.ended)
        if self._wanted or (self._every and record.number % self._every == 0):
            self._wanted = max(0, self._wanted - 1)
            self._write(record, spans)
        self._before, self._wait_before = record.ended, record.wait

    def close(self) -> None:
        """Write what is left and close the outputs."""
        for output in self._outputs:
            _close(output)
        self._outputs = []

    def _spans_until(self, moment: float) -> list[Span]:
        """Take the spans that ended by `moment` out of the ring, in the order in which they began."""
        ring = self._ring
        spans = []
        while ring and ring[0].ended <= moment:
            spans.append(ring.popleft())
        return sorted(spans, key=lambda span: span.began)

    def _write(self, record: StepRecord, spans: list[Span]) -> None:
        began = self._before or min((span.began for span in spans), default=record.began)
        whole = Span("step", min(began, record.began), record.ended, failed=False)
        facts: dict[str, object] = {"step": record.number, "collective_wait_seconds": record.wait - self._wait_before}
        if record.tag is not None:
            facts["tag"] = record.tag
        unix = time.time() - time.perf_counter()
        for output in tuple(self._outputs):
            try:
                output.write(whole, [span for span in spans if span.began >= whole.began], facts, unix)
            except Exception as error:  # noqa: BLE001 - a full disk, a library's fault: it costs the traces alone
                notice("trace", "steps are no longer traced", error)
                self._outputs.remove(output)
                _close(output)

    def _open(self, kind: Callable[[Any, Identity], Output], where: object, identity: Identity) -> None:
        try:
            self._outputs.append(kind(where, identity))
        except (OSError, ImportError) as error:
            notice("trace", f"steps are not traced: {error}")

    def _touch_time(self) -> int:
        try:
            return Path(self._trigger).stat().st_mtime_ns if self._trigger is not None else 0
        except OSError:
            return 0


def _close(output: Output) -> None:
    with contextlib.suppress(Exception):  # what cannot be written at the end was logged before, or is the last step
        output.close()
