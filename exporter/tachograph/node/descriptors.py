"""The file descriptors of this process: some are kept from ranks, so that a scrape is answered whatever they hold."""

from __future__ import annotations

import resource
import sys

FOR_HTTP, FOR_FILES = 72, 8
"""Kept for connections of HTTP, more than web.max-requests by default, and for files that are read."""

BOTH_SHARE, FILES_SHARE = 6, 10
"""Where the limit is low, the parts of it that both, and files alone, have at most."""

MORE_HTTP_SHARE = 8
"""Where it is high, HTTP may have this part of it."""


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
