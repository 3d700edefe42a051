"""Programs that use PyTorch, each forked from one process that has imported it, which takes seconds of a core."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

DEADLINE = 100.0
SERVER = """
import json, os, sys
import torch, torch._dynamo, torch.distributed
for line in sys.stdin:
    asked = json.loads(line)
    if "ended" in asked:
        print(os.waitstatus_to_exitcode(os.waitpid(asked["ended"], 0)[1]), flush=True)
    elif child := os.fork():
        print(child, flush=True)
    else:
        break
else:
    sys.exit()
os.setsid()
said = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), said, said)):
    os.dup2(file, number)
os.environ.clear()
os.environ.update(asked["environment"])
sys.argv[1:] = asked["arguments"]
exec(compile(asked["code"], "program", "exec"))
"""


class TorchProgram:
    """A program that runs, leader of its own process group; its output goes to a file."""

    def __init__(self, server: subprocess.Popen[str], asked: Mapping[str, Any]) -> None:
        self._server = server
        self._output = Path(asked["output"])
        self._status: int | None = None
        self._pid = self._ask(asked)

    def _ask(self, asked: Mapping[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        ready, _, _ = select.select([self._server.stdout], [], [], DEADLINE)
        if not ready:
            self._kill()
        return int(self._server.stdout.readline())

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def end(self) -> str:
        """Wait for its end, which must be a good one, and return what it said."""
        if self._status is None:
            self._status = self._ask({"ended": self._pid})
        said = self._output.read_text()
        assert self._status == 0, said
        return said

    def stop(self) -> None:
        """Kill what is left of it."""
        if self._status is None:
            self._kill()
            self._status = self._ask({"ended": self._pid})


Start = Callable[..., TorchProgram]


@pytest.fixture(scope="package")
def start_torch_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a program of these lines, with arguments, in an environment with these variables."""
    folder = tmp_path_factory.mktemp("programs")
    number = count()

    def start(code: str, *arguments: object, **environment: str) -> TorchProgram:
        asked = {
            "code": textwrap.dedent(code),
            "arguments": list(map(str, arguments)),
            "environment": {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
            "output": str(folder / f"{next(number)}.log"),
        }
        return TorchProgram(server, asked)

    command = [sys.executable, "-W", "ignore", "-c", SERVER]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=one_thread, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield start
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture
def torch_program(start_torch_program: Start) -> Iterator[Start]:
    """Start programs that do not outlive the test."""
    started: list[TorchProgram] = []

    def start(code: str, *arguments: object, **environment: str) -> TorchProgram:
        started.append(start_torch_program(code, *arguments, **environment))
        return started[-1]

    yield start
    for program in started:
        program.stop()
