"""What only alerts say is acted upon, by a policy; without a person nothing is ended on their word by default."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tachograph.servers.alertmanager_api import Alertmanager
from tachograph.supervise import history
from tachograph.supervise.decision import CONTRADICTION, GONE, NOTICED_LATER
from tachograph.supervise.observer import ATTEMPT_SECONDS
from tachograph.supervise.policy import DEFAULT
from tachograph.supervise.run_seen import AlertSeen, RunSeen
from tachograph.supervise.supervisor import STATUS_STOPPED
from tachograph.supervise.triggers import DIVERGING, RESTART_LOOP, SILENT_CORRUPTION, SLOW, worst
from tests.supervise.conftest import RANKS, Supervised, until
from tests.supervise.test_alerts import alert
from tests.supervise.test_nodes import Nodes
from tests.supervise.world import BEGIN, World, dead, hung, rank, run

ROOT = Path(__file__).parents[2]


def seen_alert(trigger: str, starts: float = 120.0, ranks: Sequence[int] = (), node: str = "") -> AlertSeen:
    """An alert that began so many seconds after the first attempt."""
    name = {SLOW: "StragglerRank", DIVERGING: "LossDiverging", RESTART_LOOP: "RestartLoop"}.get(
        trigger, "SilentDataCorruptionSuspected"
    )
    return AlertSeen(name, trigger, BEGIN + starts, f"{name}: it is so.", tuple(ranks), node)


def standing(*found: AlertSeen, begin: float = 120.0, end: float = 1e9) -> Callable[[World], Callable[[RunSeen], Any]]:
    """Alerts that an Alertmanager shows from one second to another."""
    return lambda world: lambda _: found if begin <= world.now < end else ()


def steps(_: int, seconds: float) -> RunSeen:
    """A run that makes a step a second, and saves each hundredth."""
    step = int(seconds) + 1
    return run(rank(0, step=step), rank(1, step=step), saved=range(100, step, 100)[-3:])


def world_of(folder: Path, look: Any, shown: Callable[[World], Any], **facts: Any) -> World:
    world = World(folder, look, **{"ends": [(0, 3600.0)], "last": 5000.0, **facts})
    world.alerts = shown(world)
    return world


def impatient(folder: Path, trigger: str, *, asks: bool = True) -> Path:
    """The default policy without a wait for one trigger, and without asking a person if that is said."""
    text = DEFAULT.read_text()
    head, _, tail = text.partition(f"  {trigger}:")
    wait = tail[tail.index("for: ") :].partition("\n")[0]
    tail = tail.replace(wait, "for: 0s", 1)
    path = folder / "own.yml"
    if not asks:
        tail = tail.replace(", ask: true", "").replace(": {ask: true}", "")
    path.write_text(f"{head}  {trigger}:{tail}")
    return path


@pytest.mark.parametrize("trigger", [SLOW, DIVERGING, SILENT_CORRUPTION, RESTART_LOOP])
@pytest.mark.parametrize("mode", ["act", "ask"])
def test_by_default_nothing_is_ended_on_its_word_alone(tmp_path: Path, trigger: str, mode: str) -> None:
    """A person is asked where there is something to be done, in act mode, too; else it is left."""
    look = (lambda *_: run(saved=[5])) if trigger == RESTART_LOOP else steps
    world = world_of(tmp_path, look, standing(seen_alert(trigger, ranks=[1])), mode=mode)
    assert world.supervise() == 0
    assert "ended" not in world.did
    ((outcome, found, _),) = world.decisions()
    assert found == trigger
    assert outcome == ("asked" if mode == "ask" or trigger in (DIVERGING, RESTART_LOOP) else "act")


def test_a_slow_node_is_left_out_once_a_policy_says_so(tmp_path: Path) -> None:
    """After half an hour, from the newest checkpoint, the first time; and not one more, as the budget says."""
    (policy,) = [impatient(tmp_path, SLOW, asks=False)]
    world = World(tmp_path / "state", lambda *_: World, ends=[(None, 0), (0, 600.0)], policy=policy)  # type: ignore[arg-type, return-value]
    world.look_at = lambda *_: run(*(rank(n, node="ab"[n]) for n in range(2)))
    nodes = Nodes(world)
    world.launcher = nodes  # type: ignore[assignment]
    world.alerts = lambda _: () if world.now < 120 else (seen_alert(SLOW, world.now, ranks=[1], node="b"),)
    assert world.supervise() == 0
    assert nodes.used == [("a", "b"), ("a", "c")]
    assert world.did == ["started", "kept", "ended", "started"]
    (decided,) = [one for one in world.entries if one["kind"] == "decision" and one["action"] == "exclude_node"]
    assert decided["nodes"] == ["b"]
    assert decided["why"].startswith("b holds the run up for good; another takes its place")


def test_no_single_one_to_blame_is_left_alone(tmp_path: Path) -> None:
    """Ranks of two nodes, or none by name."""
    two = standing(seen_alert(SLOW, ranks=[0], node="a"), seen_alert(SLOW, ranks=[1], node="b"))
    for number, shown in enumerate((two, standing(seen_alert(SLOW)))):
        world = world_of(tmp_path / str(number), steps, shown)
        assert world.supervise() == 0
        assert world.decisions() == []


@pytest.mark.parametrize(("step_seconds", "expected"), [(1.0, 500), (60.0, None)])
def test_a_climb_is_undone_from_before_it_began(tmp_path: Path, step_seconds: float, expected: int | None) -> None:
    """The checkpoint is from before the window in which the loss climbed, with half the rate."""
    saves = {step: 60.0 * step / 10 for step in range(100, 1000, 100)}

    def look(attempt: int, seconds: float) -> RunSeen:
        step = int(seconds / step_seconds) + 1
        seen = run(rank(0, step=step), rank(1, step=step), saved=())
        made = [one for one, at in saves.items() if at < seconds and not attempt]
        found = run(saved=made[-5:]).checkpoints
        return run(*seen.ranks, checkpoints=tuple(type(one)(one.step, BEGIN + saves[one.step], "") for one in found))

    alert_at = saves[500] + NOTICED_LATER[DIVERGING][0] + 30.0
    world = world_of(
        tmp_path / "state", look, standing(seen_alert(DIVERGING, alert_at), begin=alert_at),
        policy=impatient(tmp_path, DIVERGING, asks=False), ends=[(0, 4900.0), (0, 60.0)], last=6000.0,
    )  # fmt: skip
    world.supervise()
    decided = [one for one in world.entries if one["kind"] == "decision"]
    if expected is None:
        assert [one["outcome"] for one in decided] == ["asked"]
        assert "it may have been saved once the trouble had begun" in decided[0]["why"]
        return
    assert [(one["action"], one["resume_step"]) for one in decided] == [("lower_rate", expected)]
    assert world.plans[1]["TACHOGRAPH_PLAN_RATE"] == "0.5"


def test_the_window_is_that_of_the_rule() -> None:
    """The alert names a checkpoint from before the same time."""
    rule = (ROOT / "prometheus/src/loss_trend.yml").read_text()
    for seconds in NOTICED_LATER[DIVERGING]:
        assert f'"{seconds / 60:.0f}m"' in rule


def test_an_alert_from_before_this_attempt_is_not_of_it(tmp_path: Path) -> None:
    """Nor one that began within a minute of it, as it may tell of the last one."""
    policy = impatient(tmp_path, RESTART_LOOP, asks=False)
    for number, (starts, count) in enumerate([(ATTEMPT_SECONDS - 1.0, 0), (ATTEMPT_SECONDS, 1)]):
        shown = standing(seen_alert(RESTART_LOOP, starts), begin=0.0)
        world = world_of(tmp_path / str(number), lambda *_: run(), shown, policy=policy, ends=[(0, 300.0)])
        world.supervise()
        assert sum(found == RESTART_LOOP for _, found, _ in world.decisions()) == count


def test_two_witnesses_of_one_fact_are_one_event(tmp_path: Path) -> None:
    """Where a node says something no alert counts, and none hides it."""
    shown = standing(seen_alert(SILENT_CORRUPTION, 0.0), seen_alert(RESTART_LOOP, 70.0), begin=0.0)
    world = world_of(
        tmp_path, lambda attempt, seconds: hung() if seconds > 100 and not attempt else run(), shown,
        ends=[(None, 0), (0, 5.0)],
    )  # fmt: skip
    world.supervise()
    assert ("act", "hung", "restart") in world.decisions()


def test_a_command_that_has_ended_is_judged_by_its_nodes(tmp_path: Path) -> None:
    """An alert explains no end: the rank that died does, or nothing."""
    shown = standing(seen_alert(SLOW, 65.0, ranks=[1]), seen_alert(RESTART_LOOP, 65.0), begin=65.0)
    world = world_of(tmp_path, lambda _, s: dead() if s > 200 else steps(0, s), shown, ends=[(1, 201.0), (0, 5.0)])
    world.supervise()
    assert world.decisions()[-1] == ("act", "dead", "restart")
    world = world_of(tmp_path / "exited", steps, shown, ends=[(1, 201.0), (0, 5.0)])
    world.supervise()
    assert world.decisions()[-1] == ("act", "exited", "restart")


def test_a_run_that_is_slow_has_recovered(tmp_path: Path) -> None:
    """It makes steps again after its restart, whatever alerts say of it by then."""

    def look(attempt: int, seconds: float) -> RunSeen:
        return steps(0, seconds - 150.0) if attempt and seconds > 160 else run() if attempt else dead()

    shown = standing(seen_alert(SLOW, 70.0, ranks=[1]), begin=70.0)
    world = world_of(tmp_path, look, shown, ends=[(1, 5.0), (0, 400.0)])
    world.supervise()
    assert [one["kind"] for one in world.entries].count("recovered") == 1


def test_a_run_that_makes_steps_restarts_not_in_vain(tmp_path: Path) -> None:
    """The alert lasts for five minutes longer than what it says."""
    world = world_of(tmp_path, steps, standing(seen_alert(RESTART_LOOP)))
    assert world.supervise() == 0
    assert world.decisions() == [("held", RESTART_LOOP, CONTRADICTION)]


def test_a_run_that_has_just_made_a_new_step_is_not_ended(tmp_path: Path) -> None:
    """While the evidence is kept, which takes a while; the alert is still there."""
    world = World(tmp_path, lambda *_: run(), ends=[(0, 300.0)], policy=impatient(tmp_path, RESTART_LOOP, asks=False))
    world.look_at = lambda *_: run(*(rank(n, step=10 + ("kept" in world.did)) for n in range(2)))
    world.alerts = standing(seen_alert(RESTART_LOOP))(world)
    assert world.supervise() == 0
    assert world.did == ["started", "kept"]
    assert world.decisions()[1] == ("held", RESTART_LOOP, GONE)


def restarting(folder: Path) -> Path:
    """The default policy, but that a slow run is restarted where it is."""
    text = DEFAULT.read_text()
    head, _, tail = text.partition("  slow:")
    (folder / "policy.yml").write_text(f"{head}  slow:{tail.replace('exclude_node', 'restart', 1)}")
    return folder / "policy.yml"


VERDICTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "it is fast again": (SLOW, {"end": 2400.0}, "wrong"),
    "it is slow until it finishes": (SLOW, {}, "right"),
    "it is slow when it fails": (SLOW, {"ends": [(1, 3000.0)]}, "right"),
    "the loss climbs no more": (DIVERGING, {"end": 1500.0}, "unknown"),
    "it climbs until it finishes": (DIVERGING, {}, "right"),
    "a loop that ends": (RESTART_LOOP, {"end": 600.0}, "wrong"),
    "a loop that fails": (RESTART_LOOP, {"ends": [(1, 900.0)]}, "right"),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_whether_it_would_have_been_right(tmp_path: Path, case: str) -> None:
    """A run that is slow, or whose loss climbs, makes steps all the while: it is judged by the end of its alert."""
    trigger, more, verdict = VERDICTS[case]
    end = more.get("end", 1e9)

    def look(_: int, seconds: float) -> RunSeen:
        return run(saved=[5]) if trigger == RESTART_LOOP and seconds < end else steps(0, seconds)

    world = world_of(
        tmp_path / "state", look, standing(seen_alert(trigger, ranks=[1] if trigger == SLOW else []), end=end),
        mode="shadow", policy=restarting(tmp_path), ends=more.get("ends", [(0, 3600.0)]),
    )  # fmt: skip
    world.supervise()
    found = [one["verdict"] for one in world.entries if one["kind"] == "judged"]
    assert found[0] == verdict


def test_where_alertmanager_is_silent_nothing_is_judged(tmp_path: Path) -> None:
    """Whether it is over is not known."""
    world = world_of(tmp_path, steps, standing(), mode="shadow")
    shown = (seen_alert(DIVERGING),)
    world.alerts = lambda _: shown if 120 <= world.now < 1500 else None
    world.supervise()
    assert [one["verdict"] for one in world.entries if one["kind"] == "judged"] == ["unknown"]
    assert [one["why"] for one in world.entries if one["kind"] == "judged"] == ["the command finished"]


@pytest.mark.parametrize(("answers", "verdict"), [(True, "right"), (False, "unknown")])
def test_it_is_judged_after_a_day(tmp_path: Path, answers: bool, verdict: str) -> None:
    """It stood for a day; where Alertmanager is silent by then, nobody knows that it did."""
    world = world_of(tmp_path, steps, standing(), mode="shadow", ends=[(0, 95_000.0)], last=100_000.0)
    shown = (seen_alert(DIVERGING),)
    world.alerts = lambda _: () if world.now < 120 else shown if answers or world.now < 80_000 else None
    world.supervise()
    assert [one["verdict"] for one in world.entries if one["kind"] == "judged"] == [verdict]


def test_the_history_names_a_node_as_it_is(tmp_path: Path) -> None:
    """What was decided about it is a sentence, and its name is left alone."""
    world = World(tmp_path, lambda *_: run(), ends=[(0, 300.0)], policy=impatient(tmp_path, SLOW))
    world.look_at = lambda *_: run(*(rank(n, node=["rack-A", "Node-B"][n]) for n in range(2)))
    world.launcher = Nodes(world)  # type: ignore[assignment]
    world.alerts = lambda _: (seen_alert(SLOW, ranks=[1], node="Node-B"),) if world.now > 120 else ()
    world.supervise()
    assert any(
        "exclude node, as slow, rank 1: StragglerRank: it is so. Node-B holds the run up" in line
        for line in history.lines(world.entries, world.now)
    )


def test_the_finding_of_an_alert() -> None:
    """It has the alert's words, its runbook, and the node to blame."""
    found = worst(run(alerts=(seen_alert(SILENT_CORRUPTION, ranks=[1], node="b"),)))
    assert found is not None
    assert found.nodes == ("b",)
    assert found.ranks == (1,)
    assert found.text == "SilentDataCorruptionSuspected: it is so."
    assert found.remedy.endswith("/SilentDataCorruptionSuspected.md")
    assert worst(run(alerts=None)) is None


def test_it_is_asked_again_before_anything_is_ended(tmp_path: Path) -> None:
    """An answer of before the evidence was kept does not count: it may be over by now, or unknown."""
    policy = impatient(tmp_path, RESTART_LOOP, asks=False)
    for name, now, why in (("over", (), "it was gone"), ("unknown", None, "whether it still holds is not known")):
        world = World(tmp_path / name, lambda *_: run(), ends=[(0, 300.0)], policy=policy)
        shown = (seen_alert(RESTART_LOOP),)
        world.alerts = lambda _: now if world.sure else shown if world.now > 120 else ()  # noqa: B023
        assert world.supervise() == 0
        assert world.did[:2] == ["started", "kept"]
        assert "ended" not in world.did
        held = [one for one in world.entries if one["kind"] == "decision" and one["outcome"] == "held"]
        assert held[0]["why"].startswith(why)


def test_an_alert_of_the_future_is_of_no_attempt(tmp_path: Path) -> None:
    """A clock that is ahead, or this node's that is behind: an alert of the last attempt would look like one of this.

    That is so as long as it lasts, also once its time has come. Which clocks to set is said once.
    """
    policy = impatient(tmp_path, RESTART_LOOP, asks=False)
    shown = standing(seen_alert(RESTART_LOOP, 400.0), begin=10.0)
    world = world_of(tmp_path / "ahead", lambda *_: run(), shown, policy=policy, ends=[(0, 900.0)])
    assert world.supervise() == 0
    assert world.decisions() == []
    (said,) = world.said
    assert said.startswith("by Alertmanager, RestartLoop began more than 60 s from now, and is left alone: ")
    shown = standing(seen_alert(RESTART_LOOP, 400.0), begin=350.0)
    world = world_of(tmp_path / "near", lambda *_: run(), shown, policy=policy, ends=[(0, 900.0)])
    assert world.supervise() == STATUS_STOPPED


@pytest.mark.e2e
def test_a_real_run_is_stopped_on_a_real_alert(alertmanager_url: str, supervised: Supervised) -> None:
    """A whole supervisor, a real exporter and a real Alertmanager; the policy asks nobody."""
    policy = impatient(supervised.folder, DIVERGING, asks=False)
    policy.write_text(policy.read_text().replace("lower_rate: {per_hour: 1, per_run: 2}, leave", "stop"))
    command = [sys.executable, RANKS, supervised.folder, "--steps", "100000"]
    process = supervised.start("act", command, "--policy", policy, "--alertmanager", alertmanager_url)
    made = supervised.folder / "steps-0"
    until(lambda: made.exists() and made.read_text().count("\n") > 200)
    starts = datetime.now(timezone.utc) + timedelta(seconds=ATTEMPT_SECONDS - 1.0)  # as of a clock that is ahead
    body = {
        "labels": alert("LossDiverging", supervised.name), "annotations": {"description": "It climbs."},
        "startsAt": starts.isoformat(), "endsAt": (starts + timedelta(hours=1)).isoformat(),
    }  # fmt: skip
    Alertmanager(alertmanager_url).ask("POST", "alerts", lambda _: None, [body])
    status, said = supervised.end(process)
    assert status == 3, said
    assert supervised.decisions() == [("act", DIVERGING, "stop")]
    assert "LossDiverging: It climbs. To be done: stop" in said
