"""For how long a run may make no step: each case that the runbook of RunHung has under "Meaning"."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.ranks.conclusions.hangs import UNKNOWN, UNMARKED, is_pause, pauses


def allowed(*phases: str, longest: float = 0.0, has_step: bool = True, has_saved: bool = True) -> dict[str, float]:
    return pauses(phases, longest, has_step=has_step, has_saved=has_saved)


def test_who_may_be_pausing() -> None:
    """One that is outside of a step's phases, or all if none waits; not one that does not say what it does."""
    for phases in (["backward", "other"], ["backward", "eval"], ["data", "forward"]):
        assert is_pause(phases)
    for phases in (["backward", "data", UNKNOWN], ["data", UNKNOWN], ["collective", UNMARKED]):
        assert not is_pause(phases)
        assert allowed(*phases) == {}


@pytest.mark.parametrize("phase", ["other", "checkpoint", "eval", "init"])
def test_five_minutes_if_a_rank_pauses(phase: str) -> None:
    """Half an hour if most ranks of the run do, which only the rules can tell; four minutes if they wait for one."""
    assert allowed("backward", "collective", phase) == {"some_pause": 300, "one_stays_away": 240, "most_pause": 1800}


def test_five_minutes_if_no_rank_waits() -> None:
    """As in a compilation; half an hour if most are in saves that are stuck, as nobody waits for them."""
    assert allowed("forward", "forward", UNMARKED) == {"none_waits": 300}
    assert allowed("stuck_save", "stuck_save", "data") == {"none_waits": 1800}


def test_a_quarter_of_an_hour_in_a_first_save() -> None:
    """Before any save of the run is known."""
    found = allowed("collective", "checkpoint", has_saved=False)
    assert (found["some_pause"], found["one_stays_away"]) == (900, 900)
    assert allowed("collective", "eval", has_saved=False)["some_pause"] == 300


def test_three_times_the_longest_pause() -> None:
    """Of six hours, and no more than half an hour."""
    assert [allowed("other", longest=longest)["some_pause"] for longest in (90, 200, 700)] == [300, 600, 1800]
    assert allowed("forward", longest=200) == {"none_waits": 600}
    assert allowed("checkpoint", longest=200, has_saved=False)["some_pause"] == 900


def test_half_an_hour_if_the_usual_step_is_not_known() -> None:
    """The first ones compile."""
    assert allowed("forward", has_step=False) == {"none_waits": 1800}


def test_no_time_for_a_save_that_is_stuck() -> None:
    """If ranks wait for it, and no other rank pauses."""
    assert allowed("backward", "stuck_save") == {}


def test_a_node_says_how_long_an_overdue_run_may_pause(node: Any) -> None:
    """Beside three usual steps, and no less than the limit of a hang: tachograph_run_pause_limit_seconds."""
    for rank in range(4):
        node.says(rank, "backward", made=0, steps_total=10, recent_step_seconds=1.0)
    node.says(3, "eval", made=0, recent_step_seconds=1.0)
    node.turn(18, *range(4))
    assert node.told("pause_limit_seconds") == {}
    node.turn(1, *range(4))
    assert node.told("pause_limit_seconds") == {
        ("pause_limit_seconds", "some_pause"): 303,
        ("pause_limit_seconds", "one_stays_away"): 243,
        ("pause_limit_seconds", "most_pause"): 1803,
    }
    node.says(0, "backward", threshold={"hang_seconds": 500.0}, recent_step_seconds=1.0)
    node.turn(485, *range(4))
    assert node.told("pause_limit_seconds")["pause_limit_seconds", "some_pause"] == 503


class Loop:
    """Four ranks; every 20 steps, rank 0 is in a phase within the step for a while, and the others wait for it."""

    def __init__(self, node: Any) -> None:
        self.node, self.steps = node, 0.0

    def makes(self, steps: int) -> None:
        self.steps += steps
        self.node.turn(3, *range(4))
        self.says("forward", made=0.0)
        self.node.turn(1, *range(4))

    def says(self, phase: str, **made: float) -> None:
        for rank in range(4):
            own = phase if rank == 0 else "collective"
            self.node.says(rank, own, recent_step_seconds=1.0, steps_total=self.steps, **made)

    def pauses(self, seconds: int, phase: str = "forward") -> None:
        self.makes(20)
        self.says(phase)
        self.node.turn(seconds, *range(4))

    @property
    def limit(self) -> float | None:
        return self.node.told("pause_limit_seconds").get(("pause_limit_seconds", "some_pause"))


def test_a_loop_that_pauses_within_steps_is_learned(node: Any) -> None:
    """Half as long again after the first time, three times as long once it is regular; no more than half an hour."""
    loop = Loop(node)
    found = []
    for _ in range(5):
        loop.pauses(200)
        found.append(loop.limit)
    assert found[0] is None
    assert found[1:] == [1.5 * 204 + 3] * 2 + [3 * 204 + 3] * 2
    loop.pauses(200, "data")
    assert loop.limit is None, "another standstill is no habit"
    loop.makes(20)
    for rank in range(4):
        node.says(rank, "collective", recent_step_seconds=1.0, steps_total=loop.steps)
    node.turn(60, *range(4))
    assert loop.limit is None, "all wait: for somebody elsewhere"


@pytest.mark.parametrize("phase", ["checkpoint", "eval", "other"])
def test_the_step_after_a_pause_is_no_habit(phase: str, node: Any) -> None:
    """What ranks do in a step that follows a long save, the run has not stood in: a hang there is a hang.

    In the first second after it rank 0 computes and the others wait; in the next one all compute.
    """
    loop = Loop(node)
    for _ in range(3):
        loop.makes(20)
        for rank in range(4):
            node.says(rank, phase, recent_step_seconds=1.0, steps_total=loop.steps)
        node.turn(100, *range(4))
        loop.says("forward")
        node.turn(1, *range(4))
        for rank in range(4):
            node.says(rank, "forward", recent_step_seconds=1.0, steps_total=loop.steps)
        node.turn(1, *range(4))
    loop.pauses(60)
    assert loop.limit is None


@pytest.mark.parametrize(("steps", "is_habit"), [(900, True), (1100, False)])
def test_what_happened_once_is_soon_no_habit(node: Any, steps: int, is_habit: bool) -> None:
    """After a thousand steps without another it is forgotten."""
    loop = Loop(node)
    loop.pauses(200)
    loop.makes(1)
    loop.makes(steps)
    loop.pauses(60)
    assert (loop.limit is not None) == is_habit


def test_a_long_habit_is_bounded(node: Any) -> None:
    """By half an hour, and three steps."""
    loop = Loop(node)
    for _ in range(3):
        loop.pauses(1300)
    assert loop.limit == 1803


@pytest.mark.parametrize("phase", ["generate", "reward", "sync"])
def test_generation_is_slow_and_not_hung(phase: str) -> None:
    """Half an hour the first time, then three times as long as it has ever taken, whatever saves take."""
    found = [
        pauses([phase, "collective"], 60.0, has_step=True, has_saved=True, generated=generated)["some_pause"]
        for generated in (0.0, 40.0, 200.0, 900.0)
    ]
    assert found == [1800, 300, 600, 1800]


def generates(node: Any, times: int, seconds: int, phase: str = "generate") -> None:
    """Have two ranks generate for so long, and make four steps after it, a few times; the last time they stay there."""
    for number in range(1, times + 1):
        for spent in range(0, seconds + 1):
            for rank in range(2):
                total = (number - 1) * seconds + spent
                node.says(
                    rank, "generate", made=float(spent), steps_total=4 * (number - 1), recent_step_seconds=1.0,
                    phase_seconds_total={phase: total or 0.001},
                )  # fmt: skip
            node.turn(1, *range(2))
        for step in range(4):
            for rank in range(2):
                node.says(
                    rank, "backward", made=0.0, steps_total=4 * (number - 1) + step + 1, recent_step_seconds=1.0,
                    phase_seconds_total={phase: number * seconds},
                )  # fmt: skip
            node.turn(1, *range(2))


@pytest.mark.parametrize(("times", "limit"), [(3, 1803), (6, 303)])
def test_a_loop_that_generates_for_seconds_does_not_wait_half_an_hour(node: Any, times: int, limit: float) -> None:
    """Once it is known how long generation takes, five minutes hold, or three times the longest."""
    generates(node, times, 2)
    node.says(0, "collective", made=0.0, steps_total=4 * times, recent_step_seconds=1.0)
    node.says(1, "reward", made=0.0, steps_total=4 * times, recent_step_seconds=1.0)
    node.turn(60, *range(2))
    assert node.told("pause_limit_seconds")["pause_limit_seconds", "some_pause"] == limit
