"""Reports to systemd, for a service of type `notify`: ready, alive, stopping."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


class ServiceManager:
    """The manager that started this process, reached at `$NOTIFY_SOCKET`; without one nothing is sent."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")  # not for the GPU worker, which would speak for this process
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._wants_life = "WATCHDOG_USEC" in os.environ

    def ready(self) -> None:
        """Report that ranks can connect and pages are served."""
        self._send("READY=1")

    def alive(self) -> None:
        """Report that the event loop is running, where the unit has a WatchdogSec."""
        if self._wants_life:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the service ends."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), self._address)
