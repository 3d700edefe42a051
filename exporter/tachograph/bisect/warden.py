"""Runs a command between a bisection and what it starts: all of that ends with the command, or with the bisection.

A bisection that is killed with SIGKILL can clean up nothing. This process has the kernel tell it of that, and adopts
what the command leaves behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, NamedTuple

from tachograph.processes.die_with_parent import die_with_parent
from tachograph.processes.own_process import own_process
from tachograph.processes.process_tree import Descendants, adopt_orphans

KILLED_GRACE_SECONDS = 0.5
"""Time that a command has to end after SIGTERM when the bisection was killed: nobody waits for its result."""


class CommandEnd(NamedTuple):
    """How a command ended: its exit status, negative for a signal; or why it could not be run."""

    status: int | None
    error: str
    left: int
    """Processes that had to be ended, -1 if some remain."""


def start(command: Sequence[str], grace: float, output: IO[bytes], value: str) -> Warden:
    """Start a command in a session of its own; raise OSError."""
    receiver, report = os.pipe()
    asked = json.dumps([os.getpid(), report, grace, list(command)])
    try:
        process = subprocess.Popen(
            own_process("tachograph.bisect.warden", asked), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, pass_fds=[report],
            env={**os.environ, "TACHOGRAPH_BISECT_VALUE": value},
        )  # fmt: skip
    except OSError:
        os.close(receiver)
        raise
    finally:
        os.close(report)
    return Warden(process, receiver)


class Warden:
    """The process that runs a command."""

    def __init__(self, process: subprocess.Popen[bytes], receiver: int) -> None:
        self.process = process
        self._receiver = receiver

    def ask_to_end(self) -> None:
        """Have it end the command with all it started; asked again, without more grace."""
        self.process.terminate()

    def outcome(self) -> CommandEnd | None:
        """Return what it reported before it ended; None if it was killed itself."""
        with os.fdopen(self._receiver, "rb") as report:
            said = report.read()
        return CommandEnd(*json.loads(said)) if said else None


def main() -> None:
    """Run a command, and report how it ended."""
    parent, report, grace, command = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.set_inheritable(report, False)
    die_with_parent(signal.SIGTERM, parent)
    adopt_orphans()
    descendants = Descendants()
    status, error = None, ""
    try:
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=die_with_parent)  # noqa: PLW1509 - there is one thread
        descendants.awaited = process.pid
        status = process.wait()
    except KeyboardInterrupt:
        pass  # asked to end it
    except OSError as fault:
        error = fault.strerror or str(fault)
    signal.signal(signal.SIGTERM, lambda *_: descendants.hurry())
    left = descendants.end(grace if os.getppid() == parent else min(grace, KILLED_GRACE_SECONDS))
    with os.fdopen(report, "wb") as to:
        to.write(json.dumps(CommandEnd(status, error, left)).encode())
