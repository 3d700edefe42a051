"""Who is served on the port when many want to be: real sockets, with a clock to turn where time matters."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tachograph.catalog import index as catalog
from tachograph.node.log import OncePerMinute
from tachograph.node.samples import Sample
from tachograph.node.web.http_connections import (
    ANSWER_SECONDS,
    HEADER_SECONDS,
    KEEP_ALIVE_SECONDS,
    REQUEST_BYTES,
    SAFE_SECONDS,
    HttpConnections,
)
from tachograph.node.web.listening_sockets import listening_sockets
from tachograph.node.web.private import MayRead
from tachograph.node.web.server import Pages, Server
from tests.waiting import DEADLINE, meanwhile

GET = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"


class Client:
    """One client of the port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Return status and body of the next answer; (0, b"") once the server hung up."""
        try:
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), DEADLINE)
            length = re.search(rb"(?i)content-length: (\d+)", head)
            body = await asyncio.wait_for(self.reader.readexactly(int(length[1]) if length else 0), DEADLINE)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, b""
        return int(head.split()[1]), body

    async def is_closed(self) -> bool:
        return await self.answer() == (0, b"")


def listens() -> list[socket.socket]:
    """Return a socket that hands over connections before they say anything, as some kernels do."""
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    return [sock]


class Port:
    """A server in this process, its clock, and what it was asked for."""

    def __init__(self, most: int, hand: Any) -> None:
        self.made = 0
        self.generation = 0
        self.body = 1.0
        pages = Pages(
            samples=self._samples,
            status_page=self._status_page,
            api_node=self._status_page,
            ready=lambda: (True, "ready\n"),
            generation=lambda: self.generation,
        )
        self.server = Server(None, 0, pages, most=most, inherited=listens)
        self.connections = self.server._connections
        self.connections.clock = lambda: hand.now
        self.hand = hand
        self.clients: list[Client] = []
        self.address = ("", 0)

    def _samples(self) -> Iterator[Sample]:
        self.made += 1
        yield Sample(catalog.FRAMES, (), self.made)

    def _status_page(self, may_read: MayRead) -> str:
        self.made += 1
        return f"{'all' if may_read(0) else 'some'} {self.made}"

    async def connect(self, source: str = "127.0.0.1") -> Client:
        """Connect and wait until the server has taken note of it."""
        before = self.connections.accepted
        client = Client(*await asyncio.open_connection(*self.address, local_addr=(source, 0)))
        self.clients.append(client)
        await meanwhile(lambda: self.connections.accepted > before)
        return client

    def refused(self, reason: str) -> float:
        return self.connections.refused[reason]


@pytest.fixture
def port(hand: Any) -> Callable[..., Any]:
    """Return what runs a server for the length of an `async with`."""

    @asynccontextmanager
    async def running(most: int = 3) -> AsyncIterator[Port]:
        served = Port(most, hand)
        host, _, number = (await served.server.open()).rpartition(":")
        served.address = (host, int(number))
        try:
            yield served
        finally:
            for client in served.clients:
                client.writer.transport.abort()
            await served.server.close()

    return running


def test_an_idle_connection_gives_way(port: Any) -> None:
    """Beyond the limit the connection that was idle longest is closed, and the new one is served; none is refused."""

    async def attack() -> None:
        async with port(most=3) as served:
            clients = []
            for _ in range(5):
                served.hand.turn(1.0)
                clients.append(await served.connect())
            assert len(served.connections) == 3
            assert served.refused("node_limit") == 2
            for client in clients[2:]:
                client.send(GET)
                assert (await client.answer())[0] == 200
            assert await clients[0].is_closed()
            assert await clients[1].is_closed()
            # A connection that was served is idle too: the newcomer has the place of the first of them.
            served.hand.turn(1.0)
            newcomer = await served.connect()
            newcomer.send(GET)
            assert (await newcomer.answer())[0] == 200
            assert await clients[2].is_closed()

    asyncio.run(attack())


def test_who_holds_most_gives_way_first(port: Any) -> None:
    """A host that connects again and again only takes its own places; the scraper's idle connection stays."""

    async def attack() -> None:
        async with port(most=4) as served:
            scraper = await served.connect("127.0.0.2")
            scraper.send(GET)
            assert (await scraper.answer())[0] == 200
            for _ in range(40):
                served.hand.turn(0.01)
                await served.connect("127.0.0.1")
            scraper.send(GET)
            assert (await scraper.answer())[0] == 200

    asyncio.run(attack())


def test_an_answer_under_way_gives_way_to_none(hand: Any) -> None:
    """While all places are being answered a newcomer is closed; a client that does not take its answer is no excuse."""

    async def attack() -> None:
        go = asyncio.Event()
        connections = HttpConnections(2, OncePerMinute(logging.getLogger("t"), lambda: hand.now), lambda: hand.now)

        async def slow(request: web.BaseRequest) -> web.Response:
            assert request.transport is not None
            answering = request.transport.get_protocol()
            answering.begin()
            await go.wait()
            answering.end()
            return web.Response(text="late")

        (sock,) = listens()
        address = sock.getsockname()
        connections.serve([sock], web.Server(slow))
        clients = []
        try:
            for _ in range(2):
                clients.append(Client(*await asyncio.open_connection(*address)))
                clients[-1].send(GET)
            await meanwhile(lambda: [each.stage for each in connections._connections] == ["answering"] * 2)
            newcomer = Client(*await asyncio.open_connection(*address))
            assert await newcomer.is_closed()
            newcomer.writer.transport.abort()
            hand.turn(SAFE_SECONDS)  # by now the client is the reason
            clients.append(Client(*await asyncio.open_connection(*address)))
            clients[-1].send(GET)
            assert await clients[0].is_closed()
            go.set()
            assert (await clients[1].answer())[1] == b"late"
            assert (await clients[2].answer())[1] == b"late"
        finally:
            for client in clients:
                client.writer.transport.abort()
            connections.stop()
            connections.close()

    asyncio.run(attack())


@pytest.mark.parametrize("first", [b"", b"GET /metrics HTTP/1.1\r\nHost: n"], ids=["silent", "half a header"])
def test_slow_headers(port: Any, first: bytes) -> None:
    """From the connect to the end of the headers a client has 5 s, however often it sends another byte."""

    async def attack() -> None:
        async with port() as served:
            client = await served.connect()
            for byte in first:
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            served.hand.turn(HEADER_SECONDS - 0.1)
            client.send(b"x" if first else b"")
            served.server.tick()
            assert len(served.connections) == 1
            served.hand.turn(0.2)
            served.server.tick()
            assert await client.is_closed()
            assert served.refused("slow") == 1

    asyncio.run(attack())


def test_a_second_request_has_as_long(port: Any) -> None:
    """On a kept connection the time begins with the first byte; without one it ends as an idle connection does."""

    async def attack() -> None:
        async with port() as served:
            slow, idle = await served.connect(), await served.connect()
            for client in (slow, idle):
                client.send(GET)
                assert (await client.answer())[0] == 200
            served.hand.turn(KEEP_ALIVE_SECONDS - 1)
            slow.send(b"GET ")
            await meanwhile(lambda: "reading" in [each.stage for each in served.connections._connections])
            served.server.tick()
            assert len(served.connections) == 2
            served.hand.turn(HEADER_SECONDS + 0.1)
            served.server.tick()
            assert await slow.is_closed()
            assert await idle.is_closed()
            assert served.refused("slow") == 1

    asyncio.run(attack())


def test_a_client_that_does_not_read(port: Any) -> None:
    """An answer that is not taken within 10 s ends the connection."""

    async def attack() -> None:
        async with port() as served:
            served.server._shared.get = _large  # 32 MB: more than any socket's buffers hold
            client = await served.connect()
            client.writer.transport.pause_reading()
            client.send(GET)
            await meanwhile(lambda: [each.stage for each in served.connections._connections] == ["answering"])
            served.hand.turn(ANSWER_SECONDS - 0.1)
            served.server.tick()
            assert len(served.connections) == 1
            served.hand.turn(0.2)
            served.server.tick()
            assert len(served.connections) == 0
            assert served.refused("slow") == 1

    asyncio.run(attack())


async def _large(*_: object) -> bytes:
    return bytes(32 << 20)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /metrics HTTP/1.1\r\nHost: n\r\n" + b"X-A: %b\r\n" % (b"x" * 2000) * 20 + b"\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: n\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 2 * REQUEST_BYTES,
        b"GET /" + b"a" * 2 * REQUEST_BYTES + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["headers", "body", "path"],
)
def test_large_requests(port: Any, request_: bytes) -> None:
    """Nobody sends more than 16 KiB: the connection ends, and the next one is served."""

    async def attack() -> None:
        async with port() as served:
            client = await served.connect()
            client.send(request_)
            await meanwhile(lambda: not len(served.connections))
            scraper = await served.connect()
            scraper.send(GET)
            assert (await scraper.answer())[0] == 200

    asyncio.run(attack())


def test_one_page_for_all(port: Any) -> None:
    """Whoever asks in one tick gets the same page, made once; the next tick has a new one, and so has each format."""

    async def ask() -> None:
        async with port(most=16) as served:
            clients = [await served.connect() for _ in range(8)]
            for client in clients:
                client.send(GET)
            pages = {(await client.answer())[1] for client in clients}
            assert len(pages) == served.made == 1
            served.generation += 1
            clients[0].send(GET)
            assert (await clients[0].answer())[1] not in pages
            assert served.made == 2
            for extra in (b"Accept: application/openmetrics-text\r\n", b"Accept-Encoding: gzip\r\n"):
                clients[1].send(GET[:-2] + extra + b"\r\n")
                assert (await clients[1].answer())[0] == 200
            assert served.made == 3  # gzip is of the same text

    asyncio.run(ask())


def test_two_status_pages(port: Any, tmp_path: Path) -> None:
    """Who may read all and strangers read two pages, each made once per tick; so it is with the JSON."""

    async def ask() -> None:
        async with port() as served:
            served.server.open_for_users(tmp_path / "s", 0o666)
            stranger = await served.connect()
            own = Client(*await asyncio.open_unix_connection(tmp_path / "s"))
            for _ in range(2):
                for client, path, words in (
                    (own, b"/", b"all 1"), (stranger, b"/", b"some 2"),
                    (own, b"/api/node", b"all 3"), (stranger, b"/api/node", b"some 4"),
                ):  # fmt: skip
                    client.send(b"GET " + path + b" HTTP/1.1\r\nHost: n\r\n\r\n")
                    assert await client.answer() == (200, words)
            own.writer.close()

    asyncio.run(ask())


def test_all_addresses_of_a_host() -> None:
    """A name with several addresses is served on all of them with one port; no name serves on every address."""
    sockets = listening_sockets("localhost", 0)
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    for sock in sockets:
        socket.create_connection(sock.getsockname()[:2], DEADLINE).close()
        sock.close()
    (sock, *_) = listening_sockets(None, 0)
    socket.create_connection(("127.0.0.1", sock.getsockname()[1]), DEADLINE).close()
    sock.close()


@pytest.fixture(scope="module")
def exporter(exporter_at: Callable[..., Any]) -> Any:
    return exporter_at("--no-gpu")


def address(exporter: Any) -> tuple[str, int]:
    host, _, number = exporter.url.removeprefix("http://").rpartition(":")
    return host, int(number)


@contextlib.contextmanager
def descriptors(exporter: Any, most: int) -> Iterator[None]:
    """Leave the exporter so many file descriptors."""
    before = resource.prlimit(exporter.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(exporter.process.pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(exporter.process.pid, resource.RLIMIT_NOFILE, before)


NEIGHBOUR = ("127.0.0.2", 0)


def test_a_crowd_of_idle_connections(exporter: Any) -> None:
    """1,100 silent connections of another address, with 1,024 descriptors: every scrape is served, the log is short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    lines = len(exporter.log.read_text().splitlines())
    with descriptors(exporter, 1024), contextlib.ExitStack() as crowd:
        over = threading.Event()
        served: list[int] = []

        def scrape() -> None:
            while not over.is_set():
                served.append(exporter.get("/metrics")[0])

        scraper = threading.Thread(target=scrape)
        scraper.start()
        try:
            for _ in range(1100):
                crowd.enter_context(socket.create_connection(address(exporter), DEADLINE, NEIGHBOUR))
            before = len(served)
            exporter.eventually(lambda: len(served) > before + 5)
        finally:
            over.set()
            scraper.join()
        page = exporter.scrape()
        assert set(served) == {200}
        assert page.value("exporter_connections", kind="http") <= 64
        assert page.value("process_open_fds") < 150
    assert len(exporter.log.read_text().splitlines()) == lines


@pytest.mark.parametrize("spare", [8, 200], ids=["the kernel refuses", "the rest is kept for files"])
def test_no_descriptor_is_left(exporter: Any, spare: int) -> None:
    """Out of descriptors the log has one line and no traceback, a scrape still succeeds, and there is no busy loop."""
    most = len(os.listdir(f"/proc/{exporter.process.pid}/fd")) + spare  # noqa: PTH208
    began = time.monotonic()
    with descriptors(exporter, most), contextlib.ExitStack() as crowd:
        for _ in range(40):
            crowd.enter_context(socket.create_connection(address(exporter), DEADLINE)).send(b"GET")

        def refused() -> float:
            with contextlib.suppress(OSError):
                return exporter.scrape().value("exporter_connections_refused_total", kind="http", reason="descriptors")
            return 0

        exporter.eventually(lambda: refused() > 3)
    a_second = refused() / (time.monotonic() - began)
    assert a_second < 1000, "each turn of a loop that spins is a refusal"
    log = exporter.log.read_text()
    assert log.count("HTTP connections cannot be accepted") == 1
    assert "Traceback" not in log


MALFORMED = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 80 + b"\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nzzz",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nBad Header\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: " + b"x" * 9000 + b"\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"GET http://[::1/ HTTP/1.1\r\nHost: [\r\n\r\n",
)


def test_a_storm_of_malformed_requests(exporter: Any) -> None:
    """Invalid HTTP causes no traceback, and one log line per cause and minute; scrapes continue."""
    before, began = exporter.log.read_text(), time.monotonic()
    for number in range(300):
        with socket.create_connection(address(exporter), DEADLINE) as client, contextlib.suppress(ConnectionError):
            client.sendall(MALFORMED[number % len(MALFORMED)])
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
    assert exporter.get("/metrics")[0] == 200
    log = exporter.log.read_text()[len(before) :]
    assert "Traceback" not in log
    assert 1 <= len(log.splitlines()) <= 4 * (1 + (time.monotonic() - began) // 60), log


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/..\\..\\etc\\passwd"]
)
def test_no_file_is_served(exporter: Any, path: str) -> None:
    """No path leads to a file."""
    with socket.create_connection(address(exporter), DEADLINE) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"root:" not in answer


@pytest.mark.parametrize("most", [12, 20, 40, 64, 128])
@pytest.mark.parametrize("greets", [False, True])
def test_ranks_leave_descriptors_for_a_scrape(exporter_at: Callable[..., Any], most: int, greets: bool) -> None:
    """Whatever connects to the socket, idle or as ranks, and idles on the port, a scrape is served at once."""
    running = exporter_at("--no-gpu")
    with descriptors(running, most), contextlib.ExitStack() as crowd:
        for number in range(2 * most):
            client = crowd.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(running.socket))
            if greets:
                hello = {"v": 1, "type": "hello", "run": f"r{number}", "rank": 0, "stacks": {"main": 1, "sender": 2}}
                with contextlib.suppress(OSError):  # it was refused
                    client.sendall(json.dumps(hello).encode() + b"\n")
        for _ in range(20):
            crowd.enter_context(socket.create_connection(address(running), DEADLINE)).send(b"GET / HTTP/1.1\r\n")
        running.eventually(lambda: "ranks cannot connect" in running.log.read_text())
        for _ in range(3):
            page = running.scrape()
        assert page.value("exporter_connections_refused_total", kind="rank", reason="descriptors") > 0
    running.eventually(lambda: running.speaker(rank=1).hello()["ok"])  # once this user's share of CPU is left again
    assert running.log.read_text().count("\n") < 20 + 2 * most * greets
