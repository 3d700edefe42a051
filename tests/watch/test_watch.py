"""`tachograph run --watch`: the program is run as without it, measured by an exporter that is gone afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tachograph import extras
from tachograph.findings.kinds import RUN_HUNG
from tachograph.node.ranks.frames import Bye
from tachograph.top.overview import RunSummary, Trouble
from tachograph.watch.command import Watched, identity, lines
from tachograph.watch.curves import Curves
from tachograph.watch.private_exporter import PrivateExporter

LOOP = Path(__file__).parents[1] / "attach/loop_script.py"
WATCH = (sys.executable, "-W", "ignore", "-m", "tachograph", "run", "--watch")
DEADLINE = 120.0
LAUNCHER = ("TACHOGRAPH", "SLURM", "OMPI", "PMI", "TORCHELASTIC", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")
LISTENS = """
import os, signal, sys, time
def heard(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number != signal.SIGINT:
        sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, heard)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
"""A program that says which signals it gets, and leaves with 7 after any but Ctrl-C's."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Without a launcher; temporary files of the watch go to a folder that the test looks at."""
    mine = {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHER)}
    return {**mine, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}


def watched(folder: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with both outputs piped."""
    command = [*WATCH, *map(str, words)]
    return subprocess.run(
        command, env=environment(folder, **more), capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def listening(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A watched program that is ready for signals."""
    command = [*WATCH, str(script(folder, LISTENS))]
    with subprocess.Popen(
        command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.torch
def test_a_training_script_ends_with_what_was_measured(tmp_path: Path) -> None:
    """Standard output is the script's alone; the page's address is named while it trains; nothing stays behind."""
    page = tmp_path / "seen.html"
    done = watched(tmp_path, "--report", page, "--name", "seen", "--samples-per-step", "8", LOOP, "plain")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"-?\d+\.\d{9}\n", done.stdout)
    said = [line.removeprefix("tachograph run: ") for line in done.stderr.splitlines()]
    (url,) = re.findall(r"^(http://127\.0\.0\.1:\d+/) shows this run", said[0])
    table = said[next(i for i, line in enumerate(said) if line.startswith("seen: 60 steps on 1 rank, ")) :]
    assert table[0].endswith(" each, pauses included")
    assert re.fullmatch(r"  speed      .+ samples/s", table[1])
    assert re.match(r"  step       .+: own .+ \(\d+%\), waits for data .+ \(\d+%\)", table[2])
    assert table[3].startswith("  own time   ")
    rest = {line[2:12].strip(): line[13:] for line in table[4:]}
    # on a busy machine the start may be all that is left of a hundred percent
    assert re.match(r"\d+% was training; lost: ", rest["whole time"])
    assert "GiB of host memory" in rest["memory"]
    assert rest["recorded"].startswith("60 steps: 120 batches and the wait for them, ")
    assert "; MFU (no FLOPs given" in rest["not seen"]
    assert table[-2].startswith("  not seen   ")
    assert table[-1] == f"{page} shows the loss and what was measured"
    assert "seen: 60 steps on 1 rank, " in page.read_text(encoding="utf-8")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=60)
    assert not list(tmp_path.glob("tachograph-*"))


def test_the_loss_outlives_the_watch(pages: Any, played: Any) -> None:
    """The page has its curve, with a gap where nothing answered and a cross at a NaN; of hours, too."""
    watched = Watched(PrivateExporter(Path("none"), urlsplit(pages.url).netloc))
    played.table.greet("a")
    for second, loss in enumerate((4.0, 3.5, 3.0, None, None, None, None, None, None, 2.5, 2.0, "NaN")):
        played.hand.turn(1.0)
        if loss is not None:
            played.table.tell("a", second + 1, metrics={"loss": loss})
            played.serve()
            watched.read()
    made = watched.curves.page(["Run r: the loss is NaN."], "r: 12 steps", 1_790_000_000.0, 1.0)
    (curve,) = re.findall(r'<path d="([^"H]+)" class="line s0">', made.split('<h2 id="figure-1">')[0])
    assert (curve.count("M"), curve.count("L")) == (2, 3)
    assert 'class="cross"' in made
    assert made.count("<li>Run r: the loss is NaN.</li>") == 1
    assert "r: 12 steps" in made
    curves = Curves()
    for second in range(36_000):
        curves.add(1_790_000_000.0 + second, [RunSummary("r", "running", loss=2.0)])
    (curve,) = re.findall(r'<path d="([^"H]+)" class="line s0">', curves.page([], "", 1_790_036_000.0, 1.0))
    assert curve.count("M") == 1
    assert 200 <= curve.count("L") <= 480


def test_the_end_is_waited_for_where_the_exporter_is_slow_to_answer(pages: Any, played: Any) -> None:
    """A page that does not come is asked for again; the answer that has no rank up is the last."""
    watched = Watched(PrivateExporter(Path("none"), urlsplit(pages.url).netloc))
    played.table.greet("a")
    played.serve()
    assert watched.read().ranks[0].state == "running"
    played.table.bye("a", Bye(v=1, outcome="finished"))
    played.serve()
    pages.before = [None]
    watched.settle()
    assert pages.before == []


def test_one_rank_that_has_been_in_its_loader_for_40_seconds(pages: Any, played: Any) -> None:
    """A step usually takes 0.05 s: the run is not called running, and why is said."""
    played.one_slow_load(40.0)
    overview = Watched(PrivateExporter(Path("none"), urlsplit(pages.url).netloc)).read()
    assert overview is not None
    assert lines(overview) == [
        "Run r: no step for 40 s, usually 50 ms; rank 0 in data for 40 s. → py-spy dump --pid 4242 shows where rank 0 "
        f"stands: {RUN_HUNG.runbook}",
        "r overdue: step 100 · last step 40 s ago · 0 tok/s",
    ]


def test_without_a_terminal_each_trouble_is_said_at_once(
    pages: Any, played: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a file or a batch job's output: whole lines, each trouble once, and none on how the run goes."""
    watched = Watched(PrivateExporter(Path("none"), urlsplit(pages.url).netloc))
    watched.tick()
    assert capsys.readouterr().err == ""
    played.one_slow_load(40.0)
    watched.tick()
    said = capsys.readouterr().err
    assert said.startswith("tachograph run: Run r: no step for 40 s, usually 50 ms; rank 0 in data for 40 s. → py-spy")
    assert (said.count("\n"), "\x1b" in said, "\r" in said) == (1, False, False)
    watched.tick()
    assert capsys.readouterr().err == ""


def test_it_fits_a_terminal(pages: Any, played: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 columns: a trouble is broken at blanks, and of how the run goes as much is said as there is room for."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w", encoding="utf-8") as errors:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        monkeypatch.setattr(sys, "stderr", errors)
        watched = Watched(PrivateExporter(Path("none"), urlsplit(pages.url).netloc))
        played.one_slow_load(40.0)
        watched.tick()
        said = ""
        while "r overdue" not in said:  # a terminal gives what it has so far
            said += screen.read(65536).decode()
    shown = re.sub(r"\x1b\[K|\r", "", said).splitlines()
    assert shown[0].startswith("Run r: no step for 40 s")
    assert shown[-1].startswith("r overdue: step 100")
    assert len(shown) > 2
    assert [line for line in shown if len(line) > 80 and " " in line.strip()] == []


def test_advice_is_given_once(pages: Any, played: Any) -> None:
    """A problem that stands is repeated where no step is made, without its remedy; a wait for data is not."""
    played.one_slow_load(40.0)
    overview = Watched(PrivateExporter(Path("none"), urlsplit(pages.url).netloc)).read()
    assert overview is not None
    (one,) = overview.problems
    said = {identity(one)}
    assert lines(overview, said) == [one.text, *lines(overview)[1:]]
    data = replace(one, kind="Data")
    assert lines(replace(overview, problems=(data,)), {identity(data)}) == lines(overview)[1:]


def test_another_rank_and_another_misuse_are_news(pages: Any, played: Any) -> None:
    """What changes in the sentence is none; and each is in the summary."""
    played.table.greet("a")
    played.table.tell("a", step=70, notices=["step.log(los=…) is dropped", "phase lo is unknown"])
    played.serve()
    watched = Watched(PrivateExporter(Path("none"), urlsplit(pages.url).netloc))
    overview = watched.read()
    assert overview is not None
    first, second = overview.problems
    assert lines(overview, {identity(first)})[0] == second.text
    assert watched.wrong(ended_well=True) == [first, second]
    late = [
        Trouble("Late rank", f"Rank {rank} of run r has arrived last for {ago}: it waits 3%.", "r", remedy="compare")
        for rank, ago in ((3, "20 s"), (3, "1 min"), (7, "20 s"))
    ]
    assert identity(late[0]) == identity(late[1]) != identity(late[2])


def test_a_loss_that_is_nan_is_said_at_once_and_begins_the_summary(pages: Any, played: Any) -> None:
    """While it trains, in the first line, since which step and what the last checkpoint holds; and at its end."""
    watched = Watched(PrivateExporter(Path("none"), urlsplit(pages.url).netloc))
    played.table.greet("a")
    saved = {"checkpoint_step": 55, "checkpoint_timestamp_seconds": 100.0}
    played.table.tell("a", step=70, metrics={"loss": "NaN", "nonfinite_step": {"loss": 61}, **saved})
    played.serve()
    overview = watched.read()
    assert overview is not None
    said = "the loss has been NaN since step 61; the last checkpoint from before it is from step 55."
    assert said in lines(overview)[0]
    played.table.bye("a", Bye(v=1, outcome="finished"))
    played.serve()
    watched.settle()
    (one,) = watched.wrong(ended_well=True)
    assert said in one.text


def test_what_was_wrong_begins_the_summary(pages: Any, played: Any) -> None:
    """As it stood while ranks last ran, and at the end; a missing step is no news where the program ended well."""
    watched = Watched(PrivateExporter(Path("none"), urlsplit(pages.url).netloc))
    played.one_slow_load(40.0)
    watched.read()
    assert [one.kind for one in watched.wrong(ended_well=False)] == ["No step"]
    assert watched.wrong(ended_well=True) == []
    (rank,) = played.table.ranks()
    played.table.lost(rank.link)
    played.serve()
    watched.read()
    assert [one.kind for one in watched.wrong(ended_well=False)] == ["Rank dead", "No step"]


@pytest.mark.torch
@pytest.mark.slow
def test_a_crash_ends_with_its_cause(tmp_path: Path) -> None:
    """The summary begins with the exception, and a loss that had become NaN, before the figures."""
    training = script(
        tmp_path,
        "import torch, time\n"
        "model = torch.nn.Linear(8, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for number in range(100):\n"
        "    if number == 90:\n"
        "        raise OSError('shard 7 is gone')\n"
        "    loss = model(torch.randn(4, 8)).square().mean() * (float('nan') if number >= 61 else 1.0)\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    time.sleep(0.02)\n",
    )
    done = watched(tmp_path, "--name", "seen", training)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("tachograph run: ")][1:]
    assert re.match(r"tachograph run: Rank 0 of run seen failed .+ ago: .*OSError: shard 7 is gone", said[0])
    assert said[1].startswith("tachograph run: Rank 0 of run seen: the loss has been NaN since step 61.")
    assert said[2].startswith("tachograph run: seen: 90 steps on 1 rank, ")


@pytest.mark.torch
@pytest.mark.slow
def test_the_slowest_of_two_ranks_is_named(tmp_path: Path) -> None:
    """One exporter for the ranks of a launcher, which is started inside; rank 1 is 20 ms late at each step."""
    training = script(
        tmp_path,
        "import os, time, torch\n"
        "torch.distributed.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for _ in range(100):\n"
        "    time.sleep(0.04 if os.environ['RANK'] == '1' else 0.005)\n"
        "    model(torch.randn(4, 8)).square().mean().backward()\n"
        "    optimizer.step()\n"
        "torch.distributed.destroy_process_group()\n",
    )
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    done = watched(tmp_path, *launcher, "-m", "tachograph", "run", "--name", "pair", training)
    assert done.returncode == 0, done.stderr
    assert "pair: 100 steps on 2 ranks" in done.stderr
    assert "  slowest    rank 1, which the others waited" in done.stderr
    assert done.stderr.count("tachograph run:   recorded") == 1
    assert "no training step" not in done.stderr


def test_the_exit_status_is_the_programs(tmp_path: Path) -> None:
    done = watched(tmp_path, script(tmp_path, "import sys; print(sys.argv[1:]); sys.exit(3)"), "--watch", "x")
    assert (done.returncode, done.stdout) == (3, "['--watch', 'x']\n")
    killed = watched(tmp_path, "--quiet", script(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert (killed.returncode, killed.stderr) == (-signal.SIGKILL, "")


def test_a_signal_is_passed_on(tmp_path: Path) -> None:
    with listening(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "SIGINT\n"
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (7, "SIGTERM\n"), errors
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_nothing_outlives_a_watch_that_was_killed(tmp_path: Path) -> None:
    """Neither the exporter nor the program, which would train on unseen."""
    with listening(tmp_path) as process:
        started = children(process.pid)
        assert len(started) == 2
        process.kill()
        process.wait()
        deadline = time.monotonic() + DEADLINE
        while not all(map(gone, started)):
            assert time.monotonic() < deadline, started
            time.sleep(0.02)


def test_on_a_terminal_the_program_gets_one_interrupt(tmp_path: Path) -> None:
    """Ctrl-C reaches the program from the terminal itself, once; lines on the run appear meanwhile."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    command = [*WATCH, str(script(tmp_path, LISTENS))]
    with subprocess.Popen(
        command, env=environment(tmp_path), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=take_terminal,  # noqa: PLW1509 - this test has no thread
    ) as process:  # fmt: skip
        os.close(theirs)
        try:
            shown = _read_until(ours, "", "ready")
            os.write(ours, b"\x03")
            shown = _read_until(ours, shown, "SIGINT")
            shown = _read_until(ours, shown, " running:")
            process.send_signal(signal.SIGTERM)
            shown = _read_until(ours, shown, "no step was completed")
            assert process.wait(DEADLINE) == 7
        finally:
            process.kill()
    os.close(ours)
    assert shown.count("SIGINT") == 1
    assert re.search(r"\r\x1b\[K\S+ running: step ", shown)


def _read_until(terminal: int, shown: str, text: str) -> str:
    """Return what a terminal has shown once a text is there."""
    deadline = time.monotonic() + DEADLINE
    while text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1.0)[0]:
            with suppress(OSError):  # nobody is at the other end any more
                shown += os.read(terminal, 4096).decode()
    return shown


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            "prometheus_client",
            f"tachograph run --watch: prometheus_client is not installed: {extras.command('exporter,tools')}",
        ),
        (
            "aiohttp",
            f"tachograph run: tachograph exporter: aiohttp is not installed: {extras.command('exporter')}",
        ),
    ],
)
def test_what_is_not_installed_is_named_with_its_command(tmp_path: Path, module: str, said: str) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = watched(tmp_path, script(tmp_path, "print('trains')"), PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_without_a_script_nothing_is_started(tmp_path: Path) -> None:
    done = watched(tmp_path, tmp_path / "missing.py")
    assert done.returncode == 2
    assert "missing.py" in done.stderr
    assert done.stderr.count("\n") == 1


def test_each_rank_of_a_launcher_has_no_exporter_of_its_own(tmp_path: Path) -> None:
    done = watched(tmp_path, script(tmp_path, ""), LOCAL_RANK="1")
    assert done.returncode == 2
    assert "tachograph run --watch -m torch.distributed.run" in done.stderr
