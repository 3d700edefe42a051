"""The program that is watched: a child that gets every signal meant for it, and whose end becomes ours."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tachograph.processes.die_with_parent import dying_with_parent
from tachograph.processes.own_process import own_process

PASSED_ON = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that the program gets, too. The terminal's own (Ctrl-C) reach it without us."""


def run_watched(
    arguments: Sequence[str], environment: Mapping[str, str], tick: Callable[[], None], tick_seconds: float
) -> int:
    """Run `tachograph run ARGUMENTS` with more environment; return its status, negative for a signal's number.

    `tick` is called every so many seconds meanwhile.
    """
    command = own_process("tachograph.__main__", "run", *arguments, flags=_interpreter_flags())
    with subprocess.Popen(dying_with_parent(command), env=os.environ | environment) as program:
        with _held_back(PASSED_ON | {signal.SIGCHLD}) as signals:
            while program.poll() is None:
                arrived = signal.sigtimedwait(signals, tick_seconds)
                if arrived is None:
                    tick()
                elif arrived.si_signo != signal.SIGCHLD and arrived.si_code <= 0:  # sent by a process, see sigaction(2)
                    program.send_signal(arrived.si_signo)
        return program.returncode


def end_as(status: int) -> int:
    """Return an exit status; for a program that a signal ended, end by the same one."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left a core already
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), -status)
    return status


@contextmanager
def _held_back(signals: frozenset[signal.Signals]) -> Iterator[frozenset[signal.Signals]]:
    """Keep signals waiting to be asked for; those that nobody asked for are dropped."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield signals
    finally:
        while signal.sigtimedwait(signals, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interpreter_flags() -> list[str]:
    """Return the flags that this interpreter was started with, such as `-W ignore`."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags
