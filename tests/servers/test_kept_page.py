"""A page that is asked for again and again over one connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tachograph.servers import http_client
from tachograph.servers.http_client import HttpError, KeptPage

REQUEST_END = b"\r\n\r\n"
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}"
OWN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"


@contextmanager
def serving(connections: Sequence[list[bytes]], listener: socket.socket | None = None) -> Iterator[str]:
    """Answer the requests of each connection with these bytes, and close it at the next; give the page's address."""
    with listener or socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60.0)

        def serve() -> None:
            for answers in connections:
                taken, _ = server.accept()
                with taken:
                    taken.settimeout(60.0)
                    while _request(taken) and answers:
                        taken.sendall(answers.pop(0))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{0 if server.family == socket.AF_UNIX else server.getsockname()[1]}/api/node"
        finally:
            thread.join()


def _request(taken: socket.socket) -> bytes:
    """Return the next request of a connection, empty if its other end is closed."""
    found = b""
    while not found.endswith(REQUEST_END):
        more = taken.recv(4096)
        if not more:
            return b""
        found += more
    return found


def asked(page: KeptPage) -> bytes:
    return page.ask(60.0).body


def test_all_questions_go_over_one_connection() -> None:
    """What a new one costs is several times what a question does."""
    with serving([[FINE] * 5]) as url:
        page = KeptPage(url)
        assert [asked(page) for _ in range(5)] == [b"{}"] * 5
        page.close()


def test_a_connection_that_the_server_closes_is_made_anew() -> None:
    """Before the next question or just as it is sent: as with a proxy whose patience is as long as our interval."""
    with serving([[FINE], [FINE, FINE], [FINE]]) as url:
        page = KeptPage(url)
        assert [asked(page) for _ in range(4)] == [b"{}"] * 4
        page.close()


def test_a_question_is_lost_once_only() -> None:
    """A server that closes each connection at once is not asked for ever."""
    with serving([[FINE], []]) as url:
        page = KeptPage(url)
        asked(page)
        with pytest.raises(HttpError, match="closed connection"):
            asked(page)


@pytest.mark.parametrize("answer", [BUSY, HALF])
def test_after_anything_but_an_answer_it_begins_anew(answer: bytes) -> None:
    """A refused password may be right by the next time, and another file name it; half an answer leaves half behind."""
    with serving([[FINE, answer, OWN], [FINE]]) as url:
        page = KeptPage(url)
        asked(page)
        if answer == BUSY:
            assert page.ask(60.0).status == 503
        else:
            with pytest.raises(HttpError):
                page.ask(0.5)
        assert asked(page) == b"{}"
        page.close()


def test_an_exporter_that_gets_its_socket_later_is_asked_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only there does it show what its reader alone may see."""
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(tmp_path / "rank.sock"))
    with serving([[FINE]]) as url:
        monkeypatch.setattr(http_client, "DEFAULT_PORT", urlsplit(url).port)
        page = KeptPage(url)
        asked(page)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "rank.web.sock"))
        listener.listen()
        with serving([[], [], [OWN, OWN]], listener):  # the first two only try whether it listens
            assert [asked(page) for _ in range(2)] == [b"[]"] * 2
            page.close()


@contextmanager
def dripping(answer: bytes, seconds: float) -> Iterator[str]:
    """Send an answer a byte at a time, that many seconds apart, until it is over or refused; give the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60.0)
        is_over = threading.Event()

        def serve() -> None:
            taken, _ = server.accept()
            with taken, suppress(OSError):
                for byte in answer:
                    taken.sendall(bytes([byte]))
                    is_over.wait(seconds)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/api/node"
        finally:
            is_over.set()
            thread.join()


def test_a_header_that_comes_byte_by_byte_is_not_waited_for() -> None:
    """Whoever listens at the port could have a command wait for ever: each byte comes in time, the header does not."""
    late = b"HTTP/1.1 200 OK\r\nA: " + b"b" * 60 + b"\r\nContent-Length: 2\r\n\r\n{}"
    with dripping(late, 0.1) as url, pytest.raises(HttpError, match="timed out"):
        http_client.ask(url, 1.0)
    with dripping(FINE, 0.001) as url:
        assert http_client.ask(url, 10.0).body == b"{}"
