"""The fake NVML library, and processes that ask it through the real pynvml while a test steers it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tachograph_lab.fake_nvml import library as library_module
from tests import waiting

ASKED = Path(__file__).with_name("asked.py")


@pytest.fixture
def build() -> ModuleType:
    """The module that builds and steers the library."""
    return library_module


class Failed(Exception):  # noqa: N818 - it is an answer
    """The code of a failed call."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Asked:
    """A process that has called nvmlInit and answers Python expressions on `gpu(index)` and pynvml's functions."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ASKED)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self("nvmlDeviceGetCount()"), "not initialised"

    def __call__(self, expression: str) -> Any:
        """Return the value of an expression; raise Failed with NVML's code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(expression) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["value"]

    def later(self, name: str) -> Any:
        """Return the value of an expression that was started in a thread, once it is there."""
        waiting.until(lambda: name in self("later"))
        return self("later")[name]

    def code(self, expression: str) -> int:
        """Return NVML's code of a call: 0 if it succeeds."""
        try:
            self(expression)
        except Failed as failed:
            return failed.code
        return 0

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def asked(fake: Any) -> Iterator[Callable[..., Asked]]:
    """Start processes: `asked()` sees the test's node, `asked(environment)` another; all end with the test."""
    started: list[Asked] = []

    def start(environment: Mapping[str, str] | None = None) -> Asked:
        started.append(Asked(environment or fake.environment()))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def ask(asked: Callable[..., Asked]) -> Asked:
    """A process that sees the test's node."""
    return asked()
