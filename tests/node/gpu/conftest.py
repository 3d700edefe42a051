"""A node's GPUs, made up: the C library of the lab behind the real pynvml, read in a process of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.gpu import failure_log
from tachograph.node.gpu.gpu_collector import GPM
from tachograph.node.gpu.source import GpuSource
from tachograph.node.gpu.worker_protocol import LineReader, NodeReading
from tachograph.node.samples import GpuSnapshot, Sample
from tachograph.processes.own_process import own_process
from tests import waiting
from tests.forking import Forked, Forking

STEPPER, GPU_STEPPER = "tests.node.gpu.stepper", "tests.node.gpu.gpu_stepper"
WORKER = tuple(own_process("tachograph.node.gpu.worker")[1:])
HASTY_WORKER = """
from tachograph.node.gpu import gpu_watch, node_collector, worker
gpu_watch.CALL_SECONDS = gpu_watch.START_SECONDS = node_collector.CALL_SECONDS = node_collector.START_SECONDS = 0.6
worker.main(["--interval", "0.2"])
"""
"""The worker, but for its patience with a driver."""


class Node:
    """One collection as a test wants to read it."""

    def __init__(self, collection: NodeReading) -> None:
        self.collection = collection
        self.ok, self.reason, self.collectors = collection.ok, collection.reason, collection.collectors
        self.failures, self.notes = collection.all_failures(), collection.all_notes()
        self.gpus = [(gpu.identity.index, gpu.identity.uuid, gpu.identity.name) for gpu in collection.gpus]
        self.processes = {gpu.identity.index: list(gpu.pids) for gpu in collection.gpus if gpu.pids}
        samples = collection.samples()
        self.samples = {(s.metric.name.removeprefix("tachograph_gpu_"), *s.labels): s.value for s in samples}
        assert len(self.samples) == len(samples), "a sample is given twice"

    def gpu(self, index: int) -> dict[tuple[str, ...], float]:
        """All samples of a GPU: (name, labels after gpu and uuid) -> value."""
        return {(name, *own): v for (name, gpu, _, *own), v in self.samples.items() if gpu == str(index)}


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with that of a test; its PYTHONPATH comes first, and hides none."""
    paths = [where["PYTHONPATH"] for where in (own, os.environ) if "PYTHONPATH" in where]
    return {**os.environ, **own, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}


class Stepper:
    """A NodeCollector in a process of its own, whose clock a test sets.

    `patience` is how long it waits for answers, `root` where it looks for device files.
    """

    def __init__(self, process: Forked) -> None:
        self._reader = LineReader()
        self._process = process

    def mismatch(self, now: float) -> str:
        """Collect at a time; return the reason why only a new process can go on."""
        spent, node = self._ask(now)
        assert spent
        return node.reason

    def at(self, now: float) -> Node:
        """Collect at a time, in seconds."""
        return self._ask(now)[1]

    def _ask(self, now: float) -> tuple[str, Node]:
        spent, _, line = self._process.ask(f"{now}").partition(" ")
        return spent, Node(self._reader.read(line))

    def close(self) -> None:
        """End the process."""
        self._process.close()


@pytest.fixture
def stepper(tmp_path: Path, forking: Forking) -> Iterator[Callable[..., Stepper]]:
    """Start collectors: `stepper(environment, patience=0.3)`, with tmp_path as their root; ended after the test."""
    started: list[Stepper] = []

    def start(environment: Mapping[str, str], patience: float = 2.0) -> Stepper:
        process = forking.start(STEPPER, patience, tmp_path, environment=_environment(environment))
        started.append(Stepper(process))
        return started[-1]

    yield start
    for one in started:
        one.close()


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # an orphan that nobody reaps has ended all the same


@pytest.fixture(scope="session")
def gone() -> Callable[[int], object]:
    """Wait until a process has ended."""
    return lambda pid: waiting.until(lambda: not _alive(pid))


class OneGpu:
    """A reading of a GpuCollector: samples by (name, labels after gpu and uuid), and the rest as it stands."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = answer
        self.down: str = answer["down"]
        self.failures: dict[str, str] = answer["failures"]
        self.notes: dict[str, str] = answer["notes"]
        self.pids: list[int] = answer["pids"]
        self.gpm: str = answer["gpm"]
        self.gpm_reason = self.notes.pop(GPM, "")
        self.samples = {_key(name, labels): value for name, labels, value in answer["rows"]}
        self.shown = {_key(name, labels) for name, labels in answer["shown"]}
        assert len(self.samples) == len(answer["rows"]), "a sample is given twice"

    def family(self, name: str) -> dict[tuple[str, ...], float]:
        """All samples of a family: labels after gpu and uuid -> value."""
        return {key[1:]: value for key, value in self.samples.items() if key[0] == name}


def _key(name: str, labels: Sequence[str]) -> tuple[str, ...]:
    return name.removeprefix("tachograph_gpu_"), *labels[2:]


class GpuStepper:
    """A GpuCollector in a process of its own, whose clock a test sets."""

    def __init__(self, process: Forked) -> None:
        self._process = process

    def at(self, *times: float) -> OneGpu:
        """Collect at these times, in seconds; return the last collection."""
        for now in times:
            answer = self._process.ask(f"{now}")
        return OneGpu(json.loads(answer))

    def close(self) -> None:
        """End the process."""
        self._process.close()


@pytest.fixture
def one_gpu(fake: Any, forking: Forking) -> Iterator[Callable[..., GpuStepper]]:
    """Start collectors of one GPU of the node: `one_gpu(index, detail=, library=)`; ended after the test."""
    started: list[GpuStepper] = []

    def start(index: int = 0, *, detail: bool = False, library: Path | None = None) -> GpuStepper:
        environment = fake.environment()
        if library is not None:
            environment["LD_LIBRARY_PATH"] = str(library)
        process = forking.start(GPU_STEPPER, index, *(["detail"] if detail else []), environment=environment)
        started.append(GpuStepper(process))
        return started[-1]

    yield start
    for one in started:
        one.close()


class Worker:
    """A worker process as the exporter starts it, and the lines it writes."""

    def __init__(self, environment: Mapping[str, str], *arguments: str, program: Sequence[str] = WORKER) -> None:
        self._reader = LineReader()
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def line(self) -> Node:
        """Return the next line; fails the test if the worker ended."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the worker ended with {self.process.wait()}"
        return Node(self._reader.read(text))

    def line_where(self, condition: Callable[[Node], object]) -> Node:
        """Return the first line for which the condition holds."""
        deadline = time.monotonic() + waiting.DEADLINE
        while not condition(node := self.line()):
            assert time.monotonic() < deadline, f"did not come true in time; the last line says {node.reason!r}"
        return node

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def hasty() -> Sequence[str]:
    """The program of a worker that is quick to call a driver call hung."""
    return "-c", HASTY_WORKER


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    """Start workers: `worker(environment, "--interval", "0.1")`; ended after the test."""
    started: list[Worker] = []

    def start(environment: Mapping[str, str], *arguments: str, **options: Any) -> Worker:
        started.append(Worker(environment, *arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def _workers_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(")")
            words = (stat.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest.split()[1]) == pid and b"tachograph.node.gpu" in words:
            found.append(int(stat.parent.name))
    return found


@pytest.fixture(scope="session")
def workers_of() -> Callable[[int], list[int]]:
    """Find the workers that a process has started and that still run."""
    return _workers_of


class Source(GpuSource):
    """A supervisor, and what a test asks it."""

    def while_running(self, check: Callable[[], Awaitable[None]]) -> list[int]:
        """Run it for as long as `check` takes; return the workers that were alive at its end."""

        async def main() -> list[int]:
            task = asyncio.create_task(self.run())
            try:
                await check()
                return self.workers()
            finally:
                task.cancel()
                await asyncio.wait([task])

        return asyncio.run(main())

    until = staticmethod(waiting.meanwhile)

    def workers(self) -> list[int]:
        """Return its workers that run."""
        return _workers_of(os.getpid())

    def shown(self) -> GpuSnapshot:
        """Return the snapshot, which there must be."""
        snapshot = self.snapshot()
        assert snapshot is not None
        return snapshot

    def _of(self, metric: catalog.Metric) -> list[Sample]:
        return [sample for sample in self.shown().samples if sample.metric is metric]

    def ups(self) -> list[float]:
        """Return gpu_up of each GPU."""
        return [sample.value for sample in self._of(catalog.GPU_UP)]

    def why(self) -> list[str]:
        """Return why GPUs are down, by index."""
        words = {sample.labels[:2]: sample.labels[2] for sample in self._of(catalog.GPU_UNAVAILABLE)}
        assert len(words) == self.ups().count(0)
        return [words[key] for key in sorted(words)]

    def metrics(self) -> set[catalog.Metric]:
        """Return what there are samples of."""
        return {sample.metric for sample in self.shown().samples}

    def is_ok(self) -> bool:
        """Return whether the last collection succeeded."""
        snapshot = self.snapshot()
        return snapshot is not None and snapshot.ok

    def all_up(self) -> bool:
        """Return whether all eight GPUs are read."""
        return self.is_ok() and self.ups() == [1] * 8


@pytest.fixture
def a_source(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[..., Source]:
    """Make supervisors that leave this machine's kernel log alone, quick ones; `hasty`: so is the worker with hangs."""
    monkeypatch.setattr("tachograph.node.gpu.source.FIRST_DELAY", 0.05)
    monkeypatch.setattr(failure_log, "STEADY_SECONDS", 0.0)
    caplog.set_level(logging.INFO, logger="tachograph")

    def make(*, hasty: bool = False, **options: Any) -> Source:
        if hasty:
            options["command"] = (sys.executable, "-c", HASTY_WORKER)
        return Source(**{"interval": 0.2, "kmsg": "", **options})

    return make


@pytest.fixture
def node(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Eight made-up GPUs that the worker will find."""
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
    """The log; `single=False`: without lines on single GPUs, and without the name of a call that hangs.

    That a worker is silent is left out: on a busy machine any may be late.
    """

    def lines(*, single: bool = True) -> list[str]:
        told = [record.getMessage() for record in caplog.records if record.name.startswith("tachograph")]
        told = [line for line in told if not line.endswith("the GPU worker is silent")]
        return told if single else [line.partition(" for ")[0] for line in told if not line.startswith("GPU ")]

    return lines
