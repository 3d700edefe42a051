"""When a rank leaves a box: when it stands still, fails or is asked; once, and never while it makes its steps."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.client.blackbox import stacks
from tachograph.client.core.misuse import Misuse
from tachograph.client.hello.identity import Identity
from tachograph.client.hello.workload import Workload
from tachograph.client.signals.standstill import Stall
from tachograph.client.transport import box_trigger as module
from tachograph.client.transport.box_trigger import GAP_SECONDS, PATIENCE_SECONDS, BoxTrigger
from tachograph.client.transport.failure_reason import FINISHED, End
from tachograph.client.transport.rank_state import RankState
from tachograph.text.code_line import CodeLine
from tachograph.wire import MAX_FRAME_BYTES
from tests.client.conftest import BLOCKED_IN_C

Make = Callable[..., Any]
Start = Callable[..., Any]


def whole(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a box together that came in frames."""
    assert [frame["part"] for frame in frames] == list(range(frames[0]["parts"]))
    assert len({(frame["id"], frame["time"], frame["reason"]) for frame in frames}) == 1
    box: dict[str, Any] = json.loads("".join(frame["text"] for frame in frames))
    assert box["reason"] == frames[0]["reason"]
    return box


def received(exporter: Any, number: int = 1) -> dict[str, Any]:
    """Wait for a rank's box of this number, and return it."""
    exporter.wait_for("box", lambda frame: frame["id"] == number and frame["part"] == frame["parts"] - 1)
    return whole([frame for frame in exporter.frames("box") if frame["id"] == number])


class Rank:
    """A rank on a hand clock, of which a stall can be said; `reasons` are those of its boxes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.reasons: list[str] = []
        self.compiles = False
        self.compile_looks = 0
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(stacks, "is_compiling", self._compiling)
        self.state = RankState(Identity("r", 0, 0, 1, 0, 0), Workload(1), Misuse(), device_time=False)
        self.trigger = BoxTrigger(self.state, "/nowhere/rank.sock")

    def _compiling(self, thread: int) -> bool:
        self.compile_looks += 1
        return self.compiles

    def stands(self, since: float | None, seconds: float, *, is_pause: bool = False) -> int:
        """Let the rank stand still since then, and look each second for so long; return how many boxes it left."""
        before = len(self.reasons)
        self.state.standstill.stall = None if since is None else Stall(since, is_pause)
        for _ in range(int(seconds)):
            self.now += 1.0
            self.trigger.look(connected=True)
            if (box := self.trigger.outgoing) is not None:
                self.reasons.append(str(box.next_part()["reason"]))
                self.trigger.outgoing = None
        return len(self.reasons) - before


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def test_one_box_for_each_standstill(rank: Rank) -> None:
    """However long it lasts; the next one has its own, unless the box before it is less than ten seconds old."""
    assert rank.stands(None, 500) == 0
    assert rank.stands(rank.now - 11, 1800) == 1
    assert rank.reasons == ["no step for 12 s"]
    assert rank.stands(None, 5) == 0


def test_a_rank_that_often_stands_still_and_goes_on(rank: Rank) -> None:
    """After a gap that ended by itself, only one of twice its length is worth a box; five minutes always are."""
    assert rank.stands(rank.now - 11, 30) == 1
    rank.stands(None, 60)
    began = rank.now
    assert rank.stands(began, 80) == 0, "two times 41 s are not over yet"
    assert rank.stands(began, 10) == 1
    rank.stands(None, 60)
    began = rank.now
    assert rank.stands(began, 170) == 0
    assert rank.stands(began, 30) == 1
    rank.stands(None, 60)
    assert rank.stands(rank.now, 299) == 0
    assert rank.stands(rank.now - 299, 5) == 1


def test_a_save_in_which_nothing_is_done_is_a_standstill(rank: Rank) -> None:
    """Its box says that it is a save."""
    with rank.state.clock.phases["checkpoint"]:
        assert rank.stands(rank.now - 11, 20) == 1
    assert rank.reasons == ["in checkpoint for 12 s"]


def test_a_long_start_save_or_evaluation_is_none(rank: Rank) -> None:
    """Up to five minutes, however often: a healthy run has those."""
    for _ in range(10):
        assert rank.stands(rank.now, PATIENCE_SECONDS - 1, is_pause=True) == 0
    assert rank.stands(rank.now - PATIENCE_SECONDS, 2, is_pause=True) == 1
    assert rank.reasons[0].startswith("in init for 30")


def test_a_compilation_is_none(rank: Rank) -> None:
    """While a compiler is on the stack a step may take its time, up to five minutes; looked at every ten seconds."""
    rank.compiles = True
    began = rank.now
    assert rank.stands(began, PATIENCE_SECONDS - 1) == 0
    assert rank.compile_looks == pytest.approx(PATIENCE_SECONDS / GAP_SECONDS, abs=1)
    assert rank.stands(began, 5) == 1


def test_who_asks_has_a_box_at_most_once_in_ten_seconds(rank: Rank) -> None:
    """What is asked sooner is made when the ten seconds are over, once."""
    rank.trigger.ask("alice")
    assert rank.stands(None, 1) == 1
    for name in ("bob", "carol"):
        rank.trigger.ask(name)
    assert rank.stands(None, GAP_SECONDS - 1) == 0
    assert rank.stands(None, 60) == 1
    assert rank.reasons == ["alice", "carol"]


def test_what_is_asked_for_takes_nothing_from_a_standstill(rank: Rank) -> None:
    """However often somebody asks, before and during it, it leaves its own box, and so does a failure after that."""
    rank.trigger.ask("asked for")
    assert rank.stands(None, 2) == 1
    began = rank.now - 11
    for _ in range(12):
        rank.trigger.ask("asked for")
        rank.stands(began, 3)
    assert rank.reasons[:2] == ["asked for", "no step for 20 s"]
    assert set(rank.reasons[2:]) == {"asked for"}
    rank.stands(None, 60)
    began = rank.now
    rank.trigger.ask("SIGUSR2")
    rank.stands(began, 5)
    assert rank.trigger.is_due_at(End("failed", "data", "gone"))


def test_nothing_is_made_that_can_go_nowhere(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an exporter and without a folder."""
    monkeypatch.setattr(rank.state, "box_facts", lambda: pytest.fail("made"))
    rank.trigger.ask("alice")
    rank.trigger.look(connected=False)
    assert rank.trigger.outgoing is None
    assert rank.state.dropped.count == 0


def test_a_fault_of_ours_costs_the_box_alone(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, and the next box is tried again."""
    monkeypatch.setattr(rank.state, "box_facts", lambda: 1 / 0)
    rank.trigger.ask("alice")
    assert rank.stands(None, 1) == 0
    assert rank.state.dropped.count == 1


def test_a_failure_after_a_standstill_keeps_its_box(rank: Rank) -> None:
    """A timeout that ends a standstill leaves what was seen before it; a failure by itself has a box of its own."""
    timeout = End(
        "failed", "collective", "RuntimeError: Timed out", places=(CodeLine("/home/alice/train.py", 7, "step"),)
    )
    assert rank.trigger.is_due_at(timeout)
    rank.stands(began := rank.now - 11, 5)
    assert not rank.trigger.is_due_at(timeout)
    rank.stands(None, 1)
    rank.stands(began + 20, 1)
    assert rank.trigger.is_due_at(timeout)
    assert not rank.trigger.is_due_at(FINISHED)
    for category in ("terminated", "interrupted"):
        assert not rank.trigger.is_due_at(End("failed", category, "SIGTERM"))


@pytest.mark.parametrize("off", ["0", "off", "FALSE", " no "])
def test_a_variable_turns_boxes_off(off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TACHOGRAPH_BLACKBOX=0: also for who asks."""
    monkeypatch.setenv("TACHOGRAPH_BLACKBOX", off)
    rank = Rank(monkeypatch)
    rank.trigger.ask("alice")
    assert rank.stands(rank.now - 11, 500) == 0
    assert not rank.trigger.is_due_at(End("failed", "exception", "ValueError"))


def test_a_failure_s_box_has_the_line_of_the_exception(rank: Rank) -> None:
    """Of the user's own code, and where it was raised; not that of whoever reports it."""
    places = (
        CodeLine("/usr/lib/python3/dist-packages/x.py", 3, "read"),
        CodeLine("/home/alice/data.py", 88, "load_shard"),
    )
    rank.trigger.at_failure(End("failed", "data", "OSError: x", places=places), connected=True)
    assert rank.trigger.outgoing is not None
    box = json.loads(rank.trigger.outgoing.next_part()["text"])  # type: ignore[arg-type]
    assert box["where"] == "data.py:88 load_shard, in x.py:3 read"
    assert box["failure"]["lines"][1] == "/home/alice/data.py:88 load_shard"
    assert (box["failure"]["category"], box["failure"]["message"]) == ("data", "OSError: x")


def test_stacks_turned_off_leave_a_box_without_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """TACHOGRAPH_STACKS=0."""
    monkeypatch.setenv("TACHOGRAPH_STACKS", "0")
    rank = Rank(monkeypatch)
    places = (CodeLine("/home/alice/data.py", 88, "load_shard"),)
    rank.trigger.at_failure(End("failed", "data", "OSError", places=places), connected=True)
    assert rank.trigger.outgoing is not None
    text = rank.trigger.outgoing.next_part()["text"]
    assert "data.py" not in str(text)
    assert not {"stacks", "where"} & json.loads(str(text)).keys()


def test_a_long_box_comes_in_parts_that_are_frames() -> None:
    """Each fits, whatever is in it, and together they are the box; they can be sent once more."""
    text = json.dumps({"reason": "x", "stack": '"\\' * 30_000}).encode()
    box = module.OutgoingBox(1, "x", text)
    for _ in range(2):
        frames = []
        while not box.is_sent:
            frames.append(box.next_part())
        assert max(len(json.dumps(frame)) for frame in frames) <= MAX_FRAME_BYTES
        assert "".join(str(frame["text"]) for frame in frames).encode() == text
        assert whole(frames)["reason"] == "x"
        box.begin_again()


def test_the_exporter_asks(exporter: Any, record: Make, train: Callable[..., None]) -> None:
    """A line with `capture` brings a box of the rank as it is, with its steps; the connection goes on."""
    recorder = record(rank=1, world_size=2)
    exporter.wait_for()
    train(recorder, 3)
    exporter.tell({"ok": True, "capture": "asked for by alice\x1b"})
    box = received(exporter)
    assert (box["run"], box["rank"], box["world_size"], box["attempt"], box["pid"]) == ("test", 1, 2, 0, os.getpid())
    assert box["reason"] == "asked for by alice?"
    assert [step["number"] for step in box["steps"]] == [1, 2]
    assert box["stacks"][0]["threads"] == ["MainThread"]
    assert "test_box_trigger.py" in str(box["stacks"][0]) or "conftest.py" in str(box["stacks"][0])
    exporter.next_state()
    assert len(exporter.talks) == 1


def test_a_box_is_sent_again_to_an_exporter_that_was_restarted(exporter: Any, record: Make) -> None:
    """It keeps boxes in memory only."""
    record()
    exporter.wait_for()
    exporter.tell({"ok": True, "capture": "x"})
    box = received(exporter)
    exporter.stop()
    exporter.talks.clear()
    exporter.restart()
    assert received(exporter) == box


def test_heartbeats_go_on_while_the_disk_hangs(
    exporter: Any, record: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file is another thread's work; a second box does not wait for it either."""
    from tachograph.client.blackbox.box_file import BoxFile

    responds, hangs = threading.Event(), threading.Event()

    def write(self: BoxFile, box: bytes) -> None:
        hangs.set()
        responds.wait(60)

    monkeypatch.setattr(BoxFile, "write", write)
    monkeypatch.setattr(module, "GAP_SECONDS", 0.0)
    monkeypatch.setenv("TACHOGRAPH_BLACKBOX", str(tmp_path / "boxes"))
    record()
    exporter.wait_for()
    for number in (1, 2):
        exporter.tell({"ok": True, "capture": "x"})
        received(exporter, number)
    assert hangs.is_set()
    exporter.next_state()
    responds.set()


def test_a_healthy_rank_loads_nothing_of_boxes(exporter: Any, start: Start) -> None:
    """Steps, saves, evaluations: no box, no file, and not a module of them is imported."""
    process = start(
        """
        for number in recorder.data(range(200)):
            with recorder.step():
                with recorder.phase("forward"): pass
            with recorder.phase("eval"): pass
            with recorder.phase("checkpoint"): pass
            recorder.checkpoint_saved(step=number)
        time.sleep(2.5)
        recorder.close()
        say([name for name in sys.modules if "blackbox" in name or name == "tachograph.text.redact"])
        """,
        TACHOGRAPH_BLACKBOX=str(exporter.path.parent / "boxes"),
    )
    process.hear("[]")
    assert process.end() == (0, "")
    assert exporter.frames("box") == []
    assert not (exporter.path.parent / "boxes").exists()


def file_of(folder: Path, name: str = "rank-0.json") -> dict[str, Any]:
    box: dict[str, Any] = json.loads((folder / "test" / "0" / name).read_text())
    return box


def test_a_failure_leaves_a_box_and_is_not_late_with_the_bye(exporter: Any, start: Start) -> None:
    """The same box as a file and over the socket, after the bye; the exit status is what it would have been."""
    folder = exporter.path.parent / "boxes"
    process = start(
        """
        while not recorder._calls.sender._answered: time.sleep(0.01)
        def load_shard(): raise FileNotFoundError("shard 7, token=hunter2")
        with recorder.step(): load_shard()
        """,
        TACHOGRAPH_BLACKBOX=str(folder),
    )
    assert process.end()[0] == 1
    assert exporter.frames("bye")[0]["category"] == "exception"
    box = received(exporter)
    assert file_of(folder) == box
    assert box["reason"] == "failed: exception"
    assert box["failure"]["message"] == "FileNotFoundError: shard 7, token=[redacted]"
    assert box["where"] == "<string>:7 load_shard"
    kinds = [frame["type"] for frame in exporter.talks[0].frames]
    assert kinds.index("bye") < kinds.index("box")


@pytest.mark.parametrize(
    ("code", "status"),
    [("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM), ("sys.exit(0)", 0), ("raise KeyboardInterrupt", None)],
)
def test_an_end_from_outside_leaves_none(
    exporter: Any, start: Start, until: Callable[..., Any], code: str, status: int | None
) -> None:
    """A scheduler or a person ended it, or it was done."""
    folder = exporter.path.parent / "boxes"
    process = start(
        f"while not recorder._calls.sender._answered: time.sleep(0.01)\n{code}", TACHOGRAPH_BLACKBOX=str(folder)
    )
    assert status in (None, process.end()[0])
    until(lambda: exporter.talks[0].ended_at)
    assert exporter.frames("box") == []
    assert not folder.exists()


def test_a_failure_without_an_exporter_leaves_a_file(tmp_path: Path, start: Start) -> None:
    """Where a folder is named, with a run whose name is a path."""
    process = start(
        "Recorder(run='../a/b.c', attempt=2, rank=3); raise ValueError('x')",
        TACHOGRAPH_SOCKET=str(tmp_path / "nobody.sock"),
        TACHOGRAPH_BLACKBOX=str(tmp_path / "shared" / "boxes"),
    )
    assert process.end()[0] == 1
    assert (tmp_path / "shared/boxes/%2E.%2Fa%2Fb.c/2/rank-3.json").is_file()


def test_a_folder_beside_the_socket_is_used(exporter: Any, start: Start) -> None:
    """Where somebody made it, each user's boxes are below the uid."""
    shared = exporter.path.parent / "blackbox"
    shared.mkdir(mode=0o1777)
    assert start("raise ValueError('x')").end()[0] == 1
    assert file_of(shared / str(os.geteuid()))["reason"] == "failed: exception"
    assert (shared / str(os.geteuid())).stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another's folder")
def test_a_folder_that_another_has_taken_is_said(exporter: Any, start: Start) -> None:
    """Everybody may write beside the socket: who makes a user's folder there first costs the file, and is named."""
    shared = exporter.path.parent / "blackbox"
    shared.mkdir()
    shared.chmod(0o1777)
    taken = shared / str(os.geteuid())
    taken.mkdir()
    os.chown(taken, 65533, 65533)
    process = start(
        """
        while not recorder._calls.sender._answered: time.sleep(0.01)
        recorder._calls.sender.ask_for_box("asked")
        while not recorder._calls.sender._state.box_trouble: time.sleep(0.01)
        raise ValueError("x")
        """
    )
    status, errors = process.end()
    assert status == 1
    text = f"no box could be written in {shared}"
    assert errors.count(text) == 1
    assert f"folder {taken.name} belongs to uid 65533" in errors
    assert any(text in frame["notices"][0] for frame in exporter.frames("state") if "notices" in frame)
    assert not list(taken.iterdir())


def test_a_folder_that_cannot_be_used_is_said_once(exporter: Any, start: Start) -> None:
    """And nothing else becomes of it: the box still goes over the socket."""
    process = start(
        """
        while not recorder._calls.sender._answered: time.sleep(0.01)
        raise ValueError("x")
        """,
        TACHOGRAPH_BLACKBOX="/proc/self/boxes",
    )
    status, errors = process.end()
    assert status == 1
    assert errors.count("no box could be written in /proc/self/boxes") == 1
    assert received(exporter)["reason"] == "failed: exception"


def test_sigusr2_asks_for_a_box(exporter: Any, start: Start) -> None:
    """Where the environment asks for boxes; the process goes on, and its own system calls are not interrupted."""
    process = start(
        """
        receiver, sender = os.pipe()
        say("ready")
        os.read(receiver, 1)
        """,
        TACHOGRAPH_BLACKBOX="1",
    )
    process.hear("ready")
    exporter.wait_for()
    exporter.next_state()
    process.popen.send_signal(signal.SIGUSR2)
    box = received(exporter)
    assert box["reason"] == "SIGUSR2"
    assert box["where"] == "<string>:8 <module>"
    exporter.next_state()
    assert process.popen.poll() is None


def test_sigusr2_reaches_a_rank_that_runs_no_python(exporter: Any, start: Start) -> None:
    """As in a hung collective; also after the program has closed all descriptors."""
    process = start(
        "sender = recorder._calls.sender\nwhile not sender._answered: time.sleep(0.01)\n"
        "old = sender._connection; os.closerange(3, 1024)\n"
        "while sender._connection in (None, old) or not sender._answered: time.sleep(0.01)\n" + BLOCKED_IN_C,
        TACHOGRAPH_BLACKBOX="1",
    )
    process.hear("ready")
    exporter.next_state()
    process.popen.send_signal(signal.SIGUSR2)
    assert received(exporter)["where"] == "<string>:18 <module>"


@pytest.mark.parametrize("variable", ["", "0", "off"])
def test_without_the_variable_sigusr2_is_not_ours(exporter: Any, start: Start, variable: str) -> None:
    """It ends the process, as it does without a recorder."""
    process = start("say('ready'); time.sleep(30)", TACHOGRAPH_BLACKBOX=variable)
    process.hear("ready")
    exporter.next_state()
    process.popen.send_signal(signal.SIGUSR2)
    assert process.end() == (-signal.SIGUSR2, "")


HELD = """
def caught():
    line = next(line for line in open("/proc/self/status") if line.startswith("SigCgt"))
    return int(line.split()[1], 16) >> signal.SIGUSR2 - 1 & 1
"""
TAKEN = {
    "Python": "signal.signal(signal.SIGUSR2, lambda *_: say('mine'))",
    "C": """
import ctypes
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def mine(number): os.write(1, b"mine\\n")
ctypes.CDLL(None).signal(12, mine)
""",
    "faulthandler": """
import faulthandler
pipe = os.pipe()
threading.Thread(target=lambda: os.read(pipe[0], 1) and say("mine"), daemon=True).start()
faulthandler.register(signal.SIGUSR2, file=pipe[1], all_threads=False)
""",
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("taken", TAKEN)
def test_a_handler_of_sigusr2_stays(exporter: Any, start: Start, taken: str, when: str) -> None:
    """Whether it was there before or came after, also when the recorder is closed.

    While ours is given back, once, after another has come, the signal is ignored for a moment: that is waited for.
    """
    again = "again = Recorder(run='again')"
    if when == "after":
        again += "\nwhile not caught(): time.sleep(0.01)"
    go = exporter.path.parent / "go"
    first, then = (TAKEN[taken], again) if when == "before" else (again, TAKEN[taken])
    process = start(
        f"{HELD}\nrecorder.close()\n"
        "while threading.active_count() > 1: time.sleep(0.01)\n"  # it may hold the signal for longer than `close` waits
        f"{first}\n{then}\n"
        "from tachograph.client.transport import box_signal\n"
        "while box_signal._dump is not None: time.sleep(0.01)\n"
        "say('ready')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "again.close(); say('closed'); signal.raise_signal(signal.SIGUSR2); say('alive')",
        TACHOGRAPH_BLACKBOX="1",
    )
    process.hear("ready")
    process.popen.send_signal(signal.SIGUSR2)
    process.hear("mine")
    exporter.next_state()
    exporter.next_state()
    go.touch()
    process.hear("closed")
    assert process.end() == (0, "")
    assert exporter.frames("box") == []


@pytest.mark.parametrize("taken", ["", TAKEN["C"]])
def test_a_signal_that_comes_when_it_is_given_back_ends_no_training(start: Start, taken: str) -> None:
    """In the moment in which neither our handler has it nor the one that is there without us."""
    process = start(
        HELD
        + """
import faulthandler
plain = faulthandler.unregister
def unregister(number):
    plain(number)
    signal.raise_signal(signal.SIGUSR2)
    say("given back")
while not caught(): time.sleep(0.01)
faulthandler.unregister = unregister
"""
        + taken
        + "\nrecorder.close()\nwhile threading.active_count() > 1: time.sleep(0.01)\nsay('alive')",
        TACHOGRAPH_BLACKBOX="1",
    )
    process.hear("given back")
    process.hear("alive")
    assert process.end() == (0, "")


def test_a_handler_that_comes_at_the_same_moment_stays(exporter: Any, start: Start) -> None:
    """Though it comes after the look whether there is one: in C, of a thread that runs meanwhile."""
    process = start(
        "from tachograph.client.transport import signal_dump\n"
        "copy, taken = signal_dump.copy_high, threading.Event()\n"
        f"def copy_late(number):\n if not taken.is_set():\n  global mine\n{textwrap.indent(TAKEN['C'], '  ')}\n"
        "  taken.set()\n return copy(number)\n"
        "signal_dump.copy_high = copy_late\n"
        "again = Recorder(run='again'); taken.wait()\n"
        "while not again.received: time.sleep(0.01)\n"
        "signal.raise_signal(signal.SIGUSR2); again.close(); signal.raise_signal(signal.SIGUSR2)",
        ", enabled=False",
        TACHOGRAPH_BLACKBOX="1",
    )
    process.hear("mine")
    process.hear("mine")
    assert process.end() == (0, "")


def test_a_handler_that_comes_between_our_look_and_ours_is_called_too(start: Start) -> None:
    """It was there first as far as anybody can tell, and has the signal alone when the recorder is closed."""
    process = start(
        HELD + "import faulthandler\n"
        "from tachograph.client.transport import box_signal\n"
        "plain = faulthandler.register\n"
        f"def register(*given, **named):\n global mine\n{textwrap.indent(TAKEN['C'], ' ')}\n"
        " plain(*given, **named)\n"
        "faulthandler.register = register\n"
        "again = Recorder(run='again')\n"
        "while box_signal._dump is None: time.sleep(0.01)\n"  # it reads whose the signal is after it has taken it
        "for _ in range(2): signal.raise_signal(signal.SIGUSR2)\n"
        "again.close()\nwhile threading.active_count() > 1: time.sleep(0.01)\n"
        "signal.raise_signal(signal.SIGUSR2)",
        ", enabled=False",
        TACHOGRAPH_BLACKBOX="1",
    )
    for _ in range(3):
        process.hear("mine")
    assert process.end() == (0, "")


def test_sigusr2_is_given_back(exporter: Any, start: Start) -> None:
    """With the last recorder, and in a child made by fork, also by a side thread."""
    process = start(
        HELD
        + """
def until(held):
    while bool(caught()) != held: time.sleep(0.01)
until(True)
if not (child := os.fork()):
    os._exit(caught())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread = threading.Thread(target=os.fork); thread.start(); thread.join()
if os.getpid() != os.getpgrp(): os._exit(caught())
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
again = Recorder(run="again")
recorder.close()
until(True)
again.close()
until(False)
assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
        """,
        TACHOGRAPH_BLACKBOX="1",
    )
    assert process.end() == (0, "")


@pytest.fixture
def standing(exporter: Any, start: Start) -> Any:
    """A process whose sixth batch never comes, and which takes a second for long."""
    return start(
        """
        from tachograph.client.signals import standstill
        standstill.STANDSTILL_SECONDS = 1.0
        def load_shard(number):
            while number == 5: time.sleep(1000)
            return number
        def batches():
            for number in range(10): yield load_shard(number)
        for batch in recorder.data(batches()):
            with recorder.step(): time.sleep(0.01)
        """,
        TACHOGRAPH_BLACKBOX=str(exporter.path.parent / "boxes"),
    )


def test_a_rank_that_stands_still_leaves_one_box(exporter: Any, standing: Any) -> None:
    """With the line at which it does, as a file and over the socket; no second one as long as it stands there."""
    box = received(exporter)
    assert box["where"] == "<string>:9 load_shard"
    assert box["reason"].startswith("no step for ")
    assert (box["phase"], box["step"]) == ("data", 5)
    for _ in range(3):
        exporter.next_state()
    assert {frame["id"] for frame in exporter.frames("box")} == {1}
    assert file_of(exporter.path.parent / "boxes") == box
