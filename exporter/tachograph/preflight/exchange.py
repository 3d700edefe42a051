"""How ranks exchange what they measured: through the launcher's store, as JSON, so that a missing rank holds up nobody.

No process group is needed, and nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Protocol

from tachograph.preflight.finding import Untyped

PREFIX = "tachograph-preflight/"
LEAST_SECONDS = 0.01
RETRY_SECONDS = 0.5


class Exchange(Protocol):
    """Values that ranks publish under keys."""

    def publish(self, key: str, value: Untyped) -> None:
        """Make a value known to every rank."""

    def read(self, key: str, seconds: float) -> Untyped:
        """Return the value of a key, waiting for it; raise TimeoutError."""

    def gather(self, key: str, ranks: Collection[int], seconds: float) -> dict[int, Untyped]:
        """Return the values that ranks published as `key/rank`; after `seconds` those that are there."""


class NoExchange:
    """The exchange of a process that is alone."""

    def __init__(self) -> None:
        self._values: dict[str, Untyped] = {}

    def publish(self, key: str, value: Untyped) -> None:
        """Keep a value."""
        self._values[key] = value

    def read(self, key: str, seconds: float) -> Untyped:
        """Return a value; raise TimeoutError where nobody published it."""
        del seconds
        if key not in self._values:
            raise TimeoutError(key)
        return self._values[key]

    def gather(self, key: str, ranks: Collection[int], seconds: float) -> dict[int, Untyped]:
        """Return what there is."""
        del seconds
        return {rank: self._values[f"{key}/{rank}"] for rank in ranks if f"{key}/{rank}" in self._values}


class StoreExchange:
    """The exchange over a store of torch.distributed."""

    def __init__(self, store: Untyped) -> None:
        self._store = store

    def publish(self, key: str, value: Untyped) -> None:
        """Set a key."""
        self._store.set(PREFIX + key, json.dumps(value))

    def read(self, key: str, seconds: float) -> Untyped:
        """Wait for a key."""
        name = PREFIX + key
        try:
            self._store.wait([name], timedelta(seconds=max(seconds, LEAST_SECONDS)))
        except (RuntimeError, ValueError) as error:  # DistStoreError is a RuntimeError; its text names the key
            if "timeout" not in str(error).lower() and "timed out" not in str(error).lower():
                raise ConnectionError(f"the store of {os.environ.get('MASTER_ADDR')} is gone: {error}") from None
            raise TimeoutError(key) from None
        return json.loads(self._store.get(name))

    def gather(self, key: str, ranks: Collection[int], seconds: float) -> dict[int, Untyped]:
        """Wait for each rank's key in turn, all within `seconds`."""
        deadline = time.monotonic() + seconds
        found = {}
        for rank in sorted(ranks):
            try:
                found[rank] = self.read(f"{key}/{rank}", deadline - time.monotonic())
            except TimeoutError:
                continue
        return found


def join(rank: int, world_size: int, seconds: float) -> StoreExchange:
    """Return the exchange of torchrun's store, or of one that rank 0 opens at MASTER_ADDR; raise OSError.

    A client of its own, so that a process group which waits for a rank does not block what is exchanged meanwhile.
    """
    return StoreExchange(open_store(rank, world_size, seconds, host=True))


def open_store(rank: int, world_size: int, seconds: float, *, host: bool) -> Untyped:
    """Return a connection to the store at MASTER_ADDR and MASTER_PORT; `host`: rank 0 opens it where no agent does."""
    from torch.distributed import TCPStore

    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise OSError(f"{' and '.join(missing)} not set: start it with torchrun, or set what torchrun sets")
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise OSError(f"MASTER_PORT={port!r} is no port")
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    opens = host and not agent and rank == 0
    try:
        _await(address, int(port), seconds, listens=not opens)
        return TCPStore(
            address,
            int(port),
            world_size,
            is_master=opens,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        first = str(getattr(error, "strerror", None) or error).partition("\n")[0]
        raise OSError(f"no store at {address}:{port} (MASTER_ADDR, MASTER_PORT): {first}") from None


def _await(address: str, port: int, seconds: float, *, listens: bool) -> None:
    """Return once an address can be resolved, and `listens` on a port, or raise OSError.

    PyTorch would say every failed try, with a stack.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if not listens:
                socket.getaddrinfo(address, port)
                return
            with socket.create_connection((address, port), max(deadline - time.monotonic(), LEAST_SECONDS)):
                return
        except (OSError, UnicodeError) as error:
            if time.monotonic() + RETRY_SECONDS > deadline:
                raise OSError(
                    getattr(error, "errno", None) or 0, getattr(error, "strerror", None) or str(error)
                ) from None
        time.sleep(RETRY_SECONDS)
