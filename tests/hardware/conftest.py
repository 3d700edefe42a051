"""The real driver of this machine; without one everything here is skipped, and says so."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest


@pytest.fixture(scope="session", autouse=True)
def gpu_name() -> str:
    """The product name of GPU 0."""
    try:
        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount() < 1:
            pytest.skip("no GPU")
        return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))
    except pynvml.NVMLError:
        pytest.skip("no GPU")


@pytest.fixture(scope="session")
def cuda() -> None:
    """A PyTorch that can compute on the GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip('this PyTorch has no CUDA: make test-gpu TORCH="torch==2.13.0 --index-url URL"')


class Page:
    """One scrape: `value("tachograph_gpu_up", gpu="0")`."""

    def __init__(self, text: str, at: float) -> None:
        self.at = at
        self.text = text
        self._samples = [
            (match[1], dict(re.findall(r'(\w+)="([^"]*)"', match[2] or "")), float(match[3]))
            for match in re.finditer(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.M)
        ]

    def all(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Every sample of a family whose labels include these."""
        return [(own, v) for family, own, v in self._samples if family == name and labels.items() <= own.items()]

    def value(self, name: str, **labels: str) -> float | None:
        """The only such sample, None if there is none."""
        found = self.all(name, **labels)
        assert len(found) < 2, found
        return found[0][1] if found else None


class Exporter:
    """A real exporter with the real driver."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.environment = {**os.environ, "TACHOGRAPH_SOCKET": str(folder / "rank.sock")}
        self._url = f"http://127.0.0.1:{port}/metrics"
        command = [
            sys.executable,
            "-m",
            "tachograph",
            "exporter",
            f"--web.listen-address=127.0.0.1:{port}",
            "--gpu.series=all",
            "--rank.series=all",
        ]
        self._process = subprocess.Popen(command, env=self.environment)
        self.wait("tachograph_gpu_up", gpu="0")

    def page(self) -> Page:
        """Scrape."""
        with urllib.request.urlopen(self._url, timeout=5) as answer:
            return Page(answer.read().decode(), time.time())

    def wait(self, name: str, seconds: float = 30, **labels: str) -> Page:
        """Scrape until a sample is there."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                page = self.page()
                if page.all(name, **labels):
                    return page
            except OSError:
                pass
            assert time.monotonic() < deadline, f"no {name} within {seconds:.0f} s"
            time.sleep(0.2)

    def close(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(10)


@pytest.fixture
def start_exporter(tmp_path: Path) -> Callable[[], Exporter]:
    """Start an exporter; whoever does ends it."""
    return lambda: Exporter(tmp_path)


@pytest.fixture
def exporter(start_exporter: Callable[[], Exporter]) -> Iterator[Exporter]:
    """An exporter of its own for each test."""
    one = start_exporter()
    yield one
    one.close()
