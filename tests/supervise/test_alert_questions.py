"""A person is asked about what only alerts say: which answer is one to which question, and for how long it waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph.supervise import journal
from tachograph.supervise.decision import NOTICED_LATER
from tachograph.supervise.journal import NAME
from tachograph.supervise.policy import DEFAULT
from tachograph.supervise.run_seen import RunSeen
from tachograph.supervise.supervisor import STATUS_STOPPED
from tachograph.supervise.triggers import DIVERGING, RESTART_LOOP, SLOW
from tests.supervise.test_alert_triggers import impatient, seen_alert, standing, steps, world_of
from tests.supervise.test_nodes import Nodes
from tests.supervise.world import BEGIN, World, rank, run


def confirm_after(seconds: float, folder: Path) -> Callable[[World], None]:
    """A person who answers all questions from a time on that were asked before it."""

    def confirm(world: World) -> None:
        for one in journal.read(folder / NAME) if world.now > seconds else ():
            if one["kind"] == "decision" and one["outcome"] == "asked" and one["time"] < BEGIN + seconds:
                (folder / "confirmed" / one["id"]).touch()

    return confirm


def test_a_person_confirms(tmp_path: Path) -> None:
    """What is asked for in act mode is done then, the run being stopped as a loop."""
    world = world_of(tmp_path, lambda *_: run(), standing(seen_alert(RESTART_LOOP)))
    confirmed = tmp_path / "confirmed"

    def confirm(world: World) -> None:
        if world.now > 600.0:
            for one in journal.read(tmp_path / NAME):
                if one["kind"] == "decision" and one["outcome"] == "asked":
                    (confirmed / one["id"]).touch()

    world.on_wait = confirm
    assert world.supervise() == STATUS_STOPPED
    assert [one[0] for one in world.decisions()] == ["asked", "act"]
    assert world.did == ["started", "kept", "ended"]
    assert world.now > 600.0


def test_a_late_answer_goes_back_no_further(tmp_path: Path) -> None:
    """A slow run trains and saves while a person is asked: it is restarted from what is the newest then."""
    world = World(tmp_path, steps, ends=[(None, 0), (0, 60.0)], policy=impatient(tmp_path, SLOW))

    def look(_: int, seconds: float) -> RunSeen:
        step = int(seconds) + 1
        ranks = [rank(n, step=step, node="ab"[n]) for n in range(2)]
        return run(*ranks, saved=range(100, step, 100)[-3:])

    def confirm(world: World) -> None:
        for one in journal.read(tmp_path / NAME):
            if world.now > 1000.0 and one["kind"] == "decision" and one["outcome"] == "asked":
                (tmp_path / "confirmed" / one["id"]).touch()

    world.look_at, world.on_wait = look, confirm
    world.launcher = Nodes(world)  # type: ignore[assignment]
    world.alerts = lambda _: (seen_alert(SLOW, ranks=[1], node="b"),) if world.now > 200 and not world.plans[1:] else ()
    world.supervise()
    asked, decided = [one for one in world.entries if one["kind"] == "decision"]
    assert (asked["action"], asked["outcome"], asked["resume_step"]) == ("exclude_node", "asked", 200)
    assert (decided["action"], decided["outcome"], decided["resume_step"]) == ("exclude_node", "act", 1000)
    assert world.plans[1]["TACHOGRAPH_PLAN_STEP"] == "1000"


def test_another_node_is_another_question(tmp_path: Path) -> None:
    """Whoever confirms that one node is left out has said nothing of the next one that is slow."""
    world = World(tmp_path, lambda *_: run(), ends=[(0, 2400.0)], policy=impatient(tmp_path, SLOW), last=5000.0)
    world.look_at = lambda *_: run(*(rank(n, node="ab"[n]) for n in range(2)))
    world.launcher = Nodes(world)  # type: ignore[assignment]
    slow = [(seen_alert(SLOW, ranks=[n], node="ab"[n]),) for n in range(2)]
    world.alerts = lambda _: () if world.now < 120 else slow[world.now < 1000]
    world.on_wait = confirm_after(999.0, tmp_path)
    world.supervise()
    assert "ended" not in world.did
    assert [one["nodes"] for one in world.entries if one["kind"] == "decision"] == [["b"], ["a"]]
    assert any(said.endswith("is withdrawn: other nodes are to blame now") for said in world.said)


def test_each_node_must_be_slow_for_so_long(tmp_path: Path) -> None:
    """`for` begins anew with another node; and while the evidence is kept, too."""
    policy = tmp_path / "policy.yml"
    policy.write_text(impatient(tmp_path, SLOW, asks=False).read_text().replace("for: 0s", "for: 10m"))
    slow = [(seen_alert(SLOW, ranks=[n], node="ab"[n]),) for n in range(2)]
    for name, other_from in (("for", lambda world: world.now > 600.0), ("evidence", lambda world: "kept" in world.did)):
        world = World(tmp_path / name, lambda *_: run(), ends=[(0, 1000.0)], policy=policy)
        world.look_at = lambda *_: run(*(rank(n, node="ab"[n]) for n in range(2)))
        world.launcher = Nodes(world)  # type: ignore[assignment]
        world.alerts = lambda _: () if world.now < 120 else slow[not other_from(world)]  # noqa: B023
        world.supervise()
        assert "ended" not in world.did, name


def test_in_ask_mode_too(tmp_path: Path) -> None:
    """What nodes conclude: a question about one frozen rank is none about the next."""
    world = World(tmp_path, lambda *_: run(), ends=[(0, 900.0)], mode="ask")

    def look(_: int, seconds: float) -> RunSeen:
        return run(*(rank(n, node="ab"[n], state="frozen" if n == (seconds < 500) else "running") for n in range(2)))

    world.look_at, world.launcher = look, Nodes(world)  # type: ignore[assignment]
    world.on_wait = confirm_after(499.0, tmp_path)
    world.supervise()
    assert "ended" not in world.did
    assert [one["nodes"] for one in world.entries if one["kind"] == "decision"] == [["b"], ["a"]]


def test_a_late_answer_restarts_nothing_into_what_is_bad(tmp_path: Path) -> None:
    """Whoever agreed to go back to a checkpoint has not agreed to go back to none: it may be rotated away by then."""

    def look(_: int, seconds: float) -> RunSeen:
        step = int(seconds) + 1
        return run(rank(0, step=step), rank(1, step=step), saved=range(300, step, 300)[-8:])

    alert_at = NOTICED_LATER[DIVERGING][0] + 450.0
    world = world_of(
        tmp_path / "state", look, standing(seen_alert(DIVERGING, alert_at), begin=alert_at),
        policy=impatient(tmp_path, DIVERGING), ends=[(0, 4000.0)], last=6000.0,
    )  # fmt: skip
    world.on_wait = confirm_after(3000.0, tmp_path / "state")
    world.supervise()
    assert "ended" not in world.did
    first, second = [one for one in world.entries if one["kind"] == "decision"]
    assert (first["outcome"], second["outcome"]) == ("asked", "asked")
    assert second["resume_step"] is None
    assert "no checkpoint can be restored" in second["why"]


@pytest.mark.parametrize("asks", [False, True])
def test_a_loop_is_one_though_its_ranks_fail(tmp_path: Path, asks: bool) -> None:
    """Its launcher restarts them within seconds, so that no failure lasts; the alert does, and its question, too."""

    def look(_: int, seconds: float) -> RunSeen:
        number, since = divmod(seconds, 60.0)
        ended = {"state": "failed", "end_reason": "exception", "ended_seconds": since} if number and since < 15 else {}
        return run(*(rank(one, restarts=int(number), **ended) for one in range(2)))

    policy = DEFAULT if asks else tmp_path / "policy.yml"
    if not asks:
        policy.write_text(DEFAULT.read_text().replace("stop: {ask: true}", "stop"))
    world = world_of(tmp_path / "state", look, standing(seen_alert(RESTART_LOOP)), policy=policy, ends=[(0, 1700.0)])
    world.on_wait = confirm_after(900.0, tmp_path / "state") if asks else lambda _: None
    assert world.supervise() == STATUS_STOPPED
    assert world.decisions() == [("asked", RESTART_LOOP, "stop")] * asks + [("act", RESTART_LOOP, "stop")]


def test_a_question_is_withdrawn_when_the_alert_is_over_or_unknown(tmp_path: Path) -> None:
    """Somebody has fixed it; or Alertmanager does not answer any more."""
    for number, (after, why) in enumerate(
        (((), "what was found is gone"), (None, "whether it still holds is not known"))
    ):
        world = world_of(tmp_path / str(number), steps, standing())
        shown = (seen_alert(DIVERGING),)
        world.alerts = lambda _: () if world.now < 120 else shown if world.now < 1500 else after  # noqa: B023
        assert world.supervise() == 0
        assert world.decisions() == [("asked", DIVERGING, "lower_rate")]
        assert any(said.endswith(f"is withdrawn: {why}") for said in world.said)


@pytest.mark.parametrize(
    ("trigger", "is_kept", "step"), [(SLOW, True, ""), (DIVERGING, True, "5"), (DIVERGING, False, "")]
)
def test_an_answer_that_the_last_supervisor_did_not_hear(
    tmp_path: Path, trigger: str, is_kept: bool, step: str
) -> None:
    """The next one does what was confirmed, of a run that has gone on: a slow one from where it is by then."""
    state = tmp_path / "state"
    asked = {
        "id": "abcdef", "outcome": "asked", "guard": "", "ranks": [1], "step": 50, "text": "It is so.",
        "why": "as said", "trigger": trigger, "action": "restart", "cost": 1, "signature": [trigger, "", 50],
        "line": "", "resume_step": 5,
    }  # fmt: skip
    book = journal.Journal(state, clock=lambda: BEGIN)
    book.write("attempt", attempt=0, reason="", resume_step=None)
    for saved in (5, 10) if is_kept else (10, 15):
        book.write("checkpoint", checkpoint=saved, saved=BEGIN + saved, path="", suspect=False)
    book.write("decision", **asked)
    book.close()
    (state / "confirmed").mkdir()
    (state / "confirmed" / "abcdef").touch()
    world = World(state, lambda *_: run(), ends=[(0, 30.0)])
    assert world.supervise() == 0
    assert world.plans[0]["TACHOGRAPH_PLAN_STEP"] == step
    assert (world.plans[0]["TACHOGRAPH_PLAN_REASON"] == trigger) == is_kept
    assert ("is withdrawn: the checkpoint of step 5" in world.said[0]) != is_kept
