"""The training as the supervisor's child: started, signalled, ended with all that it started, and awaited.

What an srun has started on other nodes is no process of ours: Slurm is asked to end it, and whether it is gone.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from tachograph.processes.own_process import own_process
from tachograph.processes.process_tree import Descendants
from tachograph.supervise.slurm import end_steps
from tachograph.supervise.warden import ALONE_GRACE_SECONDS

GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL for a training that is ended: time for its own handler, as Slurm's KillWait gives 30 s."""

END = b"e"


class AttemptEnd(NamedTuple):
    """How the command ended: its exit status, negative for a signal, None where it could not be run, and why not.

    `left` is the number of processes that had to be ended after it, -1 if some cannot be ended; `note` says what of its
    end is still under way.
    """

    status: int | None
    error: str = ""
    left: int = 0
    note: str = ""


class RunningAttempt(Protocol):
    """An attempt of the training."""

    pid: int
    status: int | None
    job: str
    """The job that its ranks say they are in, of Slurm or in pods; empty where they are processes of the command."""
    outlives: bool
    """Whether it goes on when its supervisor ends, so that the next one takes it over."""

    def fileno(self) -> int:
        """Return what becomes readable when it ends."""

    def send_signal(self, number: int) -> None:
        """Pass a signal on."""

    def has_ended(self) -> bool:
        """Return whether the command has ended."""

    def end(self) -> AttemptEnd:
        """End it with all that it started."""

    def wait(self) -> AttemptEnd:
        """Return how it ended, once nothing of it is left."""


class AttemptProcesses:
    """The processes of one attempt, below a warden of their own (`warden.py`)."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], lock: int, job: str = "") -> None:
        """Start it, with these variables beside the supervisor's own; `lock` stays locked while any of it is left.

        `job` is the Slurm job that the command, an srun, starts tasks in. Raise OSError.
        """
        self.job = job
        self.outlives = False
        self._descendants = Descendants()
        commanded, self._control = os.pipe()
        self._report, reported = os.pipe()
        given = {
            "control": commanded, "report": reported, "lock": lock, "grace": GRACE_SECONDS, "job": job,
        }  # fmt: skip
        try:
            self._warden = subprocess.Popen(
                own_process("tachograph.supervise.warden", json.dumps(given), *command), start_new_session=True,
                pass_fds=[commanded, reported, lock], env={**os.environ, **environment},
            )  # fmt: skip
        except OSError:
            self._close()
            raise
        finally:
            os.close(commanded)
            os.close(reported)
        self._descendants.awaited = self._warden.pid
        self._unread = b""
        self.pid = 0
        """The process id of the command, 0 until it is known."""
        self.status: int | None = None
        """The command's exit status, negative for a signal; None until it has ended."""
        self._error = ""
        self._left: int | None = None
        self._is_closed = False

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is news, for `select`."""
        return self._report

    def send_signal(self, number: int) -> None:
        """Pass a signal on to the command, unless it has ended."""
        with suppress(OSError):
            os.write(self._control, bytes([number]))

    def has_ended(self) -> bool:
        """Return whether the command has ended, though some of what it started may still be there."""
        while self._left is None and select.select([self._report], [], [], 0)[0]:
            self._read()
        return self.status is not None or self._error != "" or self._left is not None

    def end(self) -> AttemptEnd:
        """End it with all that it started, if that has not happened yet; return how it ended."""
        with suppress(OSError):
            os.write(self._control, END)
        return self.wait()

    def wait(self) -> AttemptEnd:
        """Return how it ended, once nothing of it is left."""
        while self._left is None:
            self._read()
        if not self._is_closed:
            self._warden.wait()
            self._close()
        return AttemptEnd(self.status, self._error, self._left)

    def _read(self) -> None:
        """Take in what the warden says; where it is gone without a last line, end what it has left behind."""
        more = os.read(self._report, 65536)
        if not more:
            self._left = 0 if self._error else self._descendants.end(ALONE_GRACE_SECONDS)
            if self.job and self.pid and not end_steps(self.job, self.pid, ALONE_GRACE_SECONDS):
                self._left = -1
            return
        *lines, self._unread = (self._unread + more).split(b"\n")
        for line in lines:
            said = json.loads(line)
            self.pid = said.get("pid", self.pid)
            self.status = said.get("status", self.status)
            self._error = said.get("error", self._error)
            self._left = said.get("left", self._left)

    def _close(self) -> None:
        self._is_closed = True
        os.close(self._control)
        os.close(self._report)
