"""What steps are worth, as `step.log(tokens=…, samples=…, flops=…)` says: counted as given, with the step it is of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.core.misuse import Misuse
from tachograph.client.core.phases import PhaseClock
from tachograph.client.core.steps import Step
from tachograph.client.hello.workload import Workload
from tachograph.client.recorder import Recorder
from tachograph.client.signals.logged import Logged
from tachograph.client.signals.work import WHOLE_RUN_STEPS, WorkCounters
from tests.client.fake_cuda import Cuda, Tensor

Make = Callable[..., Recorder]
WORK = ("tokens_total", "samples_total", "flops_total", "hardware_flops_total")


class Loop:
    """A training loop and what the sender thread makes of it, in one thread."""

    def __init__(self, world_size: int = 1, **given: Any) -> None:
        self.step = Step(PhaseClock(), Counter())
        self.misuse = Misuse()
        workload = Workload(world_size, **given)
        self.workload = workload
        self.work = WorkCounters(self.step, workload.per_step, workload.per_token, world_size)
        self.logged = Logged(self.step, self.misuse, work=self.work)

    def train(self, *steps: dict[str, Any]) -> None:
        """Make steps that log these values."""
        for values in steps:
            with self.step:
                if values:
                    self.step.log(**values)

    def counters(self) -> dict[str, Any]:
        """The counters of a frame."""
        self.logged.read()
        return dict(self.work.metrics())


def test_it_is_counted_as_given(exporter: Any, record: Make) -> None:
    """Exactly, on this rank, whatever the world's size; FLOPs follow the tokens, and the convention says so."""
    recorder = record(world_size=4, rank=1, flops_per_token=6.0, hardware_flops_per_token=8.0)
    for tokens in (1000, 1500, 37):
        with recorder.step() as step:
            step.log(loss=2.0, tokens=tokens, samples=3)
    metrics = exporter.next_state()["metrics"]
    assert {key: metrics[key] for key in WORK} == {
        "tokens_total": 2537, "samples_total": 9, "flops_total": 6 * 2537, "hardware_flops_total": 8 * 2537,
    }  # fmt: skip
    assert metrics["loss"] == 2.0
    assert exporter.frames("hello")[-1]["facts"]["flops_convention"] == "given"


def test_flops_of_a_step_may_be_logged_themselves(exporter: Any, record: Make) -> None:
    """As given, in place of those by tokens; a run that only logs them has a convention, too."""
    recorder = record()
    with recorder.step() as step:
        step.log(tokens=10, flops=5e12)
    metrics = exporter.wait_for(where=lambda frame: "flops_total" in frame["metrics"])["metrics"]
    assert (metrics["flops_total"], metrics["tokens_total"]) == (5e12, 10)
    assert exporter.wait_for("hello", where=lambda frame: "flops_convention" in frame["facts"])


def test_a_step_that_logs_none_counts_as_the_constructor_said() -> None:
    """One amount replaces another, step by step and kind by kind."""
    loop = Loop(world_size=2, tokens_per_step=200, samples_per_step=8, flops_per_token=2)
    loop.train({}, {"tokens": 150}, {"tokens": 0}, {"loss": 2.0}, {"samples": 5})
    assert loop.counters() == {
        "tokens_total": 100 + 150 + 0 + 100 + 100, "samples_total": 4 * 4 + 5, "flops_total": 2 * 350 + 2 * 100 / 4 * 5,
    }  # fmt: skip


def test_flops_of_a_step_follow_its_samples_where_tokens_are_not_logged() -> None:
    """A batch that doubles does twice the work: MFU would else fall by half."""
    loop = Loop(samples_per_step=8, flops_per_step=80)
    loop.train({}, {"samples": 16})
    assert loop.counters() == {"samples_total": 24, "flops_total": 240}
    loop.workload.measured(1000.0)
    loop.train({"samples": 16}, {"samples": 16, "flops": 1}, {"tokens": 5})
    assert loop.counters() == {
        "samples_total": 24 + 16 + 16 + 8, "flops_total": 240 + 160 + 1 + 80, "tokens_total": 5,
        "hardware_flops_total": 3 * 1000 + 2 * 2000,
    }  # fmt: skip


def test_micro_batches_add_up() -> None:
    """Whether all are logged within one step, or each in a micro-step of its own."""
    loop = Loop(tokens_per_step=50)
    with loop.step as step:
        step.log(tokens=3)
        step.log(tokens=4, loss=2.0)
    for tokens in (10, 20, 30):
        loop.step.accumulating = tokens < 30
        with loop.step as step:
            step.log(tokens=tokens)
    loop.train({})
    assert loop.counters() == {"tokens_total": 7 + 60 + 50}


def test_it_is_counted_once_the_step_is_completed() -> None:
    """Work and time end at the same step, so that a rate over a few steps is steady; nothing of a step under way."""
    loop = Loop(tokens_per_step=50)
    with loop.step as step:
        step.log(tokens=5)
        assert loop.counters() == {"tokens_total": 0}
    assert loop.counters() == {"tokens_total": 5}
    loop.step.log(tokens=2)
    assert loop.counters() == {"tokens_total": 7}, "logged behind the step that it is of"


def test_a_step_that_failed_is_not_counted() -> None:
    """It begins anew, under the same number; a step that failed after it takes nothing from one that did not."""
    loop = Loop()
    loop.train({"tokens": 1})

    def fail(*, read: bool) -> None:
        with loop.step as step:
            step.log(tokens=100)
            if read:
                loop.counters()
            raise MemoryError

    for read in (True, False):
        with pytest.raises(MemoryError):
            fail(read=read)
    loop.train({"tokens": 10})
    assert loop.counters() == {"tokens_total": 11}


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "many", None, True, 1j])
def test_what_is_no_amount_is_dropped(wrong: object) -> None:
    """It is counted, and said with the reason; the rest of the call stands."""
    loop = Loop()
    loop.train({"tokens": wrong, "samples": 2})
    assert loop.counters() == {"samples_total": 2}
    assert loop.logged.refused == 1
    [text] = loop.misuse.notices()
    assert text.startswith("step.log(tokens=…) is dropped: ")
    assert ("not below 0" in text) == (type(wrong) in {int, float})


WHOLE, EACH = 4_194_304, 524_288


def test_the_whole_runs_amount_is_told_from_the_ranks() -> None:
    """The constructor takes the whole run's: who logs the same number counts it on every rank, which is said once."""
    loop = Loop(world_size=8, tokens_per_step=WHOLE)
    for step in range(1, 3 * WHOLE_RUN_STEPS):
        assert bool(loop.misuse.notices()) == (step > WHOLE_RUN_STEPS)
        loop.train({"tokens": WHOLE})
        assert loop.counters() == {"tokens_total": step * WHOLE}
        loop.logged.read()
    assert loop.misuse.metrics() == {"misuse_total": {"wrong_type": 1}}
    [text] = loop.misuse.notices()
    assert text.startswith("step.log(tokens=…) has been for 20 steps what was given for a step of the whole run")
    assert "is counted on each rank" in text
    assert "dropped" not in text


@pytest.mark.parametrize("ramp", [
    [EACH] * 50 + [WHOLE] + [EACH] * 50, [WHOLE - 1000 + 500 * step for step in range(100)],
    [WHOLE // 2] * 30 + [WHOLE] * 40 + [2 * WHOLE] * 30, [WHOLE] * 5 + [2 * WHOLE] * 40, [0] * 40,
])  # fmt: skip
def test_an_amount_that_is_once_the_whole_runs_is_no_misuse(ramp: list[int]) -> None:
    """A batch size that warms up passes it; whoever has logged anything else logs what it does itself."""
    loop = Loop(world_size=8, tokens_per_step=WHOLE)
    for tokens in ramp:
        loop.train({"tokens": tokens})
        loop.counters()
        loop.logged.read()
    assert not loop.misuse.notices()
    assert loop.counters() == {"tokens_total": sum(ramp)}


@pytest.mark.parametrize("given", [{"tokens_per_step": 10}, {"world_size": 8, "samples_per_step": 8}])
def test_one_rank_alone_is_the_whole_run(given: dict[str, Any]) -> None:
    """And of what was not given nobody knows how much it is."""
    loop = Loop(**given)
    for _ in range(2 * WHOLE_RUN_STEPS):
        loop.train({"tokens": 10}, {"tokens": 0})
        loop.counters()
        loop.logged.read()
    assert not loop.misuse.notices()


@pytest.mark.parametrize(("wrong", "right"), [("tokens_per_step", "tokens"), ("flops_total", "flops")])
def test_a_constructors_name_leads_to_that_of_a_step(wrong: str, right: str) -> None:
    """Both are amounts of a step, and one word is not close to the other."""
    loop = Loop()
    loop.train({wrong: 5})
    loop.counters()
    assert loop.misuse.notices() == [f"step.log({wrong}=…) is dropped: did you mean {right}?"]


def test_a_name_that_the_run_declared_stays_its_own(exporter: Any, record: Make) -> None:
    """A run that had a metric `tokens` of its own has it still."""
    recorder = record(metrics={"tokens": "Tokens in the replay buffer"})
    with recorder.step() as step:
        step.log(tokens=5)
    frame = exporter.wait_for(where=lambda frame: frame["metrics"].get("custom"))
    assert frame["metrics"]["custom"] == {"tokens": 5}
    assert "tokens_total" not in frame["metrics"]


def test_a_counter_never_falls() -> None:
    """A step counts as given until what it logged is here; where that is less, the counter waits for the difference."""
    loop = Loop(tokens_per_step=100)
    loop.train({}, {})
    assert loop.counters() == {"tokens_total": 200}
    loop.step.log(tokens=10)
    assert loop.counters() == {"tokens_total": 200}
    loop.train({})
    assert loop.counters() == {"tokens_total": 210}


def test_a_number_does_not_wait_for_the_loss_beside_it(cuda: Cuda) -> None:
    """The usual call: a loss on the GPU and a number of tokens; the last step's are counted, too."""
    loop = Loop(flops_per_token=2)
    loop.train({"loss": Tensor(2.0), "tokens": 5}, {"loss": Tensor(2.0), "tokens": 7})
    assert loop.counters() == {"tokens_total": 12, "flops_total": 24}
    cuda.all_done = True
    loop.train({"loss": Tensor(1.0), "tokens": 1})
    assert loop.counters()["tokens_total"] == 13
    assert loop.logged.metrics()["loss"] == 2.0


def test_an_amount_on_the_gpu_is_always_one_step_late(cuda: Cuda) -> None:
    """It is never waited for; and never early, or a rate would show the moment of the scrape within the step."""
    cuda.all_done = True
    loop = Loop(flops_per_token=2)
    seen = []
    for tokens in (1, 20, 300, 4000):
        with loop.step as step:
            step.log(tokens=Tensor(tokens), samples=1)
            seen.append(loop.counters().get("tokens_total", 0))
        seen.append(loop.counters().get("tokens_total", 0))
    assert seen == [0, 0, 0, 1, 1, 21, 21, 321]
    assert loop.counters() == {"samples_total": 4, "tokens_total": 321, "flops_total": 642}


def test_flops_of_a_step_are_counted_once(cuda: Cuda) -> None:
    """By its samples, where its tokens come late."""
    cuda.all_done = True
    loop = Loop(samples_per_step=2, flops_per_step=10, flops_per_token=3)
    loop.train(*[{"tokens": Tensor(7), "samples": 2}] * 3)
    assert loop.counters() == {"samples_total": 6, "flops_total": 30, "tokens_total": 14}
