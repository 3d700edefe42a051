"""The exposed wait measured at PyTorch's own functions, with stand-ins for PyTorch and for a GPU's events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step
from tachograph.client.torch.collectives import Collective, Collectives
from tachograph.client.torch.waits import stream_wait
from tachograph.client.torch.waits.wait_functions import WAIT_FUNCTIONS

FUNCTIONAL = "torch.distributed._functional_collectives"
FULLY_SHARDED = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


class Now:
    """The time of the host and of the GPU, in seconds."""

    def __init__(self) -> None:
        self.host = 0.0
        self.gpu = 0.0

    def passes(self, seconds: float) -> None:
        """Let the host wait."""
        self.host += seconds


class Cuda:
    """torch.cuda as far as it is used; a GPU whose work is done at once."""

    def __init__(self, now: Now) -> None:
        self.now = now
        self.in_use = False
        self.capturing = False
        self.stream = 0
        self.broken = False

    def is_initialized(self) -> bool:
        """Tell whether the job uses it."""
        return self.in_use

    def is_current_stream_capturing(self) -> bool:
        """Tell whether a graph is captured."""
        return self.capturing

    def current_stream(self) -> Any:
        """Return the stream."""
        if self.broken:
            raise RuntimeError("CUDA error")
        return SimpleNamespace(cuda_stream=self.stream)

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802 - PyTorch's name
        """Return an event that remembers when it was recorded."""
        now = self.now

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = now.gpu

            def query(self) -> bool:
                return enable_timing

            def elapsed_time(self, end: Any) -> float:
                return float(end.at - self.at) * 1000

        return Event()


class Rank:
    """A clock, a step and its collectives, in a process with a stand-in for PyTorch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = now = Now()
        for module in (
            "client.core.phases",
            "client.core.steps",
            "client.torch.collectives",
            "client.torch.waits.waits",
        ):
            monkeypatch.setattr(f"tachograph.{module}.perf_counter", lambda: now.host)
        self.graph_task = -1
        self.cuda = Cuda(now)

        class Work:
            def wait(self, seconds: float, error: Exception | None = None, on_gpu: float = 0.0) -> str:
                now.passes(seconds)
                now.gpu += on_gpu
                if error is not None:
                    raise error
                return "done"

        torch = ModuleType("torch")
        distributed = ModuleType("torch.distributed")
        torch.__dict__.update(
            distributed=distributed,
            cuda=self.cuda,
            _C=SimpleNamespace(_current_graph_task_id=lambda: self.graph_task),
        )
        distributed.__dict__.update(Work=Work, is_available=lambda: True)
        for module in {target.module for target in WAIT_FUNCTIONS} | {"torch._dynamo.eval_frame"}:
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
        self.work_class: Any = Work
        self.work: Any = Work()
        self.clock = PhaseClock()
        self.collectives = Collectives(4)
        self.step = Step(self.clock, Counter(), self.collectives.wait)
        self._monkeypatch = monkeypatch

    def watch(self) -> None:
        """Attach."""
        self.collectives.watch_waits(self.clock)

    def load(self, name: str, **names: Any) -> Any:
        """Load a module of PyTorch."""
        module = ModuleType(name)
        module.__dict__.update(names)
        self._monkeypatch.setitem(sys.modules, name, module)
        return module

    def wait(self) -> dict[str, float]:
        """Return what is sent."""
        return self.collectives.metrics()["collective_wait_seconds_total"]

    def phases(self) -> dict[str, float]:
        """Return the seconds of phases, but for those without any."""
        return {name: seconds for name, seconds in self.clock.read()[2].items() if seconds}


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    """One that has begun."""
    return Rank(monkeypatch)


def test_a_wait_in_a_step_is_exposed_and_no_part_of_the_phase_it_lies_in(rank: Rank) -> None:
    """Of 2 s of computing and 3 s of waiting in phase `forward`, 2 s are forward's and 3 s phase `collective`'s."""
    rank.watch()
    with rank.step, rank.clock.phases["forward"]:
        rank.now.passes(1.0)
        assert rank.work.wait(3.0) == "done"
        rank.now.passes(1.0)
    assert rank.phases() == {"forward": 2.0, "collective": 3.0}
    assert rank.wait() == {"other": 3.0}
    assert rank.collectives.wait.total() == 3.0
    assert rank.step.records[0][4] == 3.0


def test_waits_within_waits_and_within_marks_count_once(rank: Rank) -> None:
    """A functional wait that waits for a `Work`, and a wait marked by hand, are each one wait."""
    functional = rank.load(FUNCTIONAL, wait_tensor=rank.work.wait)
    rank.watch()
    with rank.step:
        functional.wait_tensor(2.0)
        assert rank.wait() == {"other": 2.0}
        with Collective(rank.clock.phases["collective"], rank.collectives.marked["all_reduce"], 8):
            rank.work.wait(1.0)
    assert rank.wait() == {"other": 2.0, "all_reduce": 1.0}
    assert rank.collectives.wait.total() == 3.0


def test_waits_that_are_not_of_a_training_step_do_not_count(rank: Rank) -> None:
    """At the start, in an evaluation, in a checkpoint, and in other threads."""
    rank.watch()
    rank.work.wait(1.0)
    with rank.clock.phases["eval"]:
        rank.work.wait(1.0)
    with rank.step:
        other = threading.Thread(target=rank.work.wait, args=(1.0,))
        other.start()
        other.join()
        with rank.clock.phases["checkpoint"]:
            rank.work.wait(1.0)
    assert rank.wait() == {}
    assert "collective" not in rank.phases()


def test_a_wait_between_steps_is_the_phase_and_no_part_of_a_step(rank: Rank) -> None:
    """A hang there is no pause, whereas the wait for a rank that saves is nothing that a step waited for."""
    rank.watch()
    for _ in range(2):
        with rank.step:
            rank.work.wait(1.0)
        rank.work.wait(3.0)
    assert rank.phases() == {"collective": 8.0}
    assert rank.wait() == {"other": 2.0}
    assert [record[4] for record in rank.step.records] == [1.0, 2.0]


def test_a_wait_that_fails_raises_what_it_raised(rank: Rank) -> None:
    """The exception goes through, its time counts, and the clock is back in the phase before."""
    rank.watch()
    with rank.step:
        with pytest.raises(TimeoutError, match="30 minutes"):
            rank.work.wait(5.0, error=TimeoutError("30 minutes"))
        assert rank.clock.current.name == "other"
    assert rank.wait() == {"other": 5.0}


def test_a_module_that_is_imported_later_is_measured_from_then_on(rank: Rank) -> None:
    """The sender thread looks again before each frame; what PyTorch does not have costs one line and nothing else."""
    rank.watch()
    functional = rank.load(FUNCTIONAL, wait_tensor=rank.now.passes)
    rank.wait()
    assert rank.collectives.waits is not None
    with rank.step:
        functional.wait_tensor(1.0)
    assert rank.wait() == {"other": 1.0}


def test_a_name_that_has_moved_costs_one_line(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    """A PyTorch without `wait_tensor` is measured in the other functions."""
    rank.load(FUNCTIONAL)
    rank.watch()
    rank.watch()
    with rank.step:
        rank.work.wait(1.0)
    assert rank.wait() == {"other": 1.0}
    assert caplog.text.count(f"waits for collectives in {FUNCTIONAL}.wait_tensor are not measured") == 1


def test_pytorch_is_as_it_was_after_close(rank: Rank) -> None:
    """The very functions are back; one that somebody wrapped meanwhile stays wrapped, and measures nothing of ours."""
    functional = rank.load(FUNCTIONAL, wait_tensor=rank.now.passes)
    before = vars(rank.work_class)["wait"], functional.wait_tensor
    rank.watch()
    ours = functional.wait_tensor
    assert (rank.work_class.wait, ours) != before

    def theirs(seconds: float) -> None:
        ours(seconds)

    functional.wait_tensor = theirs
    rank.collectives.release()
    assert vars(rank.work_class)["wait"] is before[0]
    assert functional.wait_tensor is theirs
    with rank.step:
        theirs(1.0)
    assert rank.wait() == {}
    rank.watch()
    assert vars(rank.work_class)["wait"] is before[0]


def test_dynamo_sees_the_original(rank: Rank) -> None:
    """In a graph nothing can be timed: there the function is what it was, and our frames are not compiled."""
    original: Callable[..., None] = lambda seconds: None  # noqa: E731
    functional = rank.load(FUNCTIONAL, wait_tensor=original)
    skipped: list[Any] = []
    rank.watch()
    assert functional.wait_tensor._torchdynamo_inline is original
    rank.load("torch._dynamo.eval_frame", skip_code=skipped.append)
    rank.wait()
    wrapper: FunctionType = functional.wait_tensor
    assert wrapper.__code__ in skipped


def test_a_wait_on_a_cpu_is_entered(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then lengths on NCCL are not all there is."""
    monkeypatch.setattr("tachograph.client.torch.collectives.on_nccl", lambda: True)
    rank.watch()
    assert rank.collectives._lengths_alone()
    with rank.step:
        rank.work.wait(0.5)
    assert not rank.collectives._lengths_alone()


class TestOnAGpu:
    """The stream waits, the host does not."""

    @pytest.fixture
    def group(self, rank: Rank) -> Any:
        """A group of FSDP2 whose unsharding waits for a `Work`, which makes the stream wait."""

        class FSDPParamGroup:
            def wait_for_unshard(self, seconds: float) -> None:
                rank.work.wait(0.0, on_gpu=seconds)

            post_backward = finalize_backward = wait_for_unshard

        rank.load(FULLY_SHARDED, FSDPParamGroup=FSDPParamGroup)
        rank.cuda.in_use = True
        return FSDPParamGroup()

    def test_the_stream_is_measured_and_not_the_host(self, rank: Rank, group: Any) -> None:
        """The wait of each function is that between its two events, counted once, by what it waits for; phases stay."""
        rank.watch()
        with rank.step, rank.clock.phases["forward"]:
            rank.now.passes(0.5)
            group.wait_for_unshard(2.0)
            group.finalize_backward(1.0)
        assert rank.wait() == {"all_gather": 2.0, "reduce_scatter": 1.0}
        assert rank.collectives.wait.total() == 3.0
        assert rank.phases() == {"forward": 0.5}

    def test_a_step_of_any_number_of_waits_is_measured_whole(self, rank: Rank, group: Any) -> None:
        """32 micro-batches of 100 layers wait 9,600 times before the step ends."""
        rank.watch()
        with rank.step:
            for _ in range(9600):
                group.wait_for_unshard(0.001)
        rank.wait()
        assert rank.collectives.wait.total() == pytest.approx(9.6)

    def test_before_a_gpu_is_in_use_those_functions_do_other_work(self, rank: Rank, group: Any) -> None:
        """On a CPU what FSDP2 waits for is a `Work`; once a GPU is in use, its stream counts."""
        rank.cuda.in_use = False
        rank.watch()
        with rank.step:
            group.wait_for_unshard(2.0)
        assert rank.collectives.wait.total() == 0.0
        rank.cuda.in_use = True
        rank.wait()
        with rank.step:
            group.wait_for_unshard(2.0)
        assert rank.collectives.wait.total() == 2.0

    def test_a_side_stream_a_capture_and_other_threads_are_left_alone(self, rank: Rank, group: Any) -> None:
        """But the threads of autograd's engine run the backward pass."""
        rank.watch()

        def elsewhere() -> None:
            thread = threading.Thread(target=group.post_backward, args=(1.0,))
            thread.start()
            thread.join()

        with rank.step:
            rank.cuda.stream = 7
            group.wait_for_unshard(1.0)
            rank.cuda.stream = 0
            rank.cuda.capturing = True
            group.wait_for_unshard(1.0)
            rank.cuda.capturing = False
            elsewhere()
            assert rank.collectives.wait.total() == 0.0
            rank.graph_task = 5
            elsewhere()
        assert rank.collectives.wait.total() == 1.0

    def test_a_wait_is_entered_however_long_it_takes(
        self, rank: Rank, group: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether lengths are taken for waits depends on the program alone: also one that takes no time decides."""
        monkeypatch.setattr("tachograph.client.torch.collectives.on_nccl", lambda: True)
        rank.watch()
        rank.cuda.capturing = True
        with rank.step:
            group.wait_for_unshard(1.0)
        assert rank.collectives._lengths_alone()
        rank.cuda.capturing = False
        with rank.step:
            group.wait_for_unshard(0.0)
            assert not rank.collectives._lengths_alone()

    def test_a_gpu_far_behind_costs_waits_not_memory(self, rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
        """Beyond a bound of waits on their way nothing more is noted."""
        monkeypatch.setattr(stream_wait, "PENDING_LIMIT", 3)
        rank.cuda.in_use = True
        rank.watch()
        with rank.step:
            for _ in range(5):
                rank.work.wait(0.0, on_gpu=1.0)
        assert rank.collectives.wait.total() == 3.0

    def test_a_broken_gpu_is_the_training_codes_to_meet(self, rank: Rank, group: Any) -> None:
        """A CUDA error in our code is not raised to the training code."""
        rank.watch()
        rank.cuda.broken = True
        with rank.step:
            group.wait_for_unshard(1.0)
        assert rank.collectives.wait.total() == 0.0
