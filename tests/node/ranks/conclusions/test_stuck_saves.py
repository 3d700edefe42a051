"""A save that is known to be none any more: it is shown as `stuck_save`, and is no pause; the limit is 18 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tachograph.node.ranks.conclusions.hangs import KNOWN_SAVES, SAVE_FACTOR

SAVE_SECONDS = 6.0
TIME_SECONDS = SAVE_FACTOR * SAVE_SECONDS
"""How long a save may take after three of 6 s."""

Save = Callable[..., str]


def saved(seconds: float) -> dict[str, object]:
    """What a rank counts that has saved for so long."""
    return {"phase_seconds_total": {"checkpoint": seconds}, "recent_step_seconds": 1.0, "steps_total": 10}


@pytest.fixture
def save(node: Any) -> Save:
    """Has rank 0 make saves of these lengths and begin another while three wait; returns as what that one is shown."""
    total = [0.0, 0.0]

    def shown(
        *earlier: float,
        lasts: float = TIME_SECONDS + 1,
        still: object = 20.0,
        saver: int = 0,
        without_step: float = 0.0,
    ) -> str:
        node.says(saver, "forward", made=0, **saved(total[saver]))
        for seconds in earlier:
            node.says(saver, "checkpoint", seconds / 2, made=0, **saved(total[saver] + seconds / 2))
            total[saver] += seconds
            for _ in range(2):
                node.says(saver, "forward", made=0, **saved(total[saver]))
        made = without_step or lasts
        for other in range(1, 4):
            node.says(other, "backward", lasts, made=made, **saved(total[other] if other == 1 else 0.0))
        node.says(0, "checkpoint", lasts, made=made, still=still, **saved(total[0] + lasts))
        phases = {key[1] for key in node.told("overdue_ranks")}
        (phase,) = phases - {"backward"}
        return str(phase)

    return shown


THREE = KNOWN_SAVES * (SAVE_SECONDS,)


@pytest.mark.parametrize(("lasts", "phase"), [(TIME_SECONDS - 1, "checkpoint"), (TIME_SECONDS + 1, "stuck_save")])
def test_a_save_in_which_nothing_moves_is_stuck_beyond_five_times_the_longest(
    save: Save, lasts: float, phase: str
) -> None:
    """tachograph_run_overdue_ranks."""
    assert save(*THREE, lasts=lasts) == phase


def test_quick_saves_have_the_time_of_a_hang(save: Save) -> None:
    """Beyond it the run is overdue."""
    assert save(0.2, 0.3, 0.2, lasts=18.5) == "stuck_save"


@pytest.mark.parametrize(("lasts", "phase"), [(99.0, "checkpoint"), (101.0, "stuck_save")])
def test_the_longest_counts_and_not_the_last(save: Save, lasts: float, phase: str) -> None:
    """Saves differ in size: a full one in ten, or only the weights."""
    assert save(SAVE_SECONDS, 20.0, SAVE_SECONDS, SAVE_SECONDS, lasts=lasts) == phase


@pytest.mark.parametrize("still", [None, 0.0, 14.9, float("nan"), float("inf"), 10**400, -20.0, "20", True, [20.0]])
def test_one_that_moves_takes_as_long_as_it_takes(save: Save, still: object) -> None:
    """As on slow storage; and where the rank does not say, or says nonsense, it may."""
    assert save(*THREE, lasts=280.0, still=still) == "checkpoint"


@pytest.mark.parametrize("earlier", [(), (6.0,), (6.0, 6.0), (0.05, 0.05, 0.05), (0.05, 6.0, 6.0)])
def test_before_three_saves_nobody_knows_how_long_one_takes(save: Save, earlier: tuple[float, ...]) -> None:
    """Of which the exporter saw the end: one that is restarted begins anew. A tenth of a second is none."""
    assert save(*earlier, lasts=280.0) == "checkpoint"


def test_a_phase_around_nothing_is_no_save(save: Save) -> None:
    """As where each step asks, in the phase, whether it is time to save: the first that does is the first."""
    assert save(*(10 * [0.001]), lasts=280.0) == "checkpoint"


def test_only_its_own_saves_tell(save: Save) -> None:
    """Those of another rank do not: a rank that saves for the first time may write more."""
    assert save(*THREE, saver=1, lasts=280.0) == "checkpoint"


def test_a_restart_begins_anew(node: Any, save: Save) -> None:
    """The first save after it may be another one: by other ranks, or to a cold store."""
    assert save(*THREE) == "stuck_save"
    for rank in range(4):
        node.table.lost(rank)
    node._seq.clear()
    assert save(SAVE_SECONDS, lasts=280.0) == "checkpoint"


def test_a_save_that_begins_when_the_run_is_overdue_has_the_time_of_a_hang(save: Save) -> None:
    """Its rank may have held the run up elsewhere."""
    assert save(0.2, 0.3, 0.2, lasts=17.5, still=17.0, without_step=40.0) == "checkpoint"


def test_a_run_that_waits_for_it_is_overdue_at_once(node: Any, save: Save) -> None:
    """It does not have the time again that it has after a pause; the save is the suspect, in phase checkpoint."""
    save(*THREE)
    assert node.value("overdue_seconds") == TIME_SECONDS + 1
    (suspect,) = node.told("hang_suspect_seconds")
    assert (suspect[1], suspect[5]) == ("0", "elsewhere")
    assert suspect[-1].startswith("in phase checkpoint (a save in which nothing moves). Its whole stack: ")
    node.turn(2, *range(4))
    assert node.value("overdue_seconds") == TIME_SECONDS + 3
