"""Collectives of a real DistributedDataParallel job on gloo: who arrives last, and who never boards."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client import groups
from tachograph.client.collectives import BucketWatch, Collectives, OperationTotals
from tachograph.client.groups import ATTEMPTS, GROUP_LIMIT, GroupProgress

JOB = """
import os, sys, threading, time
import torch, torch._dynamo, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tachograph.client.recorder import Recorder

# The ranks are forked from one process: importing PyTorch once takes a quarter of the time that it takes four times.
children = []
for rank in range(int(os.environ["WORLD_SIZE"])):
    child = os.fork()
    if child == 0:
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        break
    children.append(child)
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

class Delay(torch.autograd.Function):
    seconds = 0.0
    @staticmethod
    def forward(context, x): return x.clone()
    @staticmethod
    def backward(context, gradient):
        time.sleep(Delay.seconds)
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    def forward(self, x): return self.second(Delay.apply(self.first(x)))

def ddp(): return DistributedDataParallel(Model(), bucket_cap_mb=0.01)
def finish():
    dist.barrier()
    dist.destroy_process_group()
"""


class Job:
    """One run: its ranks are processes that report to `exporter`."""

    def __init__(self, exporter: Any, folder: Path, code: str, world: int) -> None:
        program = folder / "job.py"
        program.write_text(JOB + textwrap.dedent(code))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            **os.environ, "TACHOGRAPH_SOCKET": str(exporter.path), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "TACHOGRAPH_RUN": "job",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(program)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._exporter = exporter

    def end(self) -> None:
        """Wait for every rank to end well."""
        output, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, output

    def last_states(self) -> list[dict[str, Any]]:
        """The last state of each rank, in their order."""
        talks = {talk.of("hello")[0]["rank"]: talk.of("state")[-1] for talk in self._exporter.talks if talk.of("state")}
        return [state for _, state in sorted(talks.items())]


@pytest.fixture
def run(exporter: Any, tmp_path: Path) -> Iterator[Callable[[str, int], Job]]:
    """Starts jobs, and kills what is left of them."""
    jobs: list[Job] = []

    def begin(code: str, world: int) -> Job:
        jobs.append(Job(exporter, tmp_path, code, world))
        return jobs[-1]

    yield begin
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.communicate()


@pytest.mark.torch
def test_a_rank_slowed_inside_backward_waits_least(run: Callable[[str, int], Job]) -> None:
    """50 ms slept inside backward of rank 1: step times are equal, its exposed wait per step is clearly the lowest."""
    job = run(
        """
        Delay.seconds = 0.05 if rank == 1 else 0.0
        model = ddp()
        recorder = Recorder()
        recorder.watch(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(30):
            with recorder.step() as step:
                with recorder.phase("forward"): loss = model(torch.randn(8, 64)).square().mean()
                with recorder.phase("backward"): loss.backward()
                with recorder.phase("optimizer"): optimizer.step(); optimizer.zero_grad()
                step.log(loss=loss)
        finish()
        recorder.close()
        """,
        4,
    )
    job.end()
    metrics = [state["metrics"] for state in job.last_states()]
    waits = [each["collective_wait_seconds_total"]["all_reduce"] / 30 for each in metrics]
    backward = [each["phase_seconds_total"]["backward"] / 30 for each in metrics]
    others = [wait for rank, wait in enumerate(waits) if rank != 1]
    assert waits[1] < min(others) - 0.02, waits
    assert max(backward) - min(backward) < 0.02, backward
    assert {each["phase_seconds_total"]["collective"] for each in metrics} == {0.0}
    assert {each["collective_failures_total"]["all_reduce"] for each in metrics} == {0}
    parameters = 2 * (64 * 64 + 64)
    assert {each["collective_bytes_total"]["all_reduce"] for each in metrics} == {30 * parameters * 4}


@pytest.mark.torch
def test_gradients_are_the_same_as_without_the_hook(run: Callable[[str, int], Job]) -> None:
    """A watched model learns bit for bit what an unwatched one learns; it can be copied and saved without us."""
    job = run(
        """
        import copy, io
        def gradients(watched):
            torch.manual_seed(1)
            model = ddp()
            if watched:
                recorder = Recorder(enabled=True); recorder.watch(model); recorder.watch(model)
                assert recorder._report.dropped.count == 0
            torch.manual_seed(rank)
            for _ in range(3): model(torch.randn(8, 64)).square().mean().backward()
            if watched:
                assert recorder._report.collectives.watched[0].operations > 0
                stream = io.BytesIO(); torch.save(copy.deepcopy(model), stream)
                assert b"tachograph" not in stream.getvalue()
            return [parameter.grad.clone() for parameter in model.parameters()]
        plain, watched = gradients(False), gradients(True)
        assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
        assert any(gradient.abs().sum() > 0 for gradient in plain)
        finish()
        """,
        2,
    )
    job.end()


@pytest.mark.torch
def test_a_models_own_hook_is_kept(run: Callable[[str, int], Job], exporter: Any) -> None:
    """A model that has a communication hook keeps it: no wait is measured, and one drop says so."""
    job = run(
        """
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        model = ddp(); calls = []
        def theirs(state, bucket):
            calls.append(bucket.index()); return default_hooks.allreduce_hook(state, bucket)
        model.register_comm_hook(None, theirs)
        recorder = Recorder()
        recorder.watch(model); recorder.watch(torch.nn.Linear(1, 1)); recorder.watch(torch.compile)
        model(torch.randn(8, 64)).mean().backward()
        assert calls, "the hook was lost"
        assert len(model._comm_hooks) == 1
        finish(); recorder.close()
        """,
        1,
    )
    job.end()
    (state,) = job.last_states()
    assert state["dropped"] == 1
    assert "collective_wait_seconds_total" not in state["metrics"]


@pytest.mark.torch
def test_who_never_boarded(run: Callable[[str, int], Job], exporter: Any) -> None:
    """In a hang the culprit's `collective_enqueued` is one lower than the others', live, from their sender threads."""
    run(
        """
        recorder = Recorder()
        for step in range(5):
            if step == 4 and rank == 1:
                with recorder.phase("data"): time.sleep(60)
            with recorder.collective("all_reduce"): dist.all_reduce(torch.ones(1))
        """,
        2,
    )

    def hung(rank: int, phase: str) -> Any:
        def stands(frame: dict[str, Any]) -> bool:
            return frame["phase"] == phase and frame["time"] - frame["phase_since"] > 1

        talk = next(talk for talk in exporter.talks if talk.of("hello")[0]["rank"] == rank)
        return next(filter(stands, talk.of("state")), None)

    exporter.wait_for(where=lambda frame: frame["phase"] == "data", deadline=30)
    victim = culprit = None
    while victim is None or culprit is None:
        exporter.next_state()
        victim, culprit = hung(0, "collective"), hung(1, "data")
    entered = [frame["metrics"]["collective_enqueued"]["0"] for frame in (victim, culprit)]
    assert entered[0] - entered[1] == 1
    assert victim["metrics"]["collective_completed"]["0"] < entered[0]


class Future:
    """A future that ends when told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.callback: Callable[[Future], None] = lambda future: None

    def add_done_callback(self, callback: Callable[[Future], None]) -> None:
        """Keep the callback."""
        self.callback = callback

    def value(self) -> object:
        """Return, or raise what went wrong."""
        if self.error is not None:
            raise self.error
        return None


class Bucket:
    """A gradient bucket of 10 floats."""

    def __init__(self, index: int, last: bool, on_cpu: bool = True) -> None:
        self._index, self._last, self._on_cpu = index, last, on_cpu

    def index(self) -> int:
        """Return the position."""
        return self._index

    def is_last(self) -> bool:
        """Tell whether it is the last."""
        return self._last

    def buffer(self) -> Any:
        """Return the tensor."""
        return SimpleNamespace(numel=lambda: 10, element_size=lambda: 4, is_cpu=self._on_cpu)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that bucket watches see."""
    moment = [0.0]
    monkeypatch.setattr("tachograph.client.collectives.perf_counter", lambda: moment[0])
    return moment


def launch(watch: BucketWatch, bucket: Bucket, called: float, error: Exception | None = None) -> Future:
    """Tell a watch of a bucket."""
    future = Future(error)
    watch.launched(bucket, called, future)  # type: ignore[arg-type]
    return future


def test_exposed_wait_is_from_the_last_bucket_to_the_last_completion(now: list[float]) -> None:
    """Buckets that complete before the last one is launched cost no wait, whatever the order of completions."""
    totals = OperationTotals()
    watch = BucketWatch(lambda *_: None, None, totals)  # type: ignore[arg-type, return-value]
    first, second = launch(watch, Bucket(0, False), 1.0), launch(watch, Bucket(1, False), 2.0)
    now[0] = 2.5
    first.callback(first)
    last = launch(watch, Bucket(2, True), 3.0)
    now[0] = 5.0
    last.callback(last)
    assert totals.wait == 0.0
    now[0] = 7.0
    second.callback(second)
    assert (totals.wait, totals.operations, totals.bytes, totals.failures) == (4.0, 3, 120, 0)
    again = launch(watch, Bucket(0, True), 10.0)
    now[0] = 10.5
    again.callback(again)
    assert totals.wait == 4.5


def test_a_failed_bucket_is_counted(now: list[float]) -> None:
    """A reduction that ends with an error is a failure; nothing is raised in the backend's thread."""
    totals = OperationTotals()
    watch = BucketWatch(lambda *_: None, None, totals)  # type: ignore[arg-type, return-value]
    future = launch(watch, Bucket(0, True), 0.0, RuntimeError("Connection closed by peer"))
    future.callback(future)
    assert totals.failures == 1


def test_no_wait_is_claimed_for_cuda_buckets() -> None:
    """Host time says nothing about a GPU's wait: buckets are counted, and the family stays absent."""
    collectives, totals = Collectives(), OperationTotals(wait=None)
    collectives.watched.append(totals)
    watch = BucketWatch(lambda *_: None, None, totals)  # type: ignore[arg-type, return-value]
    launch(watch, Bucket(0, True, on_cpu=False), 0.0)
    metrics = collectives.metrics()
    assert metrics["collective_wait_seconds_total"] == {}
    assert metrics["collectives_total"] == {"all_reduce": 1}


def test_a_bucket_that_cannot_be_read_harms_nobody() -> None:
    """Whatever a bucket does, the backward pass goes on."""
    watch = BucketWatch(lambda *_: None, None, OperationTotals())  # type: ignore[arg-type, return-value]
    watch.launched(object(), 0.0, Future())  # type: ignore[arg-type]


def torch_that_dumps(monkeypatch: pytest.MonkeyPatch, **dumps: Any) -> None:
    """Put a torch in place whose recorder gives the dumps."""
    monkeypatch.setattr(groups, "in_use", lambda part: object())
    fake = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**dumps)))
    monkeypatch.setattr(groups, "loaded_torch", lambda: fake)


def test_a_build_without_a_recorder_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent, raising or changed: nothing is reported, and soon nothing is tried."""
    calls = []

    def dump(includeCollectives: bool) -> str:  # noqa: N803 - PyTorch's name
        calls.append(includeCollectives)
        return '{"pg_status": {"0": {"something": "else"}}}'

    for dumps in ({}, {"_dump_fr_trace_json": dump}):
        torch_that_dumps(monkeypatch, **dumps)
        progress = GroupProgress()
        assert [progress.metrics() for _ in range(ATTEMPTS + 5)] == [{}] * (ATTEMPTS + 5)
    assert len(calls) == ATTEMPTS


def test_groups_are_bounded_and_numbers_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch writes numbers as strings, -1 for none; of very many groups the first are kept."""
    status = ",".join(
        f'"{group}":{{"last_enqueued_collective":"7","last_completed_collective":"-1"}}' for group in range(100)
    )
    torch_that_dumps(
        monkeypatch,
        _dump_nccl_trace_json=lambda **_: '{"pg_status":{}}',
        _dump_fr_trace_json=lambda **_: f'{{"pg_status":{{{status}}}}}'.encode(),
    )
    metrics = GroupProgress().metrics()
    assert metrics["collective_enqueued"] == {str(group): 7 for group in range(GROUP_LIMIT)}
    assert set(metrics["collective_completed"].values()) == {0}


def test_without_distributed_nothing_is_asked() -> None:
    """No torch, or no process group: no gauges, and no failure either."""
    progress = GroupProgress()
    assert progress.metrics() == {}
    assert progress._failures == 0
