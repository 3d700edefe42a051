"""Shutdown: a bye frame is sent at exit and on an unhandled exception.

A signal, `os._exit` and a crash leave no time, and signals are the program's own: the exporter sees the connection end
without a bye, and asks the kernel how the process ended (`tachograph.node.ranks.process_end`); if nothing says that it
was asked to end, the rank is dead. The same happens if a stopped exporter does not accept the bye within 0.2 s.

The exit code is that of the last `sys.exit` in the main thread; what passes its hook (`exit_hook.install`), such as a
`SystemExit` raised by hand, looks like a normal end, unless `tachograph run` or multiprocessing runs the program. The
exporter may see it from outside; it counts unless the program itself has said that it finished.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from tachograph.client.core.notice import notice, raised_by_signal
from tachograph.client.transport import box_signal, exit_hook
from tachograph.client.transport.box_trigger import FAILURE_SECONDS
from tachograph.client.transport.failure_reason import FINISHED, FINISHED_AT_EXIT, End, end_by
from tachograph.client.transport.sender import Sender, Who, fork_lock

LIMIT_SECONDS = 0.2
"""The longest that sending the bye delays the end of a process."""

_registered: dict[Sender, Callable[[], None]] = {}
_exit: tuple[End, dict[Sender, int]] | None = None
"""The last `sys.exit`, and the steps that each rank had completed by then."""
_previous_hook: Callable[..., Any] = sys.__excepthook__
_previous_thread_hook: Callable[..., Any] = threading.__excepthook__
_hooked = False
_hooked_process = -1


def register(sender: Sender, forked: Callable[[], None]) -> None:
    """Have `sender` send a bye when the process ends; `forked` is called in every child made by fork."""
    _registered[sender] = forked
    sender.asked_by_signal = _ask_for_boxes
    _hook_interpreter()
    exit_hook.install(note_exit)
    try:
        _hook_process()
    except Exception as error:
        if raised_by_signal(error):
            raise
        notice("hooks", "how this process ends may not be reported", error)


def make_room(who: Who) -> None:
    """Close what speaks for this rank already: two would take it from each other for ever, each time as a restart."""
    for sender in tuple(_registered):
        if sender.who == who:
            notice("second recorder", f"a second Recorder of rank {who.rank} of run {who.run}: the first is closed")
            shut_down(FINISHED, only=sender)


def shut_down(end: End, only: Sender | None = None) -> None:
    """Send a bye, for one sender or for all; return when that is done, after `LIMIT_SECONDS` at the latest.

    A failure whose box is made and can go somewhere may take `FAILURE_SECONDS` more.
    """
    _leave({sender: end for sender in tuple(_registered) if only in (None, sender)})


def note_exit(error: SystemExit) -> None:
    """Have this exit be the end of the process, unless another one follows or a rank completes another step."""
    global _exit
    _exit = end_by(error), {sender: sender.steps for sender in tuple(_registered)}


def _leave(leaving: Mapping[Sender, End]) -> None:
    for sender, end in leaving.items():
        sender.shut_down(end)
    deadline = time.monotonic() + LIMIT_SECONDS
    # No lock and no condition: a signal handler of the program may end it during another call of this function.
    while not all(sender.over for sender in leaving) and time.monotonic() < deadline:
        time.sleep(0.002)
    while any(sender.makes_box for sender in leaving) and time.monotonic() < deadline + FAILURE_SECONDS:
        time.sleep(0.002)
    for sender in leaving:
        _registered.pop(sender, None)
    if not _registered:
        exit_hook.remove()


def _ask_for_boxes() -> None:
    for sender in tuple(_registered):
        sender.ask_for_box(box_signal.SIGNAL.name)


def _hook_interpreter() -> None:
    """Hook what lasts as long as the interpreter and is inherited by forked children."""
    global _hooked, _previous_hook, _previous_thread_hook
    if _hooked:
        return
    _hooked = True
    atexit.register(_at_exit)
    os.register_at_fork(before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=_in_child)
    _previous_hook, sys.excepthook = sys.excepthook, _on_exception
    _previous_thread_hook, threading.excepthook = threading.excepthook, _on_thread_exception


def _hook_process() -> None:
    """Hook what belongs to this process alone."""
    global _hooked_process
    if _hooked_process == os.getpid():
        return
    _hooked_process = os.getpid()
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        # A child of multiprocessing leaves by os._exit: its own finalizers are the only hook there is.
        from multiprocessing.util import Finalize

        Finalize(None, _at_process_end, exitpriority=0)


def _at_exit() -> None:
    _leave({sender: _end_at_exit(sender) for sender in tuple(_registered)})


def _end_at_exit(sender: Sender) -> End:
    if _exit is not None and _exit[1].get(sender) == sender.steps:
        return _exit[0]
    unhandled = getattr(sys, "last_value", None)  # past `_on_exception`: it was replaced, or this is a prompt
    if unhandled is None or (hasattr(sys, "ps1") and not sender.failed_by(unhandled)):
        return FINISHED_AT_EXIT
    return end_by(unhandled)


def _at_process_end() -> None:
    """End a child of multiprocessing: it runs this in a `finally`, so a failure is the exception on its way."""
    error = sys.exc_info()[1]
    shut_down(FINISHED_AT_EXIT if error is None else end_by(error))


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not hasattr(sys, "ps1"):  # at a prompt an exception ends a line, not the run
        with contextlib.suppress(Exception):
            shut_down(end_by(error))
    try:
        _previous_hook(kind, error, trace)
    except SystemExit:
        raise
    except BaseException as raised:  # noqa: BLE001 - as Python shows it, but without a line of ours
        _write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(raised), raised.with_traceback(_below(raised)), None)
        _write("\nOriginal exception was:\n")
        sys.__excepthook__(kind, error, trace)


def _on_thread_exception(given: threading.ExceptHookArgs) -> None:
    """Fail the ranks that were trained by a thread which an exception ended; the process may live on."""
    if (error := given.exc_value) is not None:
        with contextlib.suppress(Exception):
            end = end_by(error)
            _leave({sender: end for sender in tuple(_registered) if sender.failed_by(error)})
    try:
        _previous_thread_hook(given)
    except Exception as raised:  # noqa: BLE001 - as above
        caller = sys._getframe(1)
        raised.__traceback__ = TracebackType(_below(raised), caller, caller.f_lasti, caller.f_lineno)
        raised.__suppress_context__ = True
        _write("Exception in threading.excepthook:\n")
        sys.excepthook(type(raised), raised, raised.__traceback__)


def _write(line: str) -> None:
    with contextlib.suppress(Exception):  # there may be no standard error, or one of any kind
        sys.stderr.write(line)
        sys.stderr.flush()


def _below(raised: BaseException) -> TracebackType | None:
    """Return the traceback of what was raised by a function that we called, from that function on."""
    return raised.__traceback__ and raised.__traceback__.tb_next


def _in_child() -> None:
    """In a forked child (a DataLoader worker): release everything that belongs to the parent."""
    try:
        for sender, forked in _registered.items():
            sender.release()
            forked()
        _registered.clear()
        exit_hook.remove()
    finally:
        fork_lock.release()
