"""Which batch jobs are on which GPU, from a folder that the scheduler's prolog keeps for dcgm-exporter.

A file is named after a GPU's index, or `<index>.<GPU instance>` for a MIG instance, and has one job id a line. Shown:

    tachograph_gpu_job_info{gpu="0",uuid="GPU-2f1e",job_id="4711"} 1

The writers of that folder are not trusted: only files of the expected names are opened, so that
others cost nothing however many; no link is followed, since its target's lines would go on the page; and nothing that
could make a reader wait, such as a FIFO, is read. The scrape reads it, so the folder must be on a local file system.
"""

from __future__ import annotations

import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tachograph.catalog.gpu import GPU_JOB_INFO
from tachograph.node.samples import GpuIdentity, Sample

READ_SECONDS = 5.0
"""How often the folder is read; jobs come and go by the minute."""

MAX_JOBS = 16
"""Jobs shown for one GPU."""

MAX_ID_LENGTH = 128
MAX_FILE_BYTES = 8192
MIG_INSTANCES = range(16)
"""Numbers a GPU instance can have: a GPU has at most seven of them, numbered up to 14."""

_log = logging.getLogger(__name__)


class JobMapping:
    """The jobs of a folder, read again every few seconds; each fault is logged once, and the rest is shown."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._read_at = -math.inf
        self._asked: tuple[str, ...] = ()
        self._jobs: dict[str, tuple[str, ...]] = {}
        self._faults: dict[str, str] = {}

    def samples(self, gpus: Sequence[GpuIdentity]) -> Iterator[Sample]:
        """Yield one sample for each job on each of these GPUs."""
        asked, now = tuple(gpu.index for gpu in gpus), self._clock()
        if asked != self._asked or now - self._read_at >= READ_SECONDS:
            self._asked, self._read_at = asked, now
            self._read()
        for gpu in gpus:
            for job in self._jobs.get(gpu.index, ()):
                yield Sample(GPU_JOB_INFO, (gpu.index, gpu.uuid, job), 1)

    def _read(self) -> None:
        faults: dict[str, str] = {}
        self._jobs = {}
        twice = len(set(self._asked)) < len(self._asked)
        if (
            trouble := "ignored: a GPU was unplugged, so its index may be another GPU's"
            if twice
            else _trouble(self._folder)
        ):
            faults[str(self._folder)] = trouble
        else:
            self._jobs = {index: self._jobs_of(index, faults) for index in self._asked}
        for path, fault in faults.items():
            if self._faults.get(path) != fault:
                _log.error(f"job mapping: {path}: {fault}")
        self._faults = faults

    def _jobs_of(self, index: str, faults: dict[str, str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in (index, *(f"{index}.{instance}" for instance in MIG_INSTANCES)):
            path = f"{self._folder}/{name}"
            try:
                text = _content(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                faults[path] = f"not read: {error.strerror}"
                continue
            if len(text) > MAX_FILE_BYTES:
                faults[path] = f"not read beyond {MAX_FILE_BYTES} bytes"
                text = text[:MAX_FILE_BYTES].rpartition(b"\n")[0]  # half a line would be another job
            for number, line in enumerate(text.splitlines(), 1):
                job, fault = _job(line)
                if job and job not in found and len(found) == MAX_JOBS:
                    fault = f"more than {MAX_JOBS} jobs on GPU {index}"
                if fault:
                    faults.setdefault(path, f"line {number}: {fault}")
                elif job:
                    found[job] = None
        return tuple(found)


def _trouble(folder: Path) -> str:
    """Return why nothing can be read in a folder, or nothing."""
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISDIR(mode):
        return "cannot be read: no folder"
    return "" if os.access(folder, os.X_OK) else "cannot be read: Permission denied"


def _content(path: str) -> bytes:
    """Return a regular file's content, cut a byte beyond the limit; raise OSError for anything else, and never wait."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(0, "a link, folder or device where a file belongs")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(descriptor, MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)


def _job(line: bytes) -> tuple[str, str]:
    """Return the job id of a line, empty for an empty line, and what is wrong with it."""
    try:
        job = line.decode().strip()
    except UnicodeDecodeError:
        return "", "not UTF-8"
    if len(job) > MAX_ID_LENGTH:
        return "", f"over {MAX_ID_LENGTH} characters"
    return (job, "") if job.isprintable() else ("", "characters that cannot be printed")
