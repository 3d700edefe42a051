"""SIGUSR2 asks for the boxes of the process' ranks, where the program's environment says that there are some.

Without that variable SIGUSR2 does what it does without us. The handler writes a stack to what wakes the sender thread
up, so it is heard while the main thread is blocked in C, and interrupts no call of the system but those that any signal
does.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

from tachograph.client.transport.descriptors import WakeUp
from tachograph.client.transport.signal_actions import is_free

if TYPE_CHECKING:
    from tachograph.client.transport.signal_dump import SignalDump

SIGNAL = signal.SIGUSR2
MARK = b"(most recent call first)"
"""In what `faulthandler` writes, and in nothing else that wakes the sender thread up."""

_dump: SignalDump | None = None
_wake: WakeUp | None = None
"""What the signal wakes up: of several ranks of a process, the first's thread."""


def keep(wake: WakeUp) -> None:
    """Have the signal write to `wake`, unless another rank has it or the program; to be called now and then."""
    global _dump, _wake
    if _dump is not None:
        if _dump.is_ours and _wake is not None and _wake.is_ours:
            return
        release()
    with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):  # no `faulthandler`, no descriptor left
        if is_free(SIGNAL):
            from tachograph.client.transport.signal_dump import SignalDump  # late: few processes need it

            _dump, _wake = SignalDump(SIGNAL, wake.sending_end, all_threads=False), wake


def release(wake: WakeUp | None = None) -> None:
    """Give the signal back, or only if it writes to `wake`."""
    global _dump, _wake
    if wake in (None, _wake) and _dump is not None:
        _dump.close()
        _dump = _wake = None
