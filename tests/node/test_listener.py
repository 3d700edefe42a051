"""The listener: who holds a connection without speaking does not keep others out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.limits import Limits
from tachograph.node.listener import GREETING_SECONDS, Listener
from tachograph.node.ranks import RankTable

HELLO = b'{"v":1,"type":"hello","run":"r","rank":0}\n'
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def table(hand: Any, two_gpus: Any) -> RankTable:
    return RankTable(Limits(ranks=2), hand.clock, two_gpus)


@pytest.fixture
def listening(table: RankTable, hand: Any, tmp_path: Path) -> Callable[[Any], None]:
    """Run a test's coroutine with an open listener and a way to connect to it."""

    def run(body: Callable[[Listener, Callable[[], Awaitable[Streams]]], Awaitable[None]]) -> None:
        async def main() -> None:
            listener = Listener(tmp_path / "s", 0o666, Limits(ranks=2), hand.clock, table)
            await listener.open()
            writers: list[asyncio.StreamWriter] = []

            async def connect() -> Streams:
                streams = await asyncio.open_unix_connection(tmp_path / "s")
                writers.append(streams[1])
                return streams

            try:
                await asyncio.wait_for(body(listener, connect), 10)
            finally:
                for writer in writers:
                    writer.close()
                await listener.close()

        asyncio.run(main())

    return run


def test_silent_connections_make_room(listening: Any, table: RankTable) -> None:
    """Where all places are held by connections that never spoke, the oldest goes; one that speaks for a rank stays."""

    async def body(_: Listener, connect: Callable[[], Awaitable[Streams]]) -> None:
        speaking, speaker = await connect()
        speaker.write(HELLO)
        await speaking.readline()
        silent = [await connect() for _ in range(3)]
        late, latecomer = await connect()
        latecomer.write(HELLO.replace(b'"rank":0', b'"rank":1'))
        assert json.loads(await late.readline())["ok"] is True
        assert "too many connections" in json.loads(await silent[0][0].readline())["error"]
        assert await silent[0][0].read() == b""
        assert len(list(table.ranks())) == 2

    listening(body)
    assert table.rejected["rank_limit"] == 1


def test_hello_is_waited_for_a_minute(listening: Any, table: RankTable, hand: Any) -> None:
    """A connection without hello is told and closed after 60 s; one that said hello is left alone."""

    async def body(listener: Listener, connect: Callable[[], Awaitable[Streams]]) -> None:
        speaking, speaker = await connect()
        speaker.write(HELLO)
        await speaking.readline()
        silent, mumbler = await connect()
        mumbler.write(b"mumble\n")
        assert "JSON" in json.loads(await silent.readline())["error"]
        hand.turn(GREETING_SECONDS)
        listener.tick()
        hand.turn(1.0)
        listener.tick()
        assert "no hello within 60 s" in json.loads(await silent.readline())["error"]
        assert await silent.read() == b""
        assert not speaking.at_eof()

    listening(body)
    assert table.rejected["no_hello"] == 1


def test_the_socket_of_another_is_not_removed(listening: Any, tmp_path: Path) -> None:
    """On closing, a socket file that is not ours any more stays."""

    async def body(listener: Listener, _: object) -> None:
        listener.path.unlink()
        listener.path.write_text("theirs")

    listening(body)
    assert (tmp_path / "s").read_text() == "theirs"
