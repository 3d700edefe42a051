"""The node's view of its GPUs: supervises the worker process and keeps its last snapshot.

Nothing here waits for the driver. A worker that ends is started again with back-off. One that falls silent has its
values dropped after three intervals, and is killed only after a minute: a process killed inside a driver call may
never end, while one that waits out a slow reset recovers by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Sequence

from tachograph.catalog import BY_NAME, GPU_PEAK_FLOPS, GPU_UP
from tachograph.node.gpu_collector import Collection
from tachograph.node.gpu_worker import MISMATCH_STATUS
from tachograph.node.peaks import dtype_of
from tachograph.node.readings import GpuIdentity, GpuSnapshot, Sample

logger = logging.getLogger(__name__)

STALE_INTERVALS = 3
START_SECONDS = 10.0
"""How long a worker may take to its first line: eight GPUs without persistence mode take seconds to open."""

FIRST_DELAY, LAST_DELAY = 1.0, 30.0
STEADY_SECONDS = 60.0
"""A worker that lived so long is started again without the delay that failures before it had built up."""

END_SECONDS = 2.0
LINE_LIMIT = 1 << 22  # bytes; eight GPUs make 28 KB
STARTING = "the GPU worker is starting"
NO_RETURN = "driver call does not return"


class GpuSource:
    """Last readings of the node's GPUs; `run` keeps them coming, everything else answers at once.

    `command` starts the worker (default: this interpreter on `tachograph.node.gpu_worker`); after `silence_limit`
    seconds without a line it is killed.
    """

    def __init__(
        self, *, interval: float = 1.0, command: Sequence[str] | None = None, silence_limit: float = 60.0
    ) -> None:
        worker = (sys.executable, "-m", "tachograph.node.gpu_worker", "--interval", str(interval))
        self._command = worker if command is None else tuple(command)
        self._interval = interval
        self._patience = STALE_INTERVALS * interval
        self._silence_limit = silence_limit
        self._last: GpuSnapshot | None = None
        self._gpus: tuple[GpuIdentity, ...] = ()
        self._named: dict[str, GpuIdentity] = {}  # by UUID, every one ever seen
        self._peaks: dict[tuple[str, str], float] = {}
        self._ended = ""  # why no worker runs
        self._heard = 0.0  # when the worker last spoke, or was started
        self._spoke = False  # whether this worker ever did
        self._noted: tuple[bool, str] | None = None
        self._failures: dict[str, str] = {}

    def snapshot(self) -> GpuSnapshot | None:
        """Return the last collection, or GPU_UP 0 for each known GPU once it is three intervals old.

        None until a worker gave its first one or should have.
        """
        now = time.monotonic()
        last = self._last
        if last is not None and now - last.monotonic <= self._patience:
            return last
        reason = self._trouble(now)
        if last is None and reason == STARTING:
            return None
        samples = tuple(Sample(GPU_UP, (gpu.index, gpu.uuid), 0.0) for gpu in self._gpus)
        duration, monotonic = (last.duration, last.monotonic) if last is not None else (0.0, self._heard)
        return GpuSnapshot(samples, duration, monotonic, False, reason)

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Return every GPU known since the start, also those that cannot be read now."""
        return self._gpus

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        """Return a GPU's dense peak FLOP/s at a precision; None for an unknown device or precision and under MIG."""
        return self._peaks.get((uuid, dtype_of(precision)))

    async def run(self) -> None:
        """Keep a worker running until cancelled; then end it."""
        delay = FIRST_DELAY
        while True:
            started = time.monotonic()
            self._ended = await self._one_worker()
            self._note(False, self._ended)
            if time.monotonic() - started > STEADY_SECONDS:
                delay = FIRST_DELAY
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_DELAY)

    async def _one_worker(self) -> str:
        """Run one worker to its end; return why it ended."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LINE_LIMIT,
                start_new_session=True,  # a Ctrl-C on the exporter is not meant for it
                env={**os.environ, "PYTHONSAFEPATH": "1"},  # `-m` would put the current folder on its path
            )
        except OSError as error:
            return f"the GPU worker cannot be started: {error}"
        assert process.stdout is not None
        assert process.stderr is not None
        self._ended, self._spoke, self._heard = "", False, time.monotonic()
        last_words = asyncio.create_task(_last_line(process.stderr))
        watch = asyncio.create_task(self._watch(process))
        try:
            fault = await self._listen(process.stdout)
            if fault and process.returncode is None:
                process.kill()
            status = await process.wait()  # without limit: a second worker would block in the same driver
            killed = watch.result() if watch.done() else ""
            return fault or killed or self._end_of(status, await last_words)
        finally:
            last_words.cancel()
            watch.cancel()
            await _end(process)

    async def _listen(self, lines: asyncio.StreamReader) -> str:
        """Take lines until they end, returning "", or until one cannot be read, returning why."""
        # Not under asyncio.wait_for: up to Python 3.11 it can swallow the cancellation that ends the exporter.
        try:
            while line := await lines.readline():
                self._take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:  # endless, not JSON, or not of this version
            return f"the GPU worker wrote a line that cannot be read ({type(error).__name__}: {error})"
        return ""

    async def _watch(self, process: asyncio.subprocess.Process) -> str:
        """Tell of a worker that fell silent; kill it once it was silent for too long, and return why."""
        while True:
            await asyncio.sleep(self._interval)
            now = time.monotonic()
            if now - self._heard > self._silence_limit and process.returncode is None:
                process.kill()
                return f"{NO_RETURN}: the GPU worker was killed after {self._silence_limit:.0f} s"
            if now - self._heard > self._patience and self._trouble(now) != STARTING:
                self._note(False, NO_RETURN)

    def _take(self, line: Collection) -> None:
        """Keep a collection, and complete it: GPUs seen before that it says nothing of are down."""
        now = time.monotonic()
        samples = [Sample(BY_NAME[name], tuple(labels), value) for name, labels, value in line["samples"]]
        listed = [GpuIdentity(*identity) for identity in line["gpus"]]
        self._named.update((gpu.uuid, gpu) for gpu in listed if gpu.uuid)
        told = {sample.labels[1] for sample in samples if sample.metric is GPU_UP}
        missing = [gpu for gpu in self._named.values() if gpu.uuid not in told]
        # A GPU that cannot be opened tells no UUID; where one is missing at its index, that one it is.
        indices = {gpu.index for gpu in missing}
        samples = [sample for sample in samples if sample.labels[1] or sample.labels[0] not in indices]
        samples += (Sample(GPU_UP, (gpu.index, gpu.uuid), 0.0) for gpu in missing)
        unnamed = (gpu for gpu in listed if not gpu.uuid and gpu.index not in indices)
        self._gpus = tuple(sorted([*self._named.values(), *unnamed], key=lambda gpu: int(gpu.index)))
        self._keep_peaks(samples)
        self._last = GpuSnapshot(tuple(samples), line["duration"], now, line["ok"], line["reason"])
        self._heard, self._spoke = now, True
        self._note(line["ok"], line["reason"])
        self._note_failures(line["failures"])

    def _keep_peaks(self, samples: Sequence[Sample]) -> None:
        """Take the peaks of GPUs that were read; those of the others stand, or a lost GPU would move a run's MFU."""
        read = {sample.labels[1] for sample in samples if sample.metric is GPU_UP and sample.value}
        self._peaks = {key: peak for key, peak in self._peaks.items() if key[0] not in read}
        for sample in samples:
            if sample.metric is GPU_PEAK_FLOPS:
                _, uuid, dtype = sample.labels
                self._peaks[uuid, dtype] = sample.value

    def _trouble(self, now: float) -> str:
        """Return why there is nothing new to show."""
        silence = now - self._heard
        if self._ended:
            return self._ended
        if not self._heard or silence <= (self._patience if self._spoke else max(self._patience, START_SECONDS)):
            return STARTING
        return f"{NO_RETURN} for {silence:.0f} s"

    def _end_of(self, status: int, last_line: str) -> str:
        if status == MISMATCH_STATUS and self._last is not None:
            return self._last.reason
        if status < 0:
            return f"the GPU worker was killed by signal {-status}"
        return f"the GPU worker ended with status {status}" + (f": {last_line}" if last_line else "")

    def _note(self, ok: bool, reason: str) -> None:
        """Log a change between reading and not reading, or of the reason, once."""
        if self._noted == (ok, reason):
            return
        self._noted = (ok, reason)
        if ok:
            logger.info("reading %d GPUs", len(self._gpus))
        else:
            logger.warning("no GPU readings: %s", reason)

    def _note_failures(self, failures: dict[str, str]) -> None:
        """Log what cannot be read, and when it can be read again, once each."""
        for subject in self._failures.keys() - failures.keys():
            logger.info("%s: readable again", subject)
        for subject, reason in failures.items():
            if self._failures.get(subject) != reason:
                logger.warning("%s: %s", subject, reason)
        self._failures = failures


async def _last_line(stream: asyncio.StreamReader) -> str:
    """Return the last line a process writes before it ends."""
    tail = b""
    while data := await stream.read(4096):
        tail = (tail + data)[-4096:]
    lines = tail.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a worker if it still runs: gently, then by force, and never wait for one that is stuck in the kernel."""
    if process.stdin is not None:
        process.stdin.close()
    for force in (False, True):
        if process.returncode is not None:
            return
        if force:
            process.kill()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except asyncio.TimeoutError:
            continue
