"""A watched model, through the optimizer's real hooks."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.signals.invariants import Invariants
from tachograph.client.torch.model.device_readings import PENDING_LIMIT, DeviceReadings
from tachograph.client.torch.model.layer_memory import LayerMemory
from tachograph.client.torch.model.model_watch import LEAST_STEPS_BETWEEN, LOOK_SECONDS_PER_STEP, ModelWatch, Ration
from tests.client.fake_cuda import Cuda, Tensor

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def torch() -> Any:
    """PyTorch."""
    return pytest.importorskip("torch")


class Training:
    """A small model that trains, watched."""

    def __init__(self, torch: Any, optimizer: Any = None, **asked: Any) -> None:
        torch.manual_seed(1)
        self.torch = torch
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        self.optimizer = (optimizer or torch.optim.AdamW)(self.model.parameters(), lr=1e-3)
        self.invariants, self.dropped = Invariants(), Counter()
        self.watch = ModelWatch(
            self.model, self.optimizer, invariants=self.invariants, dropped=self.dropped, **{"rank": 0, **asked}
        )
        self.watch.attach()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(self.torch.randn(4, 8)).square().mean().backward()
            self.optimizer.step()

    def told(self) -> dict[str, Any]:
        return dict(self.watch.metrics())

    def shared(self) -> dict[str, Any]:
        return dict(self.invariants.metrics())


EVERYTHING = {"layers": 2, "activations": True, "update_every": 5, "checksum_every": 4, "memory_layers": True}


def test_everything_that_was_asked_for(torch: Any) -> None:
    """One watch, all readings; on a CPU there is no memory by layer."""
    training = Training(torch, **EVERYTHING)
    training.steps(20)
    said = training.told()
    assert set(said) == {
        "dead_layers", "layer_grad_norm", "layer_activation_rms", "layer_activation_zero_ratio", "update_ratio",
    }  # fmt: skip
    assert set(said["layer_grad_norm"]) == set(said["layer_activation_rms"]) == {"0", "2"}
    assert set(training.shared()["invariant"]) == {"optimizer_step", "parameter_checksum", "known_product"}
    assert (training.shared()["invariant"]["known_product"], training.dropped.count) == (0, 0)


@pytest.mark.parametrize("fused", [False, True])
def test_mixed_precision(torch: Any, fused: bool) -> None:
    """Scale and skips of a watched scaler; gradients by layer are those without the scale."""
    norms = []
    for factor in (1.0, 2.0**16):
        training = Training(torch)
        optimizer = torch.optim.Adam(training.model.parameters(), lr=0.0, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=factor)
        watch = ModelWatch(
            training.model, optimizer, scaler=scaler, layers=8, invariants=Invariants(), dropped=training.dropped
        )
        watch.attach()
        for overflow in (False, False, True, False):
            optimizer.zero_grad()
            loss = training.model(torch.ones(1, 8)).sum() * (float("inf") if overflow else 1.0)
            scaler.scale(loss).backward()
            if not fused:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        said: Any = dict(watch.metrics())
        assert (said["amp_skipped_steps_total"], training.dropped.count) == (0 if fused else 1, 0)
        assert said["amp_loss_scale"] == factor / (1 if fused else 2)  # fused: told with the next copy, in a second
        norms.append(said["layer_grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_nothing_that_was_not(torch: Any) -> None:
    """By default only the optimizer's own count is read, every 16 steps; other ranks than 0 show no layers."""
    training = Training(torch)
    training.steps(15)
    assert (training.told(), training.shared()) == ({}, {})
    training.steps(1)
    assert training.shared() == {"invariant": {"optimizer_step": 16}, "invariant_step": {"optimizer_step": 16}}
    other = Training(torch, rank=3, **EVERYTHING)
    other.steps(20)
    assert set(other.told()) == {"update_ratio"}
    assert "parameter_checksum" in other.shared()["invariant"]


def test_replicas_agree_and_a_stale_optimizer_does_not(torch: Any) -> None:
    """Ranks that train alike share every invariant; one that restored an older optimizer state has another count."""
    replicas = [Training(torch, checksum_every=4) for _ in range(2)]
    for replica in replicas:
        torch.manual_seed(2)
        replica.steps(16)
    assert replicas[0].shared() == replicas[1].shared()
    stale = replicas[1].optimizer
    for state in stale.state.values():
        state["step"] -= 5
    fresh = [ModelWatch(one.model, one.optimizer, invariants=Invariants(), dropped=Counter()) for one in replicas]
    for watch, replica in zip(fresh, replicas, strict=True):
        watch.attach()
        replica.steps(16)
    counts = [dict(watch._invariants.metrics())["invariant"]["optimizer_step"] for watch in fresh]  # type: ignore[index]
    assert counts == [32, 27]


@pytest.mark.parametrize("missing", ["model", "optimizer", "both"])
def test_parts_may_be_missing(torch: Any, missing: str) -> None:
    """A schedule alone is read; a model without parameters and an optimizer without states are nothing special."""
    training = Training(torch)
    scheduler = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda step: 1.0)
    watch = ModelWatch(
        None if missing in ("model", "both") else torch.nn.Identity(),
        None if missing in ("optimizer", "both") else torch.optim.SGD(training.model.parameters(), lr=0.1),
        scheduler=scheduler, invariants=Invariants(), dropped=training.dropped, **EVERYTHING,
    )  # fmt: skip
    watch.attach()
    training.steps(20)
    assert (dict(watch.metrics()), training.dropped.count) == ({"schedule_step": 0}, 0)


def test_nothing_is_kept_alive(torch: Any) -> None:
    """A watch that the sender still asks holds neither model nor optimizer."""
    training = Training(torch, **EVERYTHING)
    training.steps(15)
    watch, kept = training.watch, [weakref.ref(training.model), weakref.ref(training.optimizer)]
    del training
    gc.collect()
    assert [one() for one in kept] == [None, None]
    assert dict(watch.metrics())["dead_layers"] == 0


def test_the_training_is_the_same(torch: Any) -> None:
    """Watched or not, the parameters come out bit for bit alike, and no step of random numbers is drawn."""
    plain, watched = Training(torch), Training(torch, **EVERYTHING)
    for training in (plain, watched):
        torch.manual_seed(5)
        training.steps(30)
    pairs = zip(plain.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_what_fails_is_given_up(torch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Only the part that PyTorch refuses is lost: counted and logged once, and its last reading no longer reported."""
    training = Training(torch, layers=2, update_every=1)
    training.steps(3)
    assert {"layer_grad_norm", "update_ratio"} <= training.told().keys()
    training.watch._ration.next = 3
    training.model[0].weight.grad = None
    original, torch._foreach_norm = torch._foreach_norm, None
    try:
        with caplog.at_level(logging.WARNING, logger="tachograph"):
            training.steps(3)
    finally:
        torch._foreach_norm = original
    training.steps(3)
    assert (training.told(), training.dropped.count, len(caplog.records)) == ({}, 2, 2)


def test_a_step_that_throws(torch: Any) -> None:
    """The user's exception passes through, and the next step is watched as before."""
    training = Training(torch, **EVERYTHING)
    training.steps(3)
    with pytest.raises(RuntimeError, match="closure"):
        training.optimizer.step(lambda: (_ for _ in ()).throw(RuntimeError("closure")))
    training.steps(20)
    assert (training.dropped.count, "update_ratio" in training.told()) == (0, True)


def test_a_compiled_step_is_left_alone(torch: Any) -> None:
    """While torch.compile looks through the hooks they do nothing; the step compiles and steps.

    Where the graph breaks before them, as up to PyTorch 2.4, they are not compiled and see every step.
    """
    training = Training(torch, **EVERYTHING)
    compiled = torch.compile(training.optimizer.step, backend="eager")
    before = training.model[0].weight.detach().clone()
    for _ in range(3):
        training.model(torch.randn(4, 8)).sum().backward()
        compiled()
    assert training.watch._steps in (0, 3)
    assert training.dropped.count == 0
    assert not torch.equal(before, training.model[0].weight)


def test_wrapped_optimizers(torch: Any) -> None:
    """Accelerate's and Lightning's wrappers have the real optimizer inside; that is the one whose steps count."""
    training = Training(torch)
    watch = ModelWatch(
        training.model, SimpleNamespace(optimizer=training.optimizer), update_every=1, invariants=Invariants(),
        dropped=Counter(),
    )  # fmt: skip
    watch.attach()
    training.steps(1)
    assert dict(watch.metrics())["update_ratio"] > 0


def test_looks_are_rationed() -> None:
    """A look's cost, spread over the steps to the next, stays within 10 us or 0.003 % of a step."""
    ration = Ration()
    assert ration.next == 1
    ration.spent(1, 0.002, 100.0)
    assert ration.next == 1 + round(0.002 / LOOK_SECONDS_PER_STEP)
    ration.spent(201, 0.002, 100.0 + 200 * 10.0)  # steps of 10 s: 300 us each are allowed
    assert ration.next == 201 + LEAST_STEPS_BETWEEN
    ration.spent(211, 60.0, 100.0 + 210 * 10.0)
    assert ration.next == 211 + 10_000


def test_an_ordinary_step_asks_pytorch_for_little(torch: Any) -> None:
    """With everything on, a step between looks makes few calls; `bench/tiny_step.py` measures what they take."""
    training = Training(torch, layers=2, activations=True, update_every=1000, checksum_every=1000)
    training.steps(3)
    training.watch._ration.next = -1
    numbers = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        numbers[-1] += event in ("call", "c_call")

    for _ in range(500):
        numbers.append(0)
        sys.setprofile(count)
        try:
            training.watch._before(training.optimizer, (), {})
            training.watch._after(training.optimizer, (), {})
        finally:
            sys.setprofile(None)
    assert sorted(numbers)[250] <= 40, numbers


class FakeCuda:
    """A stand-in for `torch.cuda`; the peak is set back by `reset_peak_memory_stats`."""

    def __init__(self) -> None:
        self.current = self.peak = 0

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def allocate(self, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.current

    def memory_stats_as_nested_dict(self) -> Any:
        return {"allocated_bytes": {"all": {"peak": self.peak}}}


def test_copies_are_waited_for_by_nobody(cuda: Cuda) -> None:
    """Until the GPU has come so far nothing is read; in order then; too many, and failed ones, are dropped."""
    dropped: Counter = Counter()
    readings, taken = DeviceReadings(dropped), []
    for number in range(PENDING_LIMIT + 3):
        readings.read(Tensor([1.0, 2.0], (2,)), lambda values, number=number: taken.append((number, values)))  # type: ignore[arg-type, misc]
    readings.poll()
    assert (taken, dropped.count) == ([], 3)
    cuda.all_done = True
    readings.poll()
    assert taken == [(number, [1.0, 2.0]) for number in range(PENDING_LIMIT)]
    readings.read(Tensor([1.0, 2.0], (2,)), lambda values: taken.append((0, values)))  # type: ignore[arg-type]
    cuda.broken = True
    readings.poll()
    readings.poll()
    assert (len(taken), dropped.count) == (PENDING_LIMIT, 4)


def test_memory_by_layer(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak while each layer runs, what lives before it included; the next look starts anew."""
    cuda = FakeCuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    needs = {0: (100, 40), 1: (10, 5)}  # bytes for the moment, and those that stay
    for position, layer in enumerate(model):

        def forward(data: Any, position: int = position) -> Any:
            moment, stays = needs[position]
            cuda.allocate(moment)
            cuda.allocate(stays - moment)
            return data

        layer.forward = forward
    watch = LayerMemory(model)
    watch.arm()
    model(torch.ones(1))
    watch.look(None)  # type: ignore[arg-type]
    assert dict(watch.metrics()) == {"layer_memory_peak_bytes": {"0": 100, "1": 50}}
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model)
    model(torch.ones(1))
    assert dict(watch.metrics()) == {"layer_memory_peak_bytes": {"0": 100, "1": 50}}
