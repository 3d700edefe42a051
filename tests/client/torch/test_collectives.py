"""Collectives of a real DistributedDataParallel job on gloo: who arrives last, and who never boards."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.core.phases import PhaseClock
from tachograph.client.signals.wait_by_lengths import TRIAL_STEPS
from tachograph.client.torch import collectives as module
from tachograph.client.torch.bucket_watch import BucketTotals
from tachograph.client.torch.collectives import Collective, Collectives
from tachograph.node.ranks.conclusions import suspects
from tests.client.torch.jobs import Job
from tests.torch_programs import torch_has


@pytest.fixture
def run(torch_program: Any, exporter: Any) -> Callable[[str, int], Job]:
    """Starts jobs."""

    def begin(code: str, world: int) -> Job:
        return Job(torch_program, exporter, code, world)

    return begin


@pytest.mark.torch
def test_a_rank_slowed_inside_backward_waits_least(run: Callable[[str, int], Job]) -> None:
    """Rank 1 sleeps inside backward: step times are equal, its exposed wait per step is clearly the lowest.

    For 50 ms, or on a busy machine for three times as long as a step takes.
    """
    job = run(
        """
        model = ddp()
        for number in range(8):
            if number == 3: began = time.perf_counter()  # DDP is slower at first
            model(torch.randn(8, 64)).square().mean().backward()
        Delay.seconds = max(0.05, 3 * (time.perf_counter() - began) / 5) if rank == 1 else 0.0
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
        recorder.close()
        finish()
        """,
        4,
    )
    job.end()
    metrics = [state["metrics"] for state in job.last_states()]
    waits = [each["collective_wait_seconds_total"]["all_reduce"] / 30 for each in metrics]
    backward = [each["phase_seconds_total"]["backward"] / 30 for each in metrics]
    others = [wait for rank, wait in enumerate(waits) if rank != 1]
    assert waits[1] < min(others) / 2, waits
    assert max(backward) < 1.5 * min(backward), backward
    assert {each["phase_seconds_total"]["collective"] for each in metrics} == {0.0}
    assert {each["collective_failures_total"]["all_reduce"] for each in metrics} == {0}
    parameters = 2 * (64 * 64 + 64)
    assert {each["collective_bytes_total"]["all_reduce"] for each in metrics} == {30 * parameters * 4}
    assert {each["collective_bus_bytes_total"]["all_reduce"] for each in metrics} == {30 * parameters * 4 * 1.5}
    seconds = [each["collective_seconds_total"]["all_reduce"] for each in metrics]
    assert min(seconds) > 0
    assert seconds[1] == min(seconds), "the rank that arrives last has the shortest, truest lengths"


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
                assert recorder._calls.state.dropped.count == 0
            torch.manual_seed(rank)
            for _ in range(3): model(torch.randn(8, 64)).square().mean().backward()
            if watched:
                assert recorder._calls.state.collectives.watched[0].operations > 0
                stream = io.BytesIO(); torch.save(copy.deepcopy(model), stream)
                assert b"tachograph" not in stream.getvalue()
            return [parameter.grad.clone() for parameter in model.parameters()]
        plain, watched = gradients(False), gradients(True)
        assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
        assert any(gradient.abs().sum() > 0 for gradient in plain)
        finish()
        """,
        3,  # not a power of two: n in a denominator must be rounded as DDP does
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
    torch = pytest.importorskip("torch")

    def hung(rank: int, phase: str) -> Any:
        def stands(frame: dict[str, Any]) -> bool:
            return frame["phase"] == phase and frame["time"] - frame["phase_since"] > 1

        talk = next(talk for talk in exporter.talks if talk.of("hello")[0]["rank"] == rank)
        return next(filter(stands, talk.of("state")), None)

    exporter.wait_for(where=lambda frame: frame["phase"] == "data")
    victim = culprit = None
    while victim is None or culprit is None:
        exporter.next_state()
        victim, culprit = hung(0, "collective"), hung(1, "data")
    entered = [frame["metrics"]["collective_enqueued"]["0"] for frame in (victim, culprit)]
    assert entered[0] - entered[1] == 1
    if hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
        assert victim["metrics"]["collective_completed"]["0"] < entered[0]
    else:
        assert "collective_completed" not in victim["metrics"]


@pytest.mark.torch
def test_who_stopped_first_in_a_mesh(run: Callable[[str, int], Job], exporter: Any) -> None:
    """Two dimensions, nothing marked: rank 3 waits for rank 2 in one group, rank 1 for rank 3 in another."""
    run(
        """
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        recorder = Recorder()
        for step in range(5):
            if step == 4 and rank == 2: time.sleep(60)
            with recorder.step():
                for dimension in ("tp", "fsdp"): dist.all_reduce(torch.ones(1), group=mesh.get_group(dimension))
        """,
        4,
    )

    def stands(frames: list[dict[str, Any]]) -> bool:
        return bool(frames) and frames[-1]["time"] - frames[-1].get("progress_time", math.inf) > 1

    exporter.wait_for(where=lambda frame: frame["step"] is not None)
    while not (len(exporter.talks) == 4 and all(stands(talk.of("state")) for talk in exporter.talks)):
        exporter.next_state()
    entered = {
        talk.of("hello")[0]["rank"]: talk.of("state")[-1]["metrics"]["collective_enqueued"] for talk in exporter.talks
    }
    assert suspects.collectives_behind(entered).keys() == {2, 3}
    named = {"0", "tp 0,1", "tp 2,3", "fsdp 0,2", "fsdp 1,3"}
    if not torch_has("group_desc", "torch.distributed.device_mesh"):
        named = {name.rpartition(" ")[2] for name in named}
    assert {group for groups in entered.values() for group in groups} == named
    assert suspects.hang_suspects(entered, dict.fromkeys(entered, "other")).keys() == {2}


@pytest.mark.torch
def test_a_callback_queued_by_a_callback_comes_after_ddps_wait(run: Callable[[str, int], Job]) -> None:
    """What measures a GPU's wait stands on this order of autograd's engine; here a real DDP model shows it."""
    job = run(
        """
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        queue = torch.autograd.Variable._execution_engine.queue_callback
        for static in (False, True):
            model = DistributedDataParallel(Model(), bucket_cap_mb=0.01, static_graph=static)
            for _ in range(3):  # DDP rebuilds its buckets after the first pass
                futures, done = [], []
                def look(): done.append(all(future.done() for future in futures))
                def hook(state, bucket):
                    if bucket.index() == 0: futures.clear()
                    future = default_hooks.allreduce_hook(state, bucket)
                    futures.append(future)
                    if bucket.is_last(): queue(lambda: queue(look))
                    return future
                if not model._comm_hooks: model.register_comm_hook(model.process_group, hook)
                if rank == 1: time.sleep(0.05)  # rank 0 has to wait
                model(torch.randn(8, 64)).mean().backward()
                assert done == [True], done
        finish()
        """,
        2,
    )
    job.end()


def mark(collectives: Collectives, operation: str, payload: int, seconds: float = 1.0, fails: bool = False) -> None:
    """Mark a collective that takes a while."""
    totals = collectives.marked[operation]
    with contextlib.suppress(ValueError), Collective(PhaseClock().phases["collective"], totals, payload):
        module.perf_counter.moment += seconds  # type: ignore[attr-defined]
        if fails:
            raise ValueError


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that stands still for marks until told."""

    def now() -> float:
        return now.moment  # type: ignore[attr-defined, no-any-return]

    now.moment = 0.0  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "perf_counter", now)


def test_a_mark_with_its_bytes_has_length_and_bus_bytes() -> None:
    """By the operation's factor; without bytes, of an unknown operation or with an error there is wait only."""
    collectives = Collectives(4)
    mark(collectives, "all_gather", 100, 2.0)
    mark(collectives, "all_gather", 0, 5.0)
    mark(collectives, "all_gather", 100, 1.0, fails=True)
    mark(collectives, "other", 100)
    mark(collectives, "barrier", 0)
    metrics = collectives.metrics()
    assert metrics["collective_seconds_total"] == {"all_gather": 2.0}
    assert metrics["collective_bus_bytes_total"] == {"all_gather": 300}
    assert metrics["collective_wait_seconds_total"] == {"all_gather": 8.0, "other": 1.0, "barrier": 1.0}
    assert metrics["collectives_total"] == {"all_gather": 3, "other": 1, "barrier": 1}
    assert metrics["collective_failures_total"] == {"all_gather": 1, "other": 0, "barrier": 0}
    assert collectives.wait.total() == 10.0


def test_without_a_world_there_is_no_bandwidth_and_in_a_world_of_one_it_is_zero() -> None:
    """Absent where the number of ranks is not known; 0 where nothing moves."""
    for world, expected in ((None, {}), (1, {"all_reduce": 0.0})):
        collectives = Collectives(world)
        mark(collectives, "all_reduce", 100)
        assert collectives.metrics()["collective_bus_bytes_total"] == expected


def test_on_nccl_a_mark_has_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it ends when the work is launched; and what was decided at first stays, or a counter would fall."""
    answers = [True, False]
    monkeypatch.setattr(module, "on_nccl", lambda: answers.pop(0))
    collectives = Collectives(4)
    mark(collectives, "all_reduce", 100)
    for _ in range(2):
        metrics = collectives.metrics()
        assert metrics["collective_seconds_total"] == metrics["collective_bus_bytes_total"] == {}
        assert metrics["collective_wait_seconds_total"] == {"all_reduce": 1.0}


def lengths_are_waits(collectives: Collectives) -> bool:
    """Return whether they are after the first reading and the steps that follow it."""
    waits = collectives.wait_by_lengths
    waits.read(())
    for number in range(TRIAL_STEPS):
        waits.step(number, number + 1)
    return waits.chosen


def test_lengths_are_waits_on_nccl_where_nothing_else_measures_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a hooked model nor a mark, and not on another backend, whose lengths no recorder has."""
    monkeypatch.setattr(module, "on_nccl", lambda: True)
    hooked, marked = Collectives(4), Collectives(4)
    hooked.watch(BucketTotals("0", 4))
    mark(marked, "broadcast", 100)
    assert [lengths_are_waits(each) for each in (Collectives(4), hooked, marked)] == [True, False, False]
    monkeypatch.setattr(module, "on_nccl", lambda: False)
    assert not lengths_are_waits(Collectives(4))


def test_what_a_hook_or_a_mark_counts_is_counted_once() -> None:
    """The Flight Recorder leaves a hooked group's all_reduce and a marked operation out, and nothing else."""
    collectives = Collectives(4)
    collectives.watch(BucketTotals("7", 4))
    mark(collectives, "broadcast", 100)
    asked = collectives._counted_elsewhere
    assert [asked("all_reduce", "7"), asked("broadcast", "7"), asked("broadcast", "8")] == [True] * 3
    assert [asked("all_reduce", "8"), asked("all_gather", "7")] == [False] * 2
    entry = {"record_id": 0, "process_group": ["7", ""], "input_sizes": [[8]], "input_dtypes": ["Half"],
             "retired": True, "duration_ms": 2.0}  # fmt: skip
    dump = {"pg_config": {"7": {"ranks": "[0, 1, 2, 3]"}}, "entries": [
        {**entry, "profiling_name": "nccl:all_reduce"},
        {**entry, "profiling_name": "nccl:_all_gather_base", "record_id": 1},
    ]}  # fmt: skip
    collectives._recorder.read({"nccl": dump}, asked)
    metrics = collectives.metrics()
    assert metrics["collectives_total"] == {"broadcast": 1, "all_reduce": 0, "all_gather": 1}
    assert metrics["collective_bytes_total"] == {"broadcast": 100, "all_reduce": 0, "all_gather": 16}
    assert metrics["collective_seconds_total"] == {"broadcast": 1.0, "all_reduce": 0.002, "all_gather": 0.002}
    assert metrics["collective_bus_bytes_total"] == {"broadcast": 100, "all_reduce": 24, "all_gather": 48}
