"""Access control of the exporter's pages: passwords, checked in a thread of their own, and names of this machine."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from aiohttp import BasicAuth, web

from tachograph.servers.server_address import is_loopback

MOST_CHECKS = 8
"""Passwords waiting to be checked, one per address: a check takes 50 ms of a core at bcrypt's cost 10."""
REST = 3
"""After a wrong password, the thread that checks passwords sleeps this many times as long as it worked."""
_LONGEST_PASSWORD = 72  # bytes that bcrypt uses


class TooManyChecksError(Exception):
    """A password cannot be checked now, since too many others are waiting."""


class Passwords:
    """Checks passwords with bcrypt in a thread of its own, and caches the right ones."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._right: dict[str, bytes] = {}
        self._waiting: dict[str, tuple[bytes, asyncio.Future[bool]]] = {}
        self._thread = ThreadPoolExecutor(1, "bcrypt")

    async def are_right(self, users: Mapping[str, bytes], name: str, password: str, address: str) -> bool:
        """Return whether a user has this password; raise TooManyChecksError if too many checks are waiting."""
        hashed, given = users.get(name), password.encode()
        digest = hmac.digest(self._key, b"\0".join((hashed or b"", name.encode().hex().encode(), given)), "sha256")
        if hashed is not None and hmac.compare_digest(self._right.get(name, b""), digest):
            return True
        asked, check = self._waiting.get(address, (digest, None))
        if asked != digest or (check is None and len(self._waiting) >= MOST_CHECKS):
            raise TooManyChecksError
        if check is None:
            # A user that does not exist costs the same time as one that does.
            against = hashed or next(iter(users.values()))
            check = asyncio.get_running_loop().run_in_executor(self._thread, _check, given, against)
            self._waiting[address] = (digest, check)
            check.add_done_callback(lambda _: self._waiting.pop(address, None))
        right = await asyncio.shield(check) and hashed is not None
        if right:
            self._right[name] = digest
        return right

    def forget(self) -> None:
        """Clear the cache."""
        self._right.clear()

    def close(self) -> None:
        """Stop checking."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _check(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    start = time.monotonic()
    right = len(password) <= _LONGEST_PASSWORD and bcrypt.checkpw(password, hashed)
    if not right:
        time.sleep(REST * (time.monotonic() - start))
    return right


def credentials(request: web.Request) -> tuple[str, str] | None:
    """Return the user and password of a request, None if it has none."""
    try:
        login = BasicAuth.decode(request.headers.get("Authorization", ""), encoding="utf-8")
    except ValueError:
        return None
    return login.login, login.password


def is_rebound(request: web.Request, names: Collection[str]) -> bool:
    """Return whether a request from this machine gives it a name that is not its own.

    So does a browser with a page of another site whose name resolves to loopback, with any header such a page likes.
    """
    given = request.headers.get("Host", "")
    if not given or request.transport is None or not is_local(request.transport.get_extra_info("peername")):
        return False
    host = given
    try:
        host = (urlsplit(f"//{given}").hostname or "").rstrip(".")
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        # A name without a dot is of the node's own network, and no other site's.
        return "." in host and not host.endswith(".localhost") and not any(_is_named(host, name) for name in names)
    return False


def _is_named(host: str, name: str) -> bool:
    """Return whether a host is of this name, with or without a domain."""
    return name != "" and (host == name.lower() or host.startswith(f"{name.lower()}."))


def is_local(peer: object) -> bool:
    """Return whether a transport's peer has a loopback address."""
    return isinstance(peer, tuple) and is_loopback(str(peer[0]))
