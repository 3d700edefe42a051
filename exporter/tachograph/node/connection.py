"""One connection of a rank: bytes become frames, within a frame size and a frame rate, and bad ones get an answer."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import cast

import msgspec

from tachograph.node.frames import Bye, FrameError, Hello, decode
from tachograph.node.rank import Peer
from tachograph.node.ranks import RankTable
from tachograph.wire import MAX_FRAME_BYTES, MAX_RATE_HZ

BURST = 100
"""Frames that may come at once; beyond it, MAX_RATE_HZ. While the exporter itself is stopped about so many wait in the
kernel, and the last of them may be a bye."""

PAUSE_SECONDS = 0.25
"""How long a connection that sends more than it may is not read; the kernel then holds its writer back."""

MAX_UNREAD_ANSWERS = 65536
"""Bytes of answers kept for a sender that does not read them; further answers are not written."""

_READ_BYTES = 65536
_CRUMB = 0.1  # what a read without a line's end costs, in frames: one byte at a time is a flood too
_encode = msgspec.json.encode
_log = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    """Reads newline-delimited frames and tells the rank table; nothing that a sender does raises out of it."""

    # One buffer for all: asyncio fills it and hands it over before it reads from anybody else, and its size is the
    # most that one connection is read before the others have their turn.
    _incoming = bytearray(_READ_BYTES)

    def __init__(self, table: RankTable, clock: Callable[[], float], closed: Callable[[Connection], None]) -> None:
        self._table = table
        self._clock = clock
        self._closed = closed
        self._partial = bytearray()
        self._skipping = False
        self._leaving = False
        self._tokens = float(BURST)
        self._refilled = self.quiet_since = clock()
        self.greeted = False
        self.peer = Peer(-1, 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the kernel who speaks."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        self.peer = Peer(uid, pid)

    def connection_lost(self, error: Exception | None) -> None:
        """End the rank that spoke here, if it did not say bye."""
        self._closed(self)
        if self._leaving:
            return
        rank = self._table.lost(self)
        if rank is not None:
            _log.warning("rank died", extra={"run": rank.hello.run, "rank": rank.hello.rank, "pid": self.peer.pid})

    def leave(self) -> None:
        """Close because the exporter stops: that says nothing of the rank."""
        self._leaving = True
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Lend the shared buffer."""
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        """Take what arrived: whole lines are frames, the rest waits for its newline."""
        *lines, rest = bytes(memoryview(self._incoming)[:nbytes]).split(b"\n")
        for position, line in enumerate(lines):
            if self._transport.is_closing():
                return
            if not self._line(line):
                self._too_many(len(lines) - position)
                break
        if self._skipping or (not lines and not self._allowed(_CRUMB)):
            self._pause()
        if self._skipping:
            return
        self._partial += rest
        if len(self._partial) > MAX_FRAME_BYTES:
            self._oversized()

    def close(self) -> None:
        """Close once what was written is sent."""
        self._transport.close()

    def refuse_and_close(self, reason: str, message: str) -> None:
        """Count a refusal, tell the sender why, and hang up."""
        self._refuse(reason, message)
        self.close()

    def answer(self, **fields: object) -> None:
        """Write one line of JSON, unless the sender has stopped reading."""
        if self._transport.get_write_buffer_size() <= MAX_UNREAD_ANSWERS:
            self._transport.write(_encode(fields) + b"\n")

    def _line(self, end: bytes) -> bool:
        """Take the end of a line; return False where it comes too soon after the others."""
        if self._skipping:
            self._skipping = False  # this was the end of an oversized frame; the next line is a frame again
            return True
        line = bytes(self._partial) + end if self._partial else end
        self._partial.clear()
        if not self._allowed():
            return False
        self._table.heard(self)
        if len(line) > MAX_FRAME_BYTES:
            self._oversized()
            self._skipping = False
            return True
        try:
            self._frame(line)
        except FrameError as error:
            self._refuse(error.reason, str(error))
        return True

    def _allowed(self, cost: float = 1.0) -> bool:
        now = self._clock()
        self._tokens = min(float(BURST), self._tokens + (now - self._refilled) * MAX_RATE_HZ)
        self._refilled = now
        if self._tokens < cost:
            return False
        self._tokens -= cost
        return True

    def _frame(self, line: bytes) -> None:
        frame = decode(line)
        if isinstance(frame, Hello):
            self._hello(frame)
        elif isinstance(frame, Bye):
            rank = self._table.bye(self, frame)
            self._table.frames += 1
            self.greeted = False
            _log.info(f"rank {frame.outcome}", extra={"run": rank.hello.run, "rank": rank.hello.rank})
        else:
            self._table.state(self, frame)
            self._table.frames += 1

    def _hello(self, hello: Hello) -> None:
        try:
            welcome = self._table.hello(self, hello, self.peer)
        except FrameError as error:
            self.refuse_and_close(error.reason, str(error))
            return
        if not self.greeted:
            _log.info("rank speaks", extra={"run": hello.run, "rank": hello.rank, "pid": self.peer.pid})
        self.greeted = True
        self._table.frames += 1
        known = {} if welcome.ended is None else {"ended": welcome.ended}
        self.answer(ok=True, last_step=welcome.last_step, **known)
        if isinstance(welcome.superseded, Connection):
            welcome.superseded.answer(ok=False, error="another connection speaks for this rank now")
            welcome.superseded.close()

    def _too_many(self, frames: int) -> None:
        self._partial.clear()
        self._skipping = False
        self._refuse("rate", f"more than {MAX_RATE_HZ:g} frames a second: {frames} skipped", frames)
        self._pause()

    def _oversized(self) -> None:
        self._partial.clear()
        self._skipping = True
        self._refuse("oversized", f"a frame has at most {MAX_FRAME_BYTES} bytes; reading on at the next line")
        self._pause()

    def _refuse(self, reason: str, message: str, frames: int = 1) -> None:
        self._table.rejected[reason] += frames
        self._table.heard(self)
        self.answer(ok=False, error=message)
        _log.debug("frame refused", extra={"reason": reason, "error": message, **self.peer._asdict()})

    def _pause(self) -> None:
        if self._transport.is_reading() and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()
