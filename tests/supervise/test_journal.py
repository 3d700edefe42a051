"""The journal: on disk when it says so, one supervisor a run, and whatever a crash leaves of it is read."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph.__main__ import main
from tachograph.supervise import history, journal
from tachograph.supervise.journal import NAME, Journal, JournalTakenError
from tests.supervise.world import World, dead, hung, run

ROOT = Path(__file__).parents[2]


def kinds(path: Path) -> list[str]:
    return [entry["kind"] for entry in journal.read(path)]


def test_an_entry_is_there_when_write_returns(tmp_path: Path) -> None:
    """A line of JSON with its version and time, readable by its owner alone."""
    book = Journal(tmp_path / "state", clock=lambda: 12.5)
    assert book.write("fault", text="é\n")
    assert (tmp_path / "state" / NAME).read_text() == '{"v":1,"time":12.5,"kind":"fault","text":"\\u00e9\\n"}\n'
    assert (tmp_path / "state" / NAME).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    book.close()


@pytest.mark.parametrize("torn", [b'{"v":1,"time":1,"ki', b"\x00\x00", b"{"])
def test_what_a_crash_cut_short_is_no_entry(tmp_path: Path, torn: bytes) -> None:
    """And the next one does not continue its line."""
    book = Journal(tmp_path)
    book.write("fault", text="a")
    book.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(torn)
    book = Journal(tmp_path)
    book.write("fault", text="b")
    book.close()
    assert [entry["text"] for entry in journal.read(tmp_path / NAME)] == ["a", "b"]


@pytest.mark.parametrize("line", ["[]", "1", '{"v":2,"kind":"ended"}', "nonsense", '{"v":1}', '{"v":1,"kind":3}'])
def test_a_line_of_something_else_is_left_out(tmp_path: Path, line: str) -> None:
    """Of a newer release, or of nobody."""
    (tmp_path / NAME).write_text(f'{line}\n{{"v":1,"time":1,"kind":"fault","text":"a"}}\n')
    assert kinds(tmp_path / NAME) == ["fault"]


def test_a_number_beyond_all_counts_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step of 4,000 digits is left out by all that read it."""
    (tmp_path / NAME).write_text(f'{{"v":1,"time":1,"kind":"ended","how":"failed","step":{"9" * 4000},"why":"x"}}\n')
    assert main(["supervise", "history", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("attempts: 0, furthest step -")


@pytest.mark.parametrize("words", [["history"], ["confirm", "abcdef"]])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_no_pipe_or_device_is_read(
    tmp_path: Path, make: Callable[[Path], None], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be waited for, or have no end."""
    make(tmp_path / NAME)
    assert main(["supervise", *words, "--state", str(tmp_path)]) == 1
    assert f"{tmp_path / NAME}: not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"v":1,"time":1,"kind":"fault","text":"a"}\n{"v":2,"kind":"spent"}\n{"v":1', "is of a newer release"),
        ('{"event":"login"}\n{"event":"log', "is no journal of a supervisor"),
        ("a\n", "is no journal of a supervisor"), ("null\n[]\n1e999\n", "is no journal of a supervisor"),
    ],
)  # fmt: skip
def test_what_cannot_be_gone_on_with_is_refused(
    tmp_path: Path, text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A newer release's budget would be forgotten; another program's file stays as it is, and nothing is started."""
    (tmp_path / NAME).write_text(text)
    ran = tmp_path / "ran"
    assert main(["supervise", "--state", str(tmp_path), "--", "touch", str(ran)]) == 1
    assert f"{tmp_path}: {NAME} {why}" in capsys.readouterr().err
    assert (tmp_path / NAME).read_text() == text
    assert not ran.exists()


FULL = """
import resource, sys
from pathlib import Path
from tachograph.supervise import journal
book = journal.Journal(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
wrote = [book.write("fault", text="x" * 500) for _ in range(20)]
assert wrote[0] and not wrote[-1]
assert book.full
found = journal.read(book.path)
assert len(found) == sum(wrote) == len(book.entries)
assert book.path.read_bytes().endswith(b"}\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert book.write("fault", text="y")
assert not book.full
"""


def test_a_full_disk_leaves_no_part_of_an_entry(tmp_path: Path) -> None:
    """Where the kernel takes a part of a line alone: False, why, and once there is room again it is written."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter")}
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], env=environment, check=True, timeout=90)


def test_the_second_supervisor_of_a_run_is_refused(tmp_path: Path) -> None:
    """At once where the first one runs, with its process; after it there is no lock left."""
    book = Journal(tmp_path)
    book.write("supervisor", run="r", mode="act", **journal.identity())
    with pytest.raises(JournalTakenError, match=f"process {os.getpid()} on .* already supervises this run"):
        Journal(tmp_path)
    book.close()
    Journal(tmp_path).close()


def test_one_that_was_killed_is_waited_for(tmp_path: Path) -> None:
    """Its training holds the lock until it has ended, so that the run is never there twice."""
    book = Journal(tmp_path)
    gone = subprocess.run(["true"], check=True)
    assert gone.returncode == 0
    book.write("supervisor", run="r", mode="act", pid=2**22 - 1, host=journal.identity()["host"], started="1")
    waited: list[float] = []

    def training_ends(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            book.close()

    Journal(tmp_path, sleep=training_ends).close()
    assert len(waited) == 3


def test_the_history_is_a_table(tmp_path: Path) -> None:
    """What was found, decided and done, in order, and what of the budget is spent."""
    World(tmp_path / "a", lambda attempt, _: run() if attempt else hung(), ends=[(None, 0), (0, 30.0)]).supervise()
    entries = journal.read(tmp_path / "a" / NAME)
    said = history.lines(entries, 1_790_000_100.0)
    assert [line[21:33].strip() for line in said[:-1]] == [
        "supervisor", "attempt 0", "decided to", "done", "done", "done", "failed", "attempt 1", "finished",
    ]  # fmt: skip
    assert said[7].endswith("begins, after hung")
    assert said[-1] == "attempts: 2, furthest step 10, restarts that count: 1 in the last hour, 1 since the run began"
    World(tmp_path / "b", lambda *_: dead(), ends=[(1, 5.0)], mode="shadow").supervise()
    said = history.lines(journal.read(tmp_path / "b" / NAME), 1_790_000_100.0)
    assert [line[21:33].strip() for line in said[:-2]] == ["supervisor", "attempt 0", "would", "failed", "right"]
    assert said[-1] == "of 1 action that it would have taken 1 were right, 0 wrong, 0 unknown"


def test_the_history_says_what_was_saved(tmp_path: Path) -> None:
    """By all restarts after which steps were made again, also where an older release has noted one without its GPUs."""
    book = Journal(tmp_path)
    book.write("recovered", attempt=1, seconds=100.0, lost_steps=0, gpus=64)
    book.write("recovered", attempt=2, seconds=2000.0, lost_steps=0, gpus=64)
    book.write("recovered", attempt=3, seconds=10.0, lost_steps=0)
    book.close()
    said = history.lines(journal.read(tmp_path / NAME), 0.0)
    assert said[-1] == "GPU-hours saved: 14.2, against a person who restarts the run in 15 min"


def test_the_history_of_no_run(tmp_path: Path) -> None:
    """A journal that says nothing, as of a supervisor that was killed as it began."""
    (tmp_path / NAME).write_text("")
    assert history.lines(journal.read(tmp_path / NAME), 0.0)[0].startswith("attempts: 0")
    newer = {"v": 1, "time": 1, "kind": "decision", **WHOLE["decision"], "outcome": "mulled"}
    (tmp_path / NAME).write_text(json.dumps(newer) + "\n")
    assert "mulled" in history.lines(journal.read(tmp_path / NAME), 0.0)[0]
    assert json.loads(json.dumps(journal.identity()))["pid"] == os.getpid()


WHOLE = {
    "supervisor": {"run": "r", "mode": "act", "pid": 1, "host": "h", "started": "1"},
    "attempt": {"attempt": 0, "reason": "", "resume_step": None},
    "decision": {
        "id": "a", "outcome": "act", "guard": "", "ranks": [1], "step": 1, "text": "t", "why": "w",
        "trigger": "hung", "action": "restart", "cost": 1, "signature": ["hung", "", 1], "line": "", "resume_step": 1,
    },
    "intent": {
        "id": "a", "trigger": "hung", "action": "restart", "cost": 1, "signature": ["hung", "", 1], "line": "",
        "resume_step": 1,
    },
    "outcome": {"id": "a", "action": "restart", "ok": True, "text": "t"},
    "ended": {"how": "failed", "step": 1, "why": "w"},
    "blind": {"over": True, "why": "w"},
    "fault": {"text": "t"},
    "recovered": {"attempt": 1, "seconds": 12.5, "lost_steps": 3},
    "checkpoint": {"checkpoint": 40, "saved": 1.5, "path": "/c/40", "suspect": False},
    "judged": {"id": "a", "action": "restart", "verdict": "right", "why": "w"},
}  # fmt: skip


def test_an_entry_that_lacks_something_is_none(tmp_path: Path) -> None:
    """Each fact of each kind, absent or of another type: the journal is read without it, by all that read it."""
    lines = [{"v": 1, "time": 1, "kind": kind, **facts} for kind, facts in WHOLE.items()]
    path = tmp_path / NAME
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert kinds(path) == list(WHOLE)
    bad: list[object] = [
        line | {"time": other} for line in lines for other in ("x", None, math.inf, math.nan, -1, 1e99)
    ]
    for line in lines:
        for name in set(line) - {"v", "time"}:
            bad += [{key: value for key, value in line.items() if key != name}, line | {name: {}}]
            bad += [line | {name: [[]]}]
            bad += [line | {name: 10**400}] if isinstance(line[name], int) and line[name] is not False else []
    bad += [line | {"cost": -1} for line in lines if "cost" in line]  # which would give a budget back
    path.write_text("".join(f"{json.dumps(line)}\n" for line in bad) + "[" * 100_000 + "\n")
    assert journal.read(path) == []


def test_a_long_torn_line_is_taken_away(tmp_path: Path) -> None:
    """As of a file system that lost its last blocks: megabytes of zeros, and no entry behind them is lost."""
    book = Journal(tmp_path)
    book.write("fault", text="a")
    book.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(bytes(3 << 20))
    for text in ("b", "c"):
        book = Journal(tmp_path)
        book.write("fault", text=text)
        book.close()
    assert [entry["text"] for entry in journal.read(tmp_path / NAME)] == ["a", "b", "c"]


def test_of_a_huge_journal_the_end_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not read is the oldest, and not what was spent an hour ago."""
    book = Journal(tmp_path)
    for number in range(100):
        book.write("fault", text=str(number))
    book.close()
    monkeypatch.setattr(journal, "MOST_BYTES", 1000)
    texts = [entry["text"] for entry in journal.read(tmp_path / NAME)]
    assert texts[-1] == "99"
    assert 10 < len(texts) < 20


def test_a_journal_that_is_moved_away_is_written_no_more(tmp_path: Path) -> None:
    """What is in a file that no supervisor will find would be forgotten."""
    book = Journal(tmp_path)
    assert book.write("fault", text="a")
    (tmp_path / NAME).rename(tmp_path / "old")
    assert not book.write("fault", text="b")
    (tmp_path / NAME).write_text("")
    assert not book.write("fault", text="c")
    assert "another file" in book.full
    book.close()


def test_a_link_in_place_of_a_journal_is_not_followed(tmp_path: Path) -> None:
    """Another user who may write to the folder would choose where a file of ours is made."""
    state = tmp_path / "state"
    state.mkdir()
    (state / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=f"{NAME} is a link"):
        Journal(state)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null"), lambda path: path.mkdir()])
def test_what_is_no_file_is_no_journal(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Refused at once: a pipe would be read for ever, and a device remembers nothing."""
    make(tmp_path / NAME)
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        Journal(tmp_path)
