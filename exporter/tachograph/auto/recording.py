"""The record of a process of which nobody has said that it trains: it begins once parameters have been updated."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from tachograph.attach.script_recording import ScriptRecording
from tachograph.attach.summary import Summary
from tachograph.client.active import ActiveCalls
from tachograph.client.core.notice import notice, raised_by_signal
from tachograph.client.hello.identity import discover, local_run
from tachograph.client.recorder import Recorder
from tachograph.integrations.loop import Loop

if TYPE_CHECKING:
    from tachograph.client.transport.interfaces import Sink, Trace


def _name() -> str | None:
    """Return a name of its own for a training of one process that has none: its user may start others beside it."""
    who = discover({}, os.environ)
    return f"{who.run}-{os.getpid()}" if who.world_size == 1 and who.run == local_run() else None


class WaitingRecorder(Recorder):
    """Measures from the moment `since`, and has neither thread nor socket until `begin`.

    `faults` are sent with its state.
    """

    def __init__(self, faults: Collection[str], since: float) -> None:
        self._faults, self._since = faults, since
        self._waiting: ActiveCalls | None = None
        super().__init__(run=_name())

    def _start(self, active: ActiveCalls, sinks: Sequence[Sink], trace: Trace | None, socket: object) -> None:
        active.state.faults = self._faults
        active.state.clock.since = self._since
        active.start(sinks, trace)
        self._use(active)
        self._waiting = active

    @property
    def begun(self) -> bool:
        """Whether the exporter may have heard of it."""
        return self._waiting is None

    def begin(self) -> None:
        """Send what was measured so far, and what follows."""
        active, self._waiting = self._waiting, None
        if active is None:
            return
        try:
            active.connect(None)
            active.register(self._silence)
        except Exception as error:
            self._silence()
            if raised_by_signal(error):
                raise
            notice("start", "nothing is recorded", error)

    def leave(self) -> None:
        """Record nothing any more, in a forked child."""
        self._silence()


class AutoRecording(ScriptRecording):
    """Recorded is the thread that trains, of this process or of a child forked from it.

    The first record has the time since this was made, or since the fork: most of it is the start of the training.
    `finish` settles what the end of the process leaves open; `forget` is called in a forked child, which may train too.
    """

    def __init__(self, faults: Collection[str]) -> None:
        super().__init__(self._waiting_recorder, Summary())
        self._faults = faults
        self._thread = 0
        self._since: float | None = perf_counter()
        self.finish: Callable[[], object] = int
        self.forget: Callable[[], None] = lambda: None
        self._recorder: WaitingRecorder | None = None

    def _waiting_recorder(self) -> Recorder:
        self._recorder = WaitingRecorder(self._faults, perf_counter() if self._since is None else self._since)
        return self._recorder

    def here(self) -> Loop | None:
        """Return the loop to report to; the first thread that is heard of is the one until another trains."""
        self._thread = self._thread or threading.get_ident()
        return super().here()

    def trains_here(self) -> Loop | None:
        """Return it to the thread that calls, which trains: if none has before, or that one is over."""
        if self._thread != (caller := threading.get_ident()) and self.active:
            begun = self._recorder is not None and self._recorder.begun and self.loop is not None
            if not begun or all(one.ident != self._thread for one in threading.enumerate()):
                self.end()
                self._thread = caller
        return self.here()

    def moves_here(self) -> Loop | None:
        """Follow the training into the thread that calls: each step may be made by another one of a pool."""
        self._thread = threading.get_ident()
        loop = super().here()
        if loop is not None:
            loop.trains_here()
        return loop

    def updated(self) -> None:
        """Begin the record."""
        if self._recorder is None or self._recorder.begun:
            return
        self._recorder.begin()
        self._since = None
        atexit.unregister(self.finish)
        atexit.register(self.finish)  # after the recorder's own, so that it runs before
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:  # it leaves by os._exit
            from multiprocessing.util import Finalize

            Finalize(None, self.finish, exitpriority=1)

    def forked(self) -> None:
        """Start again in a child: the record of the parent is the parent's."""
        recorder, self._recorder, self.loop = self._recorder, None, None
        self._thread, self._since = 0, perf_counter()
        if recorder is not None:
            recorder.leave()
        self.forget()
