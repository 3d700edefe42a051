"""PyTorch's own ways of asking too much: copies and pickles of a model, its one hook, a graph that must not break."""

from __future__ import annotations

import copy
import io
import pickle
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.core.compiled import UnseenStep
from tachograph.client.recorder import Recorder

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Make = Callable[..., Recorder]


KINDS = (
    "many", "one", "with a graph", "none", "meta", "sparse", "complex", "parameter", "bool", "bfloat16", "nan",
    "integer", "uninitialized", "a class", "a dtype", "a module", "torch",
)  # fmt: skip
"""The names of what `tensors` makes."""


@pytest.fixture
def made(torch: Any, record: Make) -> Any:
    """A model that holds all it was given of a recorder."""
    from tests.client.torch.recorded_model import Model

    return Model(record())


def test_a_deep_copy_of_a_model_shares_its_recorder(torch: Any, exporter: Any, made: Any) -> None:
    """An average or a teacher of the model goes on in the same loop; its weights are its own."""
    model, recorder = made, made.recorder
    recorder.watch(model, torch.optim.SGD(model.parameters(), 0.1), layers=2, activations=True)
    average = torch.optim.swa_utils.AveragedModel(model)
    for twin in (copy.deepcopy(model), copy.copy(model), average.module):
        assert (twin.recorder, twin.step, twin.phase) == (recorder, model.step, model.phase)
    twin = copy.deepcopy(model)
    assert twin.layer.weight is not model.layer.weight
    assert list(twin.batches) == [1, 2]
    with recorder.step():
        average(torch.ones(3))
    assert exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] == 1)["metrics"]["phase_seconds_total"]


def test_a_pickle_of_a_model_has_a_recorder_that_does_nothing(torch: Any, made: Any) -> None:
    """An object sent to another process, or saved, is restored whole, without thread or socket, and still trains."""
    saved = io.BytesIO()
    torch.save(made, saved)
    saved.seek(0)
    for twin in (pickle.loads(pickle.dumps(made)), torch.load(saved, weights_only=False)):
        assert isinstance(twin.recorder, Recorder)
        assert not twin.recorder._calls.records
        assert type(twin.step) is UnseenStep
        assert list(twin.batches) == [1, 2]
        with twin.recorder.step() as step, twin.step as other, twin.phase, twin.mark:
            twin(torch.ones(3)).sum().backward()
            step.log(loss=1.0)
            other.log(loss=1.0)


def tensors(torch: Any) -> dict[str, Any]:
    ones, one = torch.ones(3), torch.ones(())
    return {
        "many": ones, "one": one, "with a graph": torch.ones(1, requires_grad=True) * 2, "none": torch.ones(0),
        "meta": torch.ones((), device="meta"), "sparse": ones.to_sparse(), "complex": one.to(torch.complex64),
        "parameter": torch.nn.Parameter(torch.ones(1)), "bool": torch.tensor(True), "bfloat16": one.to(torch.bfloat16),
        "nan": torch.tensor(float("nan")), "integer": torch.tensor(2**62),
        "uninitialized": torch.nn.UninitializedParameter(), "a class": torch.Tensor, "a dtype": torch.float32,
        "a module": torch.nn.Linear(1, 1), "torch": torch,
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_for_any_argument(kind: str, torch: Any, exporter: Any, record: Make) -> None:
    """Those that are no number, or cannot say so, cost themselves; frames still leave."""
    assert tensors(torch).keys() == set(KINDS)
    recorder = record()
    names = ("rank", "world_size", "run", "tokens_per_step", "flops_per_token", "total_steps", "device_time", "enabled")
    for name in names:
        Recorder(socket="/nonexistent", **{name: tensors(torch)[kind]}).close()
    value = tensors(torch)[kind]
    with recorder.step(value, tag=value, accumulating=value) as step, recorder.phase(value):
        step.log(loss=value, grad_norm=value, wrong=value)
        with recorder.collective(value, value), recorder.collective("all_reduce", value):
            recorder.tag(value)
    recorder.watch(value, value, scheduler=value, scaler=value, layers=value, activations=value, update_every=value)
    recorder.invariant(value, value, value)
    recorder.invariant("i", value)
    recorder.threshold("hang_seconds", value)
    recorder.checkpoint_saved(value, value)
    recorder.resumed(value, value)
    recorder.add_source(value)
    recorder.close  # noqa: B018 - it is not called yet: the record goes on
    with recorder.step():
        pass
    assert exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] >= 1)
    recorder.close(value)


def whole(torch: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="eager")(*arguments)


@pytest.mark.parametrize("enabled", [True, False])
def test_every_call_inside_a_whole_graph(
    enabled: bool, torch: Any, record: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A graph that must not break compiles, computes what it did without us, and records nothing: it is said once."""
    recorder = record(enabled=enabled)
    held = recorder.step()

    def phase(x: Any) -> Any:
        with recorder.phase("forward"), recorder.phase("checkpoint"), recorder.phase("wrong"):
            return x + 1

    def step(x: Any) -> Any:
        with recorder.step(3, tag="gc", accumulating=False) as step:
            y = x + 1
            step.log(loss=y.sum())
            held.log(loss=y.sum())
        return y

    def data(x: Any) -> Any:
        for y in recorder.data([x, x]):
            with recorder.collective("all_reduce", 8), recorder.count_flops():
                x = x + y / y / 2
        return x

    def cold(x: Any) -> Any:
        recorder.tag("gc")
        recorder.invariant("i", 1.0)
        recorder.threshold("hang_seconds", 5)
        recorder.watch(None)
        recorder.add_source(None)
        recorder.checkpoint_saved(5, bytes=3)
        recorder.checkpoint_failed()
        recorder.resumed(4)
        recorder.position()
        recorder.close()
        return x + (1 if recorder.last_step is None else 2)

    for function in (phase, step, data, cold):
        assert whole(torch, function, torch.ones(3)).tolist() == [2.0, 2.0, 2.0], function
    if enabled:
        assert recorder._calls.state.step.completed == 0
        assert not recorder._calls.sender.over
        assert len([line for line in caplog.records if "fullgraph" in line.getMessage()]) == 1
    with recorder.step(), recorder.phase("forward"):
        pass
    if enabled:
        assert recorder._calls.state.step.completed == 1


@pytest.mark.parametrize("copied", [False, True])
def test_a_watched_model_is_scripted(copied: bool, torch: Any, exporter: Any, record: Make) -> None:
    """TorchScript compiles the hooks of a model with it, and those of its layers: ours it does not see.

    Hooks of the program stay what they are, an error of theirs as well; and recording goes on.
    """
    recorder = record()
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder.watch(model, optimizer, activations=True, memory_layers=True)

    def train() -> None:
        with recorder.step():
            model(torch.ones(3)).sum().backward()
            optimizer.step()

    train()  # the next step is a sampled one: layers have hooks
    given = copy.deepcopy(model) if copied else model
    scripted = torch.jit.script(given)
    assert torch.equal(scripted(torch.ones(3)), model(torch.ones(3)))
    hooks = list(model._forward_hooks), list(model[0]._forward_hooks)
    seen: list[Any] = []
    handle = given.register_forward_hook(lambda *all_: seen.append(all_))
    with pytest.raises(RuntimeError, match="Expected a single top-level function"):
        torch.jit.script(given)
    handle.remove()
    assert hooks == (list(model._forward_hooks), list(model[0]._forward_hooks))
    train()
    assert recorder._calls.state.clock.phases["forward"].seconds > 0


def test_a_module_in_a_whole_graph(torch: Any, made: Any) -> None:
    """The model of the issue: phase() in its forward."""
    x = torch.ones(3)
    assert torch.equal(whole(torch, made, x), made(x))


def test_a_watched_model_in_a_whole_graph(torch: Any, record: Make, caplog: Any) -> None:
    """Our own hooks compile with the model, and nobody is told to move a call that the program does not make."""
    recorder = record()
    model = torch.nn.Linear(3, 3)
    recorder.watch(model)
    x = torch.ones(3)
    with recorder.step():
        assert torch.equal(whole(torch, model, x), model(x))
    assert not [line for line in caplog.records if "fullgraph" in line.getMessage()]


def test_a_graph_that_may_break_is_recorded(torch: Any, record: Make) -> None:
    """Without fullgraph a call breaks the graph, as ever, and is recorded."""
    recorder = record()

    @torch.compile(backend="eager")
    def step(x: Any) -> Any:
        with recorder.step(), recorder.phase("forward"):
            return x + 1

    for _ in range(3):
        step(torch.ones(3))
    assert recorder._calls.state.step.completed == 3
    assert recorder._calls.state.clock.phases["forward"].seconds > 0


DDP = """
import copy, io, os, pickle, torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from tachograph.client.recorder import Recorder
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
recorder = Recorder(run="test", rank=0)
bare = torch.nn.Linear(8, 8)
def made(): return torch.nn.parallel.DistributedDataParallel(copy.deepcopy(bare), bucket_cap_mb=0.0001)
calls = []
def mine(state, bucket):
    calls.append(state)
    return fp16_compress_hook(None, bucket)
def gradient(model):
    model.zero_grad()
    model(torch.linspace(0, 1, 8)).pow(2).sum().backward()
    return [one.grad.clone() for one in model.parameters()]
"""


@pytest.fixture
def ddp(torch_program: Any, exporter: Any) -> Callable[[str], str]:
    """Run lines after those of DDP; return what they said."""

    def run(code: str) -> str:
        whole = DDP + textwrap.dedent(code) + "\nrecorder.close(); os._exit(0)"
        said: str = torch_program(whole, TACHOGRAPH_SOCKET=str(exporter.path)).end()
        return said

    return run


def test_a_users_own_communication_hook_wins(ddp: Callable[[str], str]) -> None:
    """Registered after `watch`, before or between steps: gradients are those of the hook, and ours measures no more."""
    errors = ddp(
        """
        for position, steps in enumerate((0, 2)):
            alone, watched = made(), made()
            recorder.watch(watched)
            for _ in range(steps): gradient(watched)
            for model in (alone, watched): model.register_comm_hook("state", mine)
            del calls[:]
            assert all(map(torch.equal, gradient(alone), gradient(watched)))
            assert calls and set(calls) == {"state"} and watched._comm_hooks == alone._comm_hooks
            refused = []
            for model in (alone, watched):
                try: model.register_comm_hook(None, mine)
                except RuntimeError as error: refused.append(str(error).splitlines()[0])
            assert len(set(refused)) == 1 and len(refused) == 2, refused
            assert recorder._calls.state.collectives.watched[position].wait is None
        """,
    )
    assert errors.count("communication hook of its own") == 1


def test_a_hook_that_pytorch_refuses(ddp: Callable[[str], str]) -> None:
    """An invalid hook raises as it does without us, and the model is still watched."""
    ddp(
        """
        alone, watched = made(), made()
        recorder.watch(watched)
        def wrong(state: int, bucket: int) -> int: return 5
        said = []
        for model in (alone, watched):
            for hook in (wrong, "no function"):
                try: model.register_comm_hook(None, hook)
                except Exception as error: said.append((type(error), str(error).splitlines()[0]))
        assert said[:2] == said[2:] and len(said) == 4, said
        gradient(watched)
        assert recorder._calls.state.collectives.watched[0].operations
        watched.register_comm_hook(None, mine); gradient(watched)
        assert calls == [None] * len(calls) and calls
        """,
    )


def test_copies_of_a_watched_ddp_model(ddp: Callable[[str], str]) -> None:
    """A deep copy and a pickle take hooks as any model does, and need nothing of the watched one."""
    ddp(
        """
        watched = made()
        recorder.watch(watched)
        gradient(watched)
        loaded = pickle.loads(pickle.dumps(watched))
        for twin in (copy.deepcopy(watched), loaded):
            twin.register_comm_hook("twin", mine)
            del calls[:]
            gradient(twin)
            assert set(calls) == {"twin"}
        assert b"tachograph" not in pickle.dumps(watched)
        assert recorder._calls.state.collectives.watched[0].wait is not None
        """,
    )
