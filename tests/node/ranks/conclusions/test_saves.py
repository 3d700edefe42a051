"""When the run last saved."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.ranks.frames import Hello, Peer

SAVES = ("checkpoint_timestamp_seconds", "checkpoint_step")


def saved(node: Any) -> list[float | None]:
    return [node.value(name) for name in SAVES]


def test_the_last_save_of_any_rank(node: Any) -> None:
    """With its step, which may be lower than that of a save before the run was set back; none before the first."""
    node.says(0)
    assert saved(node) == [None, None]
    node.says(0, checkpoint_timestamp_seconds=100.0, checkpoint_step=480.0)
    node.says(1, checkpoint_timestamp_seconds=90.0, checkpoint_step=500.0)
    assert saved(node) == [100, 480]
    node.turn(1)
    node.says(1, checkpoint_timestamp_seconds=node.wall, checkpoint_step=240.0)
    assert saved(node) == [node.wall, 240]


def test_it_is_remembered_when_the_next_attempt_has_none(node: Any) -> None:
    """A process that takes the place of the one that saved has saved nothing."""
    node.says(0, checkpoint_timestamp_seconds=100.0, checkpoint_step=480.0)
    node.turn(1)
    node.table.lost(0)
    node.table.hello(9, Hello(v=1, run="r", rank=0, world_size=8, pid=99, attempt=1), Peer(1000, 99))
    assert saved(node) == [100, 480]


def all_saves(node: Any) -> list[tuple[float, bool, bool]]:
    """Step, durable and suspect of each checkpoint that is remembered."""
    saves = node.table.concluded("r")[1].saves.saves
    return [(save.step, save.is_durable, save.is_suspect) for save in saves]


def save(node: Any, rank: int, saved_step: float, **facts: Any) -> None:
    node.turn(1)
    node.says(rank, checkpoint_timestamp_seconds=node.wall, checkpoint_step=saved_step, **facts)
    node.value(SAVES[0])


def test_a_sharded_checkpoint_is_durable_once_all_ranks_have_it(node: Any) -> None:
    """Those that took part in the one before; until then the one before is the newest that can be restored."""
    for rank in range(3):
        save(node, rank, 100.0)
    for rank in range(2):
        save(node, rank, 200.0)
    assert all_saves(node) == [(100.0, True, False), (200.0, False, False)]
    assert saved(node)[1] == 100
    save(node, 0, 300.0)
    save(node, 2, 200.0)  # slower than a whole save of another rank
    assert all_saves(node)[1:] == [(200.0, True, False), (300.0, False, False)]
    assert saved(node)[1] == 200


def test_a_checkpoint_that_is_saved_again_is_another_one(node: Any) -> None:
    """After a step back: what one rank had of it before does not make it whole."""
    node.says(1)
    for step in (100.0, 200.0):
        for rank in range(2):
            save(node, rank, step)
    save(node, 0, 200.0)
    assert all_saves(node) == [(100.0, True, False), (200.0, False, False)]
    save(node, 0, 100.0)
    assert [step for step, _, _ in all_saves(node)] == [100.0]


@pytest.mark.parametrize(
    "trouble",
    [
        {"loss": float("nan"), "nonfinite_step": {"loss": 250.0}},
        {"loss": 9.0, "loss_spike_steps": 10.0, "loss_spikes_total": 1.0},
    ],
)
def test_what_is_saved_once_the_loss_is_in_trouble_is_suspect(node: Any, trouble: dict[str, Any]) -> None:
    """By its step, no matter when it came to the disk; it stays so, and the next one is good again."""
    save(node, 0, 100.0, step=240, loss=2.0)
    save(node, 0, 200.0, step=260, **trouble)
    save(node, 0, 255.0, step=260, **trouble)
    assert all_saves(node) == [(100.0, True, False), (200.0, True, False), (255.0, True, True)]
    assert saved(node)[1] == 200
    well = {"loss": 2.0, "loss_spike_steps": 0.0, "loss_spikes_total": 1.0}
    node.turn(400)
    for step in (300.0, 310.0):
        save(node, 0, step, step=step + 1, **well)
    assert all_saves(node)[2:] == [(255.0, True, True), (300.0, True, False), (310.0, True, False)]


def test_good_ones_are_kept_while_the_loss_is_in_trouble(node: Any) -> None:
    """However many are saved meanwhile; of good ones the last eight."""
    for step in range(10):
        save(node, 0, step, step=step + 1, loss=2.0)
    for step in range(10, 40):
        save(node, 0, step, step=step + 1, loss=float("nan"), nonfinite_step={"loss": 10.0})
    assert saved(node)[1] == 9
    assert [step for step, _, suspect in all_saves(node) if not suspect] == [*range(3, 10)]
    assert len(all_saves(node)) == 8


def test_where_it_is_and_what_is_wrong_there(node: Any) -> None:
    """A path that is no text is left out."""
    for path, told in (("/ckpt/100", "/ckpt/100"), (7, ""), ("/ckpt/\n", ""), ("x" * 1025, "")):
        node.says(0, checkpoint_path=path)
        assert next(iter(node.table.ranks())).checkpoint_path == told


def lag(node: Any) -> float | None:
    found: float | None = node.value("checkpoint_lag_seconds")
    return found


def test_the_lag_is_from_the_step_until_all_of_it_is_durable(node: Any) -> None:
    """Training goes on while it is uploaded: the last rank's report counts, and the steps since do not."""
    for rank in range(2):
        save(node, rank, 100.0, step=100)
    assert lag(node) == 1.0
    for step in range(101, 221):
        node.turn(1)
        node.says(0, step=step)
        node.value(SAVES[0])
    save(node, 0, 200.0, step=221)
    assert lag(node) == 1.0, "it is not durable yet"
    save(node, 1, 200.0, step=222)
    assert lag(node) == 22.0


def test_the_lag_of_an_upload_of_hours_is_about_right(node: Any) -> None:
    """What is remembered of steps is bounded, and the further back the coarser."""
    for rank in range(2):
        save(node, rank, 100.0, step=100)
    for step in range(101, 2501):
        node.turn(3)
        node.says(0, step=step)
        node.value(SAVES[0])
    for rank in range(2):
        save(node, rank, 200.0, step=2501 + rank)
    assert lag(node) == pytest.approx(3 * (2501 - 200), rel=0.05)
    assert len(node.table.concluded("r")[1].saves._moments._moments) <= 513


@pytest.mark.parametrize(("saved_step", "expected"), [(101.0, 1.0), (50.0, None), (9e9, None)])
def test_a_lag_that_is_not_known_is_not_shown(node: Any, saved_step: float, expected: float | None) -> None:
    """Of a step from before the exporter saw the run, or of another numbering; one by the steps made is known."""
    node.says(0, step=100)
    node.value(SAVES[0])
    save(node, 0, saved_step, step=100)
    assert lag(node) == expected


def test_after_a_step_back_the_lag_is_that_of_the_new_attempt(node: Any) -> None:
    """Not from when an earlier attempt came to the step."""
    for step in (100, 200, 300, 150, 180, 200):
        node.turn(60)
        node.says(0, step=step)
        node.value(SAVES[0])
    save(node, 0, 200.0, step=201)
    assert lag(node) == 1.0
