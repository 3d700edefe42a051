"""GPU seconds of phases, with stand-ins for CUDA's events: a GPU that runs behind by as much as a test says."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step
from tachograph.client.torch import device_time as module
from tachograph.client.torch.device_time import POOL_LIMIT, DeviceTime


class Cuda:
    """torch.cuda as far as it is used; `now` is the GPU's timeline in milliseconds, `done` how far it has come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done = 0.0
        self.initialized = True
        self.capturing = False
        self.broken = False
        self.events: list[Any] = []
        self.recorded = 0

    def is_initialized(self) -> bool:
        """Tell whether CUDA is in use."""
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        """Tell whether a graph is captured."""
        return self.capturing

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802 - PyTorch's name
        """Return an event that remembers when it was recorded."""
        assert enable_timing
        cuda = self

        class Event:
            at = 0.0

            def record(self) -> None:
                assert not cuda.capturing
                if cuda.broken:
                    raise RuntimeError("CUDA error: unspecified launch failure")
                cuda.recorded += 1
                self.at = cuda.now

            def query(self) -> bool:
                assert not cuda.capturing
                return self.at <= cuda.done

            def elapsed_time(self, end: Any) -> float:
                assert end.query()
                return float(end.at - self.at)

        self.events.append(Event())
        return self.events[-1]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A GPU, and a host whose clock moves a millisecond with every look."""
    made = Cuda()
    moments = iter(range(10_000_000))
    monkeypatch.setattr(module, "loaded_torch", lambda: SimpleNamespace(cuda=made))
    monkeypatch.setattr(module, "perf_counter", lambda: next(moments) * 1e-3)
    return made


@pytest.fixture
def clock() -> PhaseClock:
    """A phase clock."""
    return PhaseClock()


def work(cuda: Cuda, clock: PhaseClock, name: str, milliseconds: float) -> None:
    """Launch that much GPU work in a phase."""
    with clock.phases[name]:
        cuda.now += milliseconds


def steps(cuda: Cuda, clock: PhaseClock, number: int, lag: float = 0.0) -> None:
    """Make steps with 10 ms of forward, 20 of backward with a collective of 5 inside, and 1 after that in no phase."""
    step = Step(clock, Counter())
    for _ in range(number):
        with step:
            work(cuda, clock, "forward", 10)
            with clock.phases["backward"]:
                cuda.now += 15
                work(cuda, clock, "collective", 5)
                cuda.now += 5
            cuda.now += 1
        cuda.done = cuda.now - lag


def test_on_a_cpu_it_touches_nothing(cuda: Cuda, clock: PhaseClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """No mark, not a call: neither where torch is absent nor where CUDA is there and not in use."""
    device = DeviceTime(clock)
    cuda.initialized = False
    for torch in (SimpleNamespace(cuda=cuda), SimpleNamespace(), None):
        monkeypatch.setattr(module, "loaded_torch", lambda torch=torch: torch)
        steps(cuda, clock, 5)
        assert device.metrics() == {}
    assert clock.device is None
    assert cuda.events == []


def test_gpu_time_goes_to_the_phase_it_was_launched_in(cuda: Cuda, clock: PhaseClock) -> None:
    """Exclusively, as on the host; what is known lags by two steps, and never by a wait."""
    device = DeviceTime(clock)
    device.metrics()
    steps(cuda, clock, 100)
    seconds = device.metrics()["phase_device_seconds_total"]
    assert seconds["forward"] == pytest.approx(1.0, abs=0.03)
    assert seconds["backward"] == pytest.approx(2.0, abs=0.06)
    assert seconds["collective"] == pytest.approx(0.5, abs=0.015)
    assert seconds["other"] == pytest.approx(0.1, abs=0.003)
    assert len(cuda.events) < 20


def test_phases_that_follow_each_other_share_an_event(
    cuda: Cuda, clock: PhaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the events for a loop whose phases leave no room between them, and the same seconds."""
    monkeypatch.setattr(module, "perf_counter", lambda: 1.0)
    device = DeviceTime(clock)
    device.metrics()
    with Step(clock, Counter()):  # ends `init`
        pass
    for _ in range(100):
        for name in ("data", "forward", "backward", "optimizer"):
            work(cuda, clock, name, 10)
        cuda.done = cuda.now
    assert cuda.recorded <= 401
    seconds = device.metrics()["phase_device_seconds_total"]
    assert set(seconds) == {"data", "forward", "backward", "optimizer"}
    assert all(value == pytest.approx(1.0, abs=0.03) for value in seconds.values())


def test_a_phase_held_since_before_and_a_checked_one_are_measured_too(cuda: Cuda, clock: PhaseClock) -> None:
    """CUDA comes into use after the recorder was made: handles stay good, failures are still counted."""
    held = clock.phases["forward"]
    device = DeviceTime(clock)
    device.metrics()
    with held:
        cuda.now += 10
    with contextlib.suppress(ValueError), clock.checkpoint:
        cuda.now += 30
        raise ValueError
    assert clock.checkpoint.failures == 1
    cuda.done = cuda.now
    for _ in range(10):
        work(cuda, clock, "data", 0)
    seconds = device.metrics()["phase_device_seconds_total"]
    assert (seconds["forward"], seconds["checkpoint"]) == (pytest.approx(0.01), pytest.approx(0.03))


def test_a_capture_is_left_alone(cuda: Cuda, clock: PhaseClock) -> None:
    """While a CUDA graph is captured no event is recorded or asked; what passed meanwhile is nobody's."""
    device = DeviceTime(clock)
    device.metrics()
    steps(cuda, clock, 10)
    before = device.metrics()["phase_device_seconds_total"]["forward"]
    cuda.capturing = True
    steps(cuda, clock, 10)
    cuda.capturing = False
    cuda.now += 5000
    steps(cuda, clock, 10)
    seconds = device.metrics()["phase_device_seconds_total"]
    assert 0.05 < seconds["forward"] - before <= 0.13
    assert sum(seconds.values()) < 1.0


def test_a_gpu_far_behind_costs_times_not_memory(cuda: Cuda, clock: PhaseClock) -> None:
    """At most a pool of events; what could not be noted is left out, never given to another phase."""
    device = DeviceTime(clock)
    device.metrics()
    steps(cuda, clock, 500, lag=1e9)
    assert len(cuda.events) == POOL_LIMIT
    assert device.lost > 0
    cuda.done = cuda.now
    steps(cuda, clock, 10)
    seconds = device.metrics()["phase_device_seconds_total"]
    assert seconds["forward"] / seconds["collective"] == pytest.approx(2.0, rel=0.05)
    assert seconds["forward"] < 1.0
    assert seconds.get("other", 0.0) < 0.1


def test_a_broken_gpu_ends_the_measurement_not_the_training(cuda: Cuda, clock: PhaseClock) -> None:
    """A CUDA error is the training code's to meet: the series ends, and nothing is asked again."""
    device = DeviceTime(clock)
    device.metrics()
    steps(cuda, clock, 10)
    cuda.broken = True
    steps(cuda, clock, 10)
    recorded = cuda.recorded
    cuda.broken = False
    steps(cuda, clock, 10)
    assert device.metrics() == {}
    assert cuda.recorded == recorded
