"""What the exporter hears of a supervisor: its mode, its looks, what it did, and what a failure cost the run."""

from __future__ import annotations

import json
import socket
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tachograph.servers.http_client import ask
from tachograph.supervise.heartbeat import Heartbeat
from tachograph.supervise.ledger import ASK, SHADOW
from tachograph.supervise.permission import CONFIRMATIONS
from tachograph.supervise.run_seen import Unknown
from tachograph.supervise.totals import PERSON_SECONDS
from tachograph.watch.private_exporter import PrivateExporter
from tests.supervise.conftest import Supervised, until
from tests.supervise.world import World, dead, hung, rank, run

GONE = Unknown("the exporter does not answer")


def families(exporter: PrivateExporter, name: str) -> dict[str, float]:
    """Return what the page of an exporter shows of the supervisor of a run, by family and labels but the run."""
    page = ask(f"{exporter.url}/metrics", 5.0).body.decode()
    lines = [
        line for line in page.splitlines() if line.startswith("tachograph_supervisor_") and f'run="{name}"' in line
    ]
    return {
        key.removeprefix("tachograph_supervisor_").replace(f'run="{name}"', "").replace("{,", "{").replace("{}", ""):
        float(value) for key, value in (line.rsplit(" ", 1) for line in lines)
    }  # fmt: skip


def test_it_is_told_at_every_look(tmp_path: Path) -> None:
    """How long nothing has been known, and nothing of it once something is."""
    world = World(tmp_path, lambda _, seconds: GONE if 20 < seconds < 60 else run(), ends=[(0, 90.0)])
    assert world.supervise() == 0
    times = [at for at, _ in world.told]
    assert max(after - before for before, after in pairwise(times)) <= 5.0
    blind = {at: facts["blind_seconds"] for at, facts in world.told}
    assert max(blind.values()) == 35.0
    assert blind[times[-1]] == 0.0
    assert {facts["mode"] for _, facts in world.told} == {"act"}


def test_a_run_is_looked_at_every_second_once_something_is_wrong(tmp_path: Path) -> None:
    """And every 5 s before: then alone, nodes may take turns."""
    world = World(tmp_path, lambda _, at: hung() if at > 100 else run(), ends=[(0, 200.0)], mode="shadow")
    world.supervise()
    times = [at for at, _ in world.told]
    assert {after - before for before, after in pairwise(at for at in times if 20 < at < 100)} == {5.0}
    found = next(at for at in times if at > 100)
    assert [at - found for at in times if found <= at < found + 5] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert {in_turns for at, in_turns in world.looks if at <= found} == {True}
    assert {in_turns for at, in_turns in world.looks if at > found} == {False}


def test_what_was_done_is_told(tmp_path: Path) -> None:
    """Each action with what came of it, what is left, and what the failure cost: also by the next supervisor."""

    def look(attempt: int, seconds: float) -> Any:
        if not attempt:
            return hung(step=60)
        step = 50 + int(seconds)
        return run(rank(0, step=step), rank(1, step=step))

    world = World(tmp_path, look, ends=[(None, 0), (-15, 30.0)])
    world.supervise()
    facts = world.told[-1][1]
    assert facts["actions"] == {"notify": {"done": 1}, "keep_evidence": {"done": 1}, "restart": {"done": 1}}
    assert facts["restarts_left"] == 2
    (recovered,) = [one for one in world.entries if one["kind"] == "recovered"]
    assert (recovered["attempt"], recovered["lost_steps"], facts["lost_steps"]) == (1, 10, 10)
    assert recovered["gpus"] == 2
    assert facts["saved_gpu_seconds"] == pytest.approx(2 * (PERSON_SECONDS - recovered["seconds"]), abs=0.2)
    assert recovered["seconds"] == facts["recovery_seconds"] == pytest.approx(world.began + 1.0, abs=0.1)
    again = World(tmp_path, lambda *_: run(), ends=[(0, 10.0)])
    again.supervise()
    assert again.told[0][1]["actions"] == facts["actions"]
    assert again.told[0][1]["recovery_seconds"] == facts["recovery_seconds"]


def test_a_loop_is_at_0_until_it_resumes(tmp_path: Path) -> None:
    """It loses the steps that it makes again, and not all of them."""

    def look(attempt: int, seconds: float) -> Any:
        if not attempt:
            return hung(step=60)
        facts = {"step": 0, "steps": 0} if seconds < 5 else {"step": 50 + int(seconds), "steps": int(seconds)}
        return run(rank(0, **facts), rank(1, **facts))

    world = World(tmp_path, look, ends=[(None, 0), (-15, 30.0)])
    world.supervise()
    (recovered,) = [one for one in world.entries if one["kind"] == "recovered"]
    assert recovered["lost_steps"] == 10


def test_a_run_that_was_stopped_has_not_recovered(tmp_path: Path) -> None:
    """Nor one that somebody ended: whoever starts it hours later recovers nothing."""
    world = World(tmp_path, lambda attempt, _: run() if attempt else hung(), ends=[(None, 0), (-15, 2.0)])
    world.supervise()
    later = World(tmp_path, lambda _, seconds: run(rank(0, step=int(seconds))), ends=[(0, 30.0)])
    later.supervise()
    assert [one for one in later.entries if one["kind"] == "recovered"] == []


def test_what_is_only_said_is_told(tmp_path: Path) -> None:
    """What would be done in shadow mode, what is asked, and what is held back."""
    for mode, outcome in ((SHADOW, "would"), (ASK, "asked")):
        world = World(tmp_path / mode, lambda *_: hung(), ends=[(0, 60.0)], mode=mode)
        world.supervise()
        assert world.told[-2][1]["actions"] == {"restart": {outcome: 1}}
        assert world.told[-1][1]["restarts_left"] == 3
    frozen = run(*(rank(number, state="frozen") for number in range(2)))
    world = World(tmp_path / "held", lambda *_: frozen, ends=[(0, 60.0)])
    world.supervise()
    assert world.told[-1][1]["actions"] == {"leave": {"held": 1}}


def test_a_question_is_told_of_until_it_is_answered(tmp_path: Path) -> None:
    """With the id by which it is confirmed, and for how long it has waited: also while its command has ended."""

    def answer(world: World) -> None:
        (number,) = [one["id"] for _, facts in world.told[-1:] for one in facts["questions"]] or [""]
        if number and world.now > 400.0:
            (tmp_path / CONFIRMATIONS / number).touch()

    world = World(tmp_path, lambda attempt, _: run() if attempt else dead(), ends=[(1, 5.0), (0, 30.0)], mode=ASK)
    world.on_wait = answer
    world.supervise()
    asked = [(at, one) for at, facts in world.told for one in facts["questions"]]
    (number,) = {one["id"] for _, one in asked}
    assert number == next(one["id"] for one in world.entries if one["kind"] == "decision")
    assert {one["action"] for _, one in asked} == {"restart"}
    assert all(one["seconds"] == pytest.approx(at - asked[0][0], abs=6.0) for at, one in asked)
    assert asked[-1][0] >= 400.0
    assert world.told[-1][1]["questions"] == []


def test_a_slow_restart_saves_nothing(tmp_path: Path) -> None:
    """A person would have been as fast; it is no loss either, as the run was restarted."""
    late = PERSON_SECONDS + 60.0

    def look(attempt: int, seconds: float) -> Any:
        if not attempt:
            return hung(step=60)
        step = 60 + max(int(seconds - late), 0)
        return run(rank(0, step=step), rank(1, step=step))

    world = World(tmp_path, look, ends=[(None, 0), (-15, late + 30.0)])
    world.supervise()
    assert world.told[-1][1]["recovery_seconds"] > PERSON_SECONDS
    assert world.told[-1][1]["saved_gpu_seconds"] == 0.0


@pytest.mark.parametrize("text", ["not kept: the disk is full", "kept"])
def test_evidence_that_was_not_kept_is_told(tmp_path: Path, text: str) -> None:
    """The one part of a restart that may fail while the rest goes on."""
    world = World(tmp_path, lambda attempt, _: run() if attempt else hung(), ends=[(None, 0), (0, 9.0)])
    world.keep = lambda *_: text  # type: ignore[method-assign]
    world.supervise()
    assert world.told[-1][1]["actions"]["keep_evidence"] == {"failed" if text != "kept" else "done": 1}


def test_a_supervisor_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does nothing from then on, and the training goes on: at its next look that is its mode."""
    world = World(tmp_path, lambda *_: run(), ends=[(0, 60.0)])
    monkeypatch.setattr(world, "look", lambda _: 1 / 0)
    assert world.supervise() == 0
    assert [facts["mode"] for _, facts in world.told][:4] == ["act", "act", "act", "failed"]


def test_the_exporter_shows_it(supervised: Supervised) -> None:
    """Under the name of the run that its ranks have, and as long as it runs; its counts stay for a last scrape."""
    process = supervised.ranks("shadow", "--fail", "die@25", "--steps", "2000")
    until(lambda: "blind_seconds" in families(supervised.exporter, supervised.name))
    assert supervised.end(process)[0] == 1
    counts = {f'actions_total{{action="restart",outcome="{outcome}"}}': 1.0 for outcome in ("would", "right")}
    over = {**counts, "lost_steps_total": 0.0, "saved_gpu_seconds_total": 0.0}
    until(lambda: families(supervised.exporter, supervised.name) == over)


def test_nobody_has_to_listen(tmp_path: Path) -> None:
    """No socket, a file, a queue that is full, and one who accepts and never reads: nothing raises, nothing waits."""
    path = str(tmp_path / "s")
    facts = {"mode": "act"}
    with Heartbeat(path, "r", clock=iter(range(1000)).__next__) as heartbeat:
        heartbeat.tell(lambda: facts)
        Path(path).touch()
        heartbeat.tell(lambda: facts)
        Path(path).unlink()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen(1)
            listening.settimeout(30.0)
            for _ in range(20):
                heartbeat.tell(lambda: facts)
            taken, _ = listening.accept()
            with taken:
                assert json.loads(taken.makefile("rb").readline())["mode"] == "act"
        heartbeat.tell(lambda: {"mode": object()})
        heartbeat.tell(lambda: {}["x"])


def test_the_last_frame_says_that_it_is_over(tmp_path: Path) -> None:
    """However soon after the one before; in between there is one a second."""
    path, now = str(tmp_path / "s"), 0.0
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(100)
        with Heartbeat(path, "r", clock=lambda: now) as heartbeat:
            for _ in range(30):
                heartbeat.tell(lambda: {"mode": "act"})
                now += 0.1
        listening.settimeout(0.2)
        heard = []
        try:
            while True:
                with listening.accept()[0] as taken:
                    heard.append(json.loads(taken.makefile("rb").readline()))
        except TimeoutError:
            pass
    assert [one.get("ended", False) for one in heard] == [False, False, False, True]
    assert {(one["v"], one["type"], one["run"]) for one in heard} == {(1, "supervisor", "r")}


def test_one_that_never_began_says_nothing(tmp_path: Path) -> None:
    """A frame without a mode would be refused."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        listening.setblocking(False)
        with Heartbeat(path, "r"):
            pass
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_dead_ranks_are_told_of_too(tmp_path: Path) -> None:
    """What is decided after the end of the command is in the last facts."""
    world = World(tmp_path, lambda *_: dead(), ends=[(1, 5.0)], mode=SHADOW)
    world.supervise()
    assert world.told[-1][1]["actions"] == {"restart": {"would": 1, "right": 1}}
