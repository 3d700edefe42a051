"""The phases of a loop that marks steps only, by real hooks of a real model and optimizer."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step
from tachograph.client.torch.model.unmarked_phases import UnmarkedPhases

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def torch() -> Any:
    """PyTorch."""
    return pytest.importorskip("torch")


class Seen:
    """A loop whose phases are written down where its parts ask for them."""

    def __init__(self, torch: Any, optimizer: Any = None, model: Any = None) -> None:
        torch.manual_seed(1)
        self.torch, self.clock = torch, PhaseClock()
        self.step = Step(self.clock, Counter())
        self.model = model or torch.nn.Linear(4, 1)
        self.optimizer = (optimizer or torch.optim.SGD)(self.model.parameters(), lr=1e-3)
        self.names: list[str] = []
        UnmarkedPhases(self.clock, self.step).attach(self.model, self.optimizer)

    def note(self, *_: object) -> None:
        self.names.append(self.clock.current.name)

    def loss(self) -> Any:
        output = self.model(self.torch.ones(2, 4))
        while not hasattr(output, "square"):
            output = next(iter(output.values())) if isinstance(output, dict) else output[0]
        output.register_hook(self.note)
        return output.square().mean()

    def train(self) -> None:
        self.model.weight.register_hook(self.note)
        with self.step:
            self.note()
            loss = self.loss()
            self.note()
            loss.backward()
            self.note()
            self.optimizer.step()
            self.note()
        self.note()


def test_phases_follow_the_hooks(torch: Any) -> None:
    """Between the parts of a step it is nothing in particular; the sums are those of the parts."""
    seen = Seen(torch)
    seen.model.register_forward_pre_hook(seen.note)
    seen.optimizer.register_step_pre_hook(seen.note)
    seen.train()
    assert seen.names == ["other", "forward", "other", "backward", "backward", "other", "optimizer", "other", "other"]
    assert not seen.clock.failed
    assert seen.clock.outer is None
    assert all(seen.clock.phases[name].seconds > 0 for name in ("forward", "backward", "optimizer"))


@pytest.mark.parametrize("wrap", [lambda x: (x, None), lambda x: {"loss": [x]}, lambda x: ({"logits": x},)])
def test_backward_is_found_through_any_output(torch: Any, wrap: Callable[[Any], Any]) -> None:
    """A tuple, a dict as Hugging Face's, and both in each other."""

    class Model(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return wrap(super().forward(x))

    seen = Seen(torch, model=Model(4, 1))
    with seen.step:
        seen.loss().backward()
    assert seen.names == ["backward"]


def test_backward_lasts_while_autograd_waits_for_other_ranks(torch: Any) -> None:
    """DDP and FSDP2 wait in a callback that they queue during backward: a rank that hangs there is in backward."""
    seen = Seen(torch)
    queue = torch.autograd.Variable._execution_engine.queue_callback
    seen.model.weight.register_hook(lambda _: queue(seen.note))
    seen.train()
    assert seen.names == ["other", "other", "backward", "backward", "backward", "other", "other", "other"]


def test_marks_by_hand_come_first(torch: Any) -> None:
    """Marked phases take precedence, and afterwards the phase from before is restored."""
    seen = Seen(torch)
    seen.model.register_forward_pre_hook(seen.note)
    with seen.step:
        with seen.clock.phases["copy"]:
            loss = seen.loss()
        with seen.clock.phases["collective"]:
            loss.backward()
            seen.note()
        seen.note()
    assert seen.names == ["copy", "collective", "collective", "other"]


def test_outside_a_step_nothing_is_entered(torch: Any) -> None:
    """An evaluation between steps, and a model that is used before the first one, are what the loop says."""
    seen = Seen(torch)
    seen.model.register_forward_pre_hook(seen.note)
    seen.loss().backward()
    seen.optimizer.step()
    with seen.clock.phases["eval"]:
        seen.loss()
    with seen.step, torch.no_grad():
        seen.model(torch.ones(2, 4))
    assert seen.names == ["init", "init", "eval", "other"]


def test_an_exception_leaves_nothing_open(torch: Any) -> None:
    """In forward, in backward, and in the optimizer; the next step is as ever."""
    seen = Seen(torch)

    def fail(*_: object) -> None:
        raise ValueError("on purpose")

    def step(part: str) -> None:
        with seen.step:
            handles = [seen.model.register_forward_hook(fail)] if part == "forward" else []
            try:
                loss = seen.loss()
                if part == "backward":
                    handles.append(seen.model.weight.register_hook(fail))
                loss.backward()
                handles.append(seen.optimizer.register_step_pre_hook(fail))
                seen.optimizer.step()
            finally:
                for handle in handles:
                    handle.remove()

    for part in ("forward", "backward", "optimizer"):
        with pytest.raises(ValueError, match="on purpose"):
            step(part)
        assert seen.clock.current is seen.clock.other
        assert seen.clock.outer is None
    seen.names.clear()
    seen.train()
    assert seen.names == ["other", "other", "backward", "backward", "other", "other", "other"]


def test_a_closure_trains_inside_the_optimizer(torch: Any) -> None:
    """LBFGS calls it several times a step: forward and backward are what they are, the rest is the optimizer's."""
    seen = Seen(torch, optimizer=torch.optim.LBFGS)
    seen.model.register_forward_pre_hook(seen.note)

    def closure() -> Any:
        seen.optimizer.zero_grad()
        seen.note()
        loss = seen.loss()
        loss.backward()
        return loss

    with seen.step:
        seen.optimizer.step(closure)
        seen.note()
    assert seen.names[:4] == ["optimizer", "forward", "backward", "optimizer"]
    assert seen.names[-1] == "other"


def test_another_thread_moves_no_phase(torch: Any) -> None:
    """Phases belong to the thread that trains."""
    seen = Seen(torch)
    seen.model.register_forward_pre_hook(seen.note)
    with seen.step:
        thread = threading.Thread(target=lambda: seen.model(torch.ones(2, 4)))
        thread.start()
        thread.join(60)
    assert seen.names == ["other"]


def test_a_copy_of_the_model_moves_no_phase(torch: Any) -> None:
    """An average or a teacher that runs in the same step."""
    seen = Seen(torch)
    twin = copy.deepcopy(seen.model)
    twin.register_forward_pre_hook(seen.note)
    with seen.step:
        twin(torch.ones(2, 4))
    assert seen.names == ["other"]


def test_a_pickled_model_needs_none_of_our_code(torch: Any) -> None:
    """It loads and runs where the package is not installed."""
    text = io.BytesIO()
    torch.save(Seen(torch).model, text)
    assert b"tachograph" not in text.getvalue()
    text.seek(0)
    assert torch.load(text, weights_only=False)(torch.ones(2, 4)).shape == (2, 1)
    assert pickle.loads(pickle.dumps(Seen(torch).model))(torch.ones(2, 4)).shape == (2, 1)


def test_gradients_are_the_same_bit_for_bit(torch: Any) -> None:
    """Watched and not."""
    seen = Seen(torch)
    seen.train()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    assert torch.equal(model.weight, seen.model.weight)
    assert torch.equal(model.weight.grad, seen.model.weight.grad)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["outside", "in place", "in place before"])
def test_a_compiled_model_has_one_graph_and_no_phases(torch: Any, compiled: str) -> None:
    """Compiled as a whole, our hooks inside; where PyTorch leaves hooks outside of the graph, they measure."""
    inside = torch._dynamo.config.get_config_copy().get("inline_inbuilt_nn_modules", True)
    code = """
import torch
from tachograph.client.core.counters import Counter
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step
from tachograph.client.torch.model.unmarked_phases import UnmarkedPhases

class Model(torch.nn.Linear):
    def forward(self, x): return super().forward(x) + 1

model, clock = Model(4, 1), PhaseClock()
optimizer = torch.optim.SGD(model.parameters())
step = Step(clock, Counter())
compiled, whole = %r, model
if compiled == "in place before": model.compile(backend="eager", fullgraph=True)
UnmarkedPhases(clock, step).attach(model, optimizer)
if compiled == "in place": model.compile(backend="eager", fullgraph=True)
if compiled == "outside": whole = torch.compile(model, backend="eager", fullgraph=True)
for _ in range(3):
    with step:
        whole(torch.ones(2, 4)).mean().backward()
        optimizer.step()
counters = torch._dynamo.utils.counters
print(counters["stats"]["unique_graphs"], dict(counters["graph_break"]), clock.phases["forward"].seconds)
"""
    command = [sys.executable, "-c", code % compiled]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    graphs, breaks, seconds = done.stdout.split() or ["", "", "nan"]
    assert (graphs, breaks, float(seconds) > 0) == ("1", "{}", not inside), done.stderr


def test_a_closed_recorder_leaves_no_hook(torch: Any, exporter: Any, record: Callable[..., Any]) -> None:
    """Model and optimizer are as they were."""
    model = torch.nn.Linear(4, 1)
    recorder = record()
    recorder.watch(model)
    assert model._forward_hooks
    assert model._forward_pre_hooks
    recorder.close()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_model_that_refuses_hooks_costs_the_phases_only(
    torch: Any, exporter: Any, record: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once."""

    class Odd(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def register_forward_pre_hook(self, *_: object, **__: object) -> Any:
            raise RuntimeError("no hooks here")

    with caplog.at_level(logging.WARNING):
        recorder = record()
        recorder.watch(Odd(4, 1))
        recorder.step()
    assert "no hooks here" in caplog.text
    assert exporter.wait_for("hello")
