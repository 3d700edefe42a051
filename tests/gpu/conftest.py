"""A node's GPUs, made up: the C library of tests/nvml behind the real pynvml, read in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

STEPPER = Path(__file__).with_name("stepper.py")


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_nvml_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def nvml_build() -> ModuleType:
    """The module tests/nvml/build.py."""
    return _load(Path(__file__).parents[1] / "nvml" / "build.py")


@pytest.fixture(scope="session")
def library(nvml_build: ModuleType, pytestconfig: pytest.Config) -> Path:
    """The folder of the built library; kept between runs."""
    folder: Path = nvml_build.build(pytestconfig.cache.mkdir("fake_nvml"))
    return folder


@pytest.fixture
def fake(nvml_build: ModuleType, library: Path, tmp_path: Path) -> Any:
    """Eight H100s whose values stand still."""
    return nvml_build.FakeNvml(library, tmp_path / "nvml-state")


class Node:
    """One collection as a test wants to read it."""

    def __init__(self, line: Mapping[str, Any]) -> None:
        self.line = line
        self.ok: bool = line["ok"]
        self.reason: str = line["reason"]
        self.failures: dict[str, str] = line["failures"]
        self.samples = {(name.removeprefix("tachograph_gpu_"), *labels): v for name, labels, v in line["samples"]}
        assert len(self.samples) == len(line["samples"]), "a sample is given twice"

    def gpu(self, index: int) -> dict[tuple[str, ...], float]:
        """All samples of a GPU: (name, labels after gpu and uuid) -> value."""
        return {(name, *own): v for (name, gpu, _, *own), v in self.samples.items() if gpu == str(index)}


class Stepper:
    """A NodeCollector in a process of its own, whose clock a test sets."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(STEPPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def mismatch(self, now: float) -> str:
        """Collect at a time; return the reason why only a new process can go on."""
        return str(self._ask(now)["mismatch"])

    def at(self, now: float) -> Node:
        """Collect at a time, in seconds."""
        return Node(self._ask(now))

    def _ask(self, now: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{now}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def stepper() -> Iterator[Callable[[Mapping[str, str]], Stepper]]:
    """Start collectors: `stepper(environment)`; ended after the test."""
    started: list[Stepper] = []

    def start(environment: Mapping[str, str]) -> Stepper:
        started.append(Stepper(environment))
        return started[-1]

    yield start
    for one in started:
        one.close()


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # an orphan that nobody reaps has ended all the same


def _gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="session")
def gone() -> Callable[[int, float], bool]:
    """Wait until a process has ended; False if it has not in that many seconds."""
    return _gone
