"""A supervisor in a container knows its own ranks, whose processes the exporter outside numbers otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tachograph.processes.process_tree import started_at
from tachograph.supervise.run_seen import RankSeen
from tests.supervise.conftest import RANKS, Supervised
from tests.supervise.world import World, hung

OUTSIDE = "4000000000"
"""A number that no process has here."""

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""A command in a pid namespace of its own, as in a container."""
if os.geteuid() != 0:
    UNSHARE[1:1] = ["--user", "--map-root-user"]


def may_unshare() -> bool:
    """Return whether this user may make a pid namespace."""
    try:
        return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def world_of(folder: Path, **facts: str) -> World:
    """A run that hangs, whose ranks all have these facts, below this process."""

    def seen(one: RankSeen) -> RankSeen:
        return replace(one, **facts)  # type: ignore[arg-type]

    world = World(folder, lambda *_: replace(hung(), ranks=tuple(map(seen, hung().ranks))), ends=[(0, 300.0)])
    world.mode = "shadow"
    world.on_wait = lambda world: vars(world.children[-1]).update(pid=os.getpid())
    world.supervise()
    return world


def test_which_process_a_rank_is(tmp_path: Path) -> None:
    """By its number in the container, if it began when that process did; by the node's number as before."""
    here, started = str(os.getpid()), started_at(os.getpid())
    for number, facts in enumerate((
        {"pid": OUTSIDE, "own_pid": here, "process_started": started},
        {"pid": here, "own_pid": here, "process_started": started},
        {"pid": here, "own_pid": "7", "process_started": started},
        {"pid": here},
    )):  # fmt: skip
        assert world_of(tmp_path / str(number), **facts).decisions() == [("would", "hung", "restart")], facts


def test_the_same_number_in_another_container(tmp_path: Path) -> None:
    """Another run of the same name is left alone: its process began at another time, or that is not known."""
    here, started = str(os.getpid()), started_at(os.getpid())
    for number, facts in enumerate((
        {"pid": OUTSIDE, "own_pid": here, "process_started": str(int(started) + 1)},
        {"pid": OUTSIDE, "own_pid": here, "process_started": ""},
        {"pid": OUTSIDE, "own_pid": OUTSIDE, "process_started": started},
        {"pid": here, "own_pid": here, "process_started": str(int(started) + 1)},
    )):  # fmt: skip
        world = world_of(tmp_path / str(number), **facts)
        assert world.decisions() == [], facts
        assert "which this command has not started" in world.said[0]


@pytest.mark.e2e
@pytest.mark.skipif(not may_unshare(), reason="this user may make no pid namespace")
def test_a_run_in_a_container_is_restarted(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter is outside: a run that hangs is found, its ranks are ended, and the command starts again."""
    start = subprocess.Popen

    def contained(words: list[str], **options: object) -> object:
        return start([*UNSHARE, *words] if "supervise" in words else words, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", contained)
    process = supervised.start("act", [sys.executable, RANKS, supervised.folder, "--fail", "loop@25"])
    monkeypatch.undo()
    status, said = supervised.end(process)
    assert status == 0, said
    assert supervised.decisions() == [("act", "hung", "restart")]
    assert [plan[2:5] for plan in supervised.plans()][-1] == [1, "hung", 20]


@pytest.mark.e2e
@pytest.mark.skipif(not may_unshare(), reason="this user may make no pid namespace")
def test_another_container_of_the_same_name_is_left_alone(supervised: Supervised) -> None:
    """A supervisor outside of it, whose own command shows no rank, does nothing about its end."""
    ranks = [sys.executable, str(RANKS), str(supervised.folder), "--fail", "die@25"]
    environment = {
        **os.environ, "TACHOGRAPH_SOCKET": str(supervised.exporter.socket), "TACHOGRAPH_RUN": supervised.name,
    }  # fmt: skip
    process = supervised.start("act", ["sleep", "15"])
    other = subprocess.run([*UNSHARE, *ranks], env=environment, check=False, timeout=60)
    assert other.returncode == 1
    status, said = supervised.end(process)
    assert status == 0, said
    assert supervised.decisions() == []
