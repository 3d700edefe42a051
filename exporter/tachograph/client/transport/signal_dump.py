"""A signal whose handler, C code of `faulthandler`, writes stacks into a descriptor: it needs no lock of Python's."""

from __future__ import annotations

import time
import weakref

from tachograph.client.transport.descriptors import OwnDescriptor, copy_high
from tachograph.client.transport.signal_actions import Actions, is_free

CALL_SECONDS = 0.2
"""How long another handler may have the signal before it counts as taken: `faulthandler` lends it to the one that it
found while it calls it, and takes it back."""


class SignalDump:
    """Has the signal until `close`, unless the program takes it.

    Raises OSError, ImportError, AttributeError or ValueError where the signal is in use, or there is no such handler.
    `descriptor` is a copy of the one given, under a number that few programs ever have: the handler cannot look whose
    it is.
    """

    def __init__(self, number: int, descriptor: int, *, all_threads: bool) -> None:
        import faulthandler  # late: not every Python has it

        self._number, self._actions = number, Actions()
        if not is_free(number):
            raise ValueError(f"signal {number} is in use")
        self.descriptor = OwnDescriptor(copy_high(descriptor))
        try:
            file = _File(self.descriptor.number)
            self._before = self._actions.of(number)
            if any(self._actions.handler_in(self._before)):  # what `is_free` reads lets other threads run
                raise ValueError(f"signal {number} was taken at this moment")
            # `faulthandler` calls what it found, and puts it back: nothing that ends the process, or what a thread of
            # the program has put there by then.
            self._actions.put(number, self._actions.ignoring(self._before))
            try:
                faulthandler.register(number, file=file, all_threads=all_threads, chain=True)
            except BaseException:
                self._actions.put(number, self._before)
                raise
        except BaseException:
            self.descriptor.close()
            raise
        self._file = weakref.ref(file)  # `faulthandler` alone keeps it, until the program calls it for this signal
        self._handler = self._actions.handler(number)
        self._lent_at: float | None = None

    @property
    def is_ours(self) -> bool:
        """Whether the program has taken neither the signal nor the descriptor."""
        return self.descriptor.is_ours and self._is_registered and not self._is_taken()

    @property
    def _is_registered(self) -> bool:
        return self._file() is not None

    @property
    def _has_signal(self) -> bool:
        return self._actions.handler(self._number) == self._handler

    def _is_taken(self) -> bool:
        """Return whether another handler has had the signal for longer than a call of it takes."""
        now = time.monotonic()
        self._lent_at = None if self._has_signal else self._lent_at or now
        return self._lent_at is not None and now - self._lent_at >= CALL_SECONDS

    def close(self) -> None:
        """Give the signal back; a handler that came later stays."""
        import faulthandler

        if self._is_registered:
            later = None if self._has_signal else self._actions.of(self._number)
            faulthandler.unregister(self._number)
            if later is not None:
                self._actions.put(self._number, later)
            elif self._actions.is_ignored(self._number):
                self._actions.put(self._number, self._before)
        self.descriptor.close()


class _File:
    """Something that `faulthandler` takes for an open file."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def flush(self) -> None:
        pass
