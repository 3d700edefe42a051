"""NCCL's RAS service (2.24 and newer), asked once: a line of text for each command, and the answer up to the end.

The commands are those of NCCL's own client, `ncclras` (src/ras/client.cc); the service answers one it does not know
with a line that begins with ERROR, as versions before 2.28 do to `SET FORMAT`. Whatever answers, or hangs, is given
SECONDS in all, and its answer is evidence, not trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from typing import NamedTuple

from tachograph.blackbox.served import LARGEST_RAS
from tachograph.node.evidence.tcp_owner import peer_uid
from tachograph.servers.server_address import is_loopback
from tachograph.text.printable import printable

SECONDS = 15.0
"""From the connection to the end of the answer: NCCL itself gives up after two legs of COLLECT_SECONDS."""

CONNECT_SECONDS = 2.0
COLLECT_SECONDS = 5
"""How long the process that is asked waits for the others, NCCL's default."""

_LINE_BYTES = 4096


class RasError(Exception):
    """The service did not answer as NCCL's does; the text says in a few words how."""


class RasAnswer(NamedTuple):
    """The answer of the service: `kind` is json, or txt for anything else; `whole` is False where it was cut off."""

    kind: str
    text: bytes
    whole: bool


async def ask(host: str, port: int, owner: int | None = None, seconds: float = SECONDS) -> RasAnswer:
    """Return what the service at an address says of the job that it is part of; raise RasError.

    On this machine it must be a process of that uid, or of root.
    """
    try:
        return await asyncio.wait_for(_ask(host, port, owner), seconds)
    except asyncio.TimeoutError:
        raise RasError(f"no whole answer within {seconds:g} s") from None
    except OSError as error:
        known = os.strerror(error.errno) if isinstance(error, ConnectionError) and error.errno else error.strerror
        raise RasError((known or type(error).__name__).lower()) from error


async def _ask(host: str, port: int, owner: int | None) -> RasAnswer:
    try:
        connection = asyncio.open_connection(host, port, limit=_LINE_BYTES)
        reader, writer = await asyncio.wait_for(connection, CONNECT_SECONDS)
    except asyncio.TimeoutError:
        raise RasError(f"no connection within {CONNECT_SECONDS:g} s") from None
    try:
        hello = await _command(reader, writer, "CLIENT PROTOCOL 2")
        if not hello.upper().startswith("SERVER PROTOCOL "):
            raise RasError(f"what answers is not NCCL's RAS: {printable(hello[:60])!r}")
        _check_owner(writer.get_extra_info("socket"), owner)
        timeout = await _command(reader, writer, f"TIMEOUT {COLLECT_SECONDS}")
        if timeout.upper() != "OK":
            raise RasError(f"it refuses a timeout: {printable(timeout[:60])!r}")
        as_json = (await _command(reader, writer, "SET FORMAT json")).upper() == "OK"
        writer.write(b"VERBOSE STATUS\n")
        await writer.drain()
        text, whole = await _rest(reader)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if not text:
        raise RasError("it ended the connection without an answer")
    return RasAnswer("json" if as_json and whole and _is_json(text) else "txt", text, whole)


def _check_owner(sock: socket.socket, owner: int | None) -> None:
    """Raise RasError if what has answered is on this machine and of another user: anybody can listen there."""
    here, there = sock.getsockname(), sock.getpeername()
    if not is_loopback(there[0]) and here[0] != there[0]:
        return
    uid = peer_uid(here, there)
    if uid is None:
        raise RasError("refused: the kernel does not say whose process answers")
    if uid not in (0, owner):
        raise RasError(f"refused: what answers is of uid {uid}, not of the run's owner")


async def _command(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: str) -> str:
    """Send a command; return the line that answers it."""
    writer.write(command.encode() + b"\n")
    await writer.drain()
    try:
        line = await reader.readline()
    except ValueError:  # longer than _LINE_BYTES
        raise RasError("what answers is not NCCL's RAS: a line without end") from None
    if not line.endswith(b"\n"):
        raise RasError(f"it ended the connection after {command!r}")
    return line.decode("utf-8", "replace").strip()


async def _rest(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Return all up to the end of the stream, LARGEST_RAS bytes at most, and whether that was all."""
    parts, size = [], 0
    while chunk := await reader.read(1 << 16):
        parts.append(chunk)
        size += len(chunk)
        if size > LARGEST_RAS:
            return b"".join(parts)[:LARGEST_RAS], False
    return b"".join(parts), True


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
