"""The outputs of a recorder besides the exporter: sinks and a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tachograph.client.core.notice import notice, raised_by_signal
from tachograph.client.transport.guarded import Guarded
from tachograph.client.transport.rank_state import RankState

if TYPE_CHECKING:
    from tachograph.client.core.phases import Phase
    from tachograph.client.transport.interfaces import Sink, Trace


class Outputs:
    """Connects sinks and a trace to a rank's state; what cannot be started is counted and left out."""

    def __init__(self, state: RankState, sinks: Iterable[Sink], trace: Trace | None) -> None:
        self.trace: Trace | None = None
        self.phases: dict[str, AbstractContextManager[None]] = dict(state.clock.phases)
        self._sinks = state.sinks
        try:
            for sink in sinks:
                self._sinks.add(sink)
            if trace is not None:
                self._connect(state, trace)
        except Exception as error:
            if raised_by_signal(error):
                raise
            state.dropped.count += 1
            notice("outputs", "sinks or traces could not be started", error)
        if self._sinks or self.trace is not None:
            import atexit

            atexit.register(self.close)

    def _connect(self, state: RankState, trace: Trace) -> None:
        trace.start(state.identity)
        clock: dict[str, Phase] = state.clock.phases
        self.phases = {name: trace.phase(phase, name) for name, phase in clock.items()}
        state.observers.add(trace)
        if (logged := getattr(trace, "logged", None)) is not None:
            followers = Guarded(state.dropped, logged)

            def follow(step: int, values: Mapping[str, float]) -> None:
                followers.each(lambda take: take(step, values))

            state.logged.follow = follow
        self.trace = trace

    def close(self) -> None:
        """Have everything write out what is left."""
        trace, self.trace = self.trace, None
        self._sinks.each(lambda sink: sink.close())
        self._sinks.clear()
        if trace is not None:
            try:
                trace.close()
            except Exception as error:
                if raised_by_signal(error):
                    raise
                notice("outputs", "the trace could not be closed", error)

    def release(self) -> None:
        """Drop all outputs without closing them: in a forked child they belong to the parent."""
        self.trace = None
        self._sinks.clear()
