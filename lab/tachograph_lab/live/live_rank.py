"""A simulated rank's end of its connection to the exporter, on a real socket and in real time.

It connects as the client does (`client.transport.sender`): hello, wait for the answer, send the newest state at once,
and reconnect with back-off. A state that cannot be sent is replaced by the next one. The simulation makes the frames.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tachograph.client.transport.sender import FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS, STEADY_SECONDS
from tachograph.processes.backoff import Backoff
from tachograph.wire import HEARTBEAT_SECONDS

_SILENT_SECONDS = 2 * HEARTBEAT_SECONDS
"""A rank that has been silent for so long is frozen, so it does not reconnect either."""

_HELLO, _STATE, _BYE = b'"type":"hello"', b'"type":"state"', b'"type":"bye"'
_WHERE = 64
"""Bytes of a frame within which its type stands."""


class LiveRank(asyncio.Protocol):
    """The connection of one rank process to the socket at `path`; `refused` is called with what an exporter refuses."""

    def __init__(self, path: Path, refused: Callable[[str], None]) -> None:
        self._path = path
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
        self._connected_at = 0.0
        self._sent_at = 0.0
        self._hello = self._newest = self._received = b""
        self._welcome = self._over = False

    def send(self, line: bytes) -> None:
        """Send a frame, given without its line feed: now or, if it is still the newest state, once connected."""
        self._sent_at = self._loop.time()
        kind, line = line[:_WHERE], line + b"\n"
        if _HELLO in kind:
            self._hello = line
            if self._transport is not None:
                self._welcome = False
                self._transport.write(line)
        elif _STATE in kind:
            self._newest = line
        if self._transport is None:
            self._connect_unless_waiting()
        elif self._welcome:
            self._transport.write(line)
        if _BYE in kind:
            self.end()  # the process has exited

    def end(self) -> None:
        """Close the socket as the kernel does for a process that is gone, and never reconnect."""
        self._over = True
        if self._retry is not None:
            self._retry.cancel()
        if self._transport is not None:
            self._transport.close()
        if self._opening is not None:
            self._opening.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send hello."""
        self._transport = cast(asyncio.Transport, transport)
        self._connected_at = self._loop.time()
        self._welcome = False
        self._received = b""
        self._transport.write(self._hello)

    def data_received(self, data: bytes) -> None:
        """Read answers: the first good one lets the newest state be sent."""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if answer["ok"] is not True:
                self._refused(str(answer.get("error")))
            elif not self._welcome:
                self._welcome = True
                if self._newest and self._transport is not None:
                    self._transport.write(self._newest)

    def connection_lost(self, error: Exception | None) -> None:
        """Retry soon if this connection lasted, else later than the last time."""
        self._transport = None
        self._welcome = False
        if self._loop.time() - self._connected_at > STEADY_SECONDS:
            self._backoff.reset()
        self._put_off()

    def _connect_unless_waiting(self) -> None:
        if not self._over and self._hello and self._opening is None and self._retry is None:
            self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            await self._loop.create_unix_connection(lambda: self, str(self._path))
        except OSError:
            self._put_off()
        finally:
            self._opening = None

    def _put_off(self) -> None:
        if self._over:
            return
        self._retry = self._loop.call_later(self._backoff.next() * random.uniform(0.5, 1.0), self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if self._loop.time() - self._sent_at <= _SILENT_SECONDS:
            self._connect_unless_waiting()  # a silent rank does so when it sends again
