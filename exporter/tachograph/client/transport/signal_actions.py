"""The effect of a signal in this process, as the kernel has it: C code installs handlers unknown to Python."""

from __future__ import annotations

import os
import signal
import sys

_STATUS = "/proc/thread-self/status"
_FIELDS = ("SigBlk:", "SigIgn:", "SigCgt:")
_BYTES = 256
"""More than `struct sigaction` has anywhere; it begins with the address of the handler."""


def is_free(number: int) -> bool:
    """Return whether nobody handles, ignores or, in this thread, blocks the signal; False where that is not known."""
    if signal.getsignal(number) != signal.SIG_DFL:
        return False
    try:
        with open(_STATUS, encoding="ascii", errors="replace") as status:  # noqa: PTH123 - pathlib costs 3 ms
            taken = [int(line.split()[1], 16) for line in status if line.startswith(_FIELDS)]
    except (OSError, ValueError, IndexError):
        return False
    return len(taken) == len(_FIELDS) and not any(signals >> (number - 1) & 1 for signals in taken)


class Actions:
    """Reads and sets what signals do; raises ImportError, OSError or AttributeError where there is no C to call."""

    def __init__(self) -> None:
        import ctypes  # late: few processes need it

        self._ctypes = ctypes
        self._call = ctypes.PyDLL(None, use_errno=True).sigaction
        self._address_bytes = ctypes.sizeof(ctypes.c_void_p)
        self._ignored = int(signal.SIG_IGN).to_bytes(self._address_bytes, sys.byteorder)

    def of(self, number: int) -> bytes:
        """Return what the signal does."""
        action = self._ctypes.create_string_buffer(_BYTES)
        self._check(self._call(number, None, action))
        return action.raw  # the end of which is left as it was: signals that the kernel does not have

    def handler(self, number: int) -> bytes:
        """Return the address of the function that handles the signal."""
        return self.handler_in(self.of(number))

    def handler_in(self, action: bytes) -> bytes:
        """Return the address in what `of` once returned; all its bytes are 0 for what the signal does by default."""
        return action[: self._address_bytes]

    def is_ignored(self, number: int) -> bool:
        """Return whether the signal is ignored."""
        return self.handler(number) == self._ignored

    def ignoring(self, action: bytes) -> bytes:
        """Return this action with the signal ignored."""
        return self._ignored + action[self._address_bytes :]

    def put(self, number: int, action: bytes) -> None:
        """Have the signal do what `of` once returned."""
        self._check(self._call(number, self._ctypes.create_string_buffer(action, _BYTES), None))

    def _check(self, failed: int) -> None:
        if failed:
            error = self._ctypes.get_errno()
            raise OSError(error, os.strerror(error), "sigaction")
