"""What frames show that a rank does not say: steps, values that became NaN, saves, and since when it is in a phase."""

from __future__ import annotations

from typing import Any

from tachograph.node.ranks.conclusions.loss import first_to_lose
from tachograph.node.ranks.frames import Event
from tachograph.node.ranks.unsaid import HEALED_SECONDS

NAN = "NaN"


def shown(table: Any, name: str) -> Any:
    """Return a series of rank 0 without a label of its own."""
    return table.shown().get((name, "r", "0"))


def test_steps_are_counted_by_their_number(table: Any) -> None:
    """From the first one seen, forwards only; once the rank counts them itself, its own count stands."""
    table.greet("a")
    for seq, step in enumerate((480, 483, 470, 471), 1):
        table.tell("a", seq, step=step)
    assert shown(table, "train_steps_total") == 4
    table.tell("a", 5, step=472, metrics={"steps_total": 2})
    assert shown(table, "train_steps_total") == 2
    table.tell("a", 6, step=500)
    assert shown(table, "train_steps_total") == 2
    assert table.dropped["counter_decrease"] == 0


def test_a_phase_lasts_since_the_first_frame_that_shows_it(table: Any, hand: Any) -> None:
    """Where the rank does not say since when; a step, or another phase, begins anew."""
    table.greet("a")
    table.tell("a", 1, step=3, phase="data")
    for seq in range(2, 6):
        hand.turn(1.0)
        table.tell("a", seq, step=3, phase="data", time=100.0 + seq)
    assert table.shown()["rank_phase_seconds", "r", "0", "data"] == 4
    table.tell("a", 6, step=4, phase="data", time=106.0)
    assert table.shown()["rank_phase_seconds", "r", "0", "data"] == 0
    hand.turn(1.0)
    table.tell("a", 7, step=4, phase="forward", time=107.0)
    assert table.shown()["rank_phase_seconds", "r", "0", "forward"] == 0


def lost(table: Any, *frames: tuple[int, object], **own: Any) -> Any:
    """Have a rank log these losses at these steps, and return the rank."""
    link = f"rank {len(list(table.ranks()))}"
    table.greet(link, rank=len(list(table.ranks())), pid=len(list(table.ranks())) + 1)
    for seq, (step, loss) in enumerate(frames, 1):
        table.tell(link, seq, step=step, metrics={"loss": loss, **(own if loss == NAN else {})}, time=100.0 + seq)
    return list(table.ranks())[-1]


def test_who_was_first_is_certain_only_between_frames(table: Any) -> None:
    """A rank that was finite when another one was not any more was later; the others may have been first."""
    early = lost(table, (30, 2.5), (40, NAN))
    same_second = lost(table, (34, 2.5), (44, NAN))
    later = lost(table, (34, 2.5), (40, 2.5), (50, NAN))
    assert first_to_lose([later, same_second, early]) == ([early, same_second], 40)
    assert first_to_lose([later]) == ([later], 50)
    exact = lost(table, (30, 2.5), (60, NAN), nonfinite_step={"loss": 39})
    assert first_to_lose([later, early, exact]) == ([exact, early], 39)
    healed = {"loss": 2.5, "nonfinite_step": {"loss": 45}}  # before a frame showed that it was lost
    table.tell(f"rank {later.hello.rank}", 9, step=70, metrics=healed)
    assert first_to_lose([later, early]) == ([early], 40)
    assert first_to_lose([later, lost(table, (30, 2.5), (60, NAN), nonfinite_step={"loss": 49}), exact])[0] == [exact]
    assert first_to_lose([]) == ([], None)


def test_a_loss_that_healed_may_be_lost_anew(table: Any, hand: Any) -> None:
    """The first step stands while it is lost again and again; after that, however clocks are set, it is new trouble."""
    table.greet("a")
    frames = [(1, 2.5), (2, NAN), (3, 2.5), (4, NAN), (5, 2.5)]
    for seq, (step, loss) in enumerate(frames, 1):
        table.tell("a", seq, step=step, metrics={"loss": loss}, time=100.0 + seq)
    assert table.shown()["train_nonfinite_step", "r", "0", "loss"] == 2
    assert shown(table, "train_loss_nonfinite_timestamp_seconds") == 104
    table.tell("a", 6, step=69, metrics={"loss": 2.5}, time=3700.0)
    assert shown(table, "train_loss_nonfinite_timestamp_seconds") == 104
    hand.turn(HEALED_SECONDS + 1)
    table.tell("a", 7, step=70, metrics={"loss": 2.5}, time=105.0)
    assert ("train_nonfinite_step", "r", "0", "loss") not in table.shown()
    table.tell("a", 8, step=71, metrics={"loss": "-Inf"}, time=106.0)
    assert table.shown()["train_nonfinite_step", "r", "0", "loss"] == 71


def test_without_a_step_the_steps_counted_say_where(table: Any) -> None:
    """And without either, no step is shown."""
    table.greet("a")
    table.tell("a", 1, metrics={"loss": NAN, "steps_total": 12})
    assert table.shown()["train_nonfinite_step", "r", "0", "loss"] == 12
    table.greet("b", rank=1, pid=2)
    table.tell("b", 1, metrics={"loss": NAN})
    assert ("train_nonfinite_step", "r", "1", "loss") not in table.shown()


def test_a_norm_that_is_finite_in_between_begins_anew(table: Any) -> None:
    """Its steps are those in a row."""
    table.greet("a")
    for seq, (step, norm) in enumerate([(1, 1.0), (2, NAN), (3, 1.0), (10, NAN), (14, "+Inf")], 1):
        table.tell("a", seq, step=step, metrics={"grad_norm": norm}, time=100.0 + seq)
    assert shown(table, "train_grad_norm_nonfinite_steps") == 5
    assert table.shown()["train_nonfinite_step", "r", "0", "grad_norm"] == 2


def test_a_save_is_known_by_its_event_or_its_count(table: Any) -> None:
    """With its time and step as the event says; else at the time when the counter was seen to rise."""
    table.greet("a")
    table.tell("a", 1, metrics={"checkpoints_total": 5}, time=101.0)
    assert shown(table, "train_checkpoint_timestamp_seconds") is None
    table.tell("a", 2, metrics={"checkpoints_total": 6}, time=102.0)
    table.tell("a", 3, metrics={"checkpoints_total": 6}, time=103.0)
    assert shown(table, "train_checkpoint_timestamp_seconds") == 102
    assert shown(table, "train_checkpoint_step") is None
    events = [Event(1, "checkpoint_saved", 103.5, 40), Event(2, "checkpoint_failed", 103.8, 44)]
    table.tell("a", 4, metrics={"checkpoints_total": 7}, events=events, time=104.0)
    table.tell("a", 5, time=105.0)
    assert shown(table, "train_checkpoint_timestamp_seconds") == 103.5
    assert shown(table, "train_checkpoint_step") == 40
    table.tell("a", 6, metrics={"checkpoint_timestamp_seconds": 90.0}, time=106.0)
    assert shown(table, "train_checkpoint_timestamp_seconds") == 90


def test_the_last_save_is_the_last_event(table: Any) -> None:
    """Also where the clock was set back between two saves, and frames repeat the events."""
    table.greet("a")
    events = [Event(id=7, kind="checkpoint_saved", time=3700.0, step=40), Event(8, "checkpoint_saved", 103.5, 50)]
    table.tell("a", 1, events=events, time=104.0)
    assert shown(table, "train_checkpoint_timestamp_seconds") == 103.5
    assert shown(table, "train_checkpoint_step") == 50


def test_how_long_a_save_took_is_what_its_phase_took(table: Any) -> None:
    """Unless the rank says so itself."""
    table.greet("a")
    for seq, seconds in enumerate((0.0, 4.0, 4.0, 10.0), 1):
        table.tell("a", seq, metrics={"phase_seconds_total": {"checkpoint": seconds}})
    assert shown(table, "train_checkpoint_duration_seconds") == 6
    own = {"phase_seconds_total": {"checkpoint": 20.0}, "checkpoint_duration_seconds": 9.5}
    table.tell("a", 5, metrics=own)
    assert shown(table, "train_checkpoint_duration_seconds") == 9.5
