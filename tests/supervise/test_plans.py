"""What plans change about a training: batches that are left out, a lower rate, and loops that do not follow."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tachograph.supervise import policy
from tachograph.supervise.plan import AttemptPlan
from tachograph.supervise.plan_memory import PlanMemory, SkippedSteps
from tachograph.supervise.plan_obedience import PlanObedience
from tachograph.supervise.run_seen import RunSeen
from tests.supervise.conftest import RANKS, Supervised
from tests.supervise.world import World, dead, rank, run


def lost(first: int, *, saved: Sequence[int]) -> RunSeen:
    """A run whose loss is NaN from a step on."""
    return run(rank(0, is_lost=True, nonfinite_step=first, step=first + 5), saved=saved)


def spiked(first: int, *, saved: Sequence[int]) -> RunSeen:
    """A run whose loss has spiked at a step, and stays."""
    return run(rank(0, step=first + 25), rank(1, step=first + 25), spiked_step=first, saved=saved)


def plans(world: World) -> list[tuple[str, str, str]]:
    """Step, steps to leave out and rate of each plan."""
    return [tuple(plan[f"TACHOGRAPH_PLAN_{name}"] for name in ("STEP", "SKIP", "RATE")) for plan in world.plans]  # type: ignore[misc]


def test_batches_at_which_the_loss_is_lost_twice_are_left_out(tmp_path: Path) -> None:
    """The first time it may be a GPU's fault. Each later attempt leaves them out, too."""

    def look(attempt: int, seconds: float) -> RunSeen:
        if seconds < 10 or attempt == 3:
            return run(saved=[40, 60])
        return dead(90, saved=[40, 60]) if attempt == 2 else lost(67 + (attempt == 1), saved=[40, 60])

    def exact(attempt: int, seconds: float) -> RunSeen:
        return look(0 if attempt == 1 else attempt, seconds)

    world = World(tmp_path, exact, ends=[(None, 0), (None, 0), (1, 11.0), (0, 30.0)])
    assert world.supervise() == 0
    assert world.decisions() == [
        ("act", "loss_not_finite", "restart_from_checkpoint"), ("act", "loss_not_finite", "skip_batches"),
        ("act", "dead", "restart"),
    ]  # fmt: skip
    assert plans(world) == [("", "", "1"), ("60", "", "1"), ("60", "65:75", "1"), ("60", "65:75", "1")]
    assert "skip batches, within its budget" in " ".join(world.said)
    assert ", without steps 65 to 74, from the checkpoint of step 60" in " ".join(world.said)


def test_a_spike_that_stays_is_left_out_and_twice_as_much_the_next_time(tmp_path: Path) -> None:
    """From a checkpoint of at least ten steps before it; after the last of the ladder it is left to a person."""

    def look(attempt: int, seconds: float) -> RunSeen:
        if seconds < 10:
            return run(saved=[40, 66])
        return spiked([67, 75, 90][attempt], saved=[40, 66] if attempt == 0 else [40])

    world = World(tmp_path, look, ends=[(None, 0), (None, 0), (0, 100.0)])
    assert world.supervise() == 0
    assert world.decisions() == [
        ("act", "loss_spike", "skip_batches"), ("act", "loss_spike", "skip_batches"), ("act", "loss_spike", "leave"),
    ]  # fmt: skip
    assert plans(world) == [("", "", "1"), ("40", "47:75", "1"), ("40", "47:91", "1")]
    told = [facts["skipped"] for _, facts in world.told if facts["skipped"]]
    assert told[0] == {"first": 47, "last": 74, "times": 1}
    assert told[-1] == {"first": 47, "last": 90, "times": 2}


SKIPPED: dict[str, tuple[list[tuple[int, int]], tuple[int, int, int]]] = {
    "once": ([(10, 20)], (10, 20, 1)),
    "at two places": ([(10, 20), (30, 40)], (30, 40, 1)),
    "the same": ([(10, 20), (10, 20)], (10, 20, 2)),
    "beside it": ([(10, 20), (20, 30)], (10, 30, 2)),
    "before it": ([(20, 30), (5, 20)], (5, 30, 2)),
    "a step away": ([(10, 20), (21, 30)], (21, 30, 1)),
    "between two": ([(10, 20), (30, 40), (15, 35)], (10, 40, 3)),
    "one place of two": ([(10, 20), (12, 25), (50, 60)], (10, 25, 2)),
}


@pytest.mark.parametrize("case", SKIPPED)
def test_how_often_batches_were_left_out(case: str) -> None:
    """Steps that overlap or touch are one place; of several that with the most is told."""
    ranges, expected = SKIPPED[case]
    memory = PlanMemory()
    for begin, end in ranges:
        memory.take({"kind": "intent", "action": "skip_batches", "skip": [begin, end]})
    assert memory.most_often == SkippedSteps(*expected)
    assert memory.skips == len(ranges)
    assert memory.skip == sorted(memory.skip)


LADDER = """
version: 1
restarts: {per_hour: 9, per_run: 9}
triggers:
  loss_spike:
    for: 0s
    cool_down: 1s
    ladder: [skip_batches: {per_hour: 2, per_run: 2}, lower_rate: {per_hour: 4, per_run: 4}, stop]
"""


def test_a_lower_rate_is_the_next_of_the_ladder(tmp_path: Path) -> None:
    """Halved each time, and so is the clipping; the batches stay left out."""
    own = tmp_path / "policy.yml"
    own.write_text(LADDER)
    world = World(tmp_path / "state", lambda attempt, _: spiked(67 + 3 * attempt, saved=[40]), policy=own)
    assert world.supervise() == 3
    assert plans(world) == [
        ("", "", "1"), ("40", "47:75", "1"), ("40", "47:86", "1"), ("40", "47:86", "0.5"), ("40", "47:86", "0.25"),
        ("40", "47:86", "0.125"), ("40", "47:86", "0.0625"),
    ]  # fmt: skip
    assert [plan["TACHOGRAPH_PLAN_CLIPPING"] for plan in world.plans][-1] == "0.0625"


def test_a_spike_that_recovers_is_left_alone(tmp_path: Path) -> None:
    """It is not that of half of the nodes any more, or shorter than 20 s."""
    world = World(tmp_path, lambda _, at: spiked(67, saved=[40]) if 10 < at < 25 else run(), ends=[(0, 60.0)])
    assert world.supervise() == 0
    assert world.decisions() == []


def test_without_a_checkpoint_from_before_a_spike_it_is_left_alone(tmp_path: Path) -> None:
    """A run that has never saved has nothing to go back to."""
    world = World(tmp_path, lambda *_: spiked(67, saved=[]), ends=[(0, 60.0)])
    assert world.supervise() == 0
    assert world.decisions() == [("act", "loss_spike", "leave")]


# Loops that do not follow.


def at(step: int, steps: int, **facts: object) -> RunSeen:
    return run(rank(0, step=step, steps=steps, **facts), rank(1, step=step, steps=steps, **facts))


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([at(45, 5)], ""),
        ([at(40, 0), at(64, 24), at(65, 25)], ""),
        ([at(80, 30), at(5000, 4950)], ""),
        ([at(42, 1)], ""),  # it counts from the last step, amid one
        ([at(85, 1)], "rank 0 began at step 84 and not at step 40"),
        ([at(7, 7)], "rank 0 began at step 0 and not at step 40"),
        ([at(70, 30)], "rank 0 makes steps that its plan leaves out: it is at step 70"),
        ([at(45, 5), at(5000, 4960)], "rank 0 makes steps that its plan leaves out: it is at step 5,000"),
        ([at(80, 30), at(9000, 100)], ""),  # beyond all of it: nothing is looked at any more
        ([at(45, 5), at(100, 3, restarts=1)], ""),  # by its launcher, within the attempt
    ],
)
def test_what_a_loop_makes_of_its_plan(seen: Sequence[RunSeen], said: str) -> None:
    """By the first step of each rank, and by how many it has made since."""
    obedience = PlanObedience(AttemptPlan("r", 1, "skip_batches", "loss_spike", 40, skip=((65, 75),)))
    found = [obedience.broken_by(one) for one in seen]
    assert found[:-1] == [""] * (len(found) - 1)
    assert found[-1].startswith(said) if said else found[-1] == ""


def test_a_plan_without_a_step_says_nothing_of_the_first() -> None:
    """The newest checkpoint, whichever that is."""
    assert PlanObedience(AttemptPlan("r", 1)).broken_by(at(85, 1)) == ""


def test_a_loop_that_ignores_its_plan_is_not_sent_back_again(tmp_path: Path) -> None:
    """Said once; the next time that is passed over, by the next supervisor as well."""

    def look(attempt: int, seconds: float) -> RunSeen:
        return spiked(67 + 90 * attempt, saved=[40]) if seconds > 10 else replace(at(85, 5), checkpoints=())

    world = World(tmp_path, look, ends=[(None, 0), (0, 60.0)])
    assert world.supervise() == 0
    assert world.decisions() == [("act", "loss_spike", "skip_batches"), ("act", "loss_spike", "leave")]
    about = [said for said in world.said if "began at step 80 and not at step 40" in said]
    assert len(about) == 2
    assert "is not sent back to a checkpoint again" in about[0]
    assert "the loop did not follow an earlier plan: rank 0 began at step 80" in about[1]


def train(supervised: Supervised, *options: str) -> str:
    """Have ranks train whose loss spikes for good by the batch of step 40, under a policy that does not wait long."""
    own = supervised.folder / "own.yml"
    own.write_text(policy.DEFAULT.read_text().replace("for: 20s", "for: 1s"))
    # The exporter looks once a second which checkpoints there are: each of 10 steps here.
    ranks = [sys.executable, RANKS, supervised.folder, "--fail", "spike@40", "--steps", "220", "--step-seconds", "0.08"]
    ranks += options
    status, said = supervised.end(supervised.start("act", ranks, "--policy", own))
    assert status == 0, said
    assert supervised.decisions() == [("act", "loss_spike", "skip_batches")]
    return said


def test_batches_that_spoil_a_real_run_are_left_out(supervised: Supervised) -> None:
    """The next attempt goes back, leaves their steps out, and finishes without a spike."""
    train(supervised)
    after = [plan for plan in supervised.plans() if plan[2] == 1]
    assert [plan[6] for plan in after] == [[[20, 48]]] * 2
    begin = after[0][4]
    assert begin in (10, 20)
    made = [int(line) for line in (supervised.folder / "steps-1").read_text().splitlines()]
    expected = [*range(begin, 20), *range(48, 220)]
    assert made[-len(expected) :] == expected
    assert made[-len(expected) - 1] > 48
    assert not [one for one in supervised.entries() if one["kind"] == "ignored"]


def test_a_real_loop_that_ignores_its_plan(supervised: Supervised) -> None:
    """It goes on from its newest checkpoint: that is noticed, and said once."""
    said = train(supervised, "--ignore")
    (ignored,) = [one for one in supervised.entries() if one["kind"] == "ignored"]
    assert "as its plan says" in ignored["why"]
    assert said.count("is not sent back to a checkpoint again") == 1


def preempted(folder: Path, seconds: float) -> World:
    """A run that is sent back to step 40, and preempted so long after it has begun; it loads for five seconds."""

    def look(attempt: int, since: float) -> RunSeen:
        if attempt == 0:
            return lost(67, saved=[40]) if since > 10 else run(saved=[40])
        return loading(since)

    world = World(folder, look, ends=[(None, 0), (-15, seconds)])

    def preempt(_: World) -> None:
        if len(world.children) == 2 and world.now - world.began >= seconds - 1.0 and not world.signals:
            world.signals = {world.now: signal.SIGTERM}

    world.on_wait = preempt
    world.supervise()
    assert world.entries[-1]["how"] == "external"
    return world


def loading(since: float) -> RunSeen:
    """A run that goes on from step 40 once it has loaded, and saves at step 60."""
    steps = max(int(since) - 5, 0)
    ranks = [rank(number, step=40 + steps if steps else None, steps=steps) for number in range(2)]
    return run(*ranks, saved=[40, 60] if steps >= 20 else [40])


@pytest.mark.parametrize(("seconds", "step"), [(3.0, "40"), (60.0, "")])
def test_a_plan_holds_until_its_attempt_has_made_a_step(tmp_path: Path, seconds: float, step: str) -> None:
    """A run that is preempted while it loads has not put aside what it was sent back from: the next attempt must."""
    preempted(tmp_path, seconds)
    again = World(tmp_path, lambda _, since: loading(since), ends=[(-15, 60.0)], signals={59.0: signal.SIGTERM})
    again.supervise()
    assert again.plans[0]["TACHOGRAPH_PLAN_STEP"] == step
    assert again.plans[0]["TACHOGRAPH_PLAN_REASON"] == ("loss_not_finite" if step else "")
    assert again.entries[-1]["how"] == "external"
    third = World(tmp_path, lambda _, since: loading(since), ends=[(0, 30.0)])
    third.supervise()
    assert third.plans[0]["TACHOGRAPH_PLAN_STEP"] == ""
