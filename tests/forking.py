"""Programs that fork: each has imported what its children need, for which every one would take tenths of a second."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from tests import waiting

ROOT = Path(__file__).parents[1]
AT_START = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables that count as a process starts, and not for a child that is forked."""


def asked() -> tuple[list[str], TextIO]:
    """Return, in each child, its arguments and the file that it speaks with; the parent stays in here until its end."""
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=sys.stdin.fileno()) as requests:
        while True:
            text, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 2)
            if not text:
                os._exit(0)
            given: dict[str, Any] = json.loads(text)
            if "ended" in given:
                pid, status = os.waitpid(given["ended"], os.WNOHANG)
                requests.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
            elif os.fork():
                for descriptor in descriptors:
                    os.close(descriptor)
            else:
                break
    os.environ.clear()
    os.environ.update(given["environment"])
    resource.setrlimit(resource.RLIMIT_NOFILE, given["files"])
    mine, errors = descriptors
    os.dup2(errors, 2)
    os.close(errors)
    with socket.socket(fileno=mine) as connection:
        file = connection.makefile("rw", encoding="utf-8")
    print(os.getpid(), file=file, flush=True)
    return given["arguments"], file


class Forked:
    """A child, and the file to speak with it; otherwise what `subprocess.Popen` is."""

    def __init__(self, requests: socket.socket, pid: int, file: TextIO) -> None:
        self._requests, self.pid, self.file = requests, pid, file
        self.returncode: int | None = None

    def ask(self, line: str) -> str:
        """Return its answer to a line."""
        print(line, file=self.file, flush=True)
        return self.file.readline()

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        if self.returncode is None:
            self._requests.send(json.dumps({"ended": self.pid}).encode())
            self.returncode = json.loads(self._requests.recv(1 << 10))
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        """Return its exit status once it has ended, in time."""
        began = time.monotonic()
        while (status := self.poll()) is None:
            assert time.monotonic() < began + timeout, f"process {self.pid} has not ended within {timeout:g} s"
            waiting.pause(began, least=0.002)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it, and close the file."""
        self.kill()
        self.wait()
        with suppress(BrokenPipeError):
            self.file.close()


class Forking:
    """Programs that fork, one for each value of the variables `AT_START`; each runs until `close`."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], socket.socket]] = {}

    def start(
        self, module: str, *arguments: object, environment: Mapping[str, str] | None = None, errors: int = 2
    ) -> Forked:
        """Start a child of a module, with these variables beside this process' own, and this standard error."""
        full = {**os.environ, **(environment or {})}
        key = (module, *(full.get(name, "") for name in AT_START))
        if key not in self._running:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                program = [sys.executable, "-m", module]
                self._running[key] = subprocess.Popen(program, stdin=theirs, env=full, cwd=ROOT), mine
        requests = self._running[key][1]
        mine, theirs = socket.socketpair()
        with mine, theirs:
            request = {
                "environment": full,
                "arguments": list(map(str, arguments)),
                "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            }
            socket.send_fds(requests, [json.dumps(request).encode()], [theirs.fileno(), errors])
            theirs.close()
            file = mine.makefile("rw", encoding="utf-8")
        return Forked(requests, int(file.readline()), file)

    def close(self) -> None:
        """End all programs."""
        for process, requests in self._running.values():
            requests.close()
            process.wait()
