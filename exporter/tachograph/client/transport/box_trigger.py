"""When a rank's box is due, and what becomes of it: it is made by the sender thread, sent in parts, and written.

Once for each standstill, when it fails, and when it is asked for; at most once in 10 s. What makes a box is imported
only then. The file is written by a thread of its own: a disk that hangs must not hold up the rank's signs of life.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import perf_counter, time
from typing import TYPE_CHECKING

from tachograph.client.core.notice import notice
from tachograph.client.signals.standstill import Stall
from tachograph.client.transport.failure_reason import End
from tachograph.client.transport.rank_state import Frame, RankState
from tachograph.client.transport.standing_failure import standing_failure
from tachograph.text.code_line import whereabouts
from tachograph.wire import BOX_PART_BYTES, BOX_REQUESTS, MAX_BOX_REASON_BYTES, MAX_WHERE_BYTES, VERSION, cut

if TYPE_CHECKING:
    from tachograph.client.blackbox.box_file import BoxFile

SWITCH = "TACHOGRAPH_BLACKBOX"
"""The variable that names the folder of the boxes; with 0 or off there are none."""

FOLDER = "blackbox"
"""The folder beside the exporter's socket in which boxes are written where that variable is not set."""

GAP_SECONDS = 10.0
"""Time between two boxes of a rank, at least."""

PATIENCE_SECONDS = 300.0
"""A start, a save, an evaluation or a compilation has taken too long after so much, half of NCCL's usual timeout.

After a step, or in a save in which nothing is done, a box is due once the rank stands still, unless it has stood still
for half as long before and gone on."""

FAILURE_SECONDS = 1.0
"""The longest that the box of a failure delays the end of the process."""

_OFF, _DEFAULT = ("0", "off", "false", "no"), ("", "1", "on", "true", "yes")
_WITHOUT_BOX = ("terminated", "interrupted")
"""Failures that come from outside: nothing is to be found out about the rank."""


class OutgoingBox:
    """A box on its way to the exporter, in parts."""

    def __init__(self, number: int, reason: str, text: bytes) -> None:
        self._frame: Frame = {"v": VERSION, "type": "box", "id": number, "time": time(), "reason": reason}
        self._text = text
        self._next = 0

    def begin_again(self) -> None:
        """Have all parts sent once more: the connection is another one."""
        self._next = 0

    @property
    def is_sent(self) -> bool:
        """Whether each part was given out."""
        return self._next * BOX_PART_BYTES >= len(self._text)

    def next_part(self) -> Frame:
        """Return the next part as a frame."""
        start, part = self._next * BOX_PART_BYTES, self._next
        self._next += 1
        text = self._text[start : start + BOX_PART_BYTES].decode("ascii")
        return {**self._frame, "part": part, "parts": -(-len(self._text) // BOX_PART_BYTES), "text": text}


class BoxTrigger:
    """Makes the boxes of one rank; all calls but `ask` are for the sender thread. `outgoing` is the last box.

    `by_signal`: the variable asks for boxes, so a signal may ask for one, too.
    """

    def __init__(self, state: RankState, socket: str) -> None:
        given = os.environ.get(SWITCH, "").strip()
        self.is_off = given.lower() in _OFF
        self._given = "" if given.lower() in _DEFAULT or self.is_off else given
        self.by_signal = bool(given) and not self.is_off
        self._socket = socket
        self._state = state
        self._asked = ""
        self._made_at = -GAP_SECONDS
        self._number = 0
        self._seen: Stall | None = None
        self._seen_at = 0.0
        self._longest = 0.0
        self._done: Stall | None = None
        self._checked_at = -GAP_SECONDS
        self._writer: threading.Thread | None = None
        self.outgoing: OutgoingBox | None = None

    def ask(self, reason: str) -> None:
        """Have a box made, at once or as soon as the last one is old enough; takes no lock."""
        self._asked = reason

    def look(self, *, connected: bool) -> None:
        """Make a box if one is due and can go anywhere; never raises."""
        if self.is_off:
            return
        try:
            now, stall = perf_counter(), self._state.standstill.stall
            self._learn(stall, now)
            if now - self._made_at < GAP_SECONDS:
                return
            if stall is not None and self._is_due(stall, now):  # before what is asked for, which can wait
                self._make(self._in_words(stall, now), now, connected=connected)
            elif self._asked:
                reason, self._asked = self._asked, ""
                self._make(reason, now, connected=connected)
        except Exception as error:  # noqa: BLE001 - the rank's record goes on without a box
            self._state.dropped.count += 1
            notice("box", "the rank's box could not be made", error)

    def is_due_at(self, end: End) -> bool:
        """Return whether a rank that ends so leaves a box.

        After a standstill without a step since, it has left one: it shows what the collectives were waiting for, which
        they do not any more.
        """
        stall = self._state.standstill.stall
        is_done = stall is not None and stall == self._done
        return not (self.is_off or is_done or end.outcome != "failed" or end.category in _WITHOUT_BOX)

    def at_failure(self, end: End, *, connected: bool) -> None:
        """Make the box of a rank that ends in failure; never raises."""
        try:
            self._make(f"failed: {end.category}", perf_counter(), connected=connected, end=end)
        except Exception as error:  # noqa: BLE001 - as above
            notice("box", "the rank's box could not be made", error)

    def wait(self, seconds: float) -> None:
        """Wait for the file, so long at most."""
        if self._writer is not None:
            self._writer.join(max(0.0, seconds))

    def _learn(self, stall: Stall | None, now: float) -> None:
        before = self._seen
        if before is not None and before != stall and not before.is_pause:
            self._longest = max(self._longest, self._seen_at - before.since)
        self._seen, self._seen_at = stall, now

    def _is_due(self, stall: Stall, now: float) -> bool:
        stood = now - stall.since
        if stall == self._done or stood <= (PATIENCE_SECONDS if stall.is_pause else self._patience):
            return False
        if stood > PATIENCE_SECONDS:
            return True
        if now - self._checked_at < GAP_SECONDS:
            return False
        self._checked_at = now
        from tachograph.client.blackbox.stacks import is_compiling  # late: a rank that makes its steps never needs it

        return not is_compiling(self._state.standstill.thread)

    @property
    def _patience(self) -> float:
        return min(2 * self._longest, PATIENCE_SECONDS)

    def _in_words(self, stall: Stall, now: float) -> str:
        stood = f"for {now - stall.since:.0f} s"
        phase = self._state.clock.current.name
        return f"in {phase} {stood}" if stall.is_pause or phase == "checkpoint" else f"no step {stood}"

    def _make(self, reason: str, now: float, *, connected: bool, end: End | None = None) -> None:
        self._made_at = now
        state = self._state
        is_asked = reason.startswith(BOX_REQUESTS)
        file = self._file(is_asked=is_asked)
        if file is None and not connected:
            return
        from tachograph.client.blackbox.box import make_box

        reason = cut(reason, MAX_BOX_REASON_BYTES)
        looks = not state.standstill.is_off
        has_time = looks and end is None and state.standstill.stall is not None
        failure = end or standing_failure(state.clock)
        facts = {"reason": reason, **state.box_facts()}
        if looks:
            places = failure.places if failure is not None else ()
            facts["where"] = cut(whereabouts(places), MAX_WHERE_BYTES) if places else state.standstill.look()
        if failure is not None:
            lines = [f"{place.path}:{place.number} {place.function}" for place in failure.places] if looks else []
            facts["failure"] = {"category": failure.category, "message": failure.message, "lines": lines}
        # To have the recorders say from where their collectives were called holds Python's lock for up to a second.
        text = make_box(facts, state.standstill.thread if looks else None, with_lines=has_time)
        if not is_asked:  # else the standstill, or a failure after it, still leaves its own
            self._done = state.standstill.stall
        self._number += 1
        self.outgoing = OutgoingBox(self._number, reason, text)
        if file is not None:
            self._write(file, text)

    def _file(self, *, is_asked: bool) -> BoxFile | None:
        """Return where the box is written: in the folder that the variable names, else beside the exporter's socket."""
        folder, own = self._given, tuple[str, ...]()
        if not folder:
            beside = os.path.dirname(self._socket)  # noqa: PTH120 - pathlib costs 3 ms and 0.7 MB to import
            folder, own = os.path.join(beside, FOLDER), (str(os.geteuid()),)  # noqa: PTH118 - as above
            if not os.path.isdir(folder):  # noqa: PTH112 - as above
                return None
        from tachograph.client.blackbox.box_file import box_file

        who = self._state.identity
        return box_file(os.path.abspath(folder), own, who.group, who.attempt, who.rank, asked=is_asked)  # noqa: PTH100

    def _write(self, file: BoxFile, text: bytes) -> None:
        if self._writer is not None and self._writer.is_alive():
            notice("box file", f"{file.folder} does not respond: a box of this rank is not written there")
            return
        work = self._written(file, text)
        self._writer = threading.Thread(target=work, name="tachograph-box", daemon=True)
        try:
            self._writer.start()
        except RuntimeError:  # no more threads, or the interpreter is about to end
            self._writer = None
            work()

    def _written(self, file: BoxFile, text: bytes) -> Callable[[], None]:
        asked = bool(self._given)

        def work() -> None:
            try:
                if asked:
                    os.makedirs(file.folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - as above
                file.write(text)
                self._state.box_trouble = ""
            except Exception as error:  # noqa: BLE001 - said once: a rank goes on without a file
                # Beside the socket there may be a folder without leave to write: nobody asked for a file there.
                if asked or not isinstance(error, PermissionError):
                    self._state.box_trouble = f"no box could be written in {file.folder}: {error}"
                    notice("box file", self._state.box_trouble)

        return work
