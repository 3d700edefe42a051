"""What a supervisor says of itself: shown under its run's name, of its user alone, and bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.ranks.frames import MOST_QUESTIONS, FrameError, Peer, Supervision, decode
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.names import NAMES_BURST
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.run_names import RunNames
from tachograph.node.ranks.shown_ranks import ShownRanks
from tachograph.supervise.policy import ACTIONS
from tests.node.conftest import TwoGpus

ME, RUDE = Peer(1000, 4242), Peer(666, 1)
NAMES = {1000: "alice", 666: "mallory"}


def said(run: str = "r", **over: Any) -> Supervision:
    """Return a frame as it comes over the socket."""
    frame = decode(json.dumps({"v": 1, "type": "supervisor", "run": run, "mode": "act", **over}).encode())
    assert isinstance(frame, Supervision)
    return frame


def supervised(table: Any) -> dict[tuple[str, ...], float | None]:
    """Return the samples of supervisors, by what follows `supervisor_`."""
    return {
        (name.removeprefix("supervisor_"), *labels): value
        for (name, *labels), value in table.shown().items()
        if name.startswith("supervisor_")
    }


def test_what_it_says_is_shown_and_grows_older(table: Any, hand: Any) -> None:
    """Its mode with the age of its last look, what is left, and what it did; blindness goes on between two frames."""
    table.supervised(
        said(blind_seconds=130, restarts_left=0, actions={"restart": {"done": 2}, "leave": {"held": 1}}), ME
    )
    hand.turn(7.0, table.tick)
    assert supervised(table) == {
        ("look_age_seconds", "r", "act"): 7.0, ("blind_seconds", "r"): 137.0, ("restarts_left", "r"): 0,
        ("actions_total", "r", "restart", "done"): 2, ("actions_total", "r", "leave", "held"): 1,
        ("lost_steps_total", "r"): 0, ("saved_gpu_seconds_total", "r"): 0.0,
    }  # fmt: skip
    table.supervised(said(mode="failed", recovery_seconds=41.5, lost_steps=12, saved_gpu_seconds=900.5), ME)
    assert supervised(table) == {
        ("look_age_seconds", "r", "failed"): 0.0, ("blind_seconds", "r"): 0.0, ("recovery_seconds", "r"): 41.5,
        ("lost_steps_total", "r"): 12, ("saved_gpu_seconds_total", "r"): 900.5,
    }  # fmt: skip


def test_what_is_no_count_is_left_out(table: Any) -> None:
    """Of actions and outcomes of another release, and of another type."""
    actions = {
        "restart": {"done": 1, "would": 0, "asked": -1, "held": "3", "mulled": 4}, "dance": {"done": 1}, "stop": [],
        "leave": {"done": 2**60}, "x\n": {"done": 1},
    }  # fmt: skip
    webhooks = {"forged": 3, "late": True, "taken": -1, "malformed": "3", "other": [], "eaten": 4}
    table.supervised(said(actions=actions, webhooks=webhooks), ME)
    assert [key for key in supervised(table) if key[0] in ("actions_total", "webhooks_total")] == [
        ("actions_total", "r", "restart", "done"), ("webhooks_total", "r", "forged"),
    ]  # fmt: skip


def test_what_is_left_out_is_named(table: Any) -> None:
    """As a person reads steps; it is over with its supervisor."""
    table.supervised(said(skipped={"first": 48_000, "last": 48_029, "times": 2}), ME)
    assert supervised(table)["skips", "r", "48,000-48,029"] == 2
    table.supervised(said(skipped={"first": 48_000, "last": 48_029, "times": 2}, ended=True), ME)
    assert "skips" not in {name for name, *_ in supervised(table)}


@pytest.mark.parametrize("over", [{"mode": "fast"}, {"run": ""}, {"run": "a\nb"}, {"blind_seconds": -1}, {"run": 3}])
def test_a_frame_that_is_wrong_is_refused(over: dict[str, Any]) -> None:
    """With what is wrong with it."""
    with pytest.raises(FrameError, match="supervisor: "):
        said(**over)


def test_it_is_forgotten(table: Any, hand: Any) -> None:
    """As a finished rank once it has ended, its counts staying for a last scrape; as a dead one if it falls silent."""
    table.supervised(said("over", actions={"stop": {"done": 1}}, ended=True), ME)
    table.supervised(said("silent"), ME)
    counts = {"actions_total", "lost_steps_total", "saved_gpu_seconds_total"}
    assert {key[0] for key in supervised(table) if key[1] == "over"} == counts
    hand.turn(Limits.retention_finished + 1, table.tick)
    assert {key[1] for key in supervised(table)} == {"silent"}
    hand.turn(Limits.retention, table.tick)
    assert supervised(table) == {}


def test_a_neighbour_does_not_speak_for_anothers_supervisor(hand: Any) -> None:
    """The kernel says who speaks: the same name is another user's run, as it is for ranks."""
    names = RunNames("auto", 990, NAMES.get, lambda _: frozenset())
    table = RankTable(Limits(), hand.clock, TwoGpus(), names)
    table.supervised(said("llama"), ME)
    table.supervised(said("llama", mode="failed", blind_seconds=900), RUDE)
    table.supervised(said("alice/llama", mode="failed"), RUDE)
    shown = {s.labels for s in ShownRanks(table).samples() if s.metric is catalog.SUPERVISOR_LOOK_AGE}
    assert shown == {("alice/llama", "act"), ("mallory/llama", "failed"), ("mallory/alice/llama", "failed")}


def test_a_name_without_an_owner_is_its_first_users(table: Any, hand: Any) -> None:
    """The user's whose ranks or supervisor came first; a supervisor is not shown for ranks of another user."""
    table.supervised(said("early", mode="failed"), RUDE)
    with pytest.raises(FrameError, match="has a supervisor of uid 666"):
        table.supervised(said("early"), ME)
    table.greet("a", run="early")
    assert supervised(table) == {}
    with pytest.raises(FrameError, match="belongs to uid 1000"):
        table.supervised(said("early", mode="failed"), RUDE)
    hand.turn(Limits.retention + 1, table.tick)
    table.supervised(said("early"), ME)
    assert ("look_age_seconds", "early", "act") in supervised(table)


def test_a_user_has_as_many_as_ranks(table: Any) -> None:
    """More are refused, and nobody else has fewer; each has as many series as there are actions and outcomes."""
    every = {action: dict.fromkeys(catalog.SUPERVISOR_OUTCOMES, 1) for action in catalog.POLICY_ACTIONS}
    asked = [question(f"{number:06x}") for number in range(MOST_QUESTIONS)]
    for number in range(Limits.ranks):
        table.supervised(
            said(f"r{number}", actions=every, restarts_left=1, recovery_seconds=1.0, questions=asked), RUDE
        )
    with pytest.raises(FrameError, match="you already have 64 supervisors") as refusal:
        table.supervised(said("one more"), RUDE)
    assert refusal.value.reason == "rank_limit"
    table.supervised(said("mine"), ME)
    assert (
        len(supervised(table))
        <= Limits.ranks * (len(catalog.POLICY_ACTIONS) * len(catalog.SUPERVISOR_OUTCOMES) + 6 + MOST_QUESTIONS) + 4
    )


def question(number: str, action: str = "restart", seconds: float = 30.0) -> dict[str, object]:
    return {"id": number, "action": action, "seconds": seconds}


def waiting(table: Any) -> dict[tuple[str, ...], float | None]:
    """Return the questions that are shown, by action and id."""
    return {key[2:]: value for key, value in supervised(table).items() if key[0] == "question_seconds"}


def test_a_question_waits_until_it_is_answered(table: Any, hand: Any) -> None:
    """It grows older between two frames, and is not shown of a supervisor that may be gone; nor is one of no action."""
    table.supervised(said(questions=[question("1f0c3a"), question("00000b", "dance")]), ME)
    hand.turn(20.0, table.tick)
    assert waiting(table) == {("restart", "1f0c3a"): 50.0}
    hand.turn(41.0, table.tick)
    assert waiting(table) == {}
    table.supervised(said(questions=[question("1f0c3a", seconds=95.0)]), ME)
    assert waiting(table) == {("restart", "1f0c3a"): 95.0}
    table.supervised(said(), ME)
    assert waiting(table) == {}
    table.supervised(said(questions=[question("1f0c3a")], ended=True), ME)
    assert waiting(table) == {}


@pytest.mark.parametrize("number", ["", "1F0C3A", "1f0c3", "1f0c3a\n", "1f0c3ab", 7])
def test_what_cannot_be_confirmed_is_no_question(number: object) -> None:
    """The id becomes a label, and is what a person types."""
    with pytest.raises(FrameError, match="supervisor: "):
        said(questions=[{"id": number, "action": "restart", "seconds": 1}])


def test_new_questions_are_limited(table: Any, hand: Any) -> None:
    """Each is a new series: one that asks another question at every look has them shown for a while, and no more."""
    for number in range(NAMES_BURST):
        table.supervised(said(questions=[question(f"{number:06x}")]), RUDE)
    assert waiting(table) == {}
    table.supervised(said("mine", questions=[question("1f0c3a")]), ME)
    assert waiting(table) == {("restart", "1f0c3a"): 30.0}


def test_new_names_are_limited(table: Any, hand: Any) -> None:
    """A supervisor of a new run every second is refused before Prometheus has a million series of one user."""

    def churn() -> None:
        for number in range(400):
            table.supervised(said(f"r{number}", ended=True), RUDE)
            hand.turn(2.0, table.tick)

    with pytest.raises(FrameError, match="too many new names") as refusal:
        churn()
    assert refusal.value.reason == "rank_limit"
    assert table.shares.over["666", "names"] == 1


def test_its_actions_are_those_of_a_policy() -> None:
    """What a policy may have done is what the exporter shows."""
    assert catalog.POLICY_ACTIONS == ACTIONS
