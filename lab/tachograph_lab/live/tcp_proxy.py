"""A TCP proxy in front of a node's pages, which Prometheus scrapes: it passes on, goes mute, or refuses connections.

That cuts a node off, or makes it look dead, without the server behind the proxy noticing.
"""

from __future__ import annotations

import asyncio
import contextlib

Address = tuple[str, int]

OPEN, MUTE, SHUT = "open", "mute", "shut"
"""A caller gets an answer, no answer at all, or a refused connection."""

_CHUNK = 65536


class TcpProxy:
    """Passes TCP connections on from `outside` to `inside`; shut until `set_state`."""

    def __init__(self, outside: Address, inside: Address) -> None:
        self._outside = outside
        self._inside = inside
        self._passable = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    async def set_state(self, state: str) -> None:
        """Be open, mute or shut from now on; a mute proxy holds its connections, the other states break them."""
        if state == MUTE:
            self._passable.clear()
        else:
            await self._break()  # callers gave up on held connections: they must not all come through at once
            self._passable.set()
        if state == SHUT:
            if self._server is not None:
                self._server.close()
                self._server = None
        elif self._server is None:
            self._server = await asyncio.start_server(self._accept, *self._outside)

    async def _break(self) -> None:
        relays = list(self._relays)
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.get_running_loop().create_task(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner: asyncio.StreamWriter | None = None
        try:
            answers, inner = await asyncio.open_connection(*self._inside)
            passing = [asyncio.ensure_future(self._pass(*way)) for way in ((reader, inner), (answers, writer))]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in passing:
                    way.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
        except OSError:
            pass  # nothing listens inside: the caller sees a broken connection
        finally:
            for end in filter(None, (writer, inner)):
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                await self._passable.wait()
                writer.write(chunk)
                await writer.drain()
