"""NCCL's RAS service: the lines that its own client sends, and an end to whatever answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tachograph.blackbox.served import LARGEST_RAS
from tachograph.node.evidence.nccl_ras import RasAnswer, RasError, ask
from tachograph.node.evidence.tcp_owner import peer_uid

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Ras:
    """A service that answers as NCCL's does: a line to each command, and the status up to the end of the stream."""

    def __init__(self, status: bytes, *, knows_json: bool = True) -> None:
        self.said: list[str] = []
        self._status, self._knows_json = status, knows_json

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            self.said.append(line)
            if line.startswith("CLIENT PROTOCOL "):
                writer.write(b"SERVER PROTOCOL 2\n")
            elif line.startswith("TIMEOUT ") or (line.startswith("SET FORMAT ") and self._knows_json):
                writer.write(b"OK\n")
            elif line == "VERBOSE STATUS":
                writer.write(self._status)
                await writer.drain()
                writer.close()
                return
            else:
                writer.write(f"ERROR: Unknown command {line}\n".encode())


def asked(peer: Peer, seconds: float = 5.0) -> RasAnswer:
    ends: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(asyncio.create_task(_to_its_end(peer, reader, writer)))
        await asyncio.wait(ends)

    async def run() -> RasAnswer:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            host, port = server.sockets[0].getsockname()
            return await ask(host, port, os.geteuid(), seconds)
        finally:
            server.close()
            for end in ends:
                end.cancel()
            await asyncio.sleep(0)
            await asyncio.wait(ends)

    return asyncio.run(run())


def test_json() -> None:
    """The commands are those of ncclras, in its order; the answer is kept as it came."""
    status = json.dumps({"nccl_version": "2.28.3", "communicators": [{"size": 16}]}).encode()
    service = Ras(status)
    assert asked(service) == RasAnswer("json", status, True)
    assert service.said == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"]


def test_text_of_versions_without_json() -> None:
    """NCCL before 2.28 knows no format: its text is kept."""
    assert asked(Ras(b"NCCL version 2.24.3\nRunning\n", knows_json=False)) == RasAnswer(
        "txt", b"NCCL version 2.24.3\nRunning\n", True
    )


@pytest.mark.parametrize("status", [b"\x00\xffgarbage", b'{"cut": [', b"[" * 100_000])
def test_what_is_no_json_is_text(status: bytes) -> None:
    """What says that it is JSON and is not is kept as text."""
    assert asked(Ras(status)) == RasAnswer("txt", status, True)


def test_a_huge_answer_is_cut() -> None:
    """An answer without end is read up to a limit."""
    answer = asked(Ras(b"x" * (LARGEST_RAS + (1 << 20))))
    assert (answer.kind, len(answer.text), answer.whole) == ("txt", LARGEST_RAS, False)


async def _to_its_end(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        try:
            await peer(reader, writer)
        finally:
            writer.transport.abort()


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for letter in b"SERVER PROTOCOL 2\nOK\nOK\n":
        writer.write(bytes([letter]))
    while not reader.at_eof() and not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(0.01)


async def _garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\x1b[2J\r\n\r\n")
    await writer.drain()
    writer.close()


async def _endless_line(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SERVER PROTOCOL " + b"2" * 100_000)
    await writer.drain()
    writer.close()


async def _hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        (_silent, "no whole answer within 0.2 s"),
        (_drips, "no whole answer within 0.2 s"),
        (_garbage, "not NCCL's RAS: 'HTTP/1.1 400 Bad Request?[2J'"),
        (_endless_line, "a line without end"),
        (_hangs_up, "ended the connection after 'CLIENT PROTOCOL 2'|connection reset"),
        (Ras(b""), "without an answer"),
    ],
)
def test_whatever_answers_has_an_end(peer: Peer, said: str) -> None:
    """One that hangs, drips or speaks another protocol is given up, with a reason on one line."""
    with pytest.raises(RasError, match=said.replace("?[", r"\?\[")):
        asked(peer, 0.2 if peer in (_silent, _drips) else 20.0)


def test_nothing_listens() -> None:
    """Most nodes have no RAS service: the reason is a few words."""
    with pytest.raises(RasError, match=r"^connection refused$"):
        asyncio.run(ask("127.0.0.1", 1))


FAKE = """
import os, socket, sys
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
listening = socket.create_server((sys.argv[2], 0), family=family)
print(listening.getsockname()[1], flush=True)
while True:
    connection, _ = listening.accept()
    stream = connection.makefile("rwb")
    for line in stream:
        if line.startswith(b"VERBOSE"):
            stream.write(b'{"job": "rank 3 is at fault"}')
            break
        stream.write(b"SERVER PROTOCOL 2\\n" if line.startswith(b"CLIENT") else b"OK\\n")
        stream.flush()
    stream.close()
    connection.close()
"""
"""A service of a user that answers as NCCL's does."""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_only_the_owner_of_the_run_answers_for_it(address: str) -> None:
    """A neighbour who listens there is refused, as the kernel says whose process it is; root may answer for anybody."""
    for uid, owner, said in ((41001, 41001, ""), (41002, 41001, "is of uid 41002"), (41002, None, "is of uid 41002"),
                             (0, 41001, ""), (41001, 0, "is of uid 41001")):  # fmt: skip
        command = [sys.executable, "-c", FAKE, str(uid), address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                port = int(process.stdout.readline())
                if said:
                    with pytest.raises(RasError, match=said):
                        asyncio.run(ask(address, port, owner))
                else:
                    assert asyncio.run(ask(address, port, owner)).text == b'{"job": "rank 3 is at fault"}'
            finally:
                process.kill()


def test_what_the_kernel_does_not_show_is_refused(tmp_path: Path) -> None:
    """A connection that is not in the table, not accepted yet, or ended, says nothing about whose it is."""
    here, there = ("127.0.0.1", 0x1F90), ("127.0.0.1", 0x6D7C)
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = (
        "   0: 0100007F:6D7C 0100007F:1F90 {state} 00000000:00000000 00:00000000 00000000  1002        0 {inode} 1 x\n"
    )
    other = "   1: 0100007F:1F90 0100007F:6D7C 01 00000000:00000000 00:00000000 00000000  1001        0 77 1 x\n"
    for text, uid in (
        (head + other + row.format(state="01", inode=78), 1002), (head + row.format(state="01", inode=0), None),
        (head + row.format(state="06", inode=78), None), (head + other, None), ("", None),
    ):  # fmt: skip
        (tmp_path / "tcp").write_text(text)
        assert peer_uid(here, there, tmp_path) == uid
    assert peer_uid(here, there, tmp_path / "none") is None
    mapped = row.replace("0100007F", "0000000000000000FFFF00000100007F").format(state="01", inode=78)
    (tmp_path / "tcp").write_text(head)
    (tmp_path / "tcp6").write_text(head + mapped)
    assert peer_uid(here, there, tmp_path) == 1002
    assert peer_uid(("::ffff:127.0.0.1", 0x1F90, 0, 0), ("::ffff:127.0.0.1", 0x6D7C, 0, 0), tmp_path) == 1002
