"""The files of boxes: whole or not there, in folders of one's own, under any name, and never through a link."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph.blackbox.folder import _files, rank_of_name
from tachograph.client.blackbox import box_file as module
from tachograph.client.blackbox import old_boxes
from tachograph.client.blackbox.box_file import BoxFile, TakenError, box_file, safe_name


def box(number: int, size: int = 100) -> bytes:
    return json.dumps({"number": number, "filler": "x" * size}).encode()


def numbers(folder: Path, rank: int = 0) -> list[int]:
    """The boxes of a rank, the newest first; each must be whole."""
    names = [f"rank-{rank}.json", f"rank-{rank}.1.json", f"rank-{rank}.2.json", f"rank-{rank}.3.json"]
    return [json.loads((folder / name).read_bytes())["number"] for name in names if (folder / name).exists()]


@pytest.fixture
def file(tmp_path: Path) -> BoxFile:
    return box_file(str(tmp_path), (), "llama", 0, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "llama" / "0"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_last_three_are_kept_and_closed_to_others(file: BoxFile, folder: Path) -> None:
    """The newest is rank-0.json; files are 0600 and the folders 0700, whatever the umask is."""
    before = os.umask(0)
    try:
        for number in range(5):
            file.write(box(number))
    finally:
        os.umask(before)
    assert numbers(folder) == [4, 3, 2]
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.1.json", "rank-0.2.json", "rank-0.json"]
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert mode(folder) == mode(folder.parent) == 0o700
    assert Path(file.path) == folder / "rank-0.json"


def test_what_was_asked_for_takes_nothing_from_what_was_left(file: BoxFile, folder: Path, tmp_path: Path) -> None:
    """Requested boxes have three places of their own; an analysis reads them only where a rank left nothing."""
    file.write(box(1))
    for number in range(10, 15):
        box_file(str(tmp_path), (), "llama", 0, 0, asked=True).write(box(number))
    file.write(box(2))
    assert numbers(folder) == [2, 1]
    names = ["rank-0.asked.json", "rank-0.asked.1.json", "rank-0.asked.2.json"]
    assert [json.loads((folder / name).read_bytes())["number"] for name in names] == [14, 13, 12]
    assert len(list(folder.iterdir())) == 5
    assert [path.name for path in _files(folder)] == ["rank-0.json"]
    (folder / "rank-0.json").unlink()
    (folder / "rank-0.1.json").unlink()
    assert [path.name for path in _files(folder)] == ["rank-0.asked.json"]
    assert rank_of_name("rank-0.asked.json") == rank_of_name("rank-0.asked.2.json") == 0


def in_child(work: Callable[[], object]) -> int:
    """Return how a forked process ended that did this: its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a child must not go on with the tests
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


CALLS = ("open", "mkdir", "write", "fsync", "rename", "unlink", "close")


def killed_at(file: BoxFile, nth: int, data: bytes) -> None:
    """Write a box, and be killed in the middle of the nth call of the system; a write is half done then."""
    count = 0

    def counted(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(*given: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == nth:
                if name == "write":
                    real(given[0], given[1][:50])  # type: ignore[index]
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)

        return call

    for name in CALLS:
        setattr(os, name, counted(name))
    file.write(data)


def test_kill_while_writing_leaves_whole_boxes(file: BoxFile, folder: Path) -> None:
    """Killed at whatever call, what has the name of a box is a whole one; nothing else is taken for one."""
    for number in range(3):
        file.write(box(number))
    ends = []
    for nth in range(1, 40):
        before = numbers(folder)
        ends.append(in_child(lambda nth=nth: killed_at(file, nth, box(100 + nth))))  # type: ignore[misc]
        after = numbers(folder)
        assert [number for number in after if number != 100 + nth] == before[: len(after) - (100 + nth in after)]
        assert len(after) >= 2
        assert all(path.name.startswith("rank-0.") for path in _files(folder))
        if ends[-1] == 0:
            break
        file.write(box(nth))
        assert numbers(folder)[0] == nth
        assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]
    assert ends.count(signal.SIGKILL) > 8
    assert ends[-1] == 0


def test_a_full_disk_keeps_what_was_there(file: BoxFile, folder: Path) -> None:
    """A box that does not fit is an error; the one before it stays, and no part of the new one."""
    file.write(box(1))

    def write() -> None:
        module.may_write = lambda _: True
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # the kernel refuses more, as a full disk does
        try:
            file.write(box(2, size=100_000))
        except OSError:
            os._exit(7)

    assert os.waitstatus_to_exitcode(in_child(write)) == 7
    assert numbers(folder) == [1]
    assert [path.name for path in folder.iterdir()] == ["rank-0.json"]


def test_a_limit_of_the_process_is_not_tried(file: BoxFile, folder: Path) -> None:
    """To write more than the largest file that a process may have would end it where it does not ignore SIGXFSZ."""
    file.write(box(1))

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            file.write(box(2, size=100_000))
        except OSError:
            file.write(box(3))
            os._exit(7)

    assert os.waitstatus_to_exitcode(in_child(write)) == 7
    assert numbers(folder) == [3, 1]


@pytest.mark.parametrize(
    "run", ["a/b.c", "../../../../tmp/x", ".", "..", "/", "训练" * 21, "x" * 128, "a%2Fb", " ", "C:\\x", ".rank"]
)
def test_any_name_of_a_run_is_one_folder(run: str, tmp_path: Path) -> None:
    """Slashes, dots and letters of any script make one folder below the given one, and not a hidden one."""
    box_file(str(tmp_path), (), run, 3, 7).write(box(1))
    (folder,) = tmp_path.iterdir()
    assert not folder.name.startswith(".")
    assert len(folder.name) <= 255
    assert json.loads((folder / "3" / "rank-7.json").read_bytes())["number"] == 1


def test_two_runs_have_two_folders() -> None:
    """Names that differ are written differently, also where both are too long for a folder."""
    runs = ["a/b", "a_b", "a%2Fb", "a b", ".a", "%2Ea", "训" * 42, "训" * 41 + "练", "x" * 128, "x" * 127]
    assert len({safe_name(run) for run in runs}) == len(runs)


def test_a_link_is_never_followed(file: BoxFile, folder: Path, tmp_path: Path) -> None:
    """Neither for a folder, which is an error, nor for a file, which is replaced; what it leads to stays as it is."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("mine")
    (tmp_path / "llama").symlink_to(victim)
    with pytest.raises(OSError, match="llama"):
        file.write(box(1))
    assert [path.name for path in victim.iterdir()] == ["precious"]
    (tmp_path / "llama").unlink()
    folder.mkdir(parents=True)
    for name in ("rank-0.json", f".rank-0.json.{os.getpid()}.tmp"):
        (folder / name).symlink_to(victim / "precious")
    file.write(box(1))
    assert not (folder / "rank-0.json").is_symlink()
    assert numbers(folder)[0] == 1
    assert (victim / "precious").read_text() == "mine"


def test_a_folder_of_somebody_else_is_refused(file: BoxFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's folder that another user made first gets no box, and it is said whose it is."""
    file.write(box(1))
    own = os.geteuid()
    monkeypatch.setattr(module.os, "geteuid", lambda: own + 1)
    with pytest.raises(TakenError, match=f"folder llama belongs to uid {own}"):
        file.write(box(2))


def test_a_folder_that_was_there_stays_as_it_is(file: BoxFile, folder: Path, tmp_path: Path) -> None:
    """A user's own folder that a group works in is not closed to it; the box in it is readable by its owner alone."""
    folder.mkdir(parents=True)
    for each, before in ((tmp_path / "llama", 0o775), (folder, 0o2770)):
        each.chmod(before)
    file.write(box(1))
    assert (mode(tmp_path / "llama"), mode(folder)) == (0o775, 0o2770)
    assert mode(folder / "rank-0.json") == 0o600


def attempt_of(tmp_path: Path, run: str, days: float, number: int = 0, size: int = 100) -> Path:
    """An attempt's folder beside the socket with one box that was written so many days ago."""
    box_file(str(tmp_path), ("7",), run, number, 0).write(box(1, size))
    folder = tmp_path / "7" / run / str(number)
    at = time.time() - days * 86400
    os.utime(folder / "rank-0.json", (at, at))
    return folder


def test_old_boxes_beside_the_socket_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There they lie in memory: after a week, and when a user has too many, the attempts that are oldest go."""
    monkeypatch.setattr(old_boxes, "MOST_BYTES", 10_000)
    week, young = attempt_of(tmp_path, "week", 7.1), attempt_of(tmp_path, "young", 6.9)
    box_file(str(tmp_path), ("7",), "new", 0, 0).write(box(1))
    assert (week.parent.exists(), young.exists()) == (False, True)
    large = [attempt_of(tmp_path, "large", 3 - number, number, 3_000) for number in range(3)]
    box_file(str(tmp_path), ("7",), "new", 0, 1).write(box(2, 3_000))
    assert [each.exists() for each in (young, *large)] == [False, False, True, True]
    for number in range(9):  # what writes keeps its own, however much that is
        box_file(str(tmp_path), ("7",), "new", 0, number).write(box(number, 3_000))
    assert len(list((tmp_path / "7/new/0").iterdir())) == 9 + 2  # two have a box before their last
    assert [path.name for path in (tmp_path / "7").iterdir()] == ["new"]


def test_only_boxes_of_one_s_own_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another name, a link and what it leads to, another's box, and boxes in a folder that was asked for."""
    mine = attempt_of(tmp_path, "mine", 30)
    (mine / "notes.txt").write_text("kept")
    victim = tmp_path / "victim"
    (victim / "0").mkdir(parents=True)
    (victim / "0/rank-0.json").write_text("{}")
    os.utime(victim / "0/rank-0.json", (0, 0))
    (tmp_path / "7/linked").symlink_to(victim)
    (tmp_path / "7/mine/9").symlink_to(victim / "0")
    theirs = attempt_of(tmp_path, "theirs", 30)
    os.chown(theirs / "rank-0.json", 65533, 65533)
    box_file(str(tmp_path), ("7",), "new", 0, 0).write(box(1))
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    assert (victim / "0/rank-0.json").exists()
    assert (theirs / "rank-0.json").exists()
    asked = tmp_path / "asked"
    asked.mkdir()
    for run in ("a", "b"):
        box_file(str(asked), (), run, 0, 0).write(box(1))
        os.utime(asked / run / "0/rank-0.json", (0, 0))
    assert len(list(asked.iterdir())) == 2


def test_what_is_no_folder_is_an_error(tmp_path: Path) -> None:
    """A file in the way, and a place where nothing can be made."""
    (tmp_path / "llama").write_text("a file")
    for place in (str(tmp_path), "/proc/self", str(tmp_path / "absent")):
        with pytest.raises(OSError, match=r"llama|absent"):
            box_file(place, (), "llama", 0, 0).write(box(1))
