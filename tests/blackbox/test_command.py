"""`tachograph blackbox analyze`: what it prints, and its exit status."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph.__main__ import main
from tests.blackbox.made_job import Call, Job, Stuck
from tests.schemas import conforms

pytestmark = pytest.mark.usefixtures("wide")

REAL = Path(__file__).parent / "flight_recorder"
WORLD = {"0": range(4)}


def job(broken: frozenset[str] = frozenset(), stuck: int | None = None) -> Job:
    calls = [Call("0", line=20)] * 4
    programs = {rank: [*calls, *([Stuck()] if rank == stuck else []), *calls] for rank in range(4)}
    return Job(WORLD, programs, broken=broken).play()


def test_text_of_a_real_set(capsys: pytest.CaptureFixture[str]) -> None:
    """Who and why come first, one line for ranks with the same reason; then what blocked first."""
    assert main(["blackbox", "analyze", str(REAL / "lock_gil_1st")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Dumps of 16 ranks of 16 in ")
    assert said[2:4] == [
        "HELD UP BY: ranks 9, 14",
        "  ranks 9, 14: stuck on the host: never called all_to_all #45265 of EXPERT_MODEL_PARALLEL_GROUP (72), for "
        "which ranks 8, 10-13, 15 wait; nothing of its own is pending",
    ]
    assert said[5].startswith("Blocked first: EXPERT_MODEL_PARALLEL_GROUP (72), all_to_all #45265: ")


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The object has the culprits with rank, reason and line, and what could not be decided."""
    folder = job(stuck=1).write(tmp_path)
    assert main(["blackbox", "analyze", "--json", str(folder)]) == 0
    found = conforms("blackbox-analyze", capsys.readouterr().out)
    assert [one["rank"] for one in found["culprits"]] == [1]
    assert found["culprits"][0]["reason"].startswith("stuck on the host")
    assert found["culprits"][0]["line"] == "/home/u/train.py:20 step"
    assert found["undecided"] == []
    assert found["blocked_first"]["waiting"] == [0, 2, 3]


def test_nobody_can_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A run that is stuck with all ranks equal has a status of its own, and the text says why."""
    folder = job(broken=frozenset("0")).write(tmp_path)
    assert main(["blackbox", "analyze", str(folder)]) == 3
    said = capsys.readouterr().out
    assert "NOBODY CAN BE NAMED." in said
    assert "all are equal: the network" in said


def test_nothing_is_stuck(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A run that goes on is said to."""
    assert main(["blackbox", "analyze", str(job().write(tmp_path))]) == 0
    assert "Nothing is stuck." in capsys.readouterr().out


def test_the_last_rank_left_no_dump(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Where the dumps do not say how many ranks there are, the option does."""
    made = Job(WORLD, {rank: [Call("0")] for rank in range(3)}, "gloo").play()
    folder = made.write(tmp_path)
    assert main(["blackbox", "analyze", str(folder)]) == 3
    assert main(["blackbox", "analyze", str(folder), "--world-size", "4"]) == 0
    assert "HELD UP BY: rank 3" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, b"", b"hello", b"\x80\x02."])
def test_no_dump(content: bytes | None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A folder in which nothing can be read is an error in one line."""
    if content is not None:
        (tmp_path / "_dump_0").write_bytes(content)
    assert main(["blackbox", "analyze", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("place", ["missing", "file"])
def test_no_folder(place: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What is no folder is an error in one line."""
    (tmp_path / "file").touch()
    assert main(["blackbox", "analyze", str(tmp_path / place)]) == 1
    assert capsys.readouterr().err.startswith("tachograph blackbox: ")


@pytest.mark.parametrize("words", [[], ["analyse", "."], ["analyze"], ["analyze", ".", "--world-size", "0"]])
def test_wrong_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments have status 2; the help names every status."""
    assert main(["blackbox", *words]) == 2
    assert main(["blackbox", "analyze", "--help"]) == 0
    assert "nobody can be named" in capsys.readouterr().out


def test_names_are_printable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What stands in a dump or in a file's name moves no cursor."""
    folder = job(stuck=1).write(tmp_path)
    (folder / "\x1b[2J_dump_9").write_bytes(b"")
    main(["blackbox", "analyze", str(folder)])
    assert "\x1b" not in capsys.readouterr().out


def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A link to nowhere and a folder with a dump's name cost nothing; a pipe is not waited for.

    Nor is a file of the kernel that waits for what comes, as its log does.
    """
    folder = job(stuck=1).write(tmp_path)
    (folder / "_dump_6").symlink_to("/proc/kmsg")
    (folder / "exporters.json").symlink_to("/proc/kmsg")
    (folder / "_dump_7").symlink_to("nowhere")
    (folder / "_dump_8").mkdir()
    os.mkfifo(folder / "_dump_9")
    assert main(["blackbox", "analyze", str(folder)]) == 0
    assert "HELD UP BY: rank 1" in capsys.readouterr().out


def test_it_fits_a_terminal(tmp_path: Path, fits: Callable[..., None]) -> None:
    """With real sets of 16 ranks, and where nobody can be named."""
    for folder in sorted(path for path in REAL.iterdir() if path.is_dir()):
        fits(lambda folder=folder: main(["blackbox", "analyze", str(folder)]))
    equal = job(broken=frozenset("0")).write(tmp_path)
    fits(lambda: main(["blackbox", "analyze", str(equal)]))
