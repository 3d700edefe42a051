"""Shutdown: a bye frame is sent at exit, on an unhandled exception, and on SIGTERM and SIGHUP. SIGUSR2 asks for a box.

`os._exit` and SIGKILL leave no time; the exporter sees the connection end without a bye and reports the rank as
dead. The same happens if a stopped exporter does not accept the bye within 0.2 s. The exit code is that of the last
`sys.exit` in the main thread; what passes its hook (`exit_hook.install`), such as a `SystemExit` raised by hand, looks
like a normal end, unless `tachograph run` or multiprocessing runs the program. The exporter may see it from outside; it
counts unless the program itself has said that it finished.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any

from tachograph.catalog.rank import END_SIGNALS
from tachograph.client.core.notice import notice, raised_by_signal
from tachograph.client.transport import exit_hook
from tachograph.client.transport.box_trigger import FAILURE_SECONDS
from tachograph.client.transport.failure_reason import FINISHED, FINISHED_AT_EXIT, End, end_by
from tachograph.client.transport.sender import Sender, Who, fork_lock

LIMIT_SECONDS = 0.2
"""The longest that sending the bye delays the end of a process."""

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What a scheduler or a terminal ends a process with; Python itself turns SIGINT into an exception."""

BOX_SIGNAL = signal.SIGUSR2
"""Asks for the boxes of the process' ranks."""

_registered: dict[Sender, Callable[[], None]] = {}
_exit: tuple[End, dict[Sender, int]] | None = None
"""The last `sys.exit`, and the steps that each rank had completed by then."""
_previous_hook: Callable[..., Any] = sys.__excepthook__
_previous_thread_hook: Callable[..., Any] = threading.__excepthook__
_hooked = False
_hooked_process = -1
_signal_pipe: tuple[int, int] | None = None
_masks: list[set[signal.Signals | int]] = []
"""What the forking thread blocked before each fork under way, `fork_lock` held."""


def register(sender: Sender, forked: Callable[[], None]) -> None:
    """Have `sender` send a bye when the process ends; `forked` is called in every child made by fork."""
    _registered[sender] = forked
    _hook_interpreter()
    exit_hook.install(note_exit)
    try:
        _hook_process()
    except Exception as error:
        if raised_by_signal(error):
            raise
        notice("terminate", "SIGTERM and SIGHUP will not be reported as the failure reason", error)


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
    # No lock and no condition: this may run in a signal handler that interrupted another call of this function.
    while not all(sender.over for sender in leaving) and time.monotonic() < deadline:
        time.sleep(0.002)
    while any(sender.makes_box for sender in leaving) and time.monotonic() < deadline + FAILURE_SECONDS:
        time.sleep(0.002)
    for sender in leaving:
        _registered.pop(sender, None)
    if not _registered:
        exit_hook.remove()


def _hook_interpreter() -> None:
    """Hook what lasts as long as the interpreter and is inherited by forked children."""
    global _hooked, _previous_hook, _previous_thread_hook
    if _hooked:
        return
    _hooked = True
    atexit.register(_at_exit)
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
    _previous_hook, sys.excepthook = sys.excepthook, _on_exception
    _previous_thread_hook, threading.excepthook = threading.excepthook, _on_thread_exception


def _hook_process() -> None:
    """Hook what belongs to this process alone."""
    global _hooked_process
    if _hooked_process == os.getpid():
        return
    _hooked_process = os.getpid()
    free = [number for number in _HANDLERS if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is threading.main_thread() and free:
        _listen_for_signals()  # first: with a handler and no listening thread, a blocked process would not die
        for number in free:
            signal.signal(number, _HANDLERS[number])
        if BOX_SIGNAL in free:
            signal.siginterrupt(BOX_SIGNAL, False)  # the training's own calls of the system go on
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
    _previous_hook(kind, error, trace)


def _on_thread_exception(given: threading.ExceptHookArgs) -> None:
    """Fail the ranks that were trained by a thread which an exception ended; the process may live on."""
    if (error := given.exc_value) is not None:
        with contextlib.suppress(Exception):
            end = end_by(error)
            _leave({sender: end for sender in tuple(_registered) if sender.failed_by(error)})
    _previous_thread_hook(given)


def _on_terminate(number: int, frame: FrameType | None) -> None:
    """Send a bye, then die of the signal as the process would have without us."""
    shut_down(_ended_by(number))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _on_box_signal(number: int, frame: FrameType | None) -> None:
    """Ask for a box; a sender thread makes it."""
    for sender in tuple(_registered):
        sender.ask_for_box(signal.Signals(number).name)


_HANDLERS: dict[int, Callable[[int, FrameType | None], None]] = {
    **dict.fromkeys(SIGNALS, _on_terminate), BOX_SIGNAL: _on_box_signal,
}  # fmt: skip


def _ended_by(number: int) -> End:
    return End("failed", END_SIGNALS[number], signal.Signals(number).name)


def _listen_for_signals() -> None:
    """Have a side thread notice signals, too: the main thread may be blocked in a collective for half an hour.

    Without a handler such a process dies at once; with one that only the main thread runs, it would not die at all.
    """
    global _signal_pipe
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    previous = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    if previous != -1:  # an event loop was here first
        signal.set_wakeup_fd(previous)
        os.close(receiver)
        os.close(sender)
        return
    try:
        threading.Thread(target=_listen, args=(receiver,), name="tachograph-signals", daemon=True).start()
    except BaseException:  # no more threads, no memory
        signal.set_wakeup_fd(-1)
        os.close(receiver)
        os.close(sender)
        raise
    _signal_pipe = receiver, sender


def _listen(receiver: int) -> None:
    with contextlib.suppress(OSError):  # closed by the program
        _terminate_on_signal(receiver)


def _terminate_on_signal(receiver: int) -> None:
    while received := os.read(receiver, 64):
        if BOX_SIGNAL in received and signal.getsignal(BOX_SIGNAL) is _on_box_signal:
            _on_box_signal(BOX_SIGNAL, None)
        for number in SIGNALS:
            if number in received and signal.getsignal(number) is _on_terminate:
                shut_down(_ended_by(number))
                import ctypes  # only a process about to die pays for it

                # signal.signal works in the main thread only; this is the C function behind it.
                ctypes.pythonapi.PyOS_setsig(ctypes.c_int(number), ctypes.c_void_p(None))
                os.kill(os.getpid(), number)


def _before_fork() -> None:
    """Hold signals back: a child that gets one before it has let go of the parent's pipe would end the parent."""
    fork_lock.acquire()
    _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    """Let them in again, as far as they were before."""
    mask = _masks.pop() if _masks else None
    fork_lock.release()
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    """In a forked child (a DataLoader worker): release everything that belongs to the parent, then let signals in."""
    try:
        _release_parents()
    finally:
        _after_fork()


def _release_parents() -> None:
    global _signal_pipe
    if _signal_pipe is not None:
        # A signal to this child would be written to the parent's pipe, and end the parent.
        with contextlib.suppress(ValueError):  # forked by a side thread, which cannot set signals
            signal.set_wakeup_fd(-1)
            for number, handler in _HANDLERS.items():
                if signal.getsignal(number) is handler:
                    signal.signal(number, signal.SIG_DFL)
        for descriptor in _signal_pipe:
            with contextlib.suppress(OSError):  # closed by the program
                os.close(descriptor)
        _signal_pipe = None
    for sender, forked in _registered.items():
        sender.release()
        forked()
    _registered.clear()
    exit_hook.remove()
