"""`tachograph blackbox`: each exit status that its help and docs/reference.md document, and no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tachograph.__main__ import main
from tachograph.blackbox import served
from tachograph.blackbox.served import ServedBox
from tests.blackbox.made_job import Call, Job, Stuck
from tests.collect.pretender import NOBODY, Pretender
from tools.debian.help_texts import help_of

CALLS = [Call("0", line=20)] * 4


def documented(command: str) -> set[int]:
    return set(help_of(f"blackbox {command}").statuses())


def status(*words: object) -> int:
    return main(["blackbox", *map(str, words)])


@pytest.mark.parametrize("command", ["collect", "capture"])
def test_of_asking_exporters(
    command: str, pretender: Pretender, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, none, wrong arguments, a part."""
    pretender.has("r", ServedBox(0, 0, 100.0, "", 10), texts={0: b'{"rank": 0}'})
    pretender.answers[served.capture_path("r")] = (200, b'{"asked": 1, "time": 99.0}')
    more = ["--out", tmp_path] if command == "collect" else ["--no-ras"]
    found = {
        0: status(command, "r", *more, "--exporter", pretender.address),
        1: status(command, "r", *more, "--exporter", NOBODY),
        2: status(command, *more),
        3: status(command, "r", *more, "--exporter", pretender.address, "--exporter", NOBODY),
    }
    assert found == {number: number for number in documented(command)}
    assert capsys.readouterr().err


def test_of_an_analysis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody is named, nothing can be read, wrong arguments, nobody can be named; nothing is stuck is 0, too."""
    world = {"0": range(4)}
    stuck = Job(world, {rank: [*CALLS, *([Stuck()] if rank == 1 else []), *CALLS] for rank in range(4)}).play()
    equal = Job(world, dict.fromkeys(range(4), CALLS), broken=frozenset("0")).play()
    moving = Job(world, dict.fromkeys(range(4), CALLS)).play()
    folders = {name: tmp_path / name for name in ("stuck", "equal", "moving", "empty")}
    for folder in folders.values():
        folder.mkdir()
    for name, job in (("stuck", stuck), ("equal", equal), ("moving", moving)):
        job.write(folders[name])
    found = {
        0: status("analyze", folders["stuck"]),
        1: status("analyze", folders["empty"]),
        2: status("analyze", folders["stuck"], "--world-size", "none"),
        3: status("analyze", folders["equal"]),
    }
    assert found == {number: number for number in documented("analyze")}
    capsys.readouterr()
    assert status("analyze", folders["moving"], "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "moving"
