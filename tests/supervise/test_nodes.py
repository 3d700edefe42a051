"""Runs of several nodes: findings as one run's, which node is to blame, and how few are left out without a person."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from tachograph.supervise import journal, slurm
from tachograph.supervise.journal import NAME
from tachograph.supervise.launcher import IN_PLACE, NOWHERE, QUEUED_AGAIN, Outlook, restarter
from tachograph.supervise.ledger import SHADOW
from tachograph.supervise.node_memory import NodeMemory
from tachograph.supervise.run_seen import NotThere, RunSeen, Silent, Unknown
from tachograph.supervise.several_nodes import merged
from tachograph.supervise.supervisor import STATUS_STOPPED
from tachograph.supervise.triggers import worst
from tests.supervise.world import World, hung, rank, run

ROOT = Path(__file__).parents[2]


@dataclass
class Nodes:
    """A scheduler that a test plays: a job of `allocated` nodes, of which a run needs all but the spares."""

    world: World
    allocated: list[str] = field(default_factory=lambda: ["a", "b", "c"])
    needed: int = 2
    facts: dict[str, Any] = field(default_factory=dict)
    used: list[tuple[str, ...]] = field(default_factory=list)
    queued: list[list[str]] = field(default_factory=list)
    may_queue: bool = True

    def start(self, environment: Mapping[str, str], left_out: Collection[str]) -> Any:
        self.used.append(tuple([one for one in self.allocated if one not in left_out][: self.needed]))
        return self.world.start(environment)

    def outlook(self, left_out: Collection[str], *, fresh: bool = False) -> Outlook:
        enough = sum(one not in left_out for one in self.allocated) >= self.needed
        where = IN_PLACE if enough else QUEUED_AGAIN if self.may_queue else NOWHERE
        return Outlook(where=where, why="" if enough else "nodes are missing", size=self.needed, **self.facts)

    def queue_again(self, left_out: Collection[str]) -> str:
        self.queued.append(sorted(left_out))
        self.world.signals = {self.world.now + 1.0: signal.SIGTERM}
        return ""


def died(step: int, *nodes: str, of: int = 4) -> RunSeen:
    """A run of a rank a node, whose ranks on these nodes died; the others were asked to end."""
    names = "abcdefghijklmnopqrstuvwxyz"[:of]
    ranks = [
        rank(
            number, node=name, step=step, ended_seconds=0.5,
            state="dead" if name in nodes else "failed", end_reason="died" if name in nodes else "terminated",
        )
        for number, name in enumerate(names)
    ]  # fmt: skip
    return run(*ranks, state="dead", world_size=of)


def world_of(folder: Path, *failures: Collection[str], **facts: Any) -> tuple[World, Nodes]:
    """A run that fails on these nodes, attempt after attempt and a minute of steps later each, and then finishes."""
    begin = facts.pop("begin", 10)
    ends = [(1, 30.0)] * len(failures) + [(0, 30.0)]
    more = {name: facts.pop(name) for name in ("mode", "policy") if name in facts}

    def look(attempt: int, seconds: float) -> RunSeen:
        if attempt < len(failures) and seconds >= 30.0:
            return died(begin + attempt, *failures[attempt])
        return run(rank(0, step=begin + attempt, node="a"), rank(1, step=begin + attempt, node="b"))

    world = World(folder, look, ends=ends, last=100_000.0, **more)
    world.launcher = nodes = Nodes(world, **facts)
    return world, nodes


def confirm(book: Path) -> None:
    """Answer every question of a journal."""
    for one in journal.read(book):
        if one.get("outcome") == "asked":
            (book.parent / "confirmed" / one["id"]).touch()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


# Findings of several nodes.


def part(node: str, *ranks: Any, **facts: Any) -> RunSeen:
    return run(*(replace(one, node=node) for one in ranks), **({"world_size": 2} | facts))


def test_parts_of_a_run_are_one() -> None:
    """All ranks; a step on any node is one of the run, and the longest limit holds."""
    seen = merged({
        "a": part("a", rank(0, step=7), seconds_without_step=9.0, hang_limit=15.0, state="overdue", times={"a": 1.0}),
        "b": part("b", rank(1, step=8), seconds_without_step=0.5, hang_limit=240.0, saved=[5], times={"b": 2.0}),
    })  # fmt: skip
    assert isinstance(seen, RunSeen)
    assert [(one.rank, one.node) for one in seen.ranks] == [(0, "a"), (1, "b")]
    assert (seen.step, seen.seconds_without_step, seen.hang_limit) == (8, 0.5, 240.0)
    assert [one.step for one in seen.checkpoints] == [5]
    assert (seen.state, seen.times) == ("overdue", {"a": 1.0, "b": 2.0})
    assert worst(seen) is None


def test_a_run_hangs_once_all_of_its_nodes_find_it_overdue() -> None:
    """A rank of one node has just ended a pause: the other node knows of none, and the next step is about to come."""
    late = {"seconds_without_step": 240.0, "hang_limit": 21.0}
    waits = part("b", rank(1), state="hung", **late)
    for state, trigger in (("running", None), ("overdue", "hung"), ("hung", "hung"), ("finished", "hung")):
        found = worst(cast(RunSeen, merged({"a": part("a", rank(0), state=state, **late), "b": waits})))
        assert (found and found.trigger) == trigger, state


@pytest.mark.parametrize(("pause", "limit"), [("none_waits", 21.0), ("some_pause", 300.0), ("", 300.0)])
def test_a_node_that_is_late_as_a_whole_has_no_more_time_than_those_that_wait(pause: str, limit: float) -> None:
    """None of its own ranks waits, as in a loop of one rank; those of the other node do, for them."""
    late = part("a", rank(0), state="overdue", seconds_without_step=30.0, hang_limit=300.0, hang_limit_of=pause)
    waits = part("b", rank(1), state="hung", seconds_without_step=30.0, hang_limit=21.0)
    assert cast(RunSeen, merged({"a": late, "b": waits})).hang_limit == limit
    assert cast(RunSeen, merged({"a": late, "b": replace(waits, state="overdue")})).hang_limit == 300.0
    assert cast(RunSeen, merged({"a": replace(late, state="hung"), "b": waits})).hang_limit == 300.0


def test_unknown_is_not_gone() -> None:
    """A node whose exporter is silent may have ranks that make steps; one that answers without the run has none."""
    parts = {"a": part("a", rank(0)), "b": part("b", rank(1))}
    silent = merged({**parts, "c": Unknown("no answer")})
    assert silent == Silent("nothing is known of node c: no answer")
    assert isinstance(merged({**parts, "c": NotThere("no rank here")}), RunSeen)
    lacking = merged({"a": part("a", rank(0)), "b": NotThere("no rank here")})
    assert isinstance(lacking, Unknown)
    assert "only 1 of the 2 ranks" in lacking.why
    assert merged({"a": NotThere("no rank here")}) == Unknown("no rank here")


def test_a_rank_that_moved_is_where_it_lives() -> None:
    """Torchrun gave its number to another node; the same rank alive on two nodes is two runs of one name."""
    ended = rank(1, state="dead", end_reason="died", ended_seconds=3.0)
    seen = merged({"a": part("a", rank(0), ended), "b": part("b", rank(1))})
    assert isinstance(seen, RunSeen)
    assert [(one.rank, one.node, one.state) for one in seen.ranks] == [(0, "a", "running"), (1, "b", "running")]
    twice = merged({"a": part("a", rank(0), rank(1)), "b": part("b", rank(1))})
    assert twice == Unknown("rank 1 of run r is on a and on b")


def test_a_node_that_stands_still_is_no_news() -> None:
    """Its exporter gives an old answer while the others go on: what it says is not of now."""
    parts = {"a": part("a", rank(0), times={"a": 1.0}), "b": part("b", rank(1), times={"b": 1.0})}
    first = merged(parts)
    second = merged({**parts, "a": replace(parts["a"], times={"a": 6.0})})
    third = merged({name: replace(one, times={name: 7.0}) for name, one in parts.items()})
    assert isinstance(first, RunSeen)
    assert isinstance(second, RunSeen)
    assert isinstance(third, RunSeen)
    assert not second.follows(first)
    assert third.follows(first)


def test_the_nodes_of_a_finding_are_those_to_blame() -> None:
    """A dead rank's and a culprit's; of a program's own failure, and of a hang without a culprit, none."""
    found = worst(died(7, "b"))
    assert found is not None
    assert (found.ranks, found.nodes) == ((1,), ("b",))
    stuck = replace(hung(), ranks=(rank(0, node="a"), rank(1, node="b")))
    assert worst(stuck).nodes == ("b",)  # type: ignore[union-attr]
    assert worst(replace(stuck, culprit=None)).nodes == ()  # type: ignore[union-attr]
    raised = run(rank(0, node="a", state="failed", end_reason="exception", ended_seconds=1.0), state="failed")
    assert worst(raised).nodes == ()  # type: ignore[union-attr]
    broken = run(
        rank(0, node="a", uuid="GPU-0"), rank(1, node="b", uuid="GPU-1", has_gpu_trouble=True),
        gpu_trouble=("GPU 1 of b had Xid 79",),
    )  # fmt: skip
    assert worst(broken).nodes == ("b",)  # type: ignore[union-attr]


# Which node is left out.


def test_a_node_is_left_out_the_second_time(folder: Path) -> None:
    """Once it alone is to blame again: a spare takes its place, and no part of the budget of restarts is spent."""
    world, nodes = world_of(folder, "b", "b", needed=2)
    assert world.supervise() == 0
    assert [action for *_, action in world.decisions()] == ["restart", "exclude_node"]
    assert nodes.used == [("a", "b"), ("a", "b"), ("a", "c")]
    assert nodes.queued == []


def test_two_nodes_that_fail_once_each_are_kept(folder: Path) -> None:
    """Neither has failed twice."""
    world, nodes = world_of(folder, "a", "b")
    assert world.supervise() == 0
    assert [action for *_, action in world.decisions()] == ["restart", "restart"]
    assert set(nodes.used) == {("a", "b")}


def test_a_failure_of_many_nodes_at_once_is_no_nodes(folder: Path) -> None:
    """One crash looks like many broken nodes: the second time a person is asked, and none is left out without one."""
    world, nodes = world_of(folder, "abcd", "abcd")
    assert world.supervise() == 1
    assert [outcome for outcome, *_ in world.decisions()] == ["act", "asked"]
    assert "4 nodes failed at once, and the program, the network or the storage is likelier" in world.said[-1]
    assert nodes.used == [("a", "b")] * 2
    assert nodes.queued == []


def test_a_node_that_failed_with_others_has_not_failed_alone(folder: Path) -> None:
    """The storage took all of them down; that one fails later is its first time."""
    world, _ = world_of(folder, "abcd", "b")
    assert world.supervise() == 0
    assert [action for *_, action in world.decisions()] == ["restart", "restart"]


def test_one_node_in_ten_is_left_out_without_a_person(folder: Path) -> None:
    """At least one; for the next one a person is asked, who confirms here."""
    world, nodes = world_of(folder, "b", "b", "c", "c", allocated=list("abcdef"), needed=4)

    world.on_wait = lambda _: confirm(folder / NAME)
    own = folder.parent / "policy.yml"
    own.write_text("""
version: 1
restarts: {per_hour: 9, per_run: 9}
triggers:
  dead:
    for: 0s
    cool_down: 1s
    ladder: [exclude_node: {per_hour: 9, per_run: 9}, restart: {per_hour: 9, per_run: 9}, stop]
""")
    world.policy = own
    assert world.supervise() == 0
    assert [(outcome, action) for outcome, _, action in world.decisions()] == [
        ("act", "restart"), ("act", "exclude_node"), ("act", "restart"), ("asked", "exclude_node"),
        ("act", "exclude_node"),
    ]  # fmt: skip
    assert "that would be 2 nodes left out of a run of 4, and 1 may be" in " ".join(world.said)
    assert nodes.used[-1] == ("a", "d", "e", "f")


def test_two_nodes_an_hour_are_left_out_without_a_person() -> None:
    """However large the run is; an hour later there may be two others."""
    memory = NodeMemory()
    for at, node in ((0.0, "a"), (600.0, "b")):
        assert memory.too_many([node], 1000, at) == ""
        memory.take({"kind": "intent", "action": "exclude_node", "nodes": [node], "time": at})
    assert memory.too_many(["c"], 1000, 1200.0) == "2 nodes were left out in the last hour"
    assert memory.too_many(["c"], 1000, 3601.0) == ""
    assert memory.too_many(["c", "d"], 1000, 9000.0) == "2 nodes failed at once"
    assert memory.too_many(["c"], 29, 9000.0) == "that would be 3 nodes left out of a run of 29, and 2 may be"


def test_without_a_spare_the_job_is_queued_again(folder: Path) -> None:
    """The next supervisor starts the attempt that was decided, and knows who is left out, whatever the job's nodes."""
    world, nodes = world_of(folder, "b", "b", allocated=["a", "b"])
    assert world.supervise() == -signal.SIGTERM
    assert nodes.queued == [["b"]]
    assert len(nodes.used) == 2
    after, again = world_of(folder, allocated=["a", "b", "e"])
    assert after.supervise() == 0
    assert again.used == [("a", "e")]
    assert after.plans[0]["TACHOGRAPH_PLAN_REASON"] == "dead"


def test_a_swap_is_no_part_of_the_budget_of_restarts(folder: Path) -> None:
    """It lasts for one restart, of another trigger too; the swap has a budget of its own."""
    own = folder.parent / "policy.yml"
    own.write_text("""
version: 1
restarts: {per_hour: 2, per_run: 2}
triggers:
  dead:
    for: 0s
    cool_down: 1s
    ladder: [exclude_node: {per_hour: 1, per_run: 1}, restart: {per_hour: 9, per_run: 9}, stop]
""")
    world, nodes = world_of(folder, "b", "b", "c", "d", policy=own)
    assert world.supervise() == 1
    assert [action for *_, action in world.decisions()] == ["restart", "exclude_node", "restart", "stop"]
    assert "the budget of all restarts is used up (2 of 2 in the last hour" in world.entries[-1]["why"]
    assert nodes.used == [("a", "b")] * 2 + [("a", "c")] * 2


def test_a_job_may_be_queued_again_for_another_node(folder: Path) -> None:
    """An attempt has begun since: the requeue before was of use."""
    book = folder / NAME
    world, _ = world_of(folder, "b", "b", allocated=["a", "b"])
    world.supervise()
    after, again = world_of(folder, "a", "a", allocated=["a", "c"], begin=50)
    after.on_wait = lambda _: confirm(book)
    assert after.supervise() == -signal.SIGTERM
    assert again.queued == [["a", "b"]]


def test_a_job_is_not_queued_again_for_ever(folder: Path) -> None:
    """It came back with the same nodes: a person must leave the node out, and the text says how."""
    world, _ = world_of(folder, "b", "b", allocated=["a", "b"])
    world.supervise()
    after, again = world_of(folder, allocated=["a", "b"])
    assert after.supervise() == STATUS_STOPPED
    assert (again.queued, again.used) == ([], [])
    assert "though it was queued again for that" in after.said[-1]


def test_a_job_that_may_not_be_queued_again_is_restarted_where_it_is(folder: Path) -> None:
    """Without another node the second failure is as the first: the budget of restarts bounds it."""
    world, _ = world_of(folder, "b", "b", allocated=["a", "b"], may_queue=False)
    assert world.supervise() == 0
    assert [action for *_, action in world.decisions()] == ["restart", "restart"]


def test_shadow_mode_uses_every_node(folder: Path) -> None:
    """Also one that an earlier supervisor has left out: the training is as it would be without us."""
    world, _ = world_of(folder, "b", "b", allocated=["a", "b"])
    world.supervise()
    after, again = world_of(folder, allocated=["a", "b"], mode=SHADOW)
    assert after.supervise() == 0
    assert (again.used, again.queued) == ([("a", "b")], [])


@pytest.mark.parametrize(
    ("facts", "guard"),
    [
        ({"seconds_left": 300.0}, "time_left"),
        ({"unknown": "Slurm does not answer"}, "scheduler"),
    ],
)
def test_a_scheduler_that_says_no_is_heard(folder: Path, facts: dict[str, Any], guard: str) -> None:
    """Too little time, or nothing known: what has failed is left as it is, and so is a hang."""
    world, _ = world_of(folder, "b", facts=facts)
    assert world.supervise() == 1
    assert [(outcome, why) for outcome, _, why in world.decisions()] == [("held", guard)]
    stuck = World(folder.parent / "stuck", lambda *_: hung(), ends=[(0, 120.0)])
    stuck.launcher = Nodes(stuck, facts=facts)
    assert stuck.supervise() == 0
    assert stuck.decisions() == [("held", "hung", guard)]


def test_a_job_that_its_scheduler_ends_is_left_alone(folder: Path) -> None:
    """Whatever its ranks look like: no decision, and no part of the budget."""
    world, _ = world_of(folder, "b", facts={"withdrawn": "Slurm gives the nodes to another job"})
    assert world.supervise() == 1
    assert world.decisions() == []
    assert [(one["how"], one["why"]) for one in world.entries if one["kind"] == "ended"] == [
        ("external", "Slurm gives the nodes to another job")
    ]


def test_a_scheduler_that_is_restarted_is_waited_for(folder: Path) -> None:
    """For two minutes: the restart is not lost to it."""
    world, nodes = world_of(folder, "b", facts={"unknown": "connection refused"})

    def back(world: World) -> None:
        if world.now > 90.0:
            nodes.facts = {}

    world.on_wait = back
    assert world.supervise() == 0
    assert world.decisions() == [("act", "dead", "restart")]


def lost_node(seconds: float, world: World, nodes: Nodes) -> RunSeen | Unknown:
    """What is known of a run whose second node is lost after half a minute."""
    if len(world.children) > 1 or seconds < 28.0:
        return run(rank(0, node="a"), rank(1, node="b"))
    return Silent("nothing is known of node b: it does not answer")


@pytest.mark.parametrize(("after", "decided"), [(200.0, [("act", "exited", "restart")]), (1000.0, [])])
def test_a_node_that_is_lost_as_a_whole(folder: Path, after: float, decided: object) -> None:
    """Its exporter is silent, which is no reason; that its scheduler says so, some minutes later, is one."""
    world = World(folder, lambda _, seconds: lost_node(seconds, world, nodes), ends=[(1, 30.0), (0, 30.0)])
    world.launcher = nodes = Nodes(world)

    def find_out(world: World) -> None:
        nodes.facts = {"lost": ("b",)} if len(world.children) == 1 and world.now > after else {}

    world.on_wait = find_out
    assert world.supervise() == (0 if decided else 1)
    assert world.decisions() == decided
    assert world.did.count("started") == (2 if decided else 1)
    assert world.now < 600.0


def test_a_node_that_answers_again_is_not_lost(folder: Path) -> None:
    """Its exporter was restarted: what it says of the ranks is what counts."""
    world = World(
        folder, lambda attempt, seconds: run() if attempt else Silent("b") if seconds < 60.0 else died(7, "b"),
        ends=[(1, 30.0), (0, 30.0)],
    )  # fmt: skip
    world.launcher = Nodes(world)
    assert world.supervise() == 0
    assert world.decisions() == [("act", "dead", "restart")]


@pytest.mark.parametrize(("name", "did"), [("ft_launcher", ["started"]), ("", ["started", "kept", "started"])])
def test_a_launcher_that_declines_is_not_started_again(folder: Path, name: str, did: Sequence[str]) -> None:
    """As ft_launcher does with status 93, which is its own word for that and no other's."""
    world, _ = world_of(folder, "b", facts={"restarter": name})
    world.ends = [(93, 30.0), (0, 90.0)]
    world.supervise()
    assert world.did == did
    assert next(one["how"] for one in world.entries if one["kind"] == "ended") == ("external" if name else "failed")


def test_who_restarts_ranks_is_let(folder: Path) -> None:
    """While ft_launcher or torchft runs, a dead or hanging rank is its own affair; its end is not."""
    world = World(folder, lambda *_: hung(), ends=[(0, 400.0)])
    world.launcher = Nodes(world, facts={"restarter": "ft_launcher"})
    assert world.supervise() == 0
    assert world.decisions() == [("held", "hung", "restarter")]
    world, _ = world_of(folder.parent / "ended", "b", facts={"restarter": "ft_launcher"})
    assert world.supervise() == 0
    assert world.decisions() == [("act", "dead", "restart")]
    assert restarter(["bash", "-c", "exec /opt/bin/ft_launcher train.py"], {}) == "ft_launcher"
    assert restarter(["torchrun", "train.py"], {"TORCHFT_LIGHTHOUSE": "http://a:1"}) == "torchft"
    assert restarter(["torchrun", "--max-restarts=3", "train.py"], {}) == ""


# What Slurm says.


SAID = {
    "job": "JobId=12 JobName=a JobState=RUNNING Reason=None Requeue=1 BatchFlag=1 EndTime={end} PreemptTime=None "
    "NodeList=n[1-2] BatchHost=n1 ExcNodeList=n7,n[8-9]",
    "node": "NodeName=n1 State=ALLOCATED NodeAddr=n1\nNodeName=n2 State=MIXED+DRAIN NodeAddr=n2",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of the PATH, with an `scontrol` that says what files say."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text(f'#!/bin/sh\nread -r status <{folder}/status; cat "{folder}/$2"; exit "$status"\n')
    (folder / "scontrol").chmod(0o755)
    (folder / "status").write_text("0\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_a_job_is_read(programs: Path) -> None:
    """Its state, what time is left, who is left out already, and which nodes take nothing new."""
    for name, text in SAID.items():
        (programs / name).write_text(text.format(end=2_000_000_000))
    seen = slurm.job("12")
    assert (seen.state, seen.preempted, seen.may_queue_again) == ("RUNNING", False, True)
    assert seen.seconds_left is not None
    assert seen.seconds_left > 0
    assert seen.left_out == ("n7", "n8", "n9")
    assert [(node, seen.unusable(node)) for node in seen.nodes] == [("n1", False), ("n2", True)]
    (programs / "job").write_text(SAID["job"].format(end="Unknown").replace("PreemptTime=None", "PreemptTime=17"))
    assert slurm.job("12").seconds_left is None
    assert slurm.job("12").preempted


@pytest.mark.parametrize(
    "state", ["DOWN", "DOWN*", "ALLOCATED*", "IDLE+DRAIN", "ALLOCATED+DRAINING", "FAILING", "UNKNOWN"]
)
def test_a_node_that_takes_nothing_new(programs: Path, state: str) -> None:
    """Whichever of Slurm's flags says so."""
    (programs / "job").write_text(SAID["job"].format(end="Unknown"))
    (programs / "node").write_text(f"NodeName=n1 State={state}\nNodeName=n2 State=MIXED")
    seen = slurm.job("12")
    assert seen.unusable("n1")
    assert not seen.unusable("n2")
    assert seen.unusable("n3")


def test_a_slurm_that_does_not_answer_is_no_end_of_a_step(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ranks may still run is not gone; only Slurm's own word that it is counts."""
    monkeypatch.setattr(slurm, "GONE_SECONDS", 0.3)
    (programs / "status").write_text("1\n")
    (programs / "step").write_text("slurm_load_jobs error: Unable to contact slurm controller\n")
    assert not slurm.end_steps("12", 77, 0.0)
    (programs / "step").write_text("slurm_get_job_steps error: Invalid job id specified\n")
    assert slurm.end_steps("12", 77, 0.0)
