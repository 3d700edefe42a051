"""The clock of exclusive phases."""

from __future__ import annotations

import sys
import threading

import pytest

from tachograph.catalog.rank import PHASES
from tachograph.client.core import phases as module
from tachograph.client.core.counters import Counter
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that phases and steps see; set `now[0]`."""
    moment = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: moment[0])
    monkeypatch.setattr("tachograph.client.core.steps.perf_counter", lambda: moment[0])
    return moment


def test_nested_phases_never_count_twice(now: list[float]) -> None:
    """Inside a nested phase the outer one stands still; all seconds together are the wall time."""
    clock = PhaseClock()
    with clock.phases["backward"]:
        now[0] += 2
        with clock.phases["collective"]:
            now[0] += 3
        now[0] += 5
    now[0] += 1
    _, _, seconds = clock.read()
    assert (seconds["backward"], seconds["collective"], seconds["init"]) == (7, 3, 1)
    assert sum(seconds.values()) == 11


def test_a_phase_inside_itself_counts_once(now: list[float]) -> None:
    """The same object may be entered again before it is left."""
    clock = PhaseClock()
    with clock.phases["eval"]:
        now[0] += 1
        with clock.phases["eval"]:
            now[0] += 1
        now[0] += 1
    assert clock.read()[2]["eval"] == 3


def test_other_is_a_step_outside_named_phases_and_init_ends_with_the_first_step(now: list[float]) -> None:
    """Before the first step the clock is in init, from then on other takes what no named phase takes."""
    clock = PhaseClock()
    step = Step(clock, Counter())
    now[0] += 4
    with clock.phases["data"]:
        now[0] += 1
    with step:
        now[0] += 2
        with clock.phases["forward"]:
            now[0] += 8
    now[0] += 16
    phase, since, seconds = clock.read()
    assert (seconds["init"], seconds["data"], seconds["forward"], seconds["other"]) == (4, 1, 8, 18)
    assert (phase, since) == ("other", 115.0)


def test_the_current_phase_grows_while_it_lasts(now: list[float]) -> None:
    """A phase that never ends, as in a hang, shows its seconds all the same."""
    clock = PhaseClock()
    with clock.phases["data"]:
        now[0] += 41
        phase, since, seconds = clock.read()
    assert (phase, since, seconds["data"]) == ("data", 100.0, 41)


def test_an_exception_leaves_the_phase_and_passes(now: list[float]) -> None:
    """The user's exception is untouched, and the checkpoint phase counts its failure."""
    clock = PhaseClock()
    error = OSError("disk full")
    with pytest.raises(OSError, match="disk full") as caught, clock.phases["checkpoint"]:
        raise error
    assert caught.value is error
    assert clock.current.name == "init"
    assert clock.checkpoint.failures == 1


def test_a_step_puts_right_phases_left_open_inside(now: list[float]) -> None:
    """A phase entered by hand and never left ends with its step, and leaves nothing behind."""
    clock = PhaseClock()
    step = Step(clock, Counter())
    for _ in range(3):
        with step:
            clock.phases["forward"].__enter__()
            now[0] += 1
    now[0] += 1
    assert clock.read()[0] == "other"
    assert clock.outer is None


def test_a_phase_left_twice_is_harmless() -> None:
    """Misuse costs accuracy, never an exception."""
    clock = PhaseClock()
    clock.phases["forward"].__exit__(None, None, None)
    step = Step(clock, Counter())
    with step:
        clock.phases["forward"].__exit__(None, None, None)
        clock.phases["forward"].__exit__(None, None, None)
    assert clock.outer is None


def test_read_by_another_thread_never_falls_and_ends_exact(now: list[float]) -> None:
    """While phases change, no reading is below the last, and none counts a second twice; the sum is exact."""
    clock = PhaseClock()
    began = clock.since
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            with clock.phases["forward"]:
                now[0] += 1
            with clock.phases["backward"]:
                now[0] += 1
                with clock.phases["collective"]:
                    now[0] += 1
            now[0] += 1

    thread = threading.Thread(target=train)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # between any two lines
    thread.start()
    try:
        before = dict.fromkeys(PHASES, 0.0)
        for _ in range(2000):
            _, _, seconds = clock.read()
            assert all(seconds[name] >= before[name] for name in PHASES)
            assert sum(seconds.values()) <= now[0] - began
            before = dict(seconds)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    with clock.phases["eval"]:
        shared_out = sum(phase.seconds for phase in clock.phases.values())
        assert shared_out == clock.since - began
