"""The sender thread: it sends the state every second, an event at once, and a bye at the end.

It owns the connection and never holds anything that the training thread waits for. It continues to send while the main
thread is blocked in a collective, and continues to retry while there is no exporter.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tachograph.client.core.arguments import whole
from tachograph.client.core.notice import notice, raised_by_signal, shown
from tachograph.client.core.scalars import number
from tachograph.client.transport import box_signal
from tachograph.client.transport.box_trigger import FAILURE_SECONDS, BoxTrigger
from tachograph.client.transport.descriptors import OwnDescriptor, WakeUp
from tachograph.client.transport.exporter_socket import ExporterSocket, why_unreachable
from tachograph.client.transport.failure_reason import End
from tachograph.client.transport.rank_state import Frame, RankState
from tachograph.client.transport.stack_dump import StackDump
from tachograph.processes.backoff import Backoff
from tachograph.wire import (
    BOX_ASKED_FOR,
    HEARTBEAT_SECONDS,
    MAX_BOX_REASON_BYTES,
    MAX_FRAME_BYTES,
    MAX_RATE_HZ,
    VERSION,
    cut,
)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0
"""All ranks have reconnected to a restarted exporter within this time."""

STEADY_SECONDS = 10.0
"""A connection that lasted this long makes the next retry a first one again."""

ANSWER_SECONDS = 5.0
"""Seconds that the answer to a hello may take before the connection is closed."""

SHUTDOWN_SECONDS = 0.15
"""Seconds that sending the last frames may take."""

LARGEST_STEP = 2**53

_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)

_LEAST_GAP = 1 / MAX_RATE_HZ

fork_lock = threading.RLock()
"""Held for the moment in which a socket is made, and across a fork: a child knows of every socket it must close.

Reentrant: a signal handler may fork, or make a recorder, while this thread makes a socket."""


class Who(NamedTuple):
    """Whom a sender speaks for, and to whom."""

    path: str
    run: str
    rank: int


class Sender:
    """Sends the frames of one rank from its creation until `shut_down`.

    `accepted`: an exporter has answered. `last_step` and `ended` are what it remembers of an earlier process of this
    rank: its last step, and when it was last heard, by `time.perf_counter`; None if it knows of none. `over`: nothing
    more will be sent. `makes_box`: the bye has been sent, and the box of a failure is being made. `asked_by_signal`:
    called when a signal asks for the process' boxes.
    Raises OSError or RuntimeError where the process may have no more files or threads.
    """

    def __init__(self, state: RankState, path: str) -> None:
        self._state = state
        self._path = path
        self._connection: ExporterSocket | None = None
        self._stacks: StackDump | None = None
        self._offers_stacks = False
        self._answered = False
        self._refused = False
        self._hello_sent: object = None
        self._hello_sent_at = 0.0
        self._connected_at = 0.0
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
        self._retry_at = 0.0
        self._sent_at = 0.0
        self._idled_at = 0.0
        self._due_at = 0.0
        self._bye: Frame | None = None
        self._end: End | None = None
        self._boxes = BoxTrigger(state, path)
        self.accepted = False
        self.last_step: int | None = None
        self.ended: float | None = None
        self.over = False
        self.makes_box = False
        self.asked_by_signal: Callable[[], None] = lambda: self.ask_for_box(box_signal.SIGNAL.name)
        self._read_at = 0.0
        with fork_lock:
            self._wake = WakeUp()
        try:
            threading.Thread(target=self._run, name="tachograph", daemon=True).start()
        except BaseException:  # no more threads, no memory
            self.release()
            raise

    def wake(self) -> None:
        """Have the state sent now, or as soon as the rate limit allows; takes no lock: a signal handler may call it."""
        try:
            self._wake.send()
        except OSError as error:  # a full pipe wakes as well; a closed one has no reader
            if raised_by_signal(error):  # a watchdog's TimeoutError is an OSError
                raise

    def ask_for_box(self, reason: str) -> None:
        """Have the rank's box made and sent; takes no lock: a signal handler may call it."""
        self._boxes.ask(reason)
        self.wake()

    @property
    def who(self) -> Who:
        """The rank, and the exporter's socket."""
        return Who(self._path, self._state.identity.group, self._state.identity.rank)

    @property
    def steps(self) -> int:
        """Steps that the rank has completed in this process."""
        return self._state.step.completed

    def failed_by(self, error: BaseException) -> bool:
        """Return whether this left what the rank records, and the rank has completed no step since."""
        return self._state.clock.left_by(error, self._state.step.ended)

    def shut_down(self, end: End) -> None:
        """Request a last state and a bye; only the first request counts."""
        if self._bye is None:
            self._end = end
            self._bye = {
                "v": VERSION,
                "type": "bye",
                "outcome": end.outcome,
                "category": end.category,
                "message": end.message,
                **({} if end.exit_code is None else {"exit_code": end.exit_code}),
                **({"at_exit": True} if end.at_exit else {}),
            }
        self.wake()

    def release(self) -> None:
        """Close every descriptor; in a forked child these are copies, which would outlive the parent's death."""
        self.over, self.makes_box = True, False
        box_signal.release(self._wake)
        for close in (self._disconnect, self._wake.close):
            with contextlib.suppress(OSError):
                close()

    def _run(self) -> None:
        """Survive faults of our own: each costs a turn and the connection, and is counted."""
        while self._bye is None:
            try:
                self._live()
            except BaseException as error:  # noqa: BLE001 - of memory, of a log handler: no caller is above this thread
                self._recover(error)
        try:
            self._send_last_box(said_bye=self._send_bye())
            self._state.conclude()
        except BaseException as error:  # noqa: BLE001 - as above
            self._recover(error)
        finally:
            self.release()

    def _live(self) -> None:
        while self._bye is None:
            self._wait()
            now = time.monotonic()
            self._turn(now)
            if now - max(self._sent_at, self._idled_at) >= HEARTBEAT_SECONDS:  # there is no exporter
                self._idled_at = now
                self._state.idle()
            self._boxes.look(connected=self._answered)

    def _recover(self, error: BaseException) -> None:
        """Disconnect and start again, at most ten times a second."""
        with contextlib.suppress(BaseException):
            self._state.dropped.count += 1
            self._retry_at = time.monotonic() + LAST_RETRY_SECONDS * _jitter()
            notice("fault", "telemetry was interrupted by a fault of its own", error)
            self._disconnect()
        time.sleep(_LEAST_GAP)

    def _wait(self) -> None:
        """Sleep until something is to be done: a time, a wake-up, room in the socket, or news from the exporter."""
        if not self._wake.is_ours:
            with fork_lock:
                self._wake.close()
                self._wake = WakeUp()
        if self._boxes.by_signal:
            box_signal.keep(self._wake)
        if self._connection is not None and not self._connection.is_ours:
            self._disconnect()
        now = time.monotonic()
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        wake_at = min(self._retry_at, now + HEARTBEAT_SECONDS)
        if self._connection is not None:
            wake_at = max(self._due_at, self._sent_at + _LEAST_GAP) if self._answered else now + HEARTBEAT_SECONDS
            if self._has_part():
                wake_at = now
            listens = now >= self._read_at  # else whoever never stops would keep this thread busy
            if not listens:
                wake_at = min(wake_at, self._read_at)
            events = (select.POLLIN if listens else 0) | (0 if self._connection.idle else select.POLLOUT)
            poll.register(self._connection, events)
        stacks = self._stacks
        if stacks is not None and not stacks.is_ours:
            self._release_stacks()
            stacks = None
        if stacks is not None:
            stacks.begin_wait()
        poll.poll(max(0.0, wake_at - now) * 1000 + 1)
        if stacks is not None:
            stacks.end_wait()
        if sent := self._wake.clear():
            self._due_at = 0.0
            if box_signal.MARK in sent:
                self.asked_by_signal()

    def _turn(self, now: float) -> None:
        """Do what is due: connect, receive, send."""
        try:
            if self._connection is None:
                if now >= self._retry_at:
                    self._connect(now)
                return
            if (lines := self._connection.receive()) is not None:
                self._read_at = now + _LEAST_GAP
                for line in lines:
                    self._handle_answer(line)
            if descriptors := self._connection.take_descriptors():
                self._share_stacks(descriptors)
            self._connection.flush()
            if not self._answered:
                if now - self._hello_sent_at > ANSWER_SECONDS:
                    raise TimeoutError("no answer to hello")
            elif now >= self._due_at and now >= self._sent_at + _LEAST_GAP:
                self._send_state(now)
            elif self._has_part():
                self._send_part(self._connection)
        except OSError as error:
            self._disconnect()
            self._schedule_retry(now, error)

    def _connect(self, now: float) -> None:
        with fork_lock:
            self._connection = ExporterSocket()
        self._connection.open(self._path)
        if self._boxes.outgoing is not None:  # an exporter that was restarted has none
            self._boxes.outgoing.begin_again()
        self._connected_at = now
        self._send_hello(self._connection, now)

    def _send_hello(self, connection: ExporterSocket, now: float) -> None:
        self._answered = False
        self._hello_sent_at = now
        self._hello_sent = self._state.hello_state()
        hello = self._state.hello()
        if not connection.is_trusted(self._path):
            hello.pop("stacks", None)
        self._offers_stacks = "stacks" in hello
        connection.offer(_encode(hello))

    def _handle_answer(self, line: bytes) -> None:
        """Handle an answer: the first positive one opens the connection, a refusal is logged once."""
        try:
            answer = json.loads(line)
            accepted = answer["ok"]
        except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
            raise ConnectionError("the exporter's answer cannot be read") from None
        if accepted is True and isinstance(asked := answer.get("capture"), str):
            self._boxes.ask(cut(asked, MAX_BOX_REASON_BYTES) or BOX_ASKED_FOR)
            return
        if accepted is True:
            self._accept(answer)
            if not self._answered:
                self._answered = True
                self._due_at = 0.0
            return
        reason = answer.get("error")
        reason = reason[:512] if isinstance(reason, str) and reason.isprintable() else shown(reason)
        notice("refusal", f"the exporter at {self._path} refuses: {reason}")
        self._refused = True
        if not self._answered:
            raise ConnectionError("refused")

    def _accept(self, answer: dict[str, object]) -> None:
        """Keep what the exporter knows of an earlier process, from its first answer: later ones are of this process."""
        if not self.accepted:
            self.accepted = True
            self.last_step = whole(answer.get("last_step"), LARGEST_STEP)
            ago, ended = number(answer.get("ended_seconds")), number(answer.get("ended"))
            if ago is None and ended is not None:  # an earlier exporter tells the time of the day alone
                ago = time.time() - ended
            self.ended = time.perf_counter() - ago if ago is not None and math.isfinite(ago) else None

    def _share_stacks(self, descriptors: tuple[OwnDescriptor, ...]) -> None:
        """Leave the stacks in the exporter's memory where this process cannot speak, if the system is up to that.

        Exporters up to 0.2 send a pipe, too, by which they asked for them.
        """
        try:
            if self._stacks is None and self._offers_stacks:
                self._stacks = StackDump(descriptors[0].number)
        except Exception:  # noqa: BLE001 - a kernel, a sandbox or a Python may refuse in any way: there are no stacks then
            self._stacks = None
        finally:
            for descriptor in descriptors:
                descriptor.close()

    def _release_stacks(self) -> None:
        stacks, self._stacks = self._stacks, None
        if stacks is not None:
            stacks.close()

    def _send_state(self, now: float) -> None:
        """Send the state, or nothing while the last frame is unfinished: the next one contains all of it and more."""
        connection = self._connection
        if connection is None or not connection.idle:
            self._due_at = now + HEARTBEAT_SECONDS
            return
        if (
            self._state.hello_state() != self._hello_sent
        ):  # the device or a fact was found after the hello: send a new one
            self._send_hello(connection, now)
            return
        for frame in self._frames():
            connection.offer(frame)
            self._state.sent()
        self._sent_at = now
        self._due_at = now + HEARTBEAT_SECONDS

    def _frames(self) -> Iterator[bytes]:
        """Yield the state as a frame; without its events if it would be too long, and not at all if it still is."""
        try:
            state = self._state.frame()
            frame = _encode(state)
            if len(frame) > MAX_FRAME_BYTES:
                frame = _encode({**state, "events": []})
        except Exception as error:  # noqa: BLE001 - one bad reading costs one frame, and is reported in the next
            self._state.dropped.count += 1
            notice("frame", "a state frame could not be made", error)
            return
        if len(frame) <= MAX_FRAME_BYTES:
            yield frame
        else:
            self._state.dropped.count += 1

    def _has_part(self) -> bool:
        """Return whether a part of a box can be sent now."""
        box, connection = self._boxes.outgoing, self._connection
        return box is not None and not box.is_sent and self._answered and connection is not None and connection.idle

    def _send_part(self, connection: ExporterSocket) -> None:
        if self._boxes.outgoing is not None:
            connection.offer(_encode(self._boxes.outgoing.next_part()))

    def _send_last_box(self, *, said_bye: bool) -> None:
        """Make the box of a failure, after the bye, which is not to wait for it; send it, and wait for its file."""
        connection, deadline = self._connection, time.monotonic() + FAILURE_SECONDS
        if self._end is None or not self._boxes.is_due_at(self._end):
            return
        self.makes_box = self.over = True
        self._boxes.at_failure(self._end, connected=said_bye)
        if said_bye and connection is not None:
            poll = select.poll()
            with contextlib.suppress(OSError):
                poll.register(connection, select.POLLOUT)
                while self._has_part() or not connection.idle:
                    if self._has_part():
                        self._send_part(connection)
                    left = deadline - time.monotonic()
                    if left <= 0 or (not connection.idle and not poll.poll(left * 1000)):
                        break
                    connection.flush()
        self._boxes.wait(deadline - time.monotonic())

    def _send_bye(self) -> bool:
        """Send the last state and the bye; return whether both have left."""
        connection = self._connection
        if connection is None or self._bye is None:
            return False
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        poll = select.poll()
        with contextlib.suppress(OSError):
            poll.register(connection, select.POLLOUT)
            for frame in (*self._frames(), _encode(self._bye)):
                while not connection.offer(frame) or not connection.idle:
                    left = deadline - time.monotonic()
                    if left <= 0 or not poll.poll(left * 1000):
                        return False
                    connection.flush()
            if not self._answered:  # else the answer to the hello would meet a closed socket, and the bye be lost
                poll.modify(connection, select.POLLIN)
                poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
                for line in connection.receive() or ():
                    self._handle_answer(line)
            return True
        return False

    def _schedule_retry(self, now: float, error: OSError) -> None:
        """Schedule the next attempt: exponential back-off, with jitter, so that ranks do not retry in step."""
        if self._connected_at and not self._refused and now - self._connected_at > STEADY_SECONDS:
            self._backoff.reset()
        if not self._connected_at and not self._refused:
            notice(
                "permission" if isinstance(error, PermissionError) else "exporter",
                f"{why_unreachable(self._path, error)}; recording continues, and is sent once there is a connection",
            )
        delay = LAST_RETRY_SECONDS if self._refused else self._backoff.next()
        self._connected_at = 0.0
        self._refused = False
        self._retry_at = now + delay * _jitter()

    def _disconnect(self) -> None:
        self._answered = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._release_stacks()


def _encode(frame: Frame) -> bytes:
    """Return a frame as a line of UTF-8; half a surrogate, of which there is none in it, becomes a question mark."""
    return _JSON.encode(frame).encode("utf-8", "replace") + b"\n"


def _jitter() -> float:
    """Return a factor from 0.5 to 1, so that ranks do not retry in step."""
    return 0.5 + int.from_bytes(os.urandom(2), "big") / 2**17
