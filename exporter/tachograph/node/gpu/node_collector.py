"""All GPUs of a node: each is collected in a thread of its own, and a failed one, or all, does not end collecting."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from tachograph.node.driver.driver_thread import DriverThread, Outcomes, gather
from tachograph.node.driver.nvml import DriverAbsent, DriverMismatch, Nvml, NvmlFailure
from tachograph.node.gpu.gpu_collector import Clock, GpuCollector
from tachograph.node.gpu.gpu_watch import CALL_SECONDS, START_SECONDS, GpuWatch, no_return
from tachograph.node.gpu.reading_table import SLOW_SECONDS
from tachograph.node.gpu.worker_protocol import STALE_INTERVALS, STARTING, NodeReading
from tachograph.node.samples import GpuIdentity, Row, unzipped
from tachograph.node.xid.counts import XidWatch
from tachograph.processes.backoff import Backoff

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0
TURN_SECONDS = 0.005
"""How long a GPU is waited for before the next one is asked: threads that all begin at once spend a third of their time
passing the interpreter's lock to and fro. A slow one holds up nobody for longer."""
ANSWER_SECONDS = 0.5
"""How long a collection waits for its GPUs at most; a later answer is in the next line."""

_GPU_REASONS = {"no_device_nodes": "no_driver", "no_permission": "no_driver"}
"""The reason given for a GPU that was there, where it differs from the collector's own."""

LIST = "the list of GPUs"


@dataclass(frozen=True)
class _Driver:
    """NVML once it is open, with its versions and its number of GPUs."""

    nvml: Nvml
    version: str
    cuda_version: str
    count: int


class NodeCollector:
    """Collects all GPUs; opens NVML when it can, and again with back-off (1 to 30 s) once nothing answers.

    No call into the driver is made by the caller's thread: `collect` returns after `answer_seconds` (default: half a
    second, or the interval if that is less) with what there is. Where only a new process can go on, `spent` is true.
    `xids`, already started, uses NVML while it is open; `root` is where device files are looked for.
    """

    def __init__(
        self,
        clock: Clock = time.monotonic,
        *,
        interval: float = 1.0,
        answer_seconds: float | None = None,
        xids: XidWatch | None = None,
        detail: bool = False,
        root: Path = Path("/"),
    ) -> None:
        self.spent = False
        self._clock = clock
        self._patience = STALE_INTERVALS * interval
        self._answer_seconds = min(interval, ANSWER_SECONDS) if answer_seconds is None else answer_seconds
        self._xids = xids
        self._detail = detail
        self._root = root
        self._outcomes: Outcomes = SimpleQueue()
        self._thread = DriverThread("nvml", self._outcomes, clock)  # for what is asked of the driver as a whole
        self._call = ""  # the one it is in, or was in last
        self._driver: _Driver | None = None
        self._gpus: list[GpuWatch] = []
        self._named: dict[str, GpuIdentity] = {}  # by UUID, every one ever seen: an Xid outlives its GPU
        self._buses: set[str] = set()
        self._count_at = 0.0
        self._listing = ""  # why the last count failed
        self._retry_at = clock()
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)
        self._word, self._reason = STARTING, "NVML is being opened"

    def collect(self) -> NodeReading:
        """Return one collection, a failed one with its reason."""
        started = self._clock()
        deadline = time.monotonic() + self._answer_seconds
        gather(self._outcomes, (), 0)  # answers that came too late for the last one
        if self._ask_driver(started):
            # A list of GPUs that does not come must not use up the time that the GPUs have.
            gather(self._outcomes, [self._thread], self._answer_seconds / (1 if self._driver is None else 5))
        if self._driver is not None:
            idle = [gpu for gpu in self._gpus if gpu.thread.since is None]
            for gpu in idle:
                gpu.ask(self._driver.version, self._driver.cuda_version)
                gather(self._outcomes, [gpu.thread], TURN_SECONDS)
            gather(self._outcomes, [gpu.thread for gpu in idle], deadline - time.monotonic())
            now = self._clock()
            for gpu in self._gpus:
                gpu.look(self._driver.nvml.calling(gpu.thread.id), now, len(self._gpus))
        self._judge(started)
        return self._collection(started)

    def _ask_driver(self, now: float) -> bool:
        """Open NVML if its time has come, look for added or removed GPUs now and then; return whether it was asked."""
        if self._thread.since is not None:
            return False
        if self._driver is not None and now >= self._count_at and self._plugged() and not self._busy():
            self._word, self._reason = STARTING, "GPUs were plugged or unplugged"
            for gpu in self._gpus:
                gpu.fail(STARTING)
            self._close(now)
            self._retry_at = now
        if self._thread.since is not None:
            return False
        if self._driver is None:
            if now < self._retry_at:
                return False
            self._buses = self._listed_buses()
            self._call = "nvmlInit"
            self._thread.ask(_open, self._take_driver)
        elif now >= self._count_at:
            self._call = "nvmlDeviceGetCount"
            self._thread.ask(self._driver.nvml.count, self._take_count)
        else:
            return False
        return True

    def _plugged(self) -> bool:
        """Return whether the kernel has other GPUs than when NVML was opened, which looked for them only then."""
        return self._listed_buses() != self._buses

    def _listed_buses(self) -> set[str]:
        try:
            return {path.name for path in (self._root / "proc/driver/nvidia/gpus").iterdir()}
        except OSError:
            return set()

    def _take_driver(self, outcome: _Driver | Exception) -> None:
        if isinstance(outcome, Exception):
            self._give_up(outcome)
            return
        self._driver = outcome
        if self._xids is not None:
            self._xids.attach(outcome.nvml)
        self._list(outcome.count)

    def _take_count(self, outcome: int | Exception) -> None:
        self._count_at = self._clock() + SLOW_SECONDS
        self._listing = str(outcome) if isinstance(outcome, Exception) else ""
        if isinstance(outcome, (DriverAbsent, DriverMismatch)):
            self._give_up(outcome)
        elif not isinstance(outcome, Exception) and outcome != len(self._gpus) and not self._busy():
            self._list(outcome)  # not while a call hangs: nobody knows which index its GPU has by now

    def _list(self, count: int) -> None:
        """Watch that many GPUs, each afresh: with one more or less, any index may mean another."""
        assert self._driver is not None
        for gpu in self._gpus:
            gpu.thread.ask(gpu.collector.close, lambda _: None)
            gpu.thread.end()
        self._gpus = []
        for index in range(count):
            collector = GpuCollector(self._driver.nvml, index, self._clock, self._detail)
            thread = DriverThread(f"gpu{index}", self._outcomes, self._clock)
            self._gpus.append(GpuWatch(collector, thread, self._patience))
        self._count_at = self._clock() + SLOW_SECONDS

    def _judge(self, now: float) -> None:
        """Work out whether the collection as a whole succeeded, and if not, why."""
        failures = [gpu.driver_failure for gpu in self._gpus if gpu.driver_failure is not None]
        if failures and self._driver is not None:
            self._give_up(max(failures, key=lambda failure: isinstance(failure, DriverMismatch)))
        if self.spent:
            return
        if self._driver is None:
            stuck = self._thread.busy_for()  # in all of the opening, whose one long call is the first
            if stuck >= max(self._patience, START_SECONDS):
                self._word, self._reason = "hung", no_return(self._call, stuck)
            return
        readings = [gpu.reading() for gpu in self._gpus]
        words = {reading.word for reading in readings}
        if not words:
            self._word, self._reason = "no_gpu", "the driver shows no GPU"
        elif "" in words:
            self._word, self._reason = "", ""
            self._backoff.reset()
        elif words == {STARTING}:
            self._word, self._reason = STARTING, "the GPUs are being opened"
        elif "hung" in words:
            worst = max(self._gpus, key=lambda gpu: gpu.stuck_for)
            self._word, self._reason = "hung", no_return(worst.stuck_call, worst.stuck_for)
        else:
            why = next(why for reading in readings for why in reading.failures.values())
            self._word, self._reason = "error", f"no GPU can be read: {why}"
            if STARTING not in words:  # after a reload or a reset of all, the old initialisation never works again
                self._close(now)

    def _give_up(self, failure: Exception) -> None:
        """Close the driver as a whole."""
        if isinstance(failure, DriverMismatch):
            self._word, self._reason, self.spent = "driver_mismatch", str(failure), True
        elif isinstance(failure, DriverAbsent):
            self._word, self._reason = absence(failure, self._root)
        else:
            self._word, self._reason = "error", f"{type(failure).__name__}: {failure}"
        for gpu in self._gpus:
            gpu.fail(_GPU_REASONS.get(self._word, self._word))
        self._close(self._clock())

    def _close(self, now: float) -> None:
        """Shut NVML down, so that the driver can be unloaded, and open it again later; not during a call."""
        self._retry_at = now + self._backoff.next()
        if self._driver is None:
            return
        if self._thread.since is not None or self._busy():
            self.spent = True
            return
        nvml, collectors = self._driver.nvml, [gpu.collector for gpu in self._gpus]
        self._driver, self._call = None, "nvmlShutdown"
        self._thread.ask(partial(_shut, nvml, collectors, self._xids), lambda _: None)
        gather(self._outcomes, [self._thread], self._answer_seconds / 5)

    def _busy(self) -> bool:
        """Return whether a GPU's thread is in the driver."""
        return any(gpu.thread.since is not None for gpu in self._gpus)

    def _collection(self, started: float) -> NodeReading:
        # While the list is left alone, a GPU that moved up can be found at two indices; one of them is reported.
        readings = (gpu.reading() for gpu in self._gpus)
        gpus = {reading.identity.uuid or reading.identity.index: reading for reading in readings}
        self._named.update((uuid, gpu.identity) for uuid, gpu in gpus.items() if gpu.identity.uuid)
        collectors = {
            "gpu": self._word,
            # "" is the least: one GPU that has it will do.
            "gpm": min((gpu.gpm for gpu in gpus.values() if not gpu.word), default=self._word),
        }
        failures, notes = {}, {}
        xids: list[Row] = []
        kernel: list[Row] = []
        if self._driver is not None and self._thread.busy_for() >= max(self._patience, CALL_SECONDS):
            failures[LIST] = no_return(self._call)
        elif self._listing:
            failures[LIST] = self._listing
        if self._xids is not None:
            xids = self._xids.rows(tuple(self._named.values()))
            kernel = self._xids.kernel_rows()
            collectors["xid"] = self._xids.trouble
            notes = self._xids.notes
        return NodeReading(
            tuple(gpus.values()),
            *unzipped(xids),
            collectors,
            self._clock() - started,
            self._reason,
            failures,
            notes,
            *unzipped(kernel),
        )


def _open() -> _Driver:
    nvml = Nvml()
    try:
        return _Driver(nvml, nvml.driver_version(), nvml.cuda_version(), nvml.count())
    except NvmlFailure:
        nvml.close()
        raise


def _shut(nvml: Nvml, collectors: Sequence[GpuCollector], xids: XidWatch | None) -> None:
    if xids is not None:
        xids.detach()
    for collector in collectors:
        collector.close()
    nvml.close()


def absence(failure: DriverAbsent, root: Path) -> tuple[str, str]:
    """Return why there is no driver, as one of COLLECTOR_REASONS and in a sentence.

    A loaded kernel module without its control device means a container that was given no GPU.
    """
    control = root / "dev/nvidiactl"
    if control.exists():
        if not os.access(control, os.R_OK | os.W_OK):
            return "no_permission", f"{failure}: no permission to open {control}"
    elif (root / "proc/driver/nvidia/version").exists():
        return "no_device_nodes", f"{failure}: the kernel module is loaded, but {control} is missing"
    return "no_driver", str(failure)
