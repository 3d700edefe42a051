"""The node's view of its GPUs: supervises the worker process and keeps its last snapshot.

Nothing here waits for the driver. A worker that ends is started again with back-off. One that hangs is killed only
after a minute in which it, or every GPU, gave no answer: a process killed inside a driver call may never end, while
one that waits out a slow reset recovers by itself; but a driver that gave up on a process serves only a new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence

import msgspec

from tachograph.catalog.exporter import WORKER_END_CAUSES
from tachograph.node.gpu.failure_log import FailureLog
from tachograph.node.gpu.known_gpus import KnownGpus
from tachograph.node.gpu.worker_protocol import SPENT_STATUS, STALE_INTERVALS, STARTING, LineReader, NodeReading
from tachograph.node.samples import GpuIdentity, GpuSnapshot
from tachograph.processes.backoff import Backoff
from tachograph.processes.own_process import own_process

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
"""How long a worker may take to its first line; only a busy machine needs it, for it speaks while the driver hangs."""

FIRST_DELAY, LAST_DELAY = 1.0, 30.0
STEADY_SECONDS = 60.0
"""A worker that read GPUs for so long is started again without the delay that failures before it had built up."""

END_SECONDS = 2.0
LEFT_LIMIT = 3
"""How many killed workers may be blocked in a driver call, and so still exist, before no other one is started."""

LINE_LIMIT = 1 << 22  # bytes; eight GPUs make 60 KB
COLLECTORS = ("gpu", "gpm", "xid")
WHOLE = "the collection as a whole"

_OF_GPU = re.compile(r"GPU (\d+)(?: \((\S+)\)| \(never opened\))?$")
"""The end of a failure's subject that is about one GPU, such as `power of GPU 3`, or `GPU 3 (GPU-9a1f…)` as a whole."""


ADVICE = {
    "no_driver": "load the driver, give a container its GPUs (docker run --gpus all), or set gpu.enabled to false",
    "no_device_nodes": "give the container its GPUs: docker run --gpus all, or the NVIDIA container runtime",
    "no_permission": "let this user, or this container, open the devices /dev/nvidia*",
}
"""Advice, by the reason of the gpu collector."""


class GpuSource:
    """Last readings of the node's GPUs; `run` keeps them coming, everything else answers at once.

    `kmsg` is the kernel's log, "" if it is not to be read; `detail` reads more than is shown by default.
    `command` starts the worker (default: this interpreter on `tachograph.node.gpu.worker`); after `silence_limit`
    seconds without a line, or without an answer from any GPU, it is killed.
    """

    def __init__(
        self,
        *,
        interval: float = 1.0,
        kmsg: str = "/dev/kmsg",
        detail: bool = False,
        command: Sequence[str] | None = None,
        silence_limit: float = 60.0,
    ) -> None:
        worker = own_process("tachograph.node.gpu.worker", "--interval", str(interval), "--kmsg", kmsg)
        self._command = (*worker, *["--detail"] * detail) if command is None else tuple(command)
        self._interval = interval
        self._patience = STALE_INTERVALS * interval
        self._silence_limit = silence_limit
        self._gpus = KnownGpus()
        self._last: NodeReading | None = None
        self._last_at = 0.0
        self._collectors: Mapping[str, str] = dict.fromkeys(COLLECTORS, STARTING)
        self._word = STARTING  # the gpu collector's, while no line is fresh
        self._ended = ""  # why no worker runs
        self._heard = 0.0  # when the worker last spoke, or was started
        self._spoke = False  # whether this worker ever did
        self._hung_since: float | None = None
        self._reading_since: float | None = None
        self._ends = dict.fromkeys(WORKER_END_CAUSES, 0)
        self._left: list[asyncio.subprocess.Process] = []
        self._failures = FailureLog()
        self._told_reading = False
        self._notes: set[tuple[str, str]] = set()

    def snapshot(self) -> GpuSnapshot | None:
        """Return the last collection, or GPU_UP 0 for each known GPU once it is three intervals old.

        None until a worker gave its first one or should have.
        """
        now = time.monotonic()
        last = self._last
        if last is not None and self._is_fresh(now):
            return GpuSnapshot(tuple(self._gpus.samples()), last.duration, self._last_at, last.ok, last.reason)
        word, reason = self._trouble(now)
        if last is None and word == STARTING:
            return None
        duration, monotonic = (last.duration, self._last_at) if last is not None else (0.0, self._heard)
        return GpuSnapshot(tuple(self._gpus.down(word)), duration, monotonic, False, reason)

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Return every GPU known since the start, also those that cannot be read now."""
        return self._gpus.identities

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        """Return the GPU that a process computes on; None if NVML lists it nowhere, or on more than one."""
        return self._gpus.of_pid(pid)

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Return the pids that compute on each GPU, by its UUID; none while no line is fresh."""
        return self._gpus.processes if self._is_fresh(time.monotonic()) else {}

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        """Return a GPU's dense peak FLOP/s at a precision; None for an unknown device or precision and under MIG."""
        return self._gpus.peak_flops(uuid, precision)

    def collectors(self) -> Mapping[str, str]:
        """Return for gpu, gpm and xid "" if they have something to show, else a word of COLLECTOR_REASONS."""
        now = time.monotonic()
        if self._is_fresh(now):
            return self._collectors
        return dict.fromkeys(COLLECTORS, self._trouble(now)[0])

    def _is_fresh(self, now: float) -> bool:
        return self._last is not None and now - self._last_at <= self._patience

    def worker_ends(self) -> Mapping[str, int]:
        """Return how often a worker ended, by cause, all WORKER_END_CAUSES; the exporter's own end does not count."""
        return self._ends

    async def run(self) -> None:
        """Keep a worker running until cancelled; then end it."""
        backoff = Backoff(FIRST_DELAY, LAST_DELAY)
        while True:
            self._reading_since = None
            cause, self._word, self._ended = await self._one_worker()
            self._ends[cause] += 1
            self._note(self._word, self._ended)
            if self._reading_since is not None and time.monotonic() - self._reading_since > STEADY_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next())
            while len(self._left) >= LEFT_LIMIT:
                await asyncio.sleep(self._interval)
                self._left = [process for process in self._left if process.returncode is None]

    async def _one_worker(self) -> tuple[str, str, str]:
        """Run one worker to its end; return one of WORKER_END_CAUSES, the gpu collector's word, and a sentence."""
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
            return "crashed", "worker", f"the GPU worker cannot be started: {error}"
        assert process.stdout is not None
        assert process.stderr is not None
        self._ended, self._spoke, self._heard, self._hung_since = "", False, time.monotonic(), None
        last_line = asyncio.create_task(_last_line(process.stderr))
        watch = asyncio.create_task(self._watch())
        lines = asyncio.create_task(self._listen(process.stdout))
        try:
            await asyncio.wait({watch, lines}, return_when=asyncio.FIRST_COMPLETED)
            if not lines.done():
                word, reason = watch.result()
                process.kill()
                return "killed", word, reason
            if fault := lines.result():
                return "crashed", "worker", fault
            await _end(process)
            if process.returncode == SPENT_STATUS and self._last is not None:
                return "driver", self._word, self._last.reason
            await asyncio.wait({last_line}, timeout=END_SECONDS)
            return "crashed", "worker", _end_of(process.returncode, last_line.result() if last_line.done() else "")
        finally:
            for task in (last_line, watch, lines):
                task.cancel()
            if not await _end(process):
                self._left.append(process)
                logger.warning("the GPU worker %d is killed and does not exit: a driver call blocks it", process.pid)

    async def _listen(self, lines: asyncio.StreamReader) -> str:
        """Take lines until they end, returning "" (half a line is an end), or one cannot be read, returning why."""
        reader = LineReader(msgspec.json.decode)
        try:
            while (line := await lines.readline()).endswith(b"\n"):
                self._take(reader.read(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # endless, not JSON, or not of this version
            return f"the GPU worker wrote a line that cannot be read ({type(error).__name__}: {error})"
        return ""

    async def _watch(self) -> tuple[str, str]:
        """Log that a worker fell silent; return once only its end can help, with a word and why."""
        while True:
            await asyncio.sleep(self._interval)
            now = time.monotonic()
            limit = self._silence_limit if self._spoke else max(self._silence_limit, START_SECONDS)
            if now - self._heard > limit:
                return "worker", f"the GPU worker was killed: it was silent for {limit:.0f} s"
            if self._hung_since is not None and now - self._hung_since > self._silence_limit:
                return "hung", f"the GPU worker was killed: no driver call returned for {self._silence_limit:.0f} s"
            if now - self._heard > self._patience and self._trouble(now)[0] == "worker":
                self._note("worker", "the GPU worker is silent")

    def _take(self, collection: NodeReading) -> None:
        """Keep a collection; one of a worker that is still opening the driver has nothing to keep."""
        now = time.monotonic()
        word = collection.collectors["gpu"]
        self._heard, self._spoke = now, True
        if word != "hung":
            self._hung_since = None
        elif self._hung_since is None:
            self._hung_since = now
        if word == STARTING:
            return
        if not word and self._reading_since is None:
            self._reading_since = now
        self._gpus.take(collection)
        self._last, self._last_at = collection, now
        self._collectors = collection.collectors
        self._word = word
        self._note(word, collection.reason)
        self._note_failures(collection.all_failures(), word, now)
        for note in collection.all_notes().items() - self._notes:
            self._notes.add(note)
            logger.info("%s: %s", *note)

    def _trouble(self, now: float) -> tuple[str, str]:
        """Return why there is nothing new to show, as a word of COLLECTOR_REASONS and a sentence."""
        silence = now - self._heard
        if self._ended:
            return self._word, self._ended
        if not self._heard or silence <= (self._patience if self._spoke else max(self._patience, START_SECONDS)):
            return self._word or "worker", "the GPU worker is starting"
        return "worker", f"the GPU worker has been silent for {silence:.0f} s"

    def _note(self, word: str, reason: str) -> None:
        """Log that nothing is read, once for each reason, and that GPUs are: at first, and again once it is steady."""
        at_first = not self._told_reading and WHOLE not in self._failures.subjects
        if word:
            noted = re.sub(r" for \d+ s", "", reason)  # how long it lasts already is in each line
            if self._failures.fails(WHOLE, f"{word}: {noted}"):
                advice = f"; {ADVICE[word]}" if word in ADVICE else ""
                logger.warning("no GPU readings: %s%s", reason, advice)
        elif at_first or self._failures.well(WHOLE, time.monotonic()):
            self._told_reading = True
            logger.info("reading %d GPUs", len(self.gpus()))

    def _note_failures(self, failures: Mapping[str, str], word: str, now: float) -> None:
        """Log what cannot be read, once for each reason, and that it can be again once it is so for a steady minute."""
        failing = {**failures, **self._unplugged()}
        for subject, reason in failing.items():
            if self._failures.fails(subject, reason):
                logger.warning("%s: %s", subject, reason)
        for subject in self._failures.subjects:
            if subject == WHOLE or subject in failing:
                continue
            if word or not self._readable(subject):  # not named any more, because there is nobody left to read it
                self._failures.unknown(subject)
            elif self._failures.well(subject, now):
                logger.info("%s: readable again", subject)

    def _unplugged(self) -> dict[str, str]:
        """Return the GPUs that the driver lists no more, as failures: the worker does not mention them."""
        words = self._gpus.words
        gone = (gpu for gpu in self.gpus() if words.get(gpu.uuid) == "unplugged")
        return {f"GPU {gpu.index} ({gpu.uuid})": "unplugged" for gpu in gone}

    def _readable(self, subject: str) -> bool:
        """Return whether the GPU that a subject names is read now; true of a subject that names none."""
        match = _OF_GPU.search(subject)
        if match is None:
            return True
        index, uuid = match.groups()
        up = [gpu for gpu in self.gpus() if gpu.uuid and gpu.uuid not in self._gpus.words]
        return any(gpu.uuid == uuid if uuid else gpu.index == index for gpu in up)  # an index may change hands


def _end_of(status: int | None, last_line: str) -> str:
    if status is None:
        return "the GPU worker fell silent and does not exit"
    if status < 0:
        return f"the GPU worker was killed by signal {-status}"
    return f"the GPU worker ended with status {status}" + (f": {last_line}" if last_line else "")


async def _last_line(stream: asyncio.StreamReader) -> str:
    """Return the last line a process writes before it ends."""
    tail = b""
    while data := await stream.read(4096):
        tail = (tail + data)[-4096:]
    lines = tail.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


async def _end(process: asyncio.subprocess.Process) -> bool:
    """End a worker if it still runs: gently, then by force; return whether it did end, for the kernel may hold it."""
    if process.stdin is not None:
        process.stdin.close()
    ended = asyncio.ensure_future(process.wait())
    for force in (False, True):
        if force and process.returncode is None:
            process.kill()
        # Not asyncio.wait_for: up to Python 3.11 it can swallow the cancellation that ends the exporter.
        await asyncio.wait({ended}, timeout=END_SECONDS)
        if process.returncode is not None:
            break
    ended.cancel()
    return process.returncode is not None
