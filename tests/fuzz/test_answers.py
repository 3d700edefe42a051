"""Answers to the client's sender: whatever they are, the rank still reports to the next exporter."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tachograph.client.recorder import Recorder
from tachograph.client.transport import sender

CORPUS = Path(__file__).parent / "corpus"
DEADLINE = 90.0
GOOD = b'{"ok":true,"last_step":null}\n'


class RudeExporter:
    """An exporter with given answers, one connection at a time, and a real recorder that must reconnect."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(os.fspath(path))
        self._server.listen(8)
        self._server.settimeout(0.05)
        self._recorder = self._new()

    def _new(self) -> Recorder:
        return Recorder(socket=self._path, run="fuzz", rank=0, world_size=1)

    def _accept(self) -> socket.socket:
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end and not self._recorder._calls.sender.over:
            with contextlib.suppress(TimeoutError):
                rank, _ = self._server.accept()
                rank.settimeout(DEADLINE)
                return rank
        self._recorder.close()
        self._recorder = self._new()  # so that the next example says something of itself
        raise AssertionError("the sender has ended")

    def meet(self, answers: list[bytes], politely: bool) -> None:
        """Answer the hello of the next connection, first correctly or not; then the rank must reconnect."""
        with self._accept() as rank:
            said = rank.recv(65536)
            with contextlib.suppress(OSError):  # it may hang up on us before we have said it all
                for answer in [GOOD] * politely + answers:
                    rank.sendall(answer)
                rank.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while rank.recv(65536):
                    pass
        assert said.startswith(b'{"v":1,"type":"hello"')

    def state(self) -> None:
        """Answer the next connection rightly and hear a state."""
        with self._accept() as rank:
            rank.sendall(GOOD)
            said = b""
            while b'"type":"state"' not in said:
                received = rank.recv(65536)
                assert received, "closed before a state"
                said += received

    def close(self) -> None:
        self._recorder.close()
        self._server.close()


@pytest.fixture
def rude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RudeExporter]:
    """A rude exporter; retries take no time, and what the client logs is left out."""
    monkeypatch.setattr(sender, "FIRST_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(sender, "LAST_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(logging.getLogger("tachograph"), "disabled", True)
    exporter = RudeExporter(tmp_path / "rank.sock")
    yield exporter
    exporter.close()


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([10**400, -(10**400), 2**63, 1e308, "\ud800", "\x1b[2J", "{}", "%s %d", "x" * 5000])
)  # fmt: skip
values = leaves | st.lists(leaves, max_size=3) | st.dictionaries(st.text(max_size=3), leaves, max_size=3)
answers = st.fixed_dictionaries(
    {"ok": st.sampled_from([True, False]) | values},
    optional={"last_step": values, "ended": values, "error": values, "more": values},
)


def _line(answer: Any) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _deep(opening: str, closing: str) -> st.SearchStrategy[bytes]:
    depths = st.sampled_from([10, 500, 990, 1100, 9000, 30_000])
    return depths.map(lambda depth: ('{"ok":false,"error":' + opening * depth + "1" + closing * depth + "}\n").encode())


lines = (
    answers.map(_line) | values.map(_line) | st.binary(max_size=60) | _deep("[", "]") | _deep('{"a":', "}")
    | st.sampled_from([
        b"\n", b"{}\n", b"[]\n", b"null\n", b'"ok"\n', b'{"ok":true', b"9" * 5000 + b"\n", b"x" * 70_000,
        b"x" * 70_000 + b"\n", b'{"ok":true,"last_step":' + b"9" * 5000 + b"}\n", b'{"ok":true,"ended":1e999}\n',
        b"\xff\xfe\n", b"\x00" * 100, b"[" * 60_000 + b"\n", b'{"ok":NaN}\n', b'{"ok":true,"ok":false}\n',
        b'{"ok":false}\n' * 1000, GOOD * 1000, GOOD[:-1],
    ])
)  # fmt: skip


@pytest.mark.parametrize("path", sorted(CORPUS.glob("answer-*.bin")), ids=lambda path: path.stem)
@pytest.mark.parametrize("politely", [False, True])
def test_an_answer_that_once_did_harm(path: Path, politely: bool, rude: RudeExporter) -> None:
    """Inputs that once failed, as the answer to a hello and after a good one."""
    rude.meet([path.read_bytes()], politely)
    rude.state()


def test_no_answer_ends_the_telemetry(fuzz: Callable[..., None], rude: RudeExporter) -> None:
    """Whatever the answer, the rank reconnects, sends hello, and finally its state."""

    def check(heard: tuple[list[bytes], bool]) -> None:
        rude.meet(*heard)
        rude.state()

    fuzz(check, st.tuples(st.lists(lines, max_size=4), st.booleans()), examples=30, share=0.2)
