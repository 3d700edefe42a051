"""Work with a time limit: in a thread where it needs what the process has, else in a process of its own."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from tachograph.processes.own_process import own_process

T = TypeVar("T")

KILL_SECONDS = 1.0
"""How long a killed process is waited for; one that hangs in the kernel may never end."""


class Late(Exception):  # noqa: N818 - a state of the work, not a fault of the caller
    """The work did not end in time; what does it is left alone."""


def in_thread(work: Callable[[], T], seconds: float) -> T:
    """Return what `work` returns, raise what it raises, or raise Late and leave its thread behind."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True, name="preflight")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Late
    if failure:
        raise failure[0]
    return outcome[0]


def in_process(module: str, asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the JSON object that a module of this package prints, which is given one on standard input.

    A process can be left behind where a thread cannot: one that the kernel does not wake (a lost NFS server, a GPU
    driver that hangs) would hold up the end of this one. Raise Late, or RuntimeError with the last line of its errors.
    """
    process = subprocess.Popen(
        own_process(f"tachograph.preflight.{module}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(json.dumps(asked), timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_SECONDS)
        raise Late from None
    if process.returncode:
        raise RuntimeError((errors.strip().splitlines() or [f"{module} ended with status {process.returncode}"])[-1])
    answer: dict[str, Any] = json.loads(out)
    return answer
