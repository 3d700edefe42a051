"""The listener: who holds a connection without speaking does not keep others out."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.app import MOST_DESCRIPTORS
from tachograph.node.ranks import listener
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.listener import GREETING_SECONDS, LAST_RETRY_SECONDS, Listener
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.shares import WORK_BURST, WORK_RATE
from tachograph.node.unix_socket import SocketPathError

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
                await asyncio.wait_for(body(listener, connect), 60)
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
    assert table.shares.over == {(str(os.getuid()), "connections"): 1}


def test_many_users_who_say_nothing_make_room(
    listening: Any, table: RankTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One person can have many uids: where the node is full, silent connections go, whoever has most others."""
    users = iter([1000, 1000, *range(2000, 2014), 1001])
    monkeypatch.setattr(listener, "_peer", lambda _: Peer(next(users), 0))

    async def body(_: Listener, connect: Callable[[], Awaitable[Streams]]) -> None:
        for rank in (b"0", b"1"):
            reader, writer = await connect()
            writer.write(HELLO.replace(b'"rank":0', b'"rank":' + rank))
            assert json.loads(await reader.readline())["ok"] is True
        silent = [await connect() for _ in range(14)]
        late, latecomer = await connect()
        latecomer.write(HELLO.replace(b'"run":"r"', b'"run":"late"'))
        assert json.loads(await late.readline())["ok"] is True
        assert "too many connections" in json.loads(await silent[0][0].readline())["error"]

    listening(body)


def test_the_cap_holds_for_all_who_come_at_once(listening: Any, table: RankTable, tmp_path: Path) -> None:
    """Sixty connections that wait to be accepted together: no more than the cap is open at any time."""

    async def body(listener: Listener, connect: Callable[[], Awaitable[Streams]]) -> None:
        speaking, speaker = await connect()
        speaker.write(HELLO)
        await speaking.readline()
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(60)]
        for each in waiting:
            each.connect(str(tmp_path / "s"))
        while table.rejected["rank_limit"] < 57:
            assert listener.connections <= Limits(ranks=2).connections
            await asyncio.sleep(0)
        for each in waiting:
            each.close()
        late, latecomer = await connect()
        latecomer.write(HELLO.replace(b'"rank":0', b'"rank":1'))
        assert json.loads(await late.readline())["ok"] is True
        assert not speaking.at_eof()

    listening(body)


def test_live_ranks_are_never_hung_up_on(listening: Any, table: RankTable) -> None:
    """If all connections of a user already have a rank, the next one is rejected with a reason, closed and counted."""

    async def body(listener: Listener, connect: Callable[[], Awaitable[Streams]]) -> None:
        held = []
        for rank in (0, 1, 0, 1):  # two of the four are those of a higher attempt, whose old connections are closed
            streams = await connect()
            attempt = b',"attempt":%d' % (len(held) // 2)
            streams[1].write(HELLO.replace(b'"rank":0', b'"rank":%d%s' % (rank, attempt)))
            await streams[0].readline()
            held.append(streams)
        while listener.connections > 2:
            await asyncio.sleep(0)
        table.shares.of(os.getuid()).connections += 2  # as if there were two more ranks
        late, _ = await connect()
        assert "you have 4 connections here" in json.loads(await late.readline())["error"]
        assert await late.read() == b""
        assert listener.refused["user_limit"] == 1
        assert not any(streams[0].at_eof() for streams in held[2:])

    listening(body)


def test_who_does_not_read_is_hung_up_on_all_the_same(listening: Any, table: RankTable, tmp_path: Path) -> None:
    """A connection whose answers are never read cannot be kept open by that."""

    async def body(listener: Listener, _: object) -> None:
        deaf = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        deaf.connect(str(tmp_path / "s"))
        while not listener._connections or (connection := next(iter(listener._connections)))._transport is None:
            await asyncio.sleep(0)
        connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        deaf.send(b"mumble\n" * 90)
        while connection._transport.get_write_buffer_size() == 0:
            await asyncio.sleep(0)
        connection.refuse_and_close("no_hello", "enough")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert listener.connections == 0
        deaf.close()

    listening(body)


def test_a_user_out_of_share_is_read_later(listening: Any, table: RankTable, hand: Any) -> None:
    """Frames beyond a user's share wait, neither read nor dropped, until the share has filled again."""

    async def body(listener: Listener, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(HELLO)
        await reader.readline()
        share = table.shares.of(os.getuid())
        share.spend(WORK_BURST + 0.6 * WORK_RATE)
        writer.write(b'{"v":1,"type":"state","seq":1,"time":1,"step":5}\n' * 3 + b"{nonsense\n")
        await asyncio.sleep(0.1)
        assert table.frames == 1
        late, _ = await connect()
        assert "your share" in json.loads(await late.readline())["error"]
        assert listener.refused["work_limit"] == 1
        hand.turn(1.0)
        assert "JSON" in json.loads(await reader.readline())["error"]
        assert table.frames == 4

    listening(body)


def test_no_descriptor_left(exporter_at: Callable[..., Any], speak: Any) -> None:
    """Out of descriptors, the exporter logs it once, serves its connections, and accepts again when it can."""
    running = exporter_at("--no-gpu")
    witness = running.speaker()
    witness.hello()
    running.get("/metrics")
    _, hard = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
    used = len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))
    resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (used + 4, hard))
    idle = [speak(running.socket) for _ in range(40)]
    running.eventually(lambda: "ranks cannot connect: Too many open files" in running.log.read_text())
    witness.send(type="nonsense")
    assert witness.answer()["ok"] is False
    for each in idle:
        each.close()
    assert running.speaker(rank=1).hello()["ok"] is True
    log = running.log.read_text()
    assert "Traceback" not in log
    assert log.count("ranks cannot connect") == 1


def test_the_descriptor_limit_is_raised(exporter_at: Callable[..., Any]) -> None:
    """However few descriptors its shell gave it, the exporter takes as many as it may and all its caps could use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        running = exporter_at("--no-gpu")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)[0] == min(hard, MOST_DESCRIPTORS)


def test_hello_is_waited_for_a_minute(listening: Any, table: RankTable, hand: Any) -> None:
    """A connection without hello is closed after 60 s, with a reason; one that sent hello stays open."""

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


def greeted(path: Path, rank: int = 0) -> bool:
    """Say hello as a rank, and return whether that was accepted."""
    with socket.socket(socket.AF_UNIX) as speaker:
        speaker.settimeout(60)
        speaker.connect(str(path))
        speaker.sendall(HELLO.replace(b'"rank":0', b'"rank":%d' % rank))
        return b'"ok":true' in speaker.recv(4096)


@pytest.mark.parametrize("loss", ["socket", "folder", "stale"])
def test_a_socket_that_is_gone_is_opened_again(hand: Any, table: RankTable, tmp_path: Path, loss: str) -> None:
    """Deleted, with its folder too, or replaced by what nobody listens to; ranks that are connected stay so."""
    path = tmp_path / "run" / "rank.sock"

    async def body() -> None:
        listener = Listener(path, 0o666, Limits(), hand.clock, table)
        await listener.open()
        try:
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(HELLO)
            while not list(table.ranks()):
                await asyncio.sleep(0.01)
            if loss == "folder":
                shutil.rmtree(path.parent)
            else:
                path.unlink()
            if loss == "stale":
                with socket.socket(socket.AF_UNIX) as other:
                    other.bind(str(path))
            assert not listener.is_reachable
            assert success(listener) == 0
            hand.turn(1.0, listener.tick)
            assert listener.is_reachable
            assert success(listener) == 1
            assert await asyncio.to_thread(greeted, path, 1)
            assert [rank.outcome for rank in table.ranks() if rank.hello.rank == 0] == [""]
            writer.close()
        finally:
            await listener.close()
        assert not path.exists()

    asyncio.run(asyncio.wait_for(body(), 60))


def success(listener: Listener) -> float:
    """Return the sample that says whether ranks can connect."""
    (found,) = (each for each in listener.samples() if each.metric is catalog.COLLECTOR_SUCCESS)
    assert found.labels == ("socket",)
    return found.value


def test_another_exporters_socket_is_never_taken(
    hand: Any, table: RankTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that listens at the path now keeps it; when it is gone the socket is ours again. The log says it once."""
    path = tmp_path / "rank.sock"

    async def body() -> None:
        listener = Listener(path, 0o666, Limits(), hand.clock, table)
        await listener.open()
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            other.listen(1)
            inode = path.stat().st_ino
            hand.turn(40.0, listener.tick)
            assert path.stat().st_ino == inode
            assert "another exporter listens there" in listener.fault
            assert success(listener) == 0
        assert sum("socket is gone" in each.message for each in caplog.records) == 1
        hand.turn(LAST_RETRY_SECONDS + 1, listener.tick)
        assert listener.is_reachable
        assert listener.fault == ""
        await listener.close()

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_folder_that_belongs_to_another_user_now_is_not_used(hand: Any, table: RankTable, tmp_path: Path) -> None:
    """Who made it again could put a socket of their own in place of ours."""
    path = tmp_path / "run" / "rank.sock"

    async def body() -> None:
        listener = Listener(path, 0o666, Limits(), hand.clock, table)
        await listener.open()
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        os.chown(path.parent, 65534, -1)
        hand.turn(1.0, listener.tick)
        assert listener.fault == f"{path.parent} belongs to uid 65534 now: remove it"
        path.parent.rmdir()
        hand.turn(5.0, listener.tick)
        assert listener.is_reachable
        await listener.close()

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_who_may_not_make_the_socket_is_told_what_to_do_at_both_ends(hand: Any, table: RankTable) -> None:
    """A folder that root left behind, or none and no right to make one."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        folder.chmod(0o755)
        left, absent = folder, folder / "tachograph"
        for place, step in (
            (left, f"{left} belongs to uid 0 (mode 0755), and this is uid 65534: as root `chown 65534 {left}`"),
            (absent, f"as root `install -d -o 65534 {absent}`"),
        ):
            path = place / "rank.sock"
            listener = Listener(path, 0o666, Limits(), hand.clock, table)
            os.seteuid(65534)
            try:
                with pytest.raises(SocketPathError) as told:
                    asyncio.run(listener.open())
            finally:
                os.seteuid(0)
            other = "choose another with --socket PATH, and set TACHOGRAPH_SOCKET=PATH for the ranks"
            assert str(told.value) == f"socket {path}: Permission denied: {step}, or {other}"
