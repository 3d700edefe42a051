"""Child processes of the lab: started with a log file, awaited by condition, stopped by pid in reverse order."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tachograph.processes.die_with_parent import dying_with_parent
from tachograph.servers.http_client import HttpError, ask

GRACE_SECONDS = 5.0
PORTS = range(20_000, 32_000)
"""What `free_port` chooses from: below 32,768, where Linux begins to number the ports of outgoing connections."""
RECORD = "processes.json"
"""The file that lists what is running, so that another command can stop it."""


class ProcessError(Exception):
    """A process ended, was not ready in time, or does not answer; the text says which, with the end of its log."""


@dataclass
class Child:
    """One running process and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self.status is None

    @property
    def status(self) -> int | None:
        """The exit status, None while the process is running."""
        return self.process.poll()

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used so far; 0 once it has exited."""
        fields = _stat(self.pid)  # utime and stime, proc(5)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Terminate the process, and kill it if it has not exited after `grace` seconds."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def tail(self, lines: int = 5) -> str:
        """Return the end of the log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return once `ready()` is true; raise ProcessError if the process ends or `seconds` pass before."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise ProcessError(f"{self.name} ended with status {self.status}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} was not ready after {seconds:.0f} s:\n{self.tail()}")
            time.sleep(0.05)


@dataclass
class Children:
    """Processes that are stopped together: on leaving the `with`, or with this process; not if `keep` is set."""

    folder: Path
    keep: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    running: list[Child] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Child:
        """Start a process in a session of its own, so that Ctrl-C reaches only the process that started it."""
        words = [str(word) for word in command]
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                words if self.keep else dying_with_parent(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self.environment, **(environment or {})},
            )
        child = Child(name, process, log)
        self.running.append(child)
        self._write_record()
        return child

    def end(self, name: str) -> None:
        """Stop the processes of this name."""
        for child in [each for each in self.running if each.name == name]:
            self.running.remove(child)
            child.stop()
        self._write_record()

    def stop(self) -> None:
        """Stop every process, the last one first."""
        while self.running:
            self.running.pop().stop()
        (self.folder / RECORD).unlink(missing_ok=True)

    def _write_record(self) -> None:
        record = [[child.name, child.pid, _birth(child.pid)] for child in self.running]
        fresh = self.folder / f"{RECORD}.new"
        fresh.write_text(json.dumps(record), encoding="utf-8")
        fresh.replace(self.folder / RECORD)

    def __enter__(self) -> Children:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or not self.keep:
            self.stop()


def stop_recorded(folder: Path) -> list[str]:
    """Stop, last first, what another process started in `folder` and left running; return the names."""
    path = folder / RECORD
    if not path.exists():
        return []
    ended: list[str] = []
    for name, pid, birth in reversed(json.loads(path.read_text(encoding="utf-8"))):
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 1.0)):
            if birth is None or _birth(pid) != birth:  # exited, and the pid may belong to another process by now
                break
            os.kill(pid, number)
            ended = [*dict.fromkeys([*ended, name])]
            deadline = time.monotonic() + seconds
            while _birth(pid) == birth and time.monotonic() < deadline:
                time.sleep(0.05)
    path.unlink()
    return ended


def _birth(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot, or None if there is none or it is a zombie."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] != "Z" else None  # state, starttime


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third of proc(5) on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


def free_port() -> int:
    """Return a free TCP port of the loopback address that nothing else on this machine takes before its user does.

    It is below the ports that Linux gives to outgoing connections, and no other call in a live process returns it.
    Raises OSError when there is none.
    """
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        reserved = socket.socket(socket.AF_UNIX)
        try:
            reserved.bind(f"\0tachograph-lab-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
            continue
        reserved.detach()  # stays open; the kernel closes it with this process
        return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop - 1}")


def answers(url: str) -> bool:
    """Return whether a GET of `url` returns status 200 now."""
    try:
        return ask(url, 2).status == 200
    except HttpError:
        return False
