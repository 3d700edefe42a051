"""Attempts that outlive their supervisor: the next one goes on with them, wherever the last one was when it ended."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tachograph.supervise.journal import NAME, Entry
from tachograph.supervise.launcher import Outlook
from tachograph.supervise.ledger import ASK
from tachograph.supervise.run_seen import RunSeen
from tachograph.supervise.supervisor import STATUS_STOPPED
from tests.supervise.world import BEGIN, Child, World, hung, killed_at, rank, run

HANGS_AT, LASTS = 60.0, 30.0
STOP = """
version: 1
restarts: {per_hour: 1, per_run: 1}
triggers:
  hung: {for: 1s, cool_down: 0s, ladder: [notify, stop]}
"""


@dataclass
class Pods:
    """A launcher, and where its attempts are, whoever supervises them: at most one at a time, known by its mark.

    The first one hangs for good, and the second finishes.
    """

    there: str = ""
    """The mark of the attempt that is there; empty if none is."""

    made: list[str] = field(default_factory=list)
    events: list[tuple[int, str]] = field(default_factory=list)
    """What was there from then on, each with the number of entries that the journal had."""

    world: World | None = None
    mine: str = ""
    attempt: int = 0
    is_created: bool = False
    is_deleted: bool = False

    @property
    def places(self) -> Mapping[str, str]:
        return {"a": "10.0.0.1"} if self.is_created else {}

    def mark(self) -> str:
        self.mine = f"mark-{len(self.made)}-{len(self._entries())}"
        return self.mine

    def start(self, environment: Mapping[str, str], left_out: Collection[str]) -> Any:
        return self._begin(environment, self.mine, is_created=False)

    def go_on(self, environment: Mapping[str, str], left_out: Collection[str], mark: str, **facts: Any) -> Any:
        assert facts["places"] in ({}, {"a": "10.0.0.1"})
        return self._begin(environment, mark, is_created=facts["is_created"])

    def _begin(self, environment: Mapping[str, str], mark: str, *, is_created: bool) -> Any:
        assert self.world is not None
        self.is_deleted = is_created and self.there != mark
        if self.there != mark and not self.is_deleted:
            self._now_there(mark)
            self.made.append(mark)
        self.mine, self.is_created = mark, True
        self.attempt = int(environment["TACHOGRAPH_PLAN_ATTEMPT"])
        self.world.plans.append(environment)
        child = _Attempt(self.world, 0 if self.attempt else None, self.world.now + LASTS)
        child.outlives, child.job, child.pods, child.was_ended = True, mark, self, self.is_deleted
        self.world.children.append(child)
        self.world.began = self.world.now
        return child

    def _now_there(self, mark: str) -> None:
        self.there = mark
        self.events.append((len(self._entries()), mark))

    def _entries(self) -> list[bytes]:
        assert self.world is not None
        path = self.world.folder / NAME
        return path.read_bytes().splitlines() if path.exists() else []

    def outlook(self, left_out: Collection[str], *, fresh: bool = False) -> Outlook:
        return Outlook(withdrawn="it was deleted by somebody else" if self.is_deleted else "")

    def queue_again(self, left_out: Collection[str]) -> str:
        raise AssertionError

    def look(self, _: int, seconds: float) -> RunSeen:
        """Return what the exporters show of the attempt that is there."""
        assert self.world is not None
        step = 90 if self.attempt else 40
        seen = run(rank(0, step=step), rank(1, step=step), saved=(5, 40))
        if self.attempt == 0 and self.world.now >= HANGS_AT:
            seen = hung(50, saved=(5, 40))
        return replace(seen, ranks=tuple(replace(one, job_id=self.mine) for one in seen.ranks))


@dataclass
class _Attempt(Child):
    """One that is gone once it is ended."""

    pods: Pods | None = None

    def end(self) -> Any:
        assert self.pods is not None
        if self.pods.there == self.job:
            self.pods._now_there("")
        return super().end()


def world_of(pods: Pods, folder: Path, **facts: Any) -> World:
    """Return the world of the next supervisor."""
    world = World(folder, pods.look, outliving=pods, last=100_000.0, **facts)
    pods.world = world
    return world


def entries_of(folder: Path) -> list[Entry]:
    return [json.loads(line) for line in (folder / NAME).read_bytes().splitlines()]


def of(entries: Sequence[Entry], kind: str, **facts: object) -> list[Entry]:
    return [one for one in entries if one["kind"] == kind and all(one.get(key) == is_ for key, is_ in facts.items())]


def cut(place: Path, lines: Sequence[bytes]) -> Path:
    """Return a folder with a journal that ends after these entries."""
    place.mkdir()
    (place / NAME).write_bytes(b"".join(line + b"\n" for line in lines))
    return place


def moments(pods: Pods, lines: Sequence[bytes]) -> list[tuple[int, str]]:
    """Return each number of entries after which a supervisor may end, with each of what may be there by then."""
    found = []
    for number in range(1, len(lines)):
        before = [mark for at, mark in pods.events if at < number]
        found.append((number, before[-1] if before else ""))
        found += [(number, mark) for at, mark in pods.events if at == number]
    return found


def test_wherever_it_ends_the_next_one_neither_repeats_nor_loses(tmp_path: Path) -> None:
    """One restart, two attempts, each made once, in every moment between two entries, the object there or gone."""
    whole = Pods()
    assert world_of(whole, tmp_path / "whole").supervise() == 0
    lines = (tmp_path / "whole" / NAME).read_bytes().splitlines()
    assert len(moments(whole, lines)) > len(lines) >= 14
    for number, there in moments(whole, lines):
        folder = cut(tmp_path / f"{number}-{there or 'gone'}", lines[:number])
        made = [mark for at, mark in whole.events if mark and (at < number or mark == there)]
        pods = Pods(there, made=list(dict.fromkeys(made)))
        place = f"after {json.loads(lines[number - 1])}, with {there or 'nothing'}"
        world = world_of(pods, folder, now=json.loads(lines[number - 1])["time"] - BEGIN + 1.0)
        assert world.supervise() == 0, place
        entries = entries_of(folder)
        assert len(of(entries, "intent", action="restart")) == 1, place
        assert len(pods.made) == len(set(pods.made)) == 2, place
        assert [one["attempt"] for one in of(entries, "attempt")] == [0, 1], place
        assert len(of(entries, "ended")) == 2, place
        assert len(of(entries, "intent")) == len(
            [one for one in of(entries, "outcome") if one["ok"] or one["action"] != "restart"]
        ), place
        assert world.plans[-1]["TACHOGRAPH_PLAN_STEP"] == "40", place
        assert world.plans[-1]["TACHOGRAPH_PLAN_REASON"] == "hung", place


def test_a_stop_is_a_stop(tmp_path: Path) -> None:
    """Once its intention is there the next supervisor ends the training, and starts none."""
    policy = tmp_path / "policy.yml"
    policy.write_text(STOP)
    whole = Pods()
    assert world_of(whole, tmp_path / "whole", policy=policy).supervise() == STATUS_STOPPED
    assert whole.there == ""
    lines = (tmp_path / "whole" / NAME).read_bytes().splitlines()
    for number, there in moments(whole, lines):
        folder = cut(tmp_path / f"{number}-{there or 'gone'}", lines[:number])
        pods = Pods(there)
        world = world_of(pods, folder, policy=policy, now=json.loads(lines[number - 1])["time"] - BEGIN + 1.0)
        assert world.supervise() == STATUS_STOPPED
        entries = entries_of(folder)
        assert pods.there == ""
        assert len(of(entries, "attempt")) == len(of(entries, "ended", how="stopped")) == 1
        assert len(of(entries, "intent", action="stop")) == 1


def ends_at(second: float) -> Mapping[float, int]:
    return {second: signal.SIGTERM}


def test_a_signal_leaves_it_to_the_next_one(tmp_path: Path) -> None:
    """Nothing is noted of an end, whenever it comes: its shadow decisions wait for what comes of them, too."""
    pods = Pods()
    assert world_of(pods, tmp_path, signals=ends_at(20.0)).supervise() == -signal.SIGTERM
    assert of(entries_of(tmp_path), "ended") == []
    assert world_of(pods, tmp_path, now=30.0).supervise() == 0
    assert [one["how"] for one in of(entries_of(tmp_path), "ended")] == ["failed", "finished"]
    assert len(pods.made) == 2


def test_what_somebody_deleted_meanwhile_is_not_made_again(tmp_path: Path) -> None:
    """The same for the budget as if it had been seen; the command that is given again begins it."""
    pods = Pods()
    assert world_of(pods, tmp_path, signals=ends_at(20.0)).supervise() == -signal.SIGTERM
    pods.there = ""
    assert world_of(pods, tmp_path, now=30.0).supervise() == STATUS_STOPPED
    assert [one["how"] for one in of(entries_of(tmp_path), "ended")] == ["external"]
    assert len(pods.made) == 1
    pods.attempt = 1
    assert world_of(pods, tmp_path, now=40.0).supervise() == 0
    assert len(pods.made) == 2


def confirmed(folder: Path) -> Callable[[World], None]:
    """Return what answers every question."""

    def answer(_: World) -> None:
        for one in of(entries_of(folder), "decision", outcome="asked"):
            (folder / "confirmed").mkdir(exist_ok=True)
            (folder / "confirmed" / one["id"]).touch()

    return answer


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_question_is_asked_again_unless_a_person_has_answered_it(tmp_path: Path, is_confirmed: bool) -> None:
    """What a person has confirmed is done."""
    pods = Pods()
    with pytest.raises(KeyboardInterrupt):
        world_of(pods, tmp_path, mode=ASK, on_wait=killed_at(HANGS_AT + 40.0)).supervise()
    (asked,) = of(entries_of(tmp_path), "decision", outcome="asked")
    if is_confirmed:
        confirmed(tmp_path)(pods.world)  # type: ignore[arg-type]
    world = world_of(pods, tmp_path, mode=ASK, now=HANGS_AT + 60.0, on_wait=confirmed(tmp_path))
    assert world.supervise() == 0
    entries = entries_of(tmp_path)
    (restart,) = of(entries, "intent", action="restart")
    assert (restart["id"] == asked["id"]) == is_confirmed
    assert len(of(entries, "decision", outcome="asked")) == 2 - is_confirmed
    assert len(pods.made) == 2
