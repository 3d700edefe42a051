"""Exit codes that the exporter sees from outside: real processes, and the kernel's own answers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.ranks import process_end
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.process_end import GET_INFO, INFO, PeerProcess, ProcessEnds

SCRIPT = """
import os, signal, sys, time
from tachograph.client.recorder import Recorder
def record(run):
    recorder = Recorder(run=run)
    while not recorder._calls.sender._answered: time.sleep(0.01)
    with recorder.step(): pass
    return recorder
recorder = record(sys.argv[1])
"""


def spawn(code: str, *keep: int) -> subprocess.Popen[bytes]:
    """Start a process that does this once a byte comes in."""
    program = f"import os, signal, sys; os.write(1, b'.'); sys.stdin.buffer.read(1); {code}"
    command = [sys.executable, "-S", "-c", program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=keep)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"."  # it has been executed, and the kernel knows where its code begins
    process.stdout.close()
    return process


@pytest.fixture
def child() -> Iterator[Callable[[str], tuple[subprocess.Popen[bytes], PeerProcess]]]:
    """Start such a process, and hold it by a pidfd."""
    made: list[subprocess.Popen[bytes]] = []

    def start(code: str, proc: Path = Path("/proc"), *keep: int) -> tuple[subprocess.Popen[bytes], PeerProcess]:
        process = spawn(code, *keep)
        made.append(process)
        return process, PeerProcess(Peer(os.getuid(), process.pid), os.pidfd_open(process.pid), proc)

    yield start
    for process in made:
        process.kill()
        process.communicate()


def release(process: subprocess.Popen[bytes]) -> None:
    """Have a process end, and leave it a zombie."""
    assert process.stdin is not None
    process.stdin.write(b".")
    process.stdin.flush()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def kernel_tells_exit_codes() -> bool:
    """Whether this kernel is Linux 6.15 or later."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor)) >= (6, 15)


def test_a_zombie_tells_its_exit_code(child: Any) -> None:
    """A process that its parent has not collected yet has its status in /proc; before that it has none."""
    process, held = child("sys.exit(3)")
    assert held.wait_status() is None
    release(process)
    assert held.wait_status() == 3 << 8
    held.close()


@pytest.mark.skipif(not kernel_tells_exit_codes(), reason="PIDFD_INFO_EXIT is of Linux 6.15")
@pytest.mark.parametrize(
    ("code", "status"), [("sys.exit(3)", 3 << 8), ("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", 9)]
)
def test_a_collected_process_tells_its_exit_code(child: Any, tmp_path: Path, code: str, status: int) -> None:
    """The pidfd tells it as long as it is open, without /proc."""
    process, held = child(code, tmp_path)
    release(process)
    assert held.wait_status() is None
    process.wait()
    assert held.wait_status() == status
    held.close()


@pytest.mark.parametrize(("code", "status"), [("sys.exit(3)", 3 << 8), ("os.kill(os.getpid(), 9)", 9)])
def test_an_exit_code_is_there_before_the_files_are_closed(child: Any, code: str, status: int) -> None:
    """Whoever sees the end of a process's connection, and may see its exit code, sees that at once."""
    here, there = socket.socketpair()
    process, held = child(code, Path("/proc"), there.fileno())
    there.close()
    process.stdin.write(b".")
    process.stdin.flush()
    assert here.recv(1) == b""
    assert held.wait_status() == status
    held.close()
    here.close()


ASKED = {
    "asked": ("os.kill(os.getpid(), 15); time.sleep(9)", 15),
    "hung up": ("os.kill(os.getpid(), 1); time.sleep(9)", 1),
    "killed": ("os.kill(os.getpid(), 9)", None),
    "exits": ("os._exit(0)", None),
    "crashes": ("os.abort()", None),
    "handled": ("signal.signal(15, print); os.kill(os.getpid(), 15); os._exit(3)", None),
    "blocked": ("signal.pthread_sigmask(0, [15]); os.kill(os.getpid(), 15); os._exit(3)", None),
    "blocked and killed": ("signal.pthread_sigmask(0, [15]); os.kill(os.getpid(), 15); os.kill(os.getpid(), 9)", None),
}


@pytest.mark.parametrize("end", ASKED)
def test_that_a_process_was_asked_to_end_everybody_sees(child: Any, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Also an exporter of another user, before Linux 6.15: a signal that ended a process is pending for ever."""
    code, expected = ASKED[end]
    process, held = child(code)
    monkeypatch.setattr(process_end, "GET_INFO", 0)
    monkeypatch.setattr(held, "_shown", False)  # as /proc/PID/stat is to another user
    assert held.wait_status() is None
    release(process)
    assert held.wait_status() == expected
    process.wait()
    assert held.wait_status() is None
    held.close()


def test_the_kernels_numbers() -> None:
    """include/uapi/linux/pidfd.h: struct pidfd_info has 64 bytes in its first version, and _IOWR(0xFF, 11, …)."""
    assert INFO.size == 64
    assert GET_INFO == 0xC040FF0B


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    """A zombie that began at another time is not that process; what those see who may not see it is not known."""
    stat = tmp_path / "77" / "stat"
    stat.parent.mkdir()
    fields = ["Z"] + ["0"] * 18 + ["5000"] + ["0"] * 3 + ["4194304"] + ["0"] * 25 + ["256"]
    stat.write_text("77 (a ) Z 1) " + " ".join(fields))
    receiver, sender = os.pipe()  # no pidfd: the ioctl fails, as on an older kernel
    held = PeerProcess(Peer(0, 77), receiver, tmp_path)
    assert held.wait_status() == 256
    fields[19] = "5001"
    stat.write_text("77 (a ) Z 1) " + " ".join(fields))
    assert held.wait_status() is None
    fields[19], fields[49] = "5000", "0"
    stat.write_text("77 (a ) Z 1) " + " ".join(fields))
    assert held.wait_status() == 0
    held.close()
    fields[23] = "1"  # fs/proc/array.c: the beginning of the code for those who may not see it, as 0 is the exit status
    stat.write_text("77 (a ) Z 1) " + " ".join(fields))
    held = PeerProcess(Peer(0, 77), os.dup(sender), tmp_path)
    assert held.wait_status() is None
    held.close()
    os.close(sender)


def test_the_process_of_a_connection() -> None:
    """The kernel gives a pidfd of the peer; none of a process in another pid namespace, none of a closed socket."""
    here, there = socket.socketpair()
    mine = Peer(os.getuid(), os.getpid())
    held = PeerProcess.of(here, mine)
    assert held is not None
    assert held.wait_status() is None
    held.close()
    assert PeerProcess.of(here, Peer(os.getuid(), 0)) is None
    assert PeerProcess.of(None, mine) is None
    here.close()
    assert PeerProcess.of(here, mine) is None
    there.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_told_of_an_end(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a process ends, to each who asks; nothing of one that goes on or ends too late; each pidfd is closed."""
    before = descriptors()
    told: list[tuple[str, int]] = []

    async def main() -> None:
        ends = ProcessEnds(Limits())
        exits, killed, forgotten, late = (child(code) for code in ("sys.exit(4)", "os.kill(os.getpid(), 9)", "", ""))
        again = PeerProcess(exits[1].peer, os.pidfd_open(exits[0].pid))
        held = exits[1], killed[1], forgotten[1], again
        for name, each in zip(("exits", "killed", "forgotten", "again"), held, strict=True):
            ends.watch(each, lambda status, name=name: told.append((name, status)))  # type: ignore[misc]
        ends.forget(forgotten[1].peer)
        for process, _ in (exits, killed):
            release(process)
        while ends._waiting:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(process_end, "WATCH_SECONDS", 0.01)
        ends.watch(late[1], lambda code: told.append(("late", code)))
        while ends._waiting:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert sorted(told) == [("again", 4 << 8), ("exits", 4 << 8), ("killed", 9)]
    assert descriptors() == before + 4  # the children's standard inputs


def test_watched_processes_are_bounded(child: Any) -> None:
    """A user has no more pidfds than ranks, one for each process; what is closed leaves none."""
    before = descriptors()

    async def main() -> None:
        ends = ProcessEnds(Limits(ranks=2))
        started = [child("") for _ in range(4)]
        held = descriptors()
        for _, process in started:
            ends.watch(process, print)
        again = PeerProcess(started[0][1].peer, os.pidfd_open(started[0][0].pid))
        ends.watch(again, print)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert set(ends._waiting) == {(process.peer, None) for _, process in started[:2]}
        assert descriptors() <= held - 2
        ends.close()

    asyncio.run(main())
    assert descriptors() == before + 4


@pytest.fixture(scope="module")
def running(exporter_at: Callable[..., Any]) -> Any:
    return exporter_at("--no-gpu")


def script(running: Any, run: str, code: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TACHOGRAPH_SOCKET": str(running.socket)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT + code, run], env=environment, stderr=subprocess.DEVNULL)


def reason(running: Any, run: str) -> str | None:
    """The reason that a run's rank ended for, None if it has not."""
    found = [
        dict(labels)["reason"]
        for (name, labels), _ in running.scrape().values.items()
        if name == "tachograph_rank_ended_timestamp_seconds" and ("run", run) in labels
    ]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("run", "code", "expected"),
    [
        ("raised", "raise SystemExit(1)", "exit_code"),
        ("in-finally", "try: 1 / 0\nfinally: recorder.close()", "exit_code"),
        ("signalled", "raise SystemExit(143)", "terminated"),
        ("called", "sys.exit(1)", "exit_code"),
        ("finished", "raise SystemExit(0)", "finished"),
        ("exited", "os._exit(1)", "exit_code"),
        ("exited-well", "os._exit(0)", "finished"),
        ("bye-lost", "recorder._calls.sender._send_bye = lambda: None", "finished"),  # 0.2 s were too short for it
        ("default", "signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)", "terminated"),
        ("killed", "os.kill(os.getpid(), signal.SIGKILL)", "died"),
        ("crashed", "import ctypes; ctypes.string_at(0)", "died"),
        ("sigterm", "os.kill(os.getpid(), signal.SIGTERM)", "terminated"),
        ("sighup", "os.kill(os.getpid(), signal.SIGHUP)", "terminated"),
    ],
)
def test_how_processes_end(running: Any, run: str, code: str, expected: str) -> None:
    """An exit code that the client could not see is a failure, too; a death remains a death."""
    process = script(running, run, code)
    try:
        running.eventually(lambda: reason(running, run) == expected)
    finally:
        process.kill()
        process.wait()
    assert reason(running, run) == expected
    up = running.scrape().value("rank_up", run=run, rank=0)
    assert up == (expected == "finished")


RAW = """
import json, os, signal, socket, sys
def line(**fields): link.sendall(json.dumps({"v": 1, **fields}).encode() + b"\\n")
def connect():
    global link
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ["TACHOGRAPH_SOCKET"])
    line(type="hello", run=sys.argv[1], rank=0, pid=os.getpid() + int(sys.argv[2]))
    link.recv(4096)
    line(type="state", seq=1, time=1.0, step=5)
connect()
for command in sys.stdin: exec(command)
"""
"""A rank of any language, which does what it is told on its standard input; it may give a pid that is not its own."""


@pytest.fixture
def raw(running: Any) -> Iterator[Callable[..., Any]]:
    """Start such a rank: return how to tell it something."""
    made: list[subprocess.Popen[bytes]] = []

    def start(run: str, beside: int = 0) -> Callable[[str], None]:
        command = [sys.executable, "-S", "-c", RAW.replace("\\\\n", "\\n"), run, str(beside)]
        environment = {**os.environ, "TACHOGRAPH_SOCKET": str(running.socket)}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
        made.append(process)
        running.eventually(lambda: running.scrape().value("train_step", run=run, rank=0) == 5)

        def tell(code: str) -> None:
            assert process.stdin is not None
            process.stdin.write(code.encode() + b"\n")
            process.stdin.flush()

        return tell

    yield start
    for process in made:
        process.kill()
        process.communicate()


def connections(running: Any) -> float:
    value = running.scrape().value("exporter_connections", kind="rank")
    assert value is not None
    return float(value)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os._exit(1)", "exit_code"),
        ("os._exit(0)", "finished"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "terminated"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "died"),
    ],
)
def test_a_connection_that_breaks_is_no_death(running: Any, raw: Callable[..., Any], code: str, expected: str) -> None:
    """Its process lives: it is there until that ends, and it ended as that did; without a message or a connection."""
    run = f"broken-{expected}"
    before = connections(running)
    tell = raw(run)
    tell("link.close()")
    running.eventually(lambda: connections(running) == before)
    for _ in range(2):  # two ticks: longer than it may be open how a process ended
        assert running.scrape().value("rank_up", run=run, rank=0) == 1
        assert reason(running, run) is None
    tell(code)
    running.eventually(lambda: reason(running, run) == expected)


def test_a_process_that_becomes_another_program_is_no_rank_any_more(running: Any, raw: Callable[..., Any]) -> None:
    """The training is over, as with exit code 0: nothing is frozen while an uploader runs with which a script ends.

    Whatever that returns is its own.
    """
    tell = raw("executed")
    tell("os.execv('/bin/sh', ['sh', '-c', 'read word; exit 3'])")
    running.eventually(lambda: reason(running, "executed") == "finished")
    tell("go on")
    for _ in range(2):
        assert running.scrape().value("rank_up", run="executed", rank=0) == 1
        assert reason(running, "executed") == "finished"


@pytest.mark.parametrize("shown", [True, False])
def test_another_program_shows(child: Any, shown: bool) -> None:
    """By where it begins, for those who may see that, else by its name and its arguments."""
    process, held = child("os.execv('/bin/sh', ['sh', '-c', 'read word; exit 3'])")
    if not shown:
        held._shown = False
        held._program = held._program_of(held._fields())
    assert not held.runs_another
    process.stdin.write(b".")
    process.stdin.flush()
    end = time.monotonic() + 90
    while not held.runs_another and time.monotonic() < end:
        time.sleep(0.01)
    assert held.runs_another
    process.stdin.write(b"go on\n")
    process.stdin.flush()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not held.runs_another, "it has ended"
    held.close()


ON_IN_A_THREAD = """
import ctypes, threading
def go_on():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z": pass
    for command in sys.stdin: exec(command, globals())
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.parametrize("connection", ["closed", "silent"])
def test_the_end_of_the_main_thread_is_no_end(running: Any, raw: Callable[..., Any], connection: str) -> None:
    """Where other threads go on the process lives, whatever its state says, and the exit status is that of all."""
    run = f"threads-{connection}"
    before = connections(running)
    tell = raw(run)
    tell(f"exec({ON_IN_A_THREAD!r})")
    if connection == "closed":
        tell("link.close()")
        running.eventually(lambda: connections(running) == before)
    else:
        running.eventually(
            lambda: running.scrape().value("rank_state", run=run, rank=0, state="frozen") == 1, within=90
        )
    for _ in range(2):
        assert reason(running, run) is None
    tell("os._exit(3)")
    running.eventually(lambda: reason(running, run) == "exit_code")


def test_who_connects_again_goes_on(running: Any, raw: Callable[..., Any]) -> None:
    """As the same process, which has not been restarted."""
    before = connections(running)
    tell = raw("again")
    tell("link.close()")
    running.eventually(lambda: connections(running) == before)
    tell("connect()")
    running.eventually(lambda: connections(running) == before + 1)
    assert running.scrape().value("run_restarts", run="again", attempt=0) == 0
    tell("os._exit(1)")
    running.eventually(lambda: reason(running, "again") == "exit_code")


def test_ranks_of_one_process_end_with_it(running: Any, raw: Callable[..., Any]) -> None:
    """Each whose connection breaks is there until their process ends, also where another of them connects again."""
    before = connections(running)
    tell = raw("two-in-one")
    tell("first = link")
    tell("sys.argv[1] = 'two-in-one-b'; connect()")
    running.eventually(lambda: running.scrape().value("train_step", run="two-in-one-b", rank=0) == 5)
    tell("first.close(); link.close()")
    running.eventually(lambda: connections(running) == before)
    for _ in range(2):
        assert (reason(running, "two-in-one"), reason(running, "two-in-one-b")) == (None, None)
    tell("connect()")
    running.eventually(lambda: connections(running) == before + 1)
    tell("os._exit(1)")
    for run in ("two-in-one", "two-in-one-b"):
        running.eventually(lambda run=run: reason(running, run) == "exit_code")


def test_a_child_that_keeps_the_connection_does_not_keep_the_rank(running: Any, raw: Callable[..., Any]) -> None:
    """A process that a rank forked may hold its connection open: the rank ends as its own process did."""
    tell = raw("held")
    tell("import time; os.fork() or (time.sleep(30), os._exit(0))")
    tell("os._exit(3)")
    running.eventually(lambda: reason(running, "held") == "exit_code")


def test_a_proxy_is_not_the_rank(running: Any, raw: Callable[..., Any]) -> None:
    """Where the process at the socket is not the one that speaks, the end of its connection is all there is."""
    tell = raw("proxied", 1)
    tell("link.close()")
    running.eventually(lambda: reason(running, "proxied") == "died")


def test_who_speaks_on_after_the_process_is_not_that(running: Any, raw: Callable[..., Any]) -> None:
    """A daemon that has left the process which connected: how that ended says nothing, and a death is one."""
    tell = raw("daemon")
    sends = "[(line(type='state', seq=seq, time=1.0, step=seq), time.sleep(0.5)) for seq in range(6, 32)]"
    tell(f"import time; os.fork() and os._exit(0); {sends}; os.kill(os.getpid(), 9)")
    running.eventually(lambda: reason(running, "daemon") is not None, within=90)
    assert reason(running, "daemon") == "died"


def test_a_process_that_goes_on_with_another_run(running: Any) -> None:
    """Its exit code belongs to the run it ends in, and says nothing about the one that it finished."""
    process = script(running, "first", "recorder.close(); recorder = record('second'); raise SystemExit(1)")
    running.eventually(lambda: reason(running, "second") == "exit_code")
    process.wait()
    assert reason(running, "first") == "finished"


def test_no_pidfd_is_left(running: Any) -> None:
    """However ranks come and go, the exporter has as many descriptors as before, and one for a process that goes on."""
    running.get("/metrics")

    def used() -> int:
        return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))

    running.eventually(lambda: not any("pidfd" in link for link in links(running.process.pid)))
    before = used()
    for number, code in enumerate(("raise SystemExit(1)", "os._exit(1)", "sys.exit(1)", "")):
        script(running, f"left-{number}", code).wait()
    with_words = running.speaker(run="left-words", pid=os.getpid())
    with_words.hello()
    with_words.hello()
    with_words.bye()
    with_words.hello()
    assert any("pidfd" in link for link in links(running.process.pid))
    with_words.close()
    running.eventually(lambda: used() <= before + 1)
    assert sum("pidfd" in link for link in links(running.process.pid)) == 1


def links(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return found
