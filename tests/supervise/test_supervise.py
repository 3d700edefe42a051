"""`tachograph supervise` with a real exporter and real processes: restarts, signals, kills, and nothing left behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tachograph.__main__ import main
from tachograph.collect.private_folder import PrivateFolder
from tachograph.servers.http_client import ask
from tachograph.supervise import evidence, evidence_parts, journal, journal_commands, warden
from tachograph.supervise.launcher import nodes_needed
from tests.supervise.conftest import Supervised, is_running, until
from tests.supervise.world import World, hung, killed_at, run

pytestmark = pytest.mark.timeout(120)

DAEMON = """
import os, signal, sys, time
from pathlib import Path
from typing import ClassVar
if os.fork() == 0:  # a worker that leaves the session, and does not end by SIGTERM
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1], f"pid-{os.getpid()}").touch()
time.sleep(600)
"""


def pids(folder: Path, count: int) -> list[int]:
    found = until(lambda: len(names := [path.name for path in folder.glob("pid-*")]) >= count and names)
    return [int(name.partition("-")[2]) for name in found]


def test_a_killed_rank_is_restarted_from_where_it_was(supervised: Supervised) -> None:
    """The next attempt begins at the checkpoint with its plan, and finishes; the evidence is of the one that died."""
    status, said = supervised.end(supervised.ranks("act", "--fail", "die@25"))
    assert status == 0, said
    assert supervised.decisions() == [("act", "dead", "restart")]
    assert [plan[2:4] for plan in supervised.plans()] == [[0, ""]] * 2 + [[1, "dead"]] * 2
    assert {plan[4] for plan in supervised.plans()[2:]} == {20}
    (kept,) = (supervised.state / "evidence").iterdir()
    assert "a rank was killed" in (kept / "triage.txt").read_text()
    assert '"died"' in (kept / "node.json").read_text()
    assert kept.stat().st_mode & 0o777 == 0o700
    lines = said.splitlines()
    assert all(line.startswith("tachograph supervise: ") for line in lines)
    assert lines[1].startswith(f"tachograph supervise: Rank 1 of run {supervised.name} died ")
    assert " To be done: restart, within its budget " in lines[1]


def test_a_damaged_checkpoint_is_not_restarted_into(supervised: Supervised) -> None:
    """A file of the newest one is another than its SHA256SUMS says: named, and the one before it is loaded."""
    slow = ["--step-seconds", "0.15"]  # the exporter looks once a second which checkpoints there are
    status, said = supervised.end(supervised.ranks("act", "--fail", "die@35", "--damage", *slow))
    assert status == 0, said
    damaged = supervised.folder / "checkpoints" / "30" / "state"
    assert f"from the checkpoint of step 20 (not that of step 30: {damaged} is damaged" in said
    path = str(supervised.folder / "checkpoints" / "20")
    assert [plan[2:6] for plan in supervised.plans()[2:]] == [[1, "dead", 20, path]] * 2


def test_a_job_that_is_not_to_go_on(supervised: Supervised) -> None:
    """Its rank says so by its exit code, whatever its launcher makes of that."""
    status, said = supervised.end(supervised.ranks("act", "--fail", "exit-17@12"))
    assert status == 1
    assert supervised.decisions() == [("act", "failed", "stop")]
    assert "17 is the exit code of Megatron-LM for a job that must not go on" in said


def test_shadow_mode_leaves_the_run_as_it_is(supervised: Supervised) -> None:
    """The same failure: the status is the command's, one attempt, no evidence, and what would have been done."""
    status, said = supervised.end(supervised.ranks("shadow", "--fail", "die@25"))
    assert status == 1
    assert supervised.decisions() == [("would", "dead", "restart")]
    assert len(supervised.plans()) == 2
    assert not (supervised.state / "evidence").exists()
    assert "would restart (shadow mode: nothing is done)" in said


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "trigger"), [("stop", "frozen"), ("loop", "hung")])
def test_a_standstill_is_ended_and_restarted(supervised: Supervised, kind: str, trigger: str) -> None:
    """A rank that is stopped, or loops for ever: its processes are gone before the next attempt begins."""
    process = supervised.ranks("act", "--fail", f"{kind}@60", "--steps", "100", TACHOGRAPH_HANG_SECONDS="10")
    old = [plan[1] for plan in until(lambda: len(supervised.plans()) >= 2 and supervised.plans())]
    until(lambda: len(supervised.plans()) > 2)
    assert not any(map(is_running, old))
    status, said = supervised.end(process)
    assert status == 0, said
    assert supervised.decisions() == [("act", trigger, "restart")]
    assert supervised.plans()[-1][3] == trigger


def test_the_status_and_output_are_the_commands(supervised: Supervised) -> None:
    """Nothing is written to standard output, and a command that is not there is status 127."""
    process = supervised.start("act", ["sh", "-c", "echo trained; exit 7"])
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, "trained\n")
    assert "nothing is known of its ranks" in said
    status, said = supervised.end(supervised.start("act", [supervised.folder / "none"]))
    assert status == 127
    assert said.endswith("the command cannot be run: No such file or directory\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on(supervised: Supervised, number: int) -> None:
    """The command decides how it ends by it, and that is how the supervisor ends."""
    traps = "trap 'exit 9' TERM INT; echo ready; while :; do sleep 0.05; done"
    process = supervised.start("act", ["bash", "-c", traps])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert supervised.end(process)[0] == 9
    process = supervised.start("act", ["bash", "-c", "echo ready; exec sleep 600"])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert supervised.end(process)[0] == -number
    assert [one["how"] for one in supervised.entries() if one["kind"] == "ended"] == ["external"] * 2


def test_a_killed_supervisor_leaves_no_orphan_and_no_twin(supervised: Supervised) -> None:
    """`kill -9`: all that the command started ends, daemons too; only then does another supervisor start it again."""
    command = [sys.executable, "-c", DAEMON, supervised.folder]
    process = supervised.start("act", command)
    first = pids(supervised.folder, 2)
    second = supervised.start("act", command)
    status, said = supervised.end(second)
    assert status == 4
    assert f"process {process.pid} on " in said
    assert all(map(is_running, first))
    for path in supervised.folder.glob("pid-*"):
        path.unlink()
    process.kill()
    process.wait()
    third = supervised.start("act", command)
    pids(supervised.folder, 2)
    assert not any(map(is_running, first))
    third.kill()
    ends = [one for one in supervised.entries() if one["kind"] == "ended"]
    assert [one["how"] for one in ends] == ["lost"]


def test_a_killed_warden_leaves_no_orphan(supervised: Supervised) -> None:
    """The process between the supervisor and the training: all ends with it, and the supervisor with a status."""
    process = supervised.start("act", [sys.executable, "-c", DAEMON, supervised.folder])
    ours = pids(supervised.folder, 2)
    (warden,) = (int(one) for one in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    os.kill(warden, signal.SIGKILL)
    status, _ = supervised.end(process)
    assert status == 3
    assert not any(map(is_running, ours))


def test_a_confirmed_restart(supervised: Supervised, capsys: pytest.CaptureFixture[str]) -> None:
    """Ask mode: the command that question and page name lets it be carried out; a second time there is no question."""
    process = supervised.ranks("ask", "--fail", "die@25")
    asked = until(lambda: [one for one in supervised.entries() if one.get("outcome") == "asked"])[0]
    shown = f'action="restart",question="{asked["id"]}"'.encode()
    until(lambda: shown in ask(f"{supervised.exporter.url}/metrics", 60.0).body)
    confirm = ["supervise", "confirm", asked["id"], "--state", str(supervised.state)]
    assert main(["supervise", "confirm", "abcdef", "--state", str(supervised.state)]) == 1
    assert main(confirm) == 0
    assert capsys.readouterr().out.startswith("confirmed: restart, within its budget")
    status, said = supervised.end(process)
    assert status == 0, said
    assert " ".join(confirm[1:]) in said
    assert supervised.decisions() == [("asked", "dead", "restart"), ("act", "dead", "restart")]
    assert main(confirm) == 1


def test_a_supervisor_that_has_ended_hears_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever confirms learns that nobody carries it out, and leaves no answer for a later one."""
    world = World(tmp_path, lambda *_: hung(), mode="ask")
    world.on_wait = killed_at(60.0)
    with pytest.raises(KeyboardInterrupt):
        world.supervise()
    lines = (tmp_path / journal.NAME).read_text().replace(f'"pid":{os.getpid()}', f'"pid":{2**22 - 1}')
    (tmp_path / journal.NAME).write_text(lines)
    (asked,) = [one["id"] for one in world.entries if one["kind"] == "decision"]
    assert main(["supervise", "confirm", asked, "--state", str(tmp_path)]) == 1
    assert f"the supervisor that asked, process {2**22 - 1}, has ended" in capsys.readouterr().err
    assert not list((tmp_path / "confirmed").iterdir())


def test_history_and_confirm_without_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says where one was looked for."""
    for words in (["history"], ["confirm", "abcdef"]):
        assert main(["supervise", *words, "--state", str(tmp_path)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert f"{tmp_path}/journal.jsonl: No such file or directory" in said.err
        assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected -- and the command to run"),
        (["--"], "expected -- and the command to run"),
        (["train.py"], "'train.py' is one argument too many"),
        (["--polcy", "act", "--", "true"], "unknown option --polcy; did you mean --policy?"),
        (["--mode", "atc", "--", "true"], "--mode: 'atc': did you mean act?"),
        (["--run", "a\nb", "--", "true"], "cannot name a run"),
        (["--exporter", "ftp://x", "--", "true"], "--exporter ftp://x: expected HOST"),
        (["--alertmanager", "ftp://x", "--", "true"], "expected HOST"),
        (["--", "torchrun", "--nnodes", "2", "train.py"], "the command is one of 2 nodes'"),
        (["--", "torchrun", "--nnodes=4:8", "train.py"], "the command is one of 4 nodes'"),
        (["--", "bash", "-c", "exec torchrun --nnodes 2 train.py"], "the command is one of 2 nodes'"),
        (["--", "accelerate", "launch", "--num_machines", "3", "train.py"], "the command is one of 3 nodes'"),
    ],
)
def test_wrong_arguments(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, status 2, and nothing is started."""
    assert main(["supervise", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "nodes", "count"),
    [
        (["torchrun", "train.py"], "2", 2), (["torchrun", "--nnodes", "1", "train.py"], "2", 1),
        (["torchrun", "--nnodes=1:8", "train.py"], "", 1), (["torchrun", "train.py"], "1", 1),
        (["bash", "-c", "torchrun --nnodes $NODES train.py"], "", 1), (["python", "train.py", "--nnodes"], "", 1),
        (["train", "--nnodes", "2.5"], "", 1), (["train", "--nnodes", "9" * 5000], "x", 999_999),
    ],
)  # fmt: skip
def test_how_many_nodes_a_command_needs(words: list[str], nodes: str, count: int) -> None:
    """As its launcher is told, at least; one of several nodes cannot be restarted alone, nor judged."""
    assert nodes_needed(words, {"PET_NNODES": nodes}) == count


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a journal nothing is started: a person is at the keyboard."""
    (tmp_path / "file").touch()
    ran = tmp_path / "ran"
    assert main(["supervise", "--state", str(tmp_path / "file"), "--", "touch", str(ran)]) == 1
    assert "the journal cannot be opened" in capsys.readouterr().err
    assert not ran.exists()


def test_texts_fit(supervised: Supervised, fits: object) -> None:
    """The table in a terminal of 80 columns."""
    supervised.end(supervised.ranks("shadow", "--fail", "die@5", "--steps", "10"))
    fits(lambda: main(["supervise", "history", "--state", str(supervised.state)]))  # type: ignore[operator]


@pytest.mark.slow
def test_a_healthy_run_is_cheap_and_undisturbed(supervised: Supervised) -> None:
    """A run of 20 s: one attempt, no decision, and at most 40 MB for both processes, what they share counted once."""
    process = supervised.ranks("act", "--steps", "1000")
    until(lambda: len(supervised.plans()) == 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert sum(map(own_kilobytes, [process.pid, *map(int, children)])) < 40_000
    assert supervised.end(process)[0] == 0
    assert supervised.decisions() == []


def own_kilobytes(pid: int) -> int:
    """Return a process's proportional set size: of what several processes have in common, its share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class Full(io.StringIO):
    """A log on a full disk."""

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stderr", [Full(), None])
def test_what_is_said_may_not_be_heard(monkeypatch: pytest.MonkeyPatch, stderr: object) -> None:
    """A full disk, a terminal that is gone, no standard error at all: no reason to end a training."""
    monkeypatch.setattr(sys, "stderr", stderr)
    journal_commands.say("x")


def test_without_a_standard_error_and_with_a_long_command(tmp_path: Path) -> None:
    """What it prints is in no file of ours, 200 KiB of words are no obstacle, and the journal has no secret."""
    secret = "sk-4f9aQ7x2Lm8Zt1"
    inner = ["sh", "-c", "echo lo''ud >&2; exit 0", "sh", "--api-key", secret, *["x" * 1000] * 200]
    words = [sys.executable, "-m", "tachograph", "supervise", "--run", "r", "--state", str(tmp_path), "--", *inner]
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *words], check=False, timeout=60)
    assert done.returncode == 0
    text = (tmp_path / journal.NAME).read_text()
    assert "loud" not in text
    assert secret not in text
    assert [one["kind"] for one in journal.read(tmp_path / journal.NAME)] == [
        "supervisor", "attempt", "started", "ended",
    ]  # fmt: skip


def test_a_journal_of_another_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One folder for two runs: the second would go on with the budget and the checkpoints of the first."""
    book = journal.Journal(tmp_path)
    book.write("supervisor", run="a", mode="act", **journal.identity())
    book.close()
    assert main(["supervise", "--run", "b", "--state", str(tmp_path), "--", "false"]) == 1
    assert "is the journal of run a: give run b a folder of its own" in capsys.readouterr().err


def test_only_the_owner_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user whom the folder admits is told so, and not that it is confirmed."""
    (tmp_path / journal.NAME).touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    assert main(["supervise", "confirm", "abcdef", "--state", str(tmp_path)]) == 1
    assert "belongs to another user" in capsys.readouterr().err


class InKernel(subprocess.Popen[bytes]):
    """A process that SIGKILL does not end, as its file system hangs: to wait for it is to wait for ever."""

    made: ClassVar[list[InKernel]] = []

    def kill(self) -> None:
        self.made.append(self)
        super().kill()

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None
        return super().wait(timeout)


def test_evidence_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over after 20 s, whether or not its process ends by that."""
    monkeypatch.setattr(evidence, "SECONDS", 0.1)
    monkeypatch.setattr(evidence, "own_process", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(evidence.subprocess, "Popen", InKernel)
    assert "has what there was" in evidence.keep({"": "http://localhost:1"}, run(), tmp_path / "evidence", [])
    assert InKernel.made[-1].wait(30.0) == -signal.SIGKILL


def test_a_folder_for_evidence_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on what the run hangs on: the supervisor does not touch it; why nothing is kept is said."""
    into = tmp_path / "a file" / "evidence"
    into.parent.touch()
    touched: list[str] = []

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            touched.extend(map(str, given))
            return real(*given, **named)

        return call

    with monkeypatch.context() as patched:
        for name in ("mkdir", "stat", "listdir", "scandir"):
            patched.setattr(os, name, noted(getattr(os, name)))
        said = evidence.keep({"": "http://localhost:1"}, run(), into, [])
    assert said == f"not kept: {into}: Not a directory"
    assert not [path for path in touched if str(tmp_path) in path]


def test_logs_are_kept_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ends, as boxes and pages have texts: a key that was printed is nobody's who reads the evidence."""
    monkeypatch.setattr(evidence_parts, "LOGS_BYTES", 400)
    secret = "hf_aQ7x2Lm8Zt1KdPwVbN"
    (tmp_path / "a.log").write_text(f"step 1\n{'x ' * 200}\nlogin with token {secret}\nValueError: no \xff shard\n")
    (tmp_path / "b.log").write_bytes(b"HF_TOKEN=" + secret.encode() + b"\xff\nlast line")
    with PrivateFolder(tmp_path / "kept") as folder:
        assert evidence_parts._logs([tmp_path / "a.log", tmp_path / "b.log"], folder) == "the ends of 2 of 2 files"
    kept = {path.name[3:]: path.read_text() for path in (tmp_path / "kept" / "logs").iterdir()}
    assert kept["a.log"] == "login with token [redacted]\nValueError: no \xff shard\n"
    assert kept["b.log"] == "HF_TOKEN=[redacted]\nlast line\n"


def test_the_lock_is_held_while_something_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor is gone, and a rank waits in the kernel: the warden stays until it goes, and with it the lock."""
    asked: list[float] = []

    class Stuck:
        awaited = 0

        def end(self, grace: float) -> int:
            asked.append(grace)
            if len(asked) == 1:
                os.kill(self.awaited, signal.SIGKILL)
            return 0 if len(asked) == 3 else -1

    for name, other in (("Descendants", Stuck), ("adopt_orphans", lambda: None), ("LEFT_ALONE", ())):
        monkeypatch.setattr(warden, name, other)
    control, alone = os.pipe()
    os.close(alone)
    heard, report = os.pipe()
    lock = os.open(os.devnull, os.O_RDONLY)
    given = json.dumps({"control": control, "report": report, "lock": lock, "grace": 1.0, "job": ""})
    monkeypatch.setattr(sys, "argv", ["warden", given, "sleep", "60"])
    warden.main()
    assert len(asked) == 3
    with os.fdopen(heard) as said:
        assert json.loads(said.read().splitlines()[-1]) == {"left": 0}
    os.close(control)
    os.close(lock)
