"""Forks the process that has imported what its children need, for which each would take a tenth of a second."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any, TextIO

AT_START = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables that count as a process starts, and not for a child that is forked."""


def asked() -> tuple[list[str], TextIO]:
    """Return, in each child, its arguments and the file that it speaks with; the parent stays in here until its end."""
    gc.freeze()
    with socket.socket(fileno=sys.stdin.fileno()) as requests:
        while True:
            text, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 1)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not text:
                os._exit(0)
            if not os.fork():
                break
            os.close(descriptors[0])
    given: dict[str, Any] = json.loads(text)
    os.environ.clear()
    os.environ.update(given["environment"])
    with socket.socket(fileno=descriptors[0]) as mine:
        file = mine.makefile("rw", encoding="utf-8")
    print(os.getpid(), file=file, flush=True)
    return given["arguments"], file


class Forked:
    """A child, and the file to speak with it."""

    def __init__(self, pid: int, file: TextIO) -> None:
        self.pid, self.file = pid, file

    def ask(self, line: str) -> str:
        """Return its answer to a line."""
        print(line, file=self.file, flush=True)
        return self.file.readline()

    def close(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, SIGKILL)
        with suppress(BrokenPipeError):
            self.file.close()


class Forking:
    """Programs that fork, one for each of these variables' values; each runs until `close`."""

    def __init__(self) -> None:
        self._running: dict[tuple[Path | str, ...], tuple[subprocess.Popen[bytes], socket.socket]] = {}

    def start(self, program: Path, environment: Mapping[str, str], *arguments: str) -> Forked:
        """Start a child of a program, with these variables beside this process' own."""
        full = {**os.environ, **environment}
        key = (program, *(full.get(name, "") for name in AT_START))
        if key not in self._running:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._running[key] = subprocess.Popen([sys.executable, str(program)], stdin=theirs, env=full), mine
        mine, theirs = socket.socketpair()
        with mine, theirs:
            request = json.dumps({"environment": full, "arguments": arguments}).encode()
            socket.send_fds(self._running[key][1], [request], [theirs.fileno()])
            theirs.close()
            file = mine.makefile("rw", encoding="utf-8")
        return Forked(int(file.readline()), file)

    def close(self) -> None:
        """End all programs."""
        for process, requests in self._running.values():
            requests.close()
            process.wait()
