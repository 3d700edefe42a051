"""What shadow mode would have done is judged by what happened without it: once, also by the next supervisor."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.supervise import history, journal
from tachograph.supervise.hindsight import LONGEST_SECONDS
from tachograph.supervise.journal import JUDGED, NAME
from tachograph.supervise.ledger import SHADOW, Ledger
from tachograph.supervise.run_seen import RunSeen, Unknown
from tests.supervise.world import World, dead, hung, killed_at, rank, run

GONE = Unknown("the exporter does not answer")
Look = Callable[[float], RunSeen | Unknown]


def at(step: int) -> RunSeen:
    return run(rank(0, step=step), rank(1, step=step))


def lost(step: int) -> RunSeen:
    return run(rank(0, is_lost=True, nonfinite_step=10, step=step))


def spiked(step: int) -> RunSeen:
    return run(rank(0, step=step), rank(1, step=step), spiked_step=10, saved=[5])


def verdicts(entries: Any) -> list[tuple[str, str]]:
    return [(one["verdict"], one["why"]) for one in entries if one["kind"] == JUDGED]


CASES: dict[str, tuple[Look, dict[str, Any], str]] = {
    "it makes steps again": (lambda s: hung() if s < 60 else at(11), {"ends": [(0, 90.0)]}, "wrong"),
    "it makes steps again, and fails later": (
        lambda s: hung() if s < 60 else at(11) if s < 80 else dead(12), {"ends": [(1, 90.0)]}, "wrong",
    ),
    "it is alive again without a step, and fails": (
        lambda s: hung() if s < 60 else at(10), {"ends": [(1, 90.0)]}, "right",
    ),
    "it finishes": (lambda _: hung(), {"ends": [(0, 90.0)]}, "wrong"),
    "it fails by itself": (lambda _: hung(), {"ends": [(1, 90.0)]}, "right"),
    "somebody ends it": (lambda _: hung(), {"ends": [(-15, 90.0)], "signals": {80.0: signal.SIGTERM}}, "right"),
    "somebody ends what goes on": (
        lambda s: hung() if s < 60 else at(10), {"ends": [(-15, 90.0)], "signals": {80.0: signal.SIGTERM}}, "unknown",
    ),
    "somebody ends what nobody saw": (
        lambda s: hung() if s < 60 else GONE, {"ends": [(-15, 300.0)], "signals": {290.0: signal.SIGTERM}}, "unknown",
    ),
    "the loss is finite again": (lambda s: lost(20) if s < 60 else at(30), {"ends": [(0, 90.0)]}, "wrong"),
    "steps without a loss are no recovery": (lambda s: lost(20 + int(s)), {"ends": [(0, 90.0)]}, "right"),
    "a spike recovers": (lambda s: spiked(40) if s < 50 else at(60), {"ends": [(0, 90.0)]}, "wrong"),
    "a spike becomes the usual level": (lambda s: spiked(40) if s < 130 else at(60), {"ends": [(0, 150.0)]}, "right"),
    "it finishes amid a spike": (lambda s: spiked(40 + int(s)), {"ends": [(0, 90.0)]}, "right"),
    "a death is one": (lambda _: dead(), {"ends": [(1, 5.0)]}, "right"),
    "the launcher restarts its rank after all": (
        lambda s: dead() if s < 90 else at(11), {"ends": [(0, 120.0)]}, "wrong",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_decision_is_judged_by_what_follows(tmp_path: Path, case: str) -> None:
    """Wrong if the run goes on by itself, right if it ends or stands until somebody ends it, else unknown."""
    look, more, verdict = CASES[case]
    world = World(tmp_path, lambda _, seconds: look(seconds), mode=SHADOW, **more)
    world.supervise()
    decided = [one for one in world.decisions() if one[0] == "would"]
    found = [found for found, _ in verdicts(world.entries)]
    assert found[0] == verdict
    assert len(found) == len(decided)
    assert {trigger for _, trigger, _ in decided[1:]} <= {"exited", "dead"}  # its end is a failure of its own
    assert set(found[1:]) <= {"right"}


def test_what_stands_for_a_day_is_not_known(tmp_path: Path) -> None:
    """It is judged once, and not by what comes after that."""
    world = World(tmp_path, lambda *_: hung(), ends=[(1, LONGEST_SECONDS + 600.0)], mode=SHADOW, last=90_000.0)
    world.supervise()
    assert verdicts(world.entries)[0] == ("unknown", "nothing has ended it within 24.0 h")
    assert len(verdicts(world.entries)) == 2


def test_what_is_left_to_a_person_is_no_action(tmp_path: Path) -> None:
    """Nor is one that was held back, or done: there is nothing to be judged."""
    broken = run(rank(0, uuid="GPU-1"), gpu_trouble=("GPU 0 had Xid 79",))
    for number, (look, mode) in enumerate([(broken, SHADOW), (hung(), "act"), (run(rank(0, state="frozen")), "ask")]):
        world = World(tmp_path / str(number), lambda *_: look, ends=[(1, 60.0)] * 9, mode=mode)  # noqa: B023
        world.supervise()
        assert verdicts(world.entries) == []


def test_a_supervisor_that_is_killed_leaves_it_to_the_next(tmp_path: Path) -> None:
    """The training ended with it, so nobody knows."""
    world = World(tmp_path, lambda *_: hung(), mode=SHADOW)
    world.on_wait = killed_at(60.0)
    with pytest.raises(KeyboardInterrupt):
        world.supervise()
    again = World(tmp_path, lambda *_: run(), ends=[(0, 5.0)], mode=SHADOW)
    again.supervise()
    assert verdicts(again.entries) == [("unknown", "its supervisor ended, and the training with it")]


@pytest.mark.parametrize(("status", "verdict"), [(0, "wrong"), (1, "right"), (-15, "unknown")])
def test_killed_between_the_end_and_the_judgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, verdict: str
) -> None:
    """The next supervisor judges by the end that is on disk, and guesses nothing that is not."""
    write = Ledger.write

    def killed(self: Ledger, kind: str, **facts: object) -> bool:
        if kind == JUDGED:
            raise KeyboardInterrupt
        return write(self, kind, **facts)

    world = World(tmp_path, lambda *_: hung(), ends=[(status, 60.0)], mode=SHADOW)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            world.supervise()
    again = World(tmp_path, lambda *_: run(), ends=[(0, 5.0)], mode=SHADOW)
    again.supervise()
    assert {found for found, _ in verdicts(again.entries)} == {verdict}


def test_the_history_sums_them_up(tmp_path: Path) -> None:
    """Over all runs of the journal, with those that are still open."""
    looks: list[Look] = [lambda _: hung(), lambda s: hung() if s < 60 else at(11), lambda s: hung() if s < 60 else GONE]
    for look, status, told in zip(looks, (1, 0, -15), ({}, {}, {290.0: signal.SIGTERM}), strict=True):
        ends = [(status, 300.0 if told else 90.0)]
        World(tmp_path, lambda _, s: look(s), ends=ends, mode=SHADOW, signals=told).supervise()  # noqa: B023
    entries = journal.read(tmp_path / NAME)
    said = history.lines(entries, 1_790_000_100.0)
    assert said[-1] == "of 4 actions that it would have taken 2 were right, 1 wrong, 1 unknown"
    (judged,) = [line for line in said if line[21:33].strip() == "wrong"]
    assert "to restart: the run made steps again by itself, and is at step 11 (" in judged
    opened = [one for one in entries if one["kind"] not in (JUDGED, "ended")]
    assert history.lines(opened, 1_790_000_100.0)[-1].endswith("0 unknown, 4 not judged yet")
