"""`tachograph bisect` with real commands: trials, state, interrupts, and hung commands with children that flee."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tachograph.bisect.command import main
from tachograph.bisect.trial import run
from tests.schemas import conforms
from tests.waiting import DEADLINE, until

BISECT = (sys.executable, "-m", "tachograph", "bisect")

FLEEING = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
def note(name):
    with (folder / "started").open("a") as file:
        file.write(f"{name} {os.getpid()}\\n")
if os.fork() == 0:                      # a worker of a launcher, in a session of its own
    os.setsid()
    if os.fork() == 0:                  # and a daemon, whose parent is gone
        note("daemon")
        time.sleep(600)
    note("worker")
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
note("main")
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder: state and logs go there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def is_running(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_the_breaking_point_of_a_command(place: Path, capsys: Any) -> None:
    """The largest number that works, the smallest that fails, and what changes there; each trial has its log."""
    script = "echo trying {}; test {} -lt 11"
    assert main(["ranks", "--good", "1", "--bad", "16", "--", "sh", "-c", script]) == 0
    shown = capsys.readouterr()
    first, *more = shown.out.splitlines()
    assert first == "largest number of ranks that works: 10; smallest that fails: 11 (8 runs)"
    assert any(line.startswith("Nodes: 2 nodes") for line in more)
    assert "  8  10  works in " in shown.err
    logs = sorted(path.read_text(encoding="utf-8") for path in (place / "tachograph-bisect-ranks.json.logs").iterdir())
    assert "trying 11\n" in logs
    assert len(logs) == 8


def test_a_node_is_named(capsys: Any) -> None:
    """A command gets the nodes as a list, their number and the first; --json has it all."""
    script = 'case ",{}," in *,gpu3,*) echo {count} {first}; exit 3;; esac'
    arguments = ["nodes", "--bad", "gpu[1-8]", "--good", "login", "--fewest", "2", "--json", "--", "sh", "-c", script]
    assert main(arguments) == 0
    found = conforms("bisect", capsys.readouterr().out)
    assert (found["found"], found["node"], found["rounds"]) == (True, "gpu3", 5)
    last = found["trials"][-1]
    assert (last["value"], last["status"], last["works"]) == ("gpu3,login", 3, False)
    assert Path(last["log"]).read_text(encoding="utf-8") == "2 gpu3\n"


def test_what_is_known_is_not_run_again(place: Path, capsys: Any) -> None:
    """The same command with a finished state runs nothing; another one is refused, and the state is kept."""
    words = ["batch", "--good", "1", "--bad", "4", "--", "sh", "-c", "echo {} >> tried; test {} -lt 3"]
    assert main(words) == 0
    tried = (place / "tried").read_text(encoding="utf-8")
    assert main(words) == 0
    assert (place / "tried").read_text(encoding="utf-8") == tried
    assert "tachograph bisect: 6 trials of tachograph-bisect-batch.json known" in capsys.readouterr().err
    assert main([*words[:4], "8", *words[5:]]) == 4
    assert "is of another bisection (bad differ)" in capsys.readouterr().err


def test_ctrl_c_and_on_from_there(place: Path) -> None:
    """The trial under way is ended and forgotten, the others are kept: the next start runs what was not known."""
    script = "echo {} >> tried; if [ {} = 4 ] && [ ! -e go ]; then sleep 600; fi; test {} -lt 5"
    words = [*BISECT, "layers", "--good", "1", "--bad", "8", "--", "sh", "-c", script]
    with subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, text=True, start_new_session=True) as first:
        until(lambda: (place / "tried").exists() and "4" in (place / "tried").read_text(encoding="utf-8"))
        first.send_signal(signal.SIGINT)
        said = first.communicate(timeout=DEADLINE)[1]
    assert first.returncode == 130
    assert "the same command goes on" in said
    assert [one["value"] for one in json.loads((place / "tachograph-bisect-layers.json").read_text())["trials"]] == [
        "1",
        "8",
    ]
    (place / "go").touch()
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("largest number of layers that works: 4; smallest that fails: 5")
    assert (place / "tried").read_text(encoding="utf-8").split()[:4] == ["1", "8", "4", "4"]


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process that the bisection did not start."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def begun(place: Path) -> dict[str, int]:
    """Return the processes of the fleeing program by what they are."""
    path = place / "started"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name: int(process) for name, process in map(str.split, lines)}


def running(place: Path) -> dict[str, bool]:
    """Return which of them are running."""
    return {name: is_running(process) for name, process in begun(place).items()}


@pytest.fixture
def fleeing(place: Path) -> Iterator[str]:
    """A shell command that works with 1 and flees with 2; what is left of it is ended."""
    (place / "fleeing.py").write_text(FLEEING, encoding="utf-8")
    yield f"if [ {{}} = 1 ]; then exit 0; fi; exec {sys.executable} fleeing.py {place}"
    for process in begun(place).values():
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)


def test_an_interrupted_command_is_ended_with_all_it_started(place: Path, fleeing: str, bystander: int) -> None:
    """Its worker in another session, which ignores SIGTERM, and its daemon are gone; what it did not start is not."""
    words = [*BISECT, "ranks", "--good", "1", "--bad", "2", "--grace", "100ms", "--", "sh", "-c", fleeing]
    with subprocess.Popen(words, cwd=place, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        until(lambda: running(place) == {"main": True, "worker": True, "daemon": True})
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
    assert running(place) == {"main": False, "worker": False, "daemon": False}
    assert is_running(bystander)


@pytest.mark.parametrize("ready", ["main", "daemon"])
def test_a_killed_bisection_leaves_nothing_running(place: Path, fleeing: str, bystander: int, ready: str) -> None:
    """SIGKILL gives a bisection no time for anything: its command ends all the same, with workers and daemons."""
    words = [*BISECT, "ranks", "--good", "1", "--bad", "2", "--grace", "1h", "--", "sh", "-c", fleeing]
    with subprocess.Popen(words, cwd=place, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        until(lambda: ready in running(place))
        process.kill()
    until(lambda: begun(place).keys() >= {"main"} and not any(running(place).values()))
    assert is_running(bystander)


def test_a_killed_warden_is_reported_and_leaves_nothing_running(place: Path, fleeing: str) -> None:
    """What stands between a bisection and its command may be killed too."""
    words = [*BISECT, "ranks", "--good", "1", "--bad", "2", "--grace", "100ms", "--", "sh", "-c", fleeing]
    with subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        until(lambda: running(place) == {"main": True, "worker": True, "daemon": True})
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
        os.kill(int(children[0]), signal.SIGKILL)
        said = process.communicate(timeout=DEADLINE)[1]
    assert process.returncode == 4
    assert "what watches over it was killed" in said
    assert not any(running(place).values())


def test_a_command_sees_the_environment_of_the_bisection(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python in the command imports from where it would without a bisection."""
    show = ["sh", "-c", 'echo "${PYTHONSAFEPATH-unset} $TACHOGRAPH_BISECT_VALUE"']
    for given in (None, "", "yes"):
        monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
        if given is not None:
            monkeypatch.setenv("PYTHONSAFEPATH", given)
        run("7", show, place / "log", None, 0.1)
        assert (place / "log").read_text(encoding="utf-8") == f"{'unset' if given is None else given} 7\n"


def test_a_hung_command_has_failed_and_is_ended(place: Path, fleeing: str) -> None:
    """Its time is up: it counts as failed, and nothing that it started by then is left."""
    limits = ("--time-limit", "1500ms", "--grace", "100ms")
    words = [*BISECT, "ranks", "--good", "1", "--bad", "2", *limits, "--json", "--", "sh", "-c", fleeing]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert "fails: not done after" in done.stderr
    assert {(one["value"], one["status"]) for one in conforms("bisect", done.stdout)["trials"]} == {
        ("1", 0),
        ("2", None),
    }
    assert not any(running(place).values())


def test_what_was_there_before_is_not_ended(place: Path, bystander: int) -> None:
    """A child of the same process that is none of the run's."""
    assert run("1", ["sh", "-c", "exit 3"], place / "log", None, 0.1).status == 3
    assert is_running(bystander)


def test_what_a_command_leaves_behind_is_ended(place: Path) -> None:
    """A worker that outlives its launcher would be met by the next trial."""
    script = "setsid sleep 600 & echo $! > left-{}; test {} -lt 2"
    words = [*BISECT, "ranks", "--good", "1", "--bad", "2", "--", "sh", "-c", script]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert not any(is_running(int(path.read_text())) for path in place.glob("left-*"))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["no-such-program", "{}"], "cannot run 'no-such-program': No such file or directory"),
        (["sh", "-c", "no-such-program {}"], "127: a program that was not found"),
        (["sh", "-c", "exit 125 # {}"], "cannot be tested"),
    ],
)
def test_a_command_that_cannot_be_run_is_no_failure(command: list[str], says: str, capsys: Any) -> None:
    """A typing error would else look like a scale at which all fails."""
    assert main(["ranks", "--good", "1", "--bad", "2", "--", *command]) == 4
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ranks", "--good", "1", "--bad", "8"], "expected -- and the command"),
        (["ranks", "--good", "1", "--bad", "8", "--", "true"], "has no {}"),
        (["ranks", "--bad", "8", "--", "echo", "{}"], "--good is missing"),
        (["ranks", "--good", "eight", "--bad", "8", "--", "echo", "{}"], "expected a whole number"),
        (["ranks", "--good", "8", "--bad", "8", "--", "echo", "{}"], "are both 8"),
        (["ranks", "--good", "1", "--bad", "8", "--step", "0", "--", "echo", "{}"], "must be 1 or more"),
        (["ranks", "--good", "1", "--bad", "8", "--time-limit", "5", "--", "echo", "{}"], "is not a duration"),
        (["nodes", "--good", "a", "--bad", "a,b", "--", "echo", "{}"], "a is in --good and in --bad"),
        (["nodes", "--bad", "a[", "--", "echo", "{}"], "is not a list of nodes"),
        (["speed", "--bad", "8", "--", "echo", "{}"], "expected one of ranks, nodes, batch, layers"),
        (["ranks", "--good", "1", "--bad", "8", "--flaky", "60", "--", "echo", "{}"], "below 45"),
    ],
)
def test_wrong_arguments(arguments: list[str], says: str, capsys: Any) -> None:
    """Status 2, and nothing is run or written."""
    assert main(arguments) == 2
    assert says in capsys.readouterr().err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\x00", b'{"tachograph_bisect": 1, "trials": [5], "asked": {}}'])
def test_a_damaged_state_is_named_and_kept(content: bytes, capsys: Any) -> None:
    """Nothing is lost by it: what to do is said."""
    path = Path("state.json")
    path.write_bytes(content)
    words = ["ranks", "--good", "1", "--bad", "2", "--state", str(path), "--", "echo", "{}"]
    assert main(words) == 4
    said = capsys.readouterr().err
    assert "remove it" in said
    assert "Error(" not in said
    assert path.read_bytes() == content


def test_ends_that_are_not_as_given(capsys: Any) -> None:
    """Status 1: what fails from the beginning has no scale."""
    assert main(["ranks", "--good", "1", "--bad", "8", "--", "sh", "-c", "exit {}"]) == 1
    assert "ranks 1 fails already: nothing to bisect. Give another --good." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("test {} -lt 24", ["ranks", "--good", "8", "--bad", "64", "--step", "8"]),
        ("false {}", ["nodes", "--bad", "gpu[1-2]"]),
    ],
)
def test_it_fits_a_terminal(place: Path, fits: Callable[..., None], script: str, arguments: list[str]) -> None:
    """Whatever is found, and where nothing is."""
    fits(lambda: main([*arguments, "--", "sh", "-c", script]))
