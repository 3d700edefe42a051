"""Runs the training between the supervisor and all that it starts: that ends with the command, or with the supervisor.

A supervisor that is killed with SIGKILL can clean up nothing. This process sees that its pipe is closed then, and ends
what descends from it; it holds the lock of the journal meanwhile, so that no other supervisor starts the same run too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import IO

from tachograph.processes.die_with_parent import die_with_parent
from tachograph.processes.process_tree import Descendants, adopt_orphans
from tachograph.supervise.slurm import end_steps

LEFT_ALONE = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""A scheduler may send these to every process of a job: what they are to end is the command, which gets them, too."""

REAP_SECONDS = 60.0
"""How often processes that were left behind and have ended are waited for, which a run of weeks gathers."""

ALONE_GRACE_SECONDS = 2.0
"""From SIGTERM to SIGKILL where the supervisor or this process is gone: nobody waits for a result."""


def main() -> None:
    """Run a command; report its process id, how it ended, and how many of its processes had to be ended after it."""
    given = json.loads(sys.argv[1])
    control, report, grace = given["control"], given["report"], given["grace"]
    for inherited in (control, report, given["lock"]):
        os.set_inheritable(inherited, False)
    for number in LEFT_ALONE:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # and not SIG_IGN, which the command would inherit
    adopt_orphans()
    descendants = Descendants()
    with os.fdopen(report, "w", encoding="utf-8") as to:
        try:
            process = subprocess.Popen(
                sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - there is one thread
            )  # fmt: skip
        except OSError as error:
            _tell(to, {"error": error.strerror or str(error)})
            return
        descendants.awaited = process.pid
        _tell(to, {"pid": process.pid})
        is_alone = _wait(process, descendants, control)
        if (status := process.poll()) is not None:
            _tell(to, {"status": status})
        seconds, job = ALONE_GRACE_SECONDS if is_alone else grace, given["job"]
        left = _end(descendants, seconds, job, process.pid)
        while is_alone and left < 0:  # what waits in the kernel still has its GPU: until it goes the lock is held
            left = _end(descendants, 0.0, job, process.pid)
        if status is None and left >= 0:
            _tell(to, {"status": process.wait()})
        _tell(to, {"left": left})


def _end(descendants: Descendants, grace: float, job: str, srun: int) -> int:
    """End all, on other nodes too, where the command is an srun; return how many there were here, -1 if some remain."""
    is_gone = end_steps(job, srun, grace) if job else True
    ended = descendants.end(grace)
    return ended if is_gone or end_steps(job, srun, 0.0) else -1


def _wait(process: subprocess.Popen[bytes], descendants: Descendants, control: int) -> bool:
    """Pass signals on until the command has ended or is to be ended; return whether the supervisor is gone."""
    ended = os.pidfd_open(process.pid)
    try:
        while True:
            ready, _, _ = select.select([control, ended], [], [], REAP_SECONDS)
            if ended in ready:
                return False
            if control not in ready:
                descendants.alive()
                continue
            asked = os.read(control, 4096)
            if not asked or b"e" in asked:
                return not asked
            for number in asked:
                process.send_signal(number)
    finally:
        os.close(ended)


def _tell(to: IO[str], said: Mapping[str, object]) -> None:
    """Report something; nobody may be left to hear it."""
    try:
        to.write(json.dumps(said) + "\n")
        to.flush()
    except BrokenPipeError:
        pass
