"""An exporter that systemd starts: what it reports, to a real socket in the manager's place."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

QUICK_EXPORTER = Path(__file__).parents[1] / "quick_exporter.py"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(90)
        yield receiver


def start(tmp_path: Path, **environment: str) -> subprocess.Popen[bytes]:
    flags = ["--no-gpu", "--web.listen-address", "127.0.0.1:0", "--socket", str(tmp_path / "rank.sock")]
    return subprocess.Popen(
        [sys.executable, QUICK_EXPORTER, *flags], env=os.environ | environment, stderr=subprocess.DEVNULL
    )


def stop(exporter: subprocess.Popen[bytes]) -> int:
    exporter.send_signal(signal.SIGTERM)
    return exporter.wait(90)


def test_it_is_ready_once_ranks_can_connect_and_lives_and_stops(tmp_path: Path, manager: socket.socket) -> None:
    exporter = start(tmp_path, NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC="30000000")
    try:
        assert manager.recv(99) == b"READY=1"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
            rank.connect(str(tmp_path / "rank.sock"))
        assert {manager.recv(99) for _ in range(3)} == {b"WATCHDOG=1"}
    finally:
        assert stop(exporter) == 0
    last = b""
    while last != b"STOPPING=1":
        last = manager.recv(99)


def test_without_a_watchdog_it_says_nothing_between(tmp_path: Path, manager: socket.socket) -> None:
    exporter = start(tmp_path, NOTIFY_SOCKET=manager.getsockname())
    assert manager.recv(99) == b"READY=1"
    assert stop(exporter) == 0
    assert manager.recv(99) == b"STOPPING=1"


def test_a_manager_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    exporter = start(tmp_path, NOTIFY_SOCKET=str(tmp_path / "nobody"), WATCHDOG_USEC="30000000")
    deadline = time.monotonic() + 90
    while not (tmp_path / "rank.sock").exists():
        assert exporter.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert stop(exporter) == 0
