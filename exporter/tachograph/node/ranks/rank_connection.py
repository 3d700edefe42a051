"""One connection of a rank: splits bytes into frames, limits their size and rate, and answers invalid ones."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import msgspec

from tachograph.node.ranks import rank_ends
from tachograph.node.ranks.frames import BoxPart, Bye, FrameError, Hello, Peer, Supervision, Unrecorded, decode
from tachograph.node.ranks.process_end import Outlived, PeerProcess, ProcessEnds
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.shares import SHORTEST_WAIT_SECONDS
from tachograph.node.ranks.stack_memory import StackMemory
from tachograph.wire import MAX_FRAME_BYTES, MAX_NOTICE_BYTES, MAX_RATE_HZ, cut

BURST = 100
"""Frames that may arrive at once; beyond that, MAX_RATE_HZ. About as many wait in the kernel while the exporter is
stopped, and the last one may be a bye."""

PAUSE_SECONDS = 0.25
"""Time for which a connection that exceeds its limits is not read; the kernel then blocks its writer."""

MAX_KEPT_BYTES = 4 * 2**20
"""Bytes of unfinished and waiting frames of one user, over all connections: 64 frames of maximum length."""

MAX_UNREAD_ANSWERS = 65536
"""Bytes of answers buffered for a sender that does not read them; further answers are not written."""

OVER_SHARE = ("rate", "oversized")
"""Reasons to refuse a frame that say that its sender wants more than others."""

_READ_BYTES = 65536
_CRUMB = 0.1  # cost of a read without a newline, in frames: single bytes can be a flood too
_READ_COST = 2e-5  # CPU seconds of a read of any size: about what asyncio takes for one
UNSURE_SECONDS = 0.5
"""Time for which it may be open how a process ended whose connection ended without a bye: in between, the kernel frees
what it had, such as a GPU's memory, and its parent collects it. No longer: what it caused may be seen before it is."""

ORPHANED_SECONDS = 3.0
"""Silence after which it is asked whether the process still lives: a child that it forked may hold its connection."""

OUTLIVED_SECONDS = 10.0
"""Frames that come so long after the process has ended are another's, as a daemon's that has left its parent: how the
former ended says nothing about the rank. Its own may be read late."""

_encode = msgspec.json.encode
_log = logging.getLogger(__name__)


class RankConnection(asyncio.BufferedProtocol):
    """Reads newline-delimited frames and passes them to the rank table; no input makes it raise."""

    # One buffer for all connections: asyncio passes it on before it reads from the next one. Its size limits how much
    # one connection is read before it is the turn of the others.
    _incoming = bytearray(_READ_BYTES)

    def __init__(
        self,
        table: RankTable,
        clock: Callable[[], float],
        peer: Peer,
        closed: Callable[[RankConnection], None],
        ends: ProcessEnds,
    ) -> None:
        self._table = table
        self._clock = clock
        self._closed = closed
        self._ends = ends
        self._process: PeerProcess | None = None
        self._status: int | None = None
        self._stacks: StackMemory | None = None
        self._shares = table.shares
        self._share = table.shares.of(peer.uid)
        self._transport: asyncio.Transport | None = None
        self._partial = bytearray()
        self._held = b""
        self._kept_bytes = 0
        self._skipping = False
        self._leaving = False
        self._ended = False
        self._is_orphaned = False
        self._over_since = 0.0
        """When it was first seen that the process is over, though frames come."""
        self._tokens = float(BURST)
        self._refilled = self.quiet_since = clock()
        self.greeted = False
        self.peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, unless the connection was closed meanwhile."""
        self._transport = cast(asyncio.Transport, transport)
        if self._ended:
            self._transport.abort()

    def eof_received(self) -> None:
        """Look at once how the process ended: before Linux 6.15 its parent may take that with it any moment."""
        if self._process is not None:
            self._status = self._process.wait_status()

    def connection_lost(self, error: Exception | None) -> None:
        """End the rank of this connection, if it did not say bye; how, its process may tell."""
        self._ended = True
        self._held = b""
        self._partial.clear()
        self._count_kept()
        self._closed(self)
        if self._stacks is not None:
            self._stacks.close()
        process, self._process = self._process, None
        lives = process is not None and self._status is None and process.lives
        rank = None if self._leaving else self._table.lost(self, unsure=True, lives=lives)
        if rank is None or process is None:
            if process is not None:
                process.close()
            if rank is not None:
                self._gone(rank, None)
        elif lives:
            outlived = Outlived(partial(self._ended_later, rank, process), partial(self._replaced, rank))
            if self._ends.watch_over(process, rank.key, partial(self._gone, rank), outlived):
                _log.info("connection broken; its process lives", extra=self._who(rank))
            else:
                outlived.over()
        elif (status := process.wait_status() if self._status is None else self._status) is not None:
            process.close()
            self._gone(rank, status)
        else:
            self._ends.watch(process, partial(self._gone, rank))
            self._conclude_soon(rank, process)

    def end_if_orphaned(self) -> None:
        """Close a silent connection whose process has ended, though something that it started keeps it open.

        Call it about once a second: the second time in a row closes it, when all that came before has been read.
        """
        process, transport, was = self._process, self._transport, self._is_orphaned
        is_silent = self._clock() - self._refilled > ORPHANED_SECONDS
        if process is not None and not is_silent and process.is_over:
            self._over_since = self._over_since or self._clock()
            if self._refilled - self._over_since > OUTLIVED_SECONDS:
                self._release_process()
        self._is_orphaned = is_silent and process is not None and not process.lives
        if was and self._is_orphaned and transport is not None and transport.is_reading():
            transport.abort()

    def _ended_later(self, rank: Rank, process: PeerProcess) -> None:
        """Note that a process has ended that had outlived its connection."""
        if self._table.ended_alone(rank):
            self._conclude_soon(rank, process)

    def _replaced(self, rank: Rank) -> None:
        """Note that the process of a rank that said nothing of an end runs another program: the training is over."""
        if self._table.ended_alone(rank):
            rank_ends.gone(rank, 0)
            rank.end_note = "its process runs another program now"
            _log.info("rank finished without a final message", extra={**self._who(rank), "end": rank.end_note})

    def _conclude_soon(self, rank: Rank, process: PeerProcess) -> None:
        """Take for dead whose end is not known a moment later: the loop itself may have been late."""

        def conclude() -> None:
            self._gone(rank, process.wait_status())

        asyncio.get_running_loop().call_later(UNSURE_SECONDS, conclude)

    def _who(self, rank: Rank) -> dict[str, object]:
        return {"run": rank.hello.run, "rank": rank.hello.rank, **self.peer._asdict()}

    def _gone(self, rank: Rank, status: int | None) -> None:
        """Conclude how the process of a rank ended, and log that."""
        before = rank.outcome
        rank_ends.gone(rank, status)
        if rank.outcome == before:
            return
        who = {**self._who(rank), "end": rank.end_note or "unknown"}
        if rank.outcome == "dead":
            _log.warning("rank died", extra=who)
        else:
            _log.info(f"rank {rank.outcome} without a final message", extra=who)

    def leave(self) -> None:
        """Close because the exporter stops, which says nothing about the rank."""
        self._leaving = self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the shared buffer."""
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        """Process what arrived: whole lines are frames, the rest waits for its newline."""
        self._share.spend(_READ_COST)
        self._take(bytes(memoryview(self._incoming)[:nbytes]))
        self._count_kept()

    def _count_kept(self) -> None:
        """Charge the bytes buffered here; if a user's connections buffer too many, drop those of this one."""
        kept = len(self._partial) + len(self._held)
        self._share.kept_bytes += kept - self._kept_bytes
        self._kept_bytes = kept
        if kept and self._share.kept_bytes > MAX_KEPT_BYTES:
            self._partial.clear()
            self._held = b""
            self._skipping = True
            self._refuse("rate", f"your connections keep more than {MAX_KEPT_BYTES:,} bytes of frames: this is skipped")
            self._count_kept()

    def _take(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for position, line in enumerate(lines):
            if self._ended:  # by us; what a sender wrote before it left is read, though no answer reaches it any more
                return
            is_over = self._share.wait_seconds() > 0
            began = time.thread_time()
            if is_over or (not self.greeted and self._is_awaited(line)):
                self._held = b"\n".join((*lines[position:], rest))
                self._pause(None if is_over else SHORTEST_WAIT_SECONDS)
                return
            taken = self._line(line)
            self._share.spend_on_frame(time.thread_time() - began)
            if not taken:
                self._too_many(len(lines) - position)
                break
        if self._skipping or (not lines and not self._allowed(_CRUMB)):
            self._pause(PAUSE_SECONDS)
        if self._skipping:
            return
        self._partial += rest
        if len(self._partial) > MAX_FRAME_BYTES:
            self._oversized()

    def _is_awaited(self, end: bytes) -> bool:
        """Return whether a first line that ends so should wait, because a name is being looked up."""
        if self._table.is_owner_awaited(self.peer.uid):
            return True
        try:
            frame = decode(bytes(self._partial) + end)
        except FrameError:
            return False
        return isinstance(frame, Hello) and self._table.is_role_awaited(frame, self.peer)

    def close(self) -> None:
        """Close the connection; pending answers are still sent, unless the sender has stopped reading."""
        self._ended = True
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # close() would wait for the sender, possibly forever
        else:
            self._transport.close()

    def refuse_and_close(self, reason: str, message: str) -> None:
        """Count a refusal, send the reason, and close the connection."""
        self._refuse(reason, message)
        self.close()

    def answer(self, **fields: object) -> None:
        """Write one line of JSON, unless the sender has stopped reading."""
        if self._transport is not None and self._transport.get_write_buffer_size() <= MAX_UNREAD_ANSWERS:
            self._transport.write(_encode(fields) + b"\n")

    def ask_for_box(self, reason: str) -> None:
        """Ask the rank of this connection for its box; a client that knows of none takes this for another answer."""
        self.answer(ok=True, capture=reason)

    def _line(self, end: bytes) -> bool:
        """Process the end of a line; return False if the frame rate is exceeded."""
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
        except Exception:  # noqa: BLE001 - a bug triggered by one line must not end the rank or the loop
            _log.exception("frame could not be processed", extra=self.peer._asdict())
            self._refuse("invalid", "the exporter could not process this frame: see its log")
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
            _log.info(f"rank {rank.outcome}", extra=self._who(rank))
            self._watch_end(rank, decides=frame.at_exit)
        elif isinstance(frame, BoxPart):
            self._table.box(self, frame)
            self._table.frames += 1
        elif isinstance(frame, Unrecorded):
            self._table.frames += 1
            why = cut(frame.why, MAX_NOTICE_BYTES)
            _log.warning("a process cannot be recorded", extra={"why": why, **self.peer._asdict()})
        elif isinstance(frame, Supervision):
            self._table.supervised(frame, self.peer)
            self._table.frames += 1
        else:
            self._table.state(self, frame)
            self._table.frames += 1

    def _hello(self, hello: Hello) -> None:
        try:
            welcome = self._table.hello(self, hello, self.peer)
        except FrameError as error:
            self.refuse_and_close(error.reason, str(error))
            return
        self._ends.forget(self.peer, (welcome.run, str(hello.rank)))
        if not self.greeted:
            self._release_process()
            if self._transport is not None:
                self._process = PeerProcess.of(self._transport.get_extra_info("socket"), self.peer, hello.pid)
            _log.info("rank connected", extra={"run": welcome.run, "rank": hello.rank, **self.peer._asdict()})
        self.greeted = True
        self._table.frames += 1
        known: dict[str, object] = {} if welcome.ended is None else {"ended": welcome.ended}
        if welcome.ended_seconds is not None:
            known["ended_seconds"] = welcome.ended_seconds
        if welcome.run != hello.run:
            known["run"] = welcome.run
        answer: dict[str, object] = {"ok": True, "last_step": welcome.last_step, **known}
        if hello.stacks is None or self._stacks is not None or not self._send_stacks(answer):
            self.answer(**answer)
        if self._transport is not None and self._transport.get_extra_info("socket") is not None:
            self._table.watch_process(self, self._stacks)
        if isinstance(welcome.superseded, RankConnection):
            welcome.superseded.answer(ok=False, error="another connection speaks for this rank now")
            welcome.superseded.close()

    def _send_stacks(self, answer: dict[str, object]) -> bool:
        """Answer with memory in which the rank's process can leave its stacks; return whether it went."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if self._transport is None or sock is None or self._transport.get_write_buffer_size():
            return False
        line = _encode(answer) + b"\n"
        try:
            self._stacks, sent = _shared(sock, line)
        except (OSError, AttributeError) as error:  # no more descriptors; a system that has no such memory
            _log.debug("no stacks of a rank", extra={"error": error, **self.peer._asdict()})
            return False
        self._transport.write(line[sent:])
        return True

    def _watch_end(self, rank: Rank, *, decides: bool) -> None:
        """Look at how the process ends of a rank that has finished, as it says itself or by the end of the process."""
        process = self._process
        if process is None or rank.outcome != "finished":
            return

        def exited(status: int) -> None:
            rank_ends.exited(rank, status, decides=decides)
            if rank.end_note:
                what = "rank failed" if rank.outcome == "failed" else "process ended badly"
                _log.info(f"{what} after it said that it finished", extra={**self._who(rank), "end": rank.end_note})

        self._process = None
        self._ends.watch(process, exited)

    def _release_process(self) -> None:
        process, self._process = self._process, None
        self._status, self._over_since = None, 0.0
        if process is not None:
            process.close()

    def _too_many(self, frames: int) -> None:
        self._partial.clear()
        self._skipping = False
        self._refuse("rate", f"more than {MAX_RATE_HZ:g} frames a second: {frames} skipped", frames)
        self._pause(PAUSE_SECONDS)

    def _oversized(self) -> None:
        self._partial.clear()
        self._skipping = True
        self._refuse("oversized", f"a frame has at most {MAX_FRAME_BYTES} bytes; reading on at the next line")
        self._pause(PAUSE_SECONDS)

    def _refuse(self, reason: str, message: str, frames: int = 1) -> None:
        self._table.rejected[reason] += frames
        if reason in OVER_SHARE:
            self._shares.exceeded(self.peer.uid, "frames", frames)
        self._table.heard(self)
        self.answer(ok=False, error=message)
        _log.debug("frame refused", extra={"reason": reason, "error": message, **self.peer._asdict()})

    def _pause(self, seconds: float | None) -> None:
        """Read nothing for so long, without a time until it is this connection's turn in its user's share."""
        transport = self._transport
        if transport is None or not transport.is_reading() or self._ended:
            return
        transport.pause_reading()
        if seconds is None:
            self._share.in_turn(self._resume)
        else:
            asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        """Continue with what was held back, then with what has arrived since."""
        if self._ended or self._transport is None:
            return
        self._transport.resume_reading()
        if self._held:
            held, self._held = self._held, b""
            self._take(held)
            self._count_kept()


def _shared(sock: socket.socket, line: bytes) -> tuple[StackMemory, int]:
    """Send a line beside the descriptor of new memory; return that, and how much of the line the kernel took."""
    memory = StackMemory()
    try:
        with socket.socket(fileno=os.dup(sock.fileno())) as own:  # asyncio's has no way to send descriptors
            sent = socket.send_fds(own, [line], [memory.for_rank], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        memory.close()
        raise
    return memory, sent
