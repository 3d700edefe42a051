"""Kills a supervisor between any two side effects of a rung of a ladder, starts another one, and checks what it makes.

`python -m tests.supervise.killed RUNG FOLDER` does it for one of `ladders.rungs()`; with `twice` one is killed once it
has decided, and the next one between any two of its own side effects. The run is played, in a time of its
own; the supervisor is a process that is killed with SIGKILL, and what it did to the run is in a file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tachograph.__main__ import main
from tachograph.supervise import journal
from tachograph.supervise.journal import NAME, Entry
from tachograph.supervise.journal_commands import open_question
from tachograph.supervise.policy import LEAVE, RESTARTS, STOP
from tachograph.supervise.supervisor import STATUS_STOPPED
from tachograph.supervise.triggers import SLOW, words
from tests.supervise.ladders import Rung, rungs
from tests.supervise.side_effects import SideEffects
from tests.supervise.test_nodes import Nodes
from tests.supervise.world import World, rank, run

BEGIN_SECONDS = 9000.0
"""Since the run's first attempt: its checkpoints are from before whatever an alert noticed late."""


class Trace(list[Any]):
    """What a supervisor did, also as lines of a file, which outlives it."""

    def __init__(self, descriptor: int, kind: str) -> None:
        self._descriptor, self._kind = descriptor, kind

    def append(self, what: Any) -> None:
        os.write(self._descriptor, json.dumps([self._kind, what]).encode() + b"\n")
        super().append(what)


class Supervisors:
    """The supervisors of one run, one after the other, in a folder of their own."""

    def __init__(self, rung: Rung, folder: Path) -> None:
        self.rung, self.folder = rung, folder
        self.state, self.trace = folder / "state", folder / "trace"

    def world(self, *, has_spare: bool = True, **facts: Any) -> World:
        """Return the world of the next one."""
        policy = self.rung.write_policy(self.folder / "policy.yml")
        world = World(self.state, self.rung.look, policy=policy, now=BEGIN_SECONDS, last=1e6, **facts)
        file = os.open(self.trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        world.said, world.did, world.plans = Trace(file, "said"), Trace(file, "did"), Trace(file, "started")
        world.launcher = nodes = Nodes(world)  # type: ignore[assignment]
        nodes.allocated = ["a", "b", "c"] if has_spare else ["a", "b"]
        nodes.used, nodes.queued = Trace(file, "used"), Trace(file, "queued")
        return world

    def prepare(self) -> None:
        """Have a run that began long ago, saved, and was ended by somebody."""
        world = self.world(ends=[(-15, 30.0)], signals={20.0: signal.SIGTERM})
        world.now, world.look_at = 0.0, lambda *_: run(rank(0), rank(1), saved=(5, 20))
        world.supervise()
        self.trace.unlink()

    def killed(self, number: int | None, names: Trace) -> bool:
        """Run one that is killed before its side effect of this number; return False if it ended before that."""
        if (pid := os.fork()) == 0:
            world = self.world(ends=self.rung.ends, has_spare=self.rung.has_spare)
            world.alerts = lambda _: self.rung.alerts(len(world.children) - 1, world.now - world.began, world.began)
            with SideEffects(number, names.append) as effects:
                world.on_wait = lambda _: self._confirm(effects)
                world.supervise()
            os._exit(0)
        return _was_killed(pid)

    def next_is_killed(self, number: int, names: Trace) -> bool:
        """Do the same with the one after that."""
        if (pid := os.fork()) == 0:
            with SideEffects(number, names.append):
                self.next()
            os._exit(0)
        return _was_killed(pid)

    def _confirm(self, effects: SideEffects) -> None:
        """Answer what is asked, as a person does."""
        with effects.paused():
            entries = journal.read(self.state / NAME)
            asked = [one["id"] for one in entries if one["kind"] == "decision" and one["outcome"] == "asked"]
            for number in asked:
                if not (self.state / "confirmed" / number).exists() and open_question(entries, number):
                    assert main(["supervise", "confirm", number, "--state", str(self.state)]) == 0

    def next(self) -> tuple[World, int]:
        """Run the next one, with which the run is healthy and finishes."""
        world = self.world(ends=[(0, 30.0)])
        world.look_at = lambda *_: run(rank(0, step=90, node="a"), rank(1, step=90, node="c"))
        return world, world.supervise()

    def entries(self) -> list[Entry]:
        path = self.state / NAME
        return journal.read(path) if path.exists() else []

    def traced(self) -> list[tuple[str, Any]]:
        return [tuple(json.loads(line)) for line in self.trace.read_text().splitlines()] if self.trace.exists() else []


def _was_killed(pid: int) -> bool:
    """Return whether a process was killed with SIGKILL, once it has ended."""
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert status == 0, f"it ended with {status}"
    return False


def of(entries: Sequence[Entry], kind: str, **facts: object) -> list[Entry]:
    """Return the entries of a kind with these facts."""
    return [one for one in entries if one["kind"] == kind and all(one.get(key) == is_ for key, is_ in facts.items())]


def agreed(entries: Sequence[Entry], state: Path) -> list[Entry]:
    """Return what is to be done to the training by a journal: decisions, and questions that a person has confirmed."""
    found = {}
    for one in of(entries, "decision"):
        is_confirmed = one["outcome"] == "asked" and (state / "confirmed" / one["id"]).exists()
        if one["action"] != LEAVE and (one["outcome"] == "act" or is_confirmed):
            is_newest = is_confirmed and one["trigger"] == SLOW  # a slow run goes on while a person is asked
            found[one["id"]] = {**one, "resume_step": None} if is_newest else one
    return list(found.values())


def check(before: Sequence[Entry], them: Supervisors, *, most_told: int) -> None:
    """Check that the next supervisor neither repeats nor loses what the killed one was about to do."""
    decided = agreed(before, them.state)
    last = decided[-1] if decided else None
    is_stopped = bool(of(before, "ended", how="stopped"))
    world, status = them.next()
    after = them.entries()
    assert after[: len(before)] == list(before)
    if last is not None and last["action"] == STOP and not is_stopped:
        assert (status, world.plans) == (STATUS_STOPPED, [])
    else:
        assert (status, len(world.plans)) == (0, 1)
        _check_plan(world, before, last)
    for one in decided:
        intents = of(after, "intent", id=one["id"], action=one["action"])
        assert len(intents) == 1, f"{one['action']} is done {len(intents)} times"
        assert len(of(after, "outcome", id=one["id"], action=one["action"])) == 1
    assert len([one for one in of(after, "intent") if one["action"] in (*RESTARTS, STOP)]) == len(decided)
    for one in of(after, "decision"):
        assert open_question(after, one["id"]) is None
        _check_first(one, before, after, them.traced(), most_told)
    assert len(of(after, "intent")) == len([one for one in of(after, "outcome") if one["action"] != "ask"])
    assert len(of(after, "attempt")) == len(of(after, "ended"))
    assert sum(kind == "queued" for kind, _ in them.traced()) <= 1


def _check_plan(world: World, before: Sequence[Entry], last: Entry | None) -> None:
    """Check the plan and the nodes of the attempt that follows."""
    assert isinstance(world.launcher, Nodes)
    plan = {name: world.plans[0][f"TACHOGRAPH_PLAN_{name}"] for name in ("STEP", "REASON", "SKIP", "RATE")}
    nodes = world.launcher.used[0]
    if last is None or of(before, "ended", how="finished"):
        assert (plan, nodes) == ({"STEP": "", "REASON": "", "SKIP": "", "RATE": "1"}, ("a", "b"))
        return
    begun = [one.get("id") for one in before].index(last["id"])
    is_over = bool(of(before[begun:], "recovered")) or last["action"] == STOP
    step = "" if is_over or last["resume_step"] is None else str(last["resume_step"])
    assert (plan["STEP"], plan["REASON"]) == (step, "" if is_over else last["trigger"])
    assert plan["SKIP"] == ("{}:{}".format(*last["skip"]) if "skip" in last else "")
    assert plan["RATE"] == ("0.5" if last["action"] == "lower_rate" else "1")
    assert nodes == (("a", "c") if last["action"] == "exclude_node" else ("a", "b"))


def _check_first(
    one: Entry, before: Sequence[Entry], after: Sequence[Entry], done: Sequence[tuple[str, Any]], most_told: int
) -> None:
    """Check that a decision is told, again only where the telling was interrupted, and its evidence kept once."""
    if one["outcome"] != "act":
        return
    notice = f"{one['text']} To be done: {words(one['action'])}, {one['why']}"
    told = sum(kind == "said" and text.startswith(notice) for kind, text in done)
    is_told = bool(of(before, "outcome", id=one["id"], action="notify"))
    assert 1 <= told <= (1 if is_told and most_told == 2 else most_told), f"told {told} times"
    kept = [what for kind, what in done if (kind, what) == ("did", "kept")]
    assert len(kept) <= len(of(after, "intent", action="keep_evidence"))


def kill_everywhere(rung: Rung, folder: Path, *, twice: bool = False) -> int:
    """Kill one supervisor after another, each before one side effect more than the last; return how many there were."""
    (begin := folder / "begin").mkdir()
    first = Supervisors(rung, begin)
    first.prepare()
    if twice:
        begin = _decided(first, folder)
    number = 0
    while True:
        place = folder / str(number)
        shutil.copytree(begin, place)
        them = Supervisors(rung, place)
        names = _names(place)
        was_killed = them.next_is_killed(number, names) if twice else them.killed(number, names)
        before = them.entries()
        if not was_killed:
            assert rung.action in {one["action"] for one in of(before, "decision", outcome="act")}, "it is not reached"
        effects = (place / "names").read_text().splitlines()
        try:
            check(before, them, most_told=3 if twice else 2)
        except AssertionError as error:
            kinds = [one["kind"] + " " + str(one.get("action", "")) for one in before][-4:]
            raise AssertionError(f"{rung}: killed after {effects[-1:]}, the journal ending with {kinds}") from error
        shutil.rmtree(place)
        if not was_killed:
            return number
        number += 1


def _names(place: Path) -> Trace:
    """Return where the names of side effects are noted."""
    return Trace(os.open(place / "names", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "effect")


def _decided(first: Supervisors, folder: Path) -> Path:
    """Return the folder of a supervisor that was killed right after it had decided, or a person had for it."""
    for number in range(1000):
        place = folder / f"decided-{number}"
        shutil.copytree(first.folder, place)
        them = Supervisors(first.rung, place)
        assert them.killed(number, _names(place)), "it has not decided"
        (place / "names").unlink()
        if agreed(them.entries(), them.state):
            return place
        shutil.rmtree(place)
    raise AssertionError("it never ends")


if __name__ == "__main__":
    (wanted,) = [one for one in rungs() if str(one) == sys.argv[1]]
    print(kill_everywhere(wanted, Path(sys.argv[2]), twice=sys.argv[3:] == ["twice"]))
