"""The recording of a script: it starts with the first event of a training, and ends if the script makes its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tachograph.attach.summary import Summary
from tachograph.client.core.contained import contained
from tachograph.client.core.notice import notice
from tachograph.client.hello.identity import discover
from tachograph.client.recorder import Recorder
from tachograph.integrations.loop import Loop


class ScriptRecording:
    """A script's steps go to `loop`, whose recorder is made with the first call of `here`.

    Only the thread that made it is recorded: phases belong to one thread. `active` is False where there is nothing to
    record: the script has a recorder of its own, or this is a forked child. `received`: an exporter has answered the
    record of a training that is over.
    """

    def __init__(self, make: Callable[[], Recorder], summary: Summary) -> None:
        self.active = True
        self.received = False
        self.summary = summary
        self.loop: Loop | None = None
        self._make = make
        self._thread = threading.get_ident()
        self._making = False
        os.register_at_fork(after_in_child=self.forked)

    def here(self) -> Loop | None:
        """Return the loop to report to, None if nothing is to be recorded."""
        if not self.active or threading.get_ident() != self._thread:
            return None
        if self.loop is None and not self._making:
            self._making = True
            try:
                self.loop = Loop(self._make())
            except Exception as error:  # noqa: BLE001 - the script trains on, unrecorded
                notice("run", "nothing is recorded", error)
                self.stop()
            self._making = False
        return self.loop

    def trains_here(self) -> Loop | None:
        """Return `here`, for what only a training does."""
        return self.here()

    def moves_here(self) -> Loop | None:
        """Return the loop for the thread that calls, in which the optimizer that counts is stepped now, if it may."""
        return None

    def begun(self) -> Loop | None:
        """Return the loop to report to, if there is one already: what does not train starts no recording."""
        return self.here() if self.loop is not None else None

    def updated(self) -> None:
        """Note that parameters were updated by a training."""

    def stop(self) -> None:
        """Observe nothing any more."""
        self.active = False

    def forked(self) -> None:
        """Leave the record to the parent: called in a forked child."""
        self.stop()

    @contained
    def script_records(self) -> None:
        """Step back: the script has made a recorder, and nothing is recorded twice."""
        if self._making or not self.active:
            return
        self.summary.own_recorder = True
        self.stop()
        if self.loop is not None:
            self.loop.abandon()
            self.loop.recorder.close()

    def begin_again(self) -> None:
        """End the record as finished: what follows is another training, whose record begins with the next event."""
        if self.loop is not None:
            self.end()
            self.summary.trainings += 1

    @contained
    def joined(self) -> None:
        """Take over the rank and the world size that only the script knew, once its process group is there."""
        loop = self.begun()
        if loop is None:
            return
        before, now = loop.recorder.identity, discover({}, os.environ)
        if not self.summary.steps and (before.rank, before.world_size) != (now.rank, now.world_size):
            self.summary.launched = before.world_size == 1
            self.starts_others()
            self.here()

    @contained
    def starts_others(self) -> None:
        """End a record without a step: the processes that this one starts train; what it does later makes another."""
        if self.active and not self.summary.steps:
            self.end()

    def end(self) -> None:
        """End the record, if there is one, as finished."""
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.abandon()
            loop.recorder.close()
            self.received |= loop.recorder.received
