"""A program with a recorder in it, and without: the same end, exit code, output, files and handlers that ran."""

# ruff: noqa: E501 - a program to a line

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tachograph.node.ranks.stack_memory import StackMemory
from tests.client.conftest import Exporter

DEADLINE = 120.0
AT_ONCE = 6
PRELUDE = """
import atexit, ctypes, faulthandler, os, signal, subprocess, sys, threading, time
recorded, r = os.environ["RECORDED"] == "1", None
def rec(**given):
    global r
    if not recorded: return
    from tachograph.client.recorder import Recorder
    r = Recorder(run="c", **given)
    while not r.received or r._calls.sender._stacks is None: time.sleep(0.01)
def close():
    if recorded: r.close()
def say(*words): print(*words, flush=True)
def ready(): say("ready")
libc = ctypes.CDLL(None)
main = threading.get_ident()
def blocked():  # in a C call that no handled signal ends, as in a hung collective
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    line = sys._getframe().f_lineno + 5
    def tell():
        while sys._current_frames()[main].f_lineno != line: time.sleep(0.01)
        ready()
    threading.Thread(target=tell, daemon=True).start()
    libc.pthread_mutex_lock(mutex)
def wait(name):  # until a signal's handler has run
    end = time.monotonic() + 20
    while name not in ran and time.monotonic() < end: time.sleep(0.01)
    say(*ran)
ran = []
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def in_c(number): ran.append("C"); os.write(1, b"C handler\\n")
def in_python(number, frame): ran.append("Python"); say("Python handler")
def status(*names, mask=0x7fffffff):  # of the signals that have names: the one that faulthandler has is none of them
    for line in open("/proc/self/status"):
        if line.startswith(names): say(line.split()[0], hex(int(line.split()[1], 16) & mask))
def beats(): time.sleep(2.2)  # the sender thread takes two turns meanwhile
"""

TERM, HUP, INT, USR1, USR2, URG = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG,
)  # fmt: skip
NAP = "ready(); time.sleep(30)"
LOOP = "import asyncio\nasync def run():\n    loop = asyncio.get_running_loop()\n    {}\nasyncio.run(run())\n"
FILES = """
def reused(taken):
    for file in taken: file.write(b"data"); file.flush()
    beats()
    for file in taken:
        file.write(b"more"); file.flush(); file.seek(0)
        assert file.read() == b"datamore", file
    say("intact")
"""
OPEN = "import tempfile\nfiles = [tempfile.TemporaryFile('w+b') for _ in range(12)]\n"


class Case(NamedTuple):
    code: str
    sent: int | None = None


CASES = {
    # SIGTERM and SIGHUP
    "TERM": Case(f"rec(); {NAP}", TERM),
    "HUP": Case(f"rec(); {NAP}", HUP),
    "TERM blocked in C": Case("rec(); blocked()", TERM),
    "HUP blocked in C": Case("rec(); blocked()", HUP),
    "TERM blocked in C, loop with handlers closed before": Case(
        "rec()\n" + LOOP.format("loop.add_signal_handler(signal.SIGUSR1, print)") + "blocked()", TERM),
    "TERM blocked in C, in a loop with handlers": Case(
        LOOP.format("loop.add_signal_handler(signal.SIGUSR1, print); rec(); blocked()"), TERM),
    "TERM blocked in C, wakeup descriptor set later": Case(
        "rec(); a, b = os.pipe(); os.set_blocking(b, False); signal.set_wakeup_fd(b); blocked()", TERM),
    "TERM blocked in C, wakeup descriptor set before": Case(
        "a, b = os.pipe(); os.set_blocking(b, False); signal.set_wakeup_fd(b); rec(); blocked()", TERM),
    "HUP blocked in C, loop's own handler removed": Case(
        "rec()\n" + LOOP.format("loop.add_signal_handler(1, print); loop.remove_signal_handler(1)") + "blocked()", HUP),
    "TERM blocked in C, recorder of a side thread": Case(
        "t = threading.Thread(target=rec); t.start(); t.join(); blocked()", TERM),
    "TERM in a step": Case(f"rec()\nif recorded: r.step().__enter__()\n{NAP}", TERM),
    "TERM, handled in C before": Case("libc.signal(15, in_c); rec(); ready(); wait('C')", TERM),
    "TERM, handled in C after": Case("rec(); libc.signal(15, in_c); ready(); wait('C')", TERM),
    "TERM, handled in Python before": Case("signal.signal(15, in_python); rec(); ready(); wait('Python')", TERM),
    "TERM, handled in Python after": Case("rec(); signal.signal(15, in_python); ready(); wait('Python')", TERM),
    "TERM, handled if nobody does": Case(
        "rec()\nif signal.getsignal(15) in (None, signal.SIG_DFL): signal.signal(15, in_python)\nready(); wait('Python')",
        TERM),
    "TERM, handled in C if nobody does": Case(
        "rec()\nold = ctypes.create_string_buffer(256); libc.sigaction(15, None, old)\n"
        "if not any(old.raw[:8]): libc.signal(15, in_c)\nready(); wait('C')", TERM),
    "TERM, the handler before is called, too": Case(
        "rec(); old = signal.signal(15, lambda n, f: (in_python(n, f), callable(old) and old(n, f)))\n"
        "ready(); wait('Python')", TERM),
    "TERM, handler of a loop": Case(
        "rec()\n" + LOOP.format("done = asyncio.Event(); loop.add_signal_handler(15, done.set); ready(); await done.wait()")
        + "say('saved')", TERM),
    "TERM after faulthandler.register": Case(
        "faulthandler.register(15, all_threads=False, chain=True); rec(); ready()\nwhile True: time.sleep(9)", TERM),
    "TERM before faulthandler.register": Case(
        "rec(); faulthandler.register(15, all_threads=False, chain=True); ready()\nwhile True: time.sleep(9)", TERM),
    "TERM, taken by sigwait": Case(
        "signal.pthread_sigmask(0, [15]); rec()\n"
        "t = threading.Thread(target=lambda: say(signal.sigwait([15]))); t.start(); ready(); t.join()", TERM),
    "TERM blocked, and let in later": Case(
        "signal.pthread_sigmask(0, [15]); rec(); ready()\n"
        "while 15 not in signal.sigpending(): time.sleep(0.01)\nsay('pending'); signal.pthread_sigmask(1, [15])", TERM),
    "TERM ignored": Case("signal.signal(15, signal.SIG_IGN); rec(); ready(); beats(); say('end')", TERM),
    "HUP ignored, as by nohup": Case("signal.signal(1, signal.SIG_IGN); rec(); ready(); beats(); say('end')", HUP),
    "TERM after close": Case(f"rec(); close(); {NAP}", TERM),
    # the others
    "INT": Case("signal.signal(2, signal.default_int_handler); sys.stderr = open(os.devnull, 'w'); rec(); ready(); time.sleep(30)", INT),
    "INT ignored": Case("signal.signal(2, signal.SIG_IGN); rec(); ready(); beats(); say('end')", INT),
    "USR1": Case(f"rec(); {NAP}", USR1),
    "USR2": Case(f"rec(); {NAP}", USR2),
    "USR2 blocked in C": Case("rec(); blocked()", USR2),
    "USR2 after faulthandler.register": Case(
        "faulthandler.register(12, all_threads=False); rec(); ready(); beats(); say('end')", USR2),
    "USR2 before faulthandler.register": Case(
        "rec(); faulthandler.register(12, all_threads=False); ready(); beats(); say('end')", USR2),
    "USR2, handled in C after": Case("rec(); libc.signal(12, in_c); ready(); wait('C'); close()", USR2),
    "URG": Case("rec(); ready(); beats(); say('end')", URG),
    "URG in a C call": Case("rec(); ready(); say(libc.sleep(2))", URG),
    "URG all the time": Case(
        "rec()\nbusy = [threading.Thread(target=lambda: [exec('def f(a): return [b for b in range(a)]\\nf(9)') "
        "for _ in range(2000)]) for _ in range(4)]\nfor each in busy: each.start()\n"
        "while any(each.is_alive() for each in busy): os.kill(os.getpid(), 23); time.sleep(0)\nsay('end')"),
    "URG, handled after": Case("rec(); signal.signal(23, in_python); beats(); ready(); wait('Python'); close()", URG),
    "URG after faulthandler.register": Case(
        "faulthandler.register(23, all_threads=False); rec(); ready(); beats(); close(); say('end')", URG),
    "ALRM by a timer": Case(
        "signal.signal(14, in_python); rec(); signal.setitimer(signal.ITIMER_REAL, 0.2); wait('Python')"),
    "ABRT": Case(f"rec(); {NAP}", signal.SIGABRT),
    "QUIT": Case(f"rec(); {NAP}", signal.SIGQUIT),
    "SEGV with faulthandler": Case(f"faulthandler.enable(all_threads=False); rec(); {NAP}", signal.SIGSEGV),
    "what is handled, ignored and blocked": Case(
        "rec(); status('SigBlk', 'SigIgn', 'SigCgt')\n"
        "say([n for n in sorted(signal.valid_signals()) if signal.getsignal(n) != signal.SIG_DFL])\n"
        "say(signal.set_wakeup_fd(-1))"),
    "the same after close": Case(
        "threading.Thread(target=int).start(); rec(); close()\nwhile threading.active_count() > 1: time.sleep(0.01)\n"
        "status('SigBlk', 'SigIgn', 'SigCgt', mask=2**64 - 1)"),
    "XFSZ, no files from now on": Case(
        "import resource; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); rec()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); beats(); close(); say('end')"),
    "the timer of faulthandler": Case(
        "file = open(os.devnull, 'w'); faulthandler.dump_traceback_later(1, exit=True, file=file); rec(); time.sleep(30)"),
    # programs that it starts
    "exec": Case("rec(); os.execv('/bin/sh', ['sh', '-c', 'echo executed; exit 7'])"),
    "signals after exec": Case("rec(); os.execvp('grep', ['grep', '-E', 'Sig(Blk|Ign|Cgt)', '/proc/self/status'])"),
    "signals of a subprocess": Case("rec(); subprocess.run(['grep', '-E', 'Sig(Blk|Ign|Cgt)', '/proc/self/status'])"),
    "descriptors of a subprocess": Case(
        "rec(); subprocess.run('ls /proc/self/fd', shell=True, close_fds=False, stdin=subprocess.DEVNULL)"),
    "TERM to a forked child": Case(
        "rec()\nchild = os.fork()\nif not child: time.sleep(30)\nos.kill(child, 15); say(os.waitpid(child, 0)[1]); say('end')"),
    "many forks": Case(
        "rec()\nfor i in range(60):\n    child = os.fork()\n    if not child: os._exit(i % 7)\n"
        "    assert os.waitpid(child, 0)[1] >> 8 == i % 7\nsay('end')"),
    "forks of threads": Case(
        "rec()\ndef forks():\n    for _ in range(20):\n        if not (child := os.fork()): os._exit(0)\n"
        "        os.waitpid(child, 0)\nthreads = [threading.Thread(target=forks) for _ in range(4)]\n"
        "for each in threads: each.start()\nfor each in threads: each.join()\n"
        "say(signal.pthread_sigmask(0, ()) == set())"),
    "multiprocessing, fork": Case(
        "import multiprocessing\nrec()\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: say(pool.map(abs, [-1, -2]))"),
    "multiprocessing, a child that fails": Case(
        "import multiprocessing\nrec()\nchild = multiprocessing.get_context('fork').Process(target=sys.exit, args=(9,))\n"
        "child.start(); child.join(); say(child.exitcode)"),
    "multiprocessing, terminate": Case(
        "import multiprocessing\nrec()\nchild = multiprocessing.get_context('fork').Process(target=time.sleep, args=(30,))\n"
        "child.start(); child.terminate(); child.join(); say(child.exitcode)"),
    "a recorder in a forked child": Case(
        "if not os.fork():\n    rec(); say('child'); sys.exit(3)\nsay(os.wait()[1])"),
    # the end of the process
    "os._exit": Case("rec(); os._exit(3)"),
    "sys.exit": Case("rec(); sys.exit(4)"),
    "sys.exit with a text": Case("rec(); sys.exit('text')"),
    "sys.exit of the program": Case("rec(); old = sys.exit; sys.exit = lambda c: (say('mine'), old(c)); sys.exit(5)"),
    "sys.exit in a thread": Case("rec(); t = threading.Thread(target=sys.exit, args=(1,)); t.start(); t.join(); say('end')"),
    "SystemExit": Case("rec(); raise SystemExit(5)"),
    "an exception": Case("rec(); raise ValueError('x')"),
    "an exception in a step": Case("rec()\nwith r.step() if recorded else open('/dev/null'): raise ValueError('x')"),
    "an exception of a thread": Case("rec(); t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); say('end')"),
    "excepthook set before": Case("sys.excepthook = lambda *_: say('mine'); rec(); raise ValueError('x')"),
    "excepthook set after": Case("rec(); sys.excepthook = lambda *_: say('mine'); raise ValueError('x')"),
    "excepthook that raises": Case("def hook(*_): raise KeyError('h')\nsys.excepthook = hook; rec(); raise ValueError('x')"),
    "excepthook that exits": Case("def hook(*_): sys.exit(6)\nsys.excepthook = hook; rec(); raise ValueError('x')"),
    "threading.excepthook set before": Case(
        "threading.excepthook = lambda given: say('mine', given.exc_value); rec()\n"
        "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()"),
    "threading.excepthook that raises": Case(
        "def hook(given): raise KeyError('h')\nthreading.excepthook = hook; rec()\n"
        "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); say('end')"),
    "order of atexit": Case("atexit.register(say, 'a'); rec(); atexit.register(say, 'b')"),
    "atexit that raises": Case("rec()\n@atexit.register\ndef last(): raise ValueError('x')"),
    "threads that outlive the main one": Case(
        "rec(); threading.Thread(target=lambda: (time.sleep(0.5), say('late'))).start(); say('main')"),
    "standard streams closed": Case("rec(); os.close(0); os.close(2); time.sleep(0.3)"),
    "no stack left": Case("rec()\ndef down(): down()\ntry: down()\nexcept RecursionError: say('end')"),
    # descriptors
    "all descriptors closed": Case("rec(); os.closerange(3, 1024); beats(); say('end')"),
    "all closed in C": Case("rec(); libc.closefrom(3) if hasattr(libc, 'closefrom') else os.closerange(3, 2000); beats(); say('end')"),
    "all closed, and the numbers used again": Case(f"{FILES}rec(); os.closerange(3, 256)\n{OPEN}reused(files)"),
    "the same in the middle of the hello": Case(
        f"{FILES}if recorded:\n    from tachograph.client.recorder import Recorder\n    r = Recorder(run='c')\n"
        f"    while not r.received: pass\nos.closerange(3, 256)\n{OPEN}reused(files)"),
    "the same, and signals": Case(
        f"{FILES}rec(); os.closerange(3, 256)\n{OPEN}os.kill(os.getpid(), 23); reused(files); os.kill(os.getpid(), 23)"),
    "all closed, sockets by their numbers": Case(
        "import socket\nrec(); os.closerange(3, 256); pairs = [socket.socketpair() for _ in range(6)]; beats()\n"
        "for a, b in pairs: a.setblocking(False); a.send(b'x'); assert b.recv(9) == b'x'\n"
        "for a, b in pairs:\n    try: say('WROTE', a.recv(9))\n    except BlockingIOError: pass\nsay('end')"),
    "files put over all descriptors": Case(
        f"{FILES}rec()\n{OPEN}numbers = [int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2]\n"
        "own = {file.fileno() for file in files}\n"
        "over = [n for n in numbers if n not in own][: len(files)]\n"
        "copies = [open(os.dup2(files[i].fileno(), n), 'w+b') for i, n in enumerate(over)]\n"
        "reused([*copies[1:], *files[len(copies):]])\nos._exit(0)"),
    "a daemon": Case(
        "rec()\nif os.fork(): os.wait(); sys.exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
        "os.closerange(3, 1024); null = os.open('/dev/null', 2); os.dup2(null, 0); say('daemon'); beats(); say('end'); os._exit(0)"),
    "closed, and used again in a child": Case(
        f"{FILES}rec()\nif not os.fork():\n    os.closerange(3, 256)\n    import tempfile\n"
        "    reused([tempfile.TemporaryFile('w+b') for _ in range(6)]); os._exit(4)\nsay(os.wait()[1])"),
}  # fmt: skip
"""One program to a row: what it does, and the signal that is sent to it once it says that it is ready."""

SLOW = frozenset({"many forks", "a daemon", "ALRM by a timer", "the timer of faulthandler"})
EVERY = sorted(
    set(range(1, 32)) - {signal.SIGINT, signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)


class Outcome(NamedTuple):
    status: int | str
    said: str
    errors: str


def run(case: Case, socket: Path, *, recorded: bool) -> Outcome:
    """Run a program to its end."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + case.code],
        env={**os.environ, "TACHOGRAPH_SOCKET": str(socket), "RECORDED": str(int(recorded))},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        heard = ""
        if case.sent is not None:
            assert process.stdout is not None
            while (line := process.stdout.readline()) not in ("ready\n", ""):
                heard += line
            process.send_signal(case.sent)
        try:
            said, errors = process.communicate(timeout=DEADLINE)
            return Outcome(process.returncode, heard + said, _comparable(errors))
        except subprocess.TimeoutExpired:
            return Outcome(f"still alive after {DEADLINE:g} s", heard, "")
    finally:
        process.kill()
        process.communicate()


def _comparable(errors: str) -> str:
    """Leave out addresses, at which line a signal struck, and the one line about an exporter that is not there."""
    errors = re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"(?m)^  File .*, line \d+ in .*\n?", "", errors))
    return "\n".join(line for line in errors.splitlines() if not line.startswith("tachograph: "))


@pytest.fixture(scope="module")
def pairs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], list[Future[Outcome]]]]:
    """The ends of each chosen program without and with a recorder, several at a time."""
    exporter, memory = Exporter(tmp_path_factory.mktemp("exporter") / "rank.sock"), StackMemory()
    exporter.descriptors = (memory.for_rank,)
    exporter.start()
    chosen = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = {
            name: [pool.submit(run, cases()[name], exporter.path, recorded=recorded) for recorded in (False, True)]
            for name in chosen
        }
        yield begun.__getitem__
    exporter.stop()
    memory.close()


def cases() -> dict[str, Case]:
    """All programs, also those of every signal."""
    return {**CASES, **{f"signal {number}": Case(f"rec(); {NAP[:-4]}(1); say('end')", number) for number in EVERY}}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW or name not in CASES else ()) for name in cases()],
)
def test_a_program_is_as_without_a_recorder(pairs: Callable[[str], list[Future[Outcome]]], name: str) -> None:
    """Training never ends otherwise because of us."""
    without, recorded = (each.result() for each in pairs(name))
    assert recorded == without
    assert not isinstance(without.status, str), "it has to end by itself"
