"""Xids as NVML reports them: an event set over all GPUs, waited on in a thread of its own."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tachograph.node.driver.nvml import (
    DriverAbsent,
    DriverMismatch,
    NotSupported,
    Nvml,
    NvmlFailure,
    NvmlGpu,
    Untyped,
)
from tachograph.node.xid.kmsg import bus_key
from tachograph.processes.backoff import Backoff

XID_CRITICAL_ERROR = 0x8  # nvmlEventTypeXidCriticalError
TIMEOUT = "Timeout"  # what pynvml calls NVML_ERROR_TIMEOUT, the normal end of a wait

WAIT_MILLISECONDS = 800
"""Longest wait in one driver call, and so the longest that stopping takes."""

RECHECK_SECONDS = 60.0
"""How often GPUs that were not there, or could not be registered, are looked for."""

PROBE_SECONDS, PENDING_SECONDS = 1.0, 5.0
"""How long all GPUs are waited for, while the others' events are missed, and when one that was late is looked at."""

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0

HANG_SECONDS = 10.0
"""After so long in one driver call the thread counts as stuck."""


class _NoReturn(NvmlFailure):
    """A driver call has not come back."""


_REASONS: tuple[tuple[type[NvmlFailure], str], ...] = (
    (DriverAbsent, "no_driver"),
    (DriverMismatch, "driver_mismatch"),
    (NotSupported, "not_supported"),
    (_NoReturn, "hung"),
)


class XidEvents:
    """Waits for Xid events until told to stop; only its own thread touches the event set, which is not thread-safe.

    `found(bus, xid)` and `named(bus, uuid)` are called from that thread.
    """

    def __init__(self, nvml: Nvml, found: Callable[[str, int], None], named: Callable[[str, str], None]) -> None:
        self._nvml = nvml
        self._found = found
        self._named = named
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._probes: dict[int, _Probe] = {}
        self._turned = time.monotonic()
        self._trouble, self.sentence = "starting", ""

    @property
    def trouble(self) -> str:
        """Why there are no events, as a word of COLLECTOR_REASONS; "" while there are."""
        return self._trouble if time.monotonic() - self._turned < HANG_SECONDS else "hung"

    def start(self, ready: threading.Event) -> None:
        """Begin once `ready` is set."""
        self._thread = threading.Thread(target=self._run, args=(ready,), name="xid-events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop using NVML; return once that is so, or after a second if a driver call does not return."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self, ready: threading.Event) -> None:
        while not ready.wait(WAIT_MILLISECONDS / 1000) and not self._stop.is_set():
            self._turned = time.monotonic()
        backoff = Backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
        while not self._stop.is_set():
            self._turned = time.monotonic()
            try:
                self._follow()
            except NvmlFailure as failure:
                reasons = (word for kind, word in _REASONS if isinstance(failure, kind))
                if not self._trouble:
                    backoff.reset()
                self._trouble, self.sentence = next(reasons, "error"), str(failure)
                self._pause(backoff.next())

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stop.wait(min(left, 1.0)):
            self._turned = time.monotonic()

    def _follow(self) -> None:
        """Report events until told to stop; raise the NvmlFailure that ends this event set."""
        events = self._nvml.call("nvmlEventSetCreate")
        self._probes = {index: probe for index, probe in self._probes.items() if probe.is_alive()}
        try:
            buses: dict[int | None, str] = {}  # by the address that a handle is
            recheck = 0.0
            while not self._stop.is_set():
                self._turned = time.monotonic()
                if self._turned >= recheck:
                    waiting = self._register(events, buses)
                    recheck = time.monotonic() + (PENDING_SECONDS if waiting else RECHECK_SECONDS)
                    self._trouble, self.sentence = "", ""
                event = self._wait(events)
                if event is not None:
                    # Not by asking the driver for its UUID: after Xid 79 the GPU does not answer.
                    bus = buses.get(_address(event.device)) or bus_key(NvmlGpu(self._nvml, event.device).bus_id())
                    self._found(bus, int(event.eventData))
        finally:
            with suppress(NvmlFailure):  # it may have gone with the driver
                self._nvml.call("nvmlEventSetFree", events)

    def _register(self, events: Untyped, buses: dict[int | None, str]) -> bool:
        """Add every GPU that can be added; return whether one has yet to answer. Raise a failure if there is none."""
        last: NvmlFailure = NotSupported("the driver shows no GPU")
        count = self._nvml.count()
        if 0 < count == len(buses):  # ask the GPUs themselves no more than needed: one of them may hang by now
            return False
        for index in range(count):
            if index not in self._probes:
                self._probes[index] = _Probe(self._nvml, index)
        deadline = time.monotonic() + PROBE_SECONDS
        for index, probe in list(self._probes.items()):
            probe.join(max(deadline - time.monotonic(), 0.0))
            if probe.is_alive():
                last = _NoReturn("driver call does not return")
                continue
            del self._probes[index]
            try:
                handle, bus, uuid = probe.answer()
                self._named(bus, uuid)
                if _address(handle) not in buses:
                    self._nvml.call("nvmlDeviceRegisterEvents", handle, XID_CRITICAL_ERROR, events)
                    buses[_address(handle)] = bus
            except (DriverAbsent, DriverMismatch):
                raise
            except NvmlFailure as failure:
                last = failure
        if not buses:
            raise last
        return bool(self._probes)

    def _wait(self, events: Untyped) -> Untyped:
        """Return the next event, None if there was none for a while."""
        try:
            return self._nvml.call("nvmlEventSetWait_v2", events, WAIT_MILLISECONDS)
        except NvmlFailure as failure:
            if str(failure) == TIMEOUT:
                return None
            raise


class _Probe(threading.Thread):
    """Asks a GPU who it is, in a thread of its own: one that hangs must not keep the others' events from us."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        super().__init__(name=f"xid-probe{index}", daemon=True)
        self._nvml = nvml
        self._index = index
        self._answer: tuple[Untyped, str, str] | NvmlFailure = NvmlFailure("not asked")
        self.start()

    def answer(self) -> tuple[Untyped, str, str]:
        """Return handle, bus and UUID, or raise what asking for them raised."""
        if isinstance(self._answer, NvmlFailure):
            raise self._answer
        return self._answer

    def run(self) -> None:
        """Ask."""
        try:
            gpu = self._nvml.gpu(self._index)
            self._answer = gpu.handle, bus_key(gpu.bus_id()), str(gpu.call("nvmlDeviceGetUUID"))
        except NvmlFailure as failure:
            self._answer = failure


def _address(handle: Untyped) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
