"""Programs that use PyTorch, each forked from one process that has imported it, which takes seconds of a core."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

DEADLINE = 200.0
SERVER = """
import gc, json, os, sys
import torch, torch._dynamo, torch.distributed
gc.collect()
gc.freeze()  # else each program looks at all of this once more as it ends: a second of a core
for line in sys.stdin:
    asked = json.loads(line)
    if "pid" in asked:
        ended, status = os.waitpid(asked["pid"], 0 if asked["wait"] else os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if ended else None), flush=True)
    elif child := os.fork():
        print(child, flush=True)
    else:
        break
else:
    sys.exit()
os.setsid()
os.chdir(asked["folder"])
flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(os.open(asked["out"], flags), 1)
os.dup2(os.open(asked["errors"], flags), 2)
os.environ.clear()
os.environ.update(asked["environment"])
__file__ = asked["name"]
sys.argv[:] = [__file__, *asked["arguments"]]
sys.path[0] = os.path.dirname(__file__)
exec(compile(asked["code"], __file__, "exec"))
"""


def torch_has(name: str, module: str) -> bool:
    """Return whether this PyTorch's source of a module has a name, which an older one may not; nothing is imported."""
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    place = Path(torch.origin).parent.joinpath(*module.split(".")[1:])
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return source.is_file() and re.search(rf"\b{name}\b", source.read_text(encoding="utf-8")) is not None


def skip_without_fsdp2() -> None:
    """Skip a test that needs FSDP2 where PyTorch has it in private only, and on a GPU only."""
    if not torch_has("fully_shard", "torch.distributed.fsdp"):
        pytest.skip("this PyTorch has no torch.distributed.fsdp.fully_shard")


def parallelism_is_public() -> bool:
    """Return whether DTensors are public; before, 1F1B schedules hang on gloo and a LayerNorm of DTensors raises."""
    return torch_has("Shard", "torch.distributed.tensor")


class TorchProgram:
    """A program that runs, leader of its own process group."""

    def __init__(self, server: subprocess.Popen[str], asked: Mapping[str, Any]) -> None:
        self._server = server
        self._out = Path(asked["out"])
        self._status: int | None = None
        pid = self._ask(asked)
        assert pid is not None
        self.pid = pid

    def _ask(self, asked: Mapping[str, Any]) -> int | None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        ready, _, _ = select.select([self._server.stdout], [], [], DEADLINE)
        if not ready:
            assert "pid" in asked, "PyTorch was not imported in time"
            self.kill()
        answer: int | None = json.loads(self._server.stdout.readline())
        return answer

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        if self._status is None:
            self._status = self._ask({"pid": self.pid, "wait": False})
        return self._status

    def wait(self) -> int:
        """Return its exit status once it has ended; a program that takes too long is killed."""
        if self._status is None:
            self._status = self._ask({"pid": self.pid, "wait": True})
        assert self._status is not None
        return self._status

    def end(self) -> str:
        """Wait for its end, which must be a good one, and return what it said."""
        status, said = self.wait(), self._out.read_text()
        assert status == 0, said
        return said

    def kill(self) -> None:
        """Kill what is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill it, unless it has ended."""
        if self._status is None:
            self.kill()
            self.wait()


class TorchPrograms:
    """The process that has imported PyTorch, as a context manager; it does nothing until it is asked to fork."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = count()

    def __enter__(self) -> TorchPrograms:
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER], env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *exception: object) -> None:
        with self._server:
            assert self._server.stdin is not None
            self._server.stdin.close()

    def __call__(self, code: str, *arguments: object, **environment: str) -> TorchProgram:
        """Start a program of these lines, with arguments, in an environment with these variables."""
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
        said = self._folder / f"{next(self._number)}.log"
        place: dict[str, Any] = {"environment": variables, "folder": self._folder, "out": said, "errors": said}
        return self.start(textwrap.dedent(code), "program", arguments, **place)

    def python(self, words: Sequence[object], **place: Any) -> TorchProgram:
        """Start what `python words…` would run, a script or a module after `-m`; `place` is that of `start`."""
        first, *arguments = map(str, words)
        if first != "-m":
            return self.start(Path(first).read_text(encoding="utf-8"), first, arguments, **place)
        code = f"import runpy\nrunpy.run_module({arguments[0]!r}, run_name='__main__', alter_sys=True)"
        return self.start(code, first, arguments[1:], **place)

    def start(
        self, code: str, name: str, arguments: Sequence[object], *,
        environment: Mapping[str, str], folder: Path, out: Path, errors: Path,
    ) -> TorchProgram:  # fmt: skip
        """Start a program of these lines, which are those of file `name`; what it says goes to two files, or one."""
        asked = {
            "code": code, "name": name, "arguments": list(map(str, arguments)), "environment": dict(environment),
            "folder": str(folder), "out": str(out), "errors": str(errors),
        }  # fmt: skip
        return TorchProgram(self._server, asked)
