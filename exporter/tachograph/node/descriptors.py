"""The file descriptors of this process: some are kept from ranks, so that a scrape is answered whatever they hold."""

from __future__ import annotations

import errno
import resource
import select
import socket
import sys
from typing import Any

FOR_HTTP, FOR_FILES = 72, 8
"""Kept for connections of HTTP, more than web.max-requests by default, and for files that are read."""

BOTH_SHARE, FILES_SHARE = 6, 10
"""Where the limit is low, the parts of it that both, and files alone, have at most."""

MORE_HTTP_SHARE = 8
"""Where it is high, HTTP may have this part of it."""

NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""The errors of accept() where a connection waits and cannot be taken."""


def accept(listening: socket.socket) -> tuple[socket.socket, Any] | None:
    """Accept a connection and return it with its address, None where none waits.

    accept() takes a descriptor before it looks for a connection, so that it fails without one even where none waits.

    Raises:
        OSError: A connection waits and cannot be taken.
    """
    try:
        return listening.accept()
    except (BlockingIOError, InterruptedError, ConnectionAbortedError):
        return None
    except OSError:
        waiting = select.poll()
        waiting.register(listening, select.POLLIN)
        if waiting.poll(0):
            raise
        return None


def may_be_rank(number: int) -> bool:
    """Return whether a new descriptor may serve a rank: the kernel gives out the lowest, so all below are taken."""
    most = _most()
    return number < most - _kept(most)


def most_http() -> int:
    """Return how many connections of HTTP there are descriptors for."""
    most = _most()
    return max(1, _kept(most) - min(FOR_FILES, most // FILES_SHARE), most // MORE_HTTP_SHARE)


def _kept(most: int) -> int:
    return min(FOR_HTTP + FOR_FILES, most // BOTH_SHARE)


def _most() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
