"""A server that sends exactly the bytes it was given, as no HTTP library would."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

HANG = b"<hang>"
"""At the end of an answer: the connection stays open and silent."""

DEADLINE = 90.0
TLS = b"\x16\x03"
"""How a client begins that expects TLS."""


@contextmanager
def server(words: bytes, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve until left; give the URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True)
            held.append(connection)
            connection.settimeout(DEADLINE)
            asked = b""
            while b"\r\n\r\n" not in asked and not asked.startswith(TLS) and (more := connection.recv(65536)):
                asked += more
            connection.sendall(words.removesuffix(HANG))
            if not words.endswith(HANG):
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # a reset would take the answer with it
                    pass
                connection.close()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                held.append(connection)
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(DEADLINE)
        for connection in held:
            connection.close()


@pytest.fixture
def answering() -> Iterator[Callable[..., str]]:
    """Return the function that answers every request with these bytes; it gives a URL."""
    with ExitStack() as running:
        yield lambda words, tls=None: running.enter_context(server(words, tls))
