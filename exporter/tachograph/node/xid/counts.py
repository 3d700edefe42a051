"""Xids: the errors the NVIDIA driver reports, counted for each GPU and shown with what to do.

    tachograph_gpu_xid_errors_total{gpu="3",uuid="GPU-…",xid="79"} 1
    tachograph_gpu_xid_timestamp_seconds{gpu="3",uuid="GPU-…",xid="79"} 1763690000.5
    tachograph_gpu_xid_info{gpu="3",uuid="GPU-…",xid="79",action="reboot",meaning="the GPU does not answer …"} 1

They come from NVML's events and, where it can be read, from the kernel's log, which has more of them and keeps them.
Only the log says which the driver itself calls nonfatal, or that was injected for a test. These are counted apart:

    tachograph_gpu_xid_nonfatal_total{gpu="3",uuid="GPU-…",xid="145"} 7
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tachograph.catalog import index as catalog
from tachograph.node.driver.nvml import Nvml
from tachograph.node.samples import GpuIdentity, Row
from tachograph.node.xid import kmsg as kernel
from tachograph.node.xid.events import XidEvents
from tachograph.node.xid.kernel_events import KernelEvents
from tachograph.node.xid.xid_table import load

WINDOW_SECONDS = 10.0
"""An Xid that follows a counted one on the same GPU within this time is the same event.

Both sources report each event, milliseconds apart, and one fault can write thousands of lines: NVSentinel met 800,000
of Xid 95 that were 29 events. The window does not roll, so that a storm of hours counts six a minute: it is seen to go
on.
"""

RESTART_SECONDS = 300.0
"""How far back the log's history counts: what happened while the exporter, or its worker, was being restarted.

Of older ones only the time is shown. Counted at each start, it would look like new errors to rate() once the kernel
has forgotten some of it and the counter shrank.
"""

NAMING_SECONDS = 30.0
"""How long NVML may take to list the GPUs, before an Xid of an unknown GPU is logged."""

LOG_SECONDS = 2.0
"""How long an event of NVML's waits for the log, where that is read, to report the same and say how bad it is."""

SET_SECONDS = 1.0
"""Where the times of an Xid by both clocks have come further apart, the clock of the day was set since."""

POLL_SECONDS = 0.8
"""How long the log is waited for at a time: a record ends the wait, and stopping takes a second at most."""
PAUSE_SECONDS = 0.1  # after each turn at the log: KernelLog says why


@dataclass
class _XidCount:
    """One Xid of one GPU; times on the monotonic clock, but for `unix`."""

    count: int = 0
    counted_at: float = float("-inf")
    last_at: float = float("-inf")
    unix: float = 0.0

    def add(self, at: float, unix: float, *, counts: bool) -> None:
        if at >= self.last_at:
            self.last_at, self.unix = at, unix
        if counts and at >= self.counted_at + WINDOW_SECONDS:
            self.count += 1
            self.counted_at = at

    def merge(self, other: _XidCount) -> None:
        self.count += other.count
        self.counted_at = max(self.counted_at, other.counted_at)
        if other.last_at >= self.last_at:
            self.last_at, self.unix = other.last_at, other.unix


_Kind: TypeAlias = tuple[int, bool]
"""An Xid, and whether it was nonfatal."""


class XidCounts:
    """Xids of GPUs by UUID, and of PCI bus ids as long as nobody knows which GPU sits there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uuids: dict[str, str] = {}  # by bus id, of who sits there now
        self._known: set[str] = set()
        self._by_owner: dict[str, dict[_Kind, _XidCount]] = {}  # by UUID, else by bus id

    def add(self, bus: str, xid: int, at: float, unix: float, *, counts: bool = True, nonfatal: bool = False) -> None:
        """Take an Xid that happened `at` on the monotonic clock; `counts`: not only its time is of interest."""
        with self._lock:
            own = self._by_owner.setdefault(self._uuids.get(bus, bus), {})
            own.setdefault((xid, nonfatal), _XidCount()).add(at, unix, counts=counts)

    def name(self, bus: str, uuid: str) -> None:
        """Take note of which GPU sits where; what happened there before anybody knew is its."""
        with self._lock:
            for kind, count in self._by_owner.pop(bus, {}).items():
                self._by_owner.setdefault(uuid, {}).setdefault(kind, _XidCount()).merge(count)
            self._uuids[bus] = uuid
            self._known.add(uuid)

    def of(self, uuid: str, *, nonfatal: bool = False) -> dict[int, tuple[int, float]]:
        """Return a GPU's Xids, or the nonfatal ones: number -> (count, Unix time of the last)."""
        with self._lock:
            own = sorted(self._by_owner.get(uuid, {}).items())
            return {xid: (each.count, each.unix) for (xid, kind), each in own if kind is nonfatal}

    def date_anew(self, ahead: float) -> None:
        """Date what happened by the present clock of the day, `ahead` of the monotonic one, if it was set since."""
        with self._lock:
            for own in self._by_owner.values():
                for each in own.values():
                    if abs(each.last_at + ahead - each.unix) > SET_SECONDS:
                        each.unix = each.last_at + ahead

    def nameless(self) -> dict[str, list[int]]:
        """Return the Xids of bus ids where no known GPU sits."""
        with self._lock:
            nameless = self._by_owner.keys() - self._known
            return {owner: sorted({xid for xid, _ in self._by_owner[owner]}) for owner in nameless}


class XidWatch:
    """Collects Xids and the kernel's other events from `start()` to `close()`; nothing here waits for the driver.

    `kmsg` is the kernel's log, "" if it is not to be read. `wall` and `clock` are time.time and time.monotonic.
    """

    def __init__(
        self,
        nvml: Nvml | None,
        kmsg: str,
        wall: Callable[[], float] = time.time,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = load()
        self._kmsg = kmsg
        self._wall = wall
        self._clock = clock
        self._counts = XidCounts()
        self._kernel = KernelEvents()
        self._nvml = nvml
        self._events: XidEvents | None = None
        self._log_trouble, self._log_sentence = "starting", ""
        self._log_lost = False
        self._logged: dict[tuple[str, int], float] = {}  # when the log last reported an Xid of a bus id
        self._waiting: deque[tuple[float, float, str, int]] = deque()  # NVML's events: when, Unix time, bus id and Xid
        self._history_read = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = clock()

    def start(self) -> None:
        """Begin to watch, in threads that end with the process."""
        self._started = self._clock()
        self._thread = threading.Thread(target=self._follow, name="xid-log", daemon=True)
        self._thread.start()
        if self._nvml is not None:
            self.attach(self._nvml)

    def attach(self, nvml: Nvml) -> None:
        """Take events from a freshly initialised NVML; all counts go on."""
        self.detach()
        events = XidEvents(nvml, self._event, self._counts.name)
        events.start(self._history_read)
        self._events = events

    def detach(self) -> None:
        """Stop using NVML, before it is shut down: an event set must not be waited on while that happens."""
        events, self._events = self._events, None
        if events is not None:
            events.stop()

    def close(self) -> None:
        """End both threads, in about a second even if the driver hangs."""
        self._stop.set()
        self.detach()
        if self._thread is not None:
            self._thread.join(1.0)

    def rows(self, identities: Sequence[GpuIdentity]) -> list[Row]:
        """Return the samples of every GPU that has a UUID: of an Xid from its first on."""
        self._count_events()
        self._counts.date_anew(self._wall() - self._clock())
        return [row for gpu in identities if gpu.uuid for row in self._gpu_rows(gpu)]

    def kernel_rows(self) -> list[Row]:
        """Return the samples of the other events in the kernel's log; none while it cannot be read."""
        return [] if self._log_trouble else self._kernel.rows(self._clock())

    def _gpu_rows(self, gpu: GpuIdentity) -> list[Row]:
        rows: list[Row] = []
        for xid, (count, unix) in self._counts.of(gpu.uuid).items():
            labels, row = (gpu.index, gpu.uuid, str(xid)), self._table.of(xid)
            rows.append(((catalog.GPU_XID_ERRORS, labels), float(count)))
            rows.append(((catalog.GPU_XID_TIMESTAMP, labels), unix))
            rows.append(((catalog.GPU_XID_INFO, (*labels, row.action, row.meaning)), 1.0))
        for xid, (count, _) in self._counts.of(gpu.uuid, nonfatal=True).items():
            rows.append(((catalog.GPU_XID_NONFATAL, (gpu.index, gpu.uuid, str(xid))), float(count)))
        return rows

    @property
    def trouble(self) -> str:
        """Why no Xid can be seen, as a word of COLLECTOR_REASONS; "" while one source works."""
        events = self._events  # once, for whoever shuts NVML down detaches in another thread
        word = events.trouble if events is not None else "no_driver"
        if not word or not self._log_trouble:
            return ""
        # NVML's reason names a missing driver; where NVML just has no events, the log's reason says what would help.
        return self._log_trouble if word == "not_supported" else word

    @property
    def notes(self) -> dict[str, str]:
        """The sources of Xids that are not read, and why, for the log: subject -> sentence."""
        notes = {}
        if self._log_sentence:
            notes["Xids from the kernel's log"] = self._log_sentence
        if self._log_lost:
            notes["Xids in the kernel's log"] = "it was written faster than it could be read: some may be missing"
        events = self._events
        if events is not None and events.sentence:
            notes["Xids from NVML"] = events.sentence
        if self._clock() - self._started > NAMING_SECONDS:
            for bus, xids in self._counts.nameless().items():
                words = ", ".join(f"{xid} ({self._table.of(xid).meaning})" for xid in xids)
                notes[f"GPU at PCI {bus}"] = f"the driver lists no GPU there, but reported Xid {words}"
        return notes

    def _event(self, bus: str, xid: int) -> None:
        self._waiting.append((self._clock(), self._wall(), bus, xid))

    def _count_events(self) -> None:
        """Count what NVML reported and the log does not."""
        ripe = self._clock() - (0.0 if self._log_trouble else LOG_SECONDS)
        while self._waiting and self._waiting[0][0] <= ripe:
            at, unix, bus, xid = self._waiting.popleft()
            if abs(self._logged.get((bus, xid), -math.inf) - at) > WINDOW_SECONDS:
                self._counts.add(bus, xid, at, unix)

    def _follow(self) -> None:
        """Read the kernel's log until told to stop, or until it cannot be read."""
        try:
            if not self._kmsg:
                self._log_trouble = "not_supported"
                return
            log = kernel.KernelLog(self._kmsg)
            try:
                self._read(log)
            finally:
                log.close()
        except OSError as error:
            self._log_trouble = "no_permission" if isinstance(error, PermissionError) else "not_supported"
            self._log_sentence = (
                f"{error}: Xids that NVML does not report, or that came before the start, and other events are missed"
            )
        finally:
            self._history_read.set()

    def _read(self, log: kernel.KernelLog) -> None:
        self._log_trouble = ""
        while not self._stop.is_set():
            records, all_read = log.turn()
            for record in records:
                self._record(record)
            if all_read:
                self._history_read.set()
            self._log_lost = log.lost
            # A plain file or a stream without a writer is always ready, and a storm never ends: hence the pause.
            self._stop.wait(PAUSE_SECONDS)
            if all_read:
                select.select([log], [], [], POLL_SECONDS)

    def _record(self, record: kernel.Record) -> None:
        if named := kernel.uuid_of(record.text):
            self._counts.name(*named)
            return
        now, wall = self._clock(), self._wall()
        # The kernel's clock drifts from ours by seconds a day, so only what is history is dated by it.
        at = min(record.at, now) if not self._history_read.is_set() else now
        counts = now - at <= RESTART_SECONDS
        if found := kernel.xid_of(record.text):
            self._logged[found] = at
            nonfatal = kernel.is_nonfatal(record.text)
            self._counts.add(*found, at, wall - (now - at), counts=counts, nonfatal=nonfatal)
        else:
            self._kernel.take(record.text, at, now, counts=counts)
