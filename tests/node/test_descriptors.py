"""Tests of node/descriptors.py."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator

import pytest

from tachograph.node.descriptors import accept


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket that accepts without waiting."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        yield sock


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """No new descriptor: only the lowest is allowed, and it is taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_nobody_waits(listening: socket.socket) -> None:
    """The socket is not blocked on."""
    assert accept(listening) is None


def test_nobody_waits_and_no_descriptor_is_left(listening: socket.socket) -> None:
    """accept() of the kernel fails here, and nobody is refused: nobody need give way."""
    with no_descriptor_left():
        assert accept(listening) is None


@pytest.fixture
def waiting(listening: socket.socket) -> Iterator[socket.socket]:
    """A client that waits."""
    with socket.create_connection(listening.getsockname()) as client:
        yield client


def test_one_waits_and_no_descriptor_is_left(listening: socket.socket, waiting: socket.socket) -> None:
    """It is an error, and the client still waits."""
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        accept(listening)


def test_one_waits(listening: socket.socket, waiting: socket.socket) -> None:
    """It is accepted with its address."""
    accepted = accept(listening)
    assert accepted is not None
    sock, address = accepted
    sock.close()
    assert address == waiting.getsockname()
