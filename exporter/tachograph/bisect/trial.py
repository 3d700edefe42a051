"""One run of the command, with its value filled in: a session of its own, its output in a file, a limit on its time."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tachograph.bisect import warden
from tachograph.bisect.tally import Trial
from tachograph.bisect.warden import CommandEnd, Warden
from tachograph.processes.process_tree import POLL_SECONDS, Descendants

CANNOT = {
    125: "it left with 125, which says that this value cannot be tested",
    126: "it left with 126: a program that may not be executed",
    127: "it left with 127: a program that was not found",
}
"""Exit statuses that say nothing of the value."""


class CannotRunError(Exception):
    """The command could not be run; the text says why."""


def fill(command: Sequence[str], words: Mapping[str, str]) -> list[str]:
    """Return the command with each `{name}` of `words` replaced, and nothing else."""
    return [re.sub(r"\{(\w*)\}", lambda found: words.get(found[1], found[0]), argument) for argument in command]


def run(value: str, command: Sequence[str], log: Path, limit: float | None, grace: float) -> Trial:
    """Run a command to its end; raise CannotRunError. It and all that it started has ended when this returns or raises.

    `limit`: seconds after which it has failed; `grace`: seconds that it has to end after SIGTERM.
    """
    descendants = Descendants()
    began = time.monotonic()
    try:
        with log.open("wb") as output:
            started = warden.start(command, grace, output, value)
    except OSError as error:
        raise CannotRunError(f"cannot run {command[0]!r:.100}: {error.strerror or error}") from error
    descendants.awaited = started.process.pid
    in_time = False
    try:
        in_time = _ended_by(started.process, None if limit is None else began + limit)
    finally:
        if not in_time:
            _end(started)
        outcome = started.outcome() or CommandEnd(None, "what watches over it was killed", descendants.end(grace))
    seconds = time.monotonic() - began
    if outcome.error:
        raise CannotRunError(f"cannot run {command[0]!r:.100}: {outcome.error}")
    if outcome.left < 0:
        raise CannotRunError(f"processes of {value} do not end, even by SIGKILL: the next run would meet them")
    status = outcome.status if in_time else None
    if status in CANNOT:
        raise CannotRunError(f"{CANNOT[status]}; see {log}")
    return Trial(value, status == 0, status, round(seconds, 3), str(log))


def _ended_by(process: subprocess.Popen[bytes], deadline: float | None) -> bool:
    """Wait for a process; return whether it ended before the deadline."""
    while process.poll() is None:
        if deadline is not None and time.monotonic() >= deadline:
            return False
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0 if deadline is None else max(POLL_SECONDS, min(1.0, deadline - time.monotonic())))
    return True


def _end(started: Warden) -> None:
    """Have a command ended with all it started; a Ctrl-C in the meantime is for what takes too long."""
    while started.process.returncode is None:
        started.ask_to_end()
        with suppress(KeyboardInterrupt, SystemExit):
            started.process.wait()
