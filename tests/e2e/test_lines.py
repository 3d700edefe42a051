"""A real PyTorch job of four ranks on gloo, one of them stuck in a line of its own code: the page names that line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import FIRING, Pager
from tachograph_lab.processes import free_port
from tests.client.torch.jobs import JOB

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

CULPRIT, SAVER = 2, 0
ONSET_SECONDS = 40
"""By then the run has made steps for long enough to have a usual one, and saved three times."""
BEGAN = "began"
"""The file in which the rank says when it got stuck, in Unix seconds."""
FAULTS = """
import ctypes, re, signal
fault, culprit, onset = os.environ["FAULT"], int(os.environ["CULPRIT"]), float(os.environ["ONSET"])

def get_stuck():
    with open(f"{os.environ['FOLDER']}/began", "w") as file:
        file.write(str(time.time()))
    globals()[fault]()

def fifo():
    name = f"{os.environ['FOLDER']}/{fault}"
    os.path.exists(name) or os.mkfifo(name)
    return os.open(name, os.O_RDWR)

def sleep_with_the_lock():
    ctypes.PyDLL(None).sleep(10**6)

def match_for_ever():
    re.match("(a+)+$", 40 * "a" + "b")

def read_a_shard():
    os.read(fifo(), 1)

def write_a_shard():
    os.write(fifo(), bytes(10**7))

def is_written(disk):
    try:
        return os.write(disk, bytes(10**6))
    except OSError:
        return 0

def try_a_full_disk(disk=os.open("/dev/full", os.O_WRONLY)):
    while not is_written(disk): time.sleep(0.2)

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

model = ddp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
recorder = Recorder()
recorder.watch(model, optimizer)
began = None
in_save = fault in ("write_a_shard", "try_a_full_disk")
for step in range(10**6):
    is_late = rank == culprit and began is not None and time.monotonic() - began > onset
    with recorder.step():
        with recorder.phase("data"):
            time.sleep(0.3)
            if is_late and not in_save:
                get_stuck()
        with recorder.phase("forward"):
            loss = model(torch.ones(8, 64)).square().mean()
        with recorder.phase("backward"):
            loss.backward()
        optimizer.step()
    began = began or time.monotonic()
    if in_save and rank == 0 and step % 20 == 10:
        with recorder.phase("checkpoint"):
            time.sleep(1.2)
            if is_late:
                get_stuck()
        recorder.checkpoint_saved(step=step)
"""


class Stuck(NamedTuple):
    """A fault, which is the function that a rank is stuck in, the alert that tells of it, and a pattern of its text."""

    fault: str
    alert: str
    text: str
    rank: int = CULPRIT


HELD = r"pid \d+, state \w \(\w+\), at LINE: what it calls there holds Python's lock"
IN_SAVE = (
    r"3 of 4 ranks wait in \w+ [\d,]+, 3 at program:\d+ <module>; rank 0 .* for \S+ in phase checkpoint "
    r"\(a save in which nothing moves\), at LINE\."
)
STUCK = (
    Stuck("sleep_with_the_lock", "RankFrozen", HELD),
    Stuck("match_for_ever", "RankFrozen", HELD.replace("LINE", r"LINE, in \S+:\d+ match")),
    Stuck("stop", "RankFrozen", r"pid \d+, state T \(stopped\): the process is stopped"),
    Stuck(
        "read_a_shard",
        "RunHung",
        r"3 of 4 ranks wait in \w+ [\d,]+, 3 at program:\d+ <module>; rank 2 .* for \S+ in phase data, at LINE\.",
    ),
    Stuck("write_a_shard", "RunHung", IN_SAVE, SAVER),
    Stuck("try_a_full_disk", "RunHung", IN_SAVE, SAVER),
)
PROGRAM = JOB + FAULTS


@pytest.mark.parametrize("stuck", STUCK, ids=lambda stuck: stuck.fault)
def test_the_page_names_the_line(
    stack: Stack, pager: Pager, torch_programs: Any, tmp_path: Path, *, stuck: Stuck, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the rank and its process: what holds Python's lock, a loader, a save; of a stopped process its state.

    How long after the fault the page came is printed, beside what a hang may take: 30 s and three steps.
    """
    program = torch_programs(
        PROGRAM, TACHOGRAPH_SOCKET=str(stack.socket), TACHOGRAPH_RUN=stuck.fault, MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()), WORLD_SIZE="4", FAULT=stuck.fault, CULPRIT=str(stuck.rank), FOLDER=str(tmp_path),
        ONSET=str(ONSET_SECONDS),
    )  # fmt: skip

    def told() -> list[str]:
        return [page.alert for page in pager.pages() if page.labels.get("run") == stuck.fault]

    try:
        page = pager.wait_for(
            lambda page: (page.labels.get("run"), page.alert, page.status) == (stuck.fault, stuck.alert, FIRING), 300
        )
        assert page is not None, told()
        line = next(n for n, code in enumerate(PROGRAM.splitlines(), 2) if code.startswith(f"def {stuck.fault}("))
        text = page.annotations["description"]
        assert re.search(stuck.text.replace("LINE", f"program:{line} {stuck.fault}"), text), text
        assert (page.labels["rank"], told()) == (str(stuck.rank), [stuck.alert])
        (step,) = stack.query(f'run:step_interval_seconds:p50{{run="{stuck.fault}"}}')
        late = page.time - float((tmp_path / BEGAN).read_text())
        with capsys.disabled():
            print(f"\n{stuck.fault}: {stuck.alert} {late:.1f} s after the fault, of {30 + 3 * step.value:.1f} s")
    finally:
        program.stop()
