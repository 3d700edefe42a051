"""Real jobs of four ranks on gloo whose boxes, as they are written, say who holds the run up, and at which line."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tachograph.blackbox.verdict import analyze
from tachograph.client.torch.recorders import GLOO
from tests.client.torch.jobs import JOB, Job

pytestmark = pytest.mark.torch

WORLD = 4

PROGRAM = """
import ctypes
from tachograph.client.signals import standstill
standstill.STANDSTILL_SECONDS = float(os.environ["STANDSTILL"])
standstill.STANDSTILL_STEPS, standstill.LONGEST_GAP_SECONDS = 20, 1.5  # so short, a busy machine would do as a cause

case = os.environ["CASE"]
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
small = torch.ones(8)
model = ddp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
recorder = Recorder()
recorder.watch(model, optimizer)

def is_now(what):
    now = case == what and rank == 2 and recorder.position()[0] == 8
    if now: print("fault at", time.time(), flush=True)
    return now

def load_shard(number):
    if number == 8 and is_now("reads"):
        receiver, sender = os.pipe()
        os.read(receiver, 1)  # the read
    if number == 8 and is_now("raises"):
        raise FileNotFoundError("shard 8")  # the raise
    return torch.ones(4, 64)

def pair():
    dist.all_reduce(small, group=pairs[rank // 2])  # the pair's

def save(step):
    with recorder.phase("checkpoint"):
        if case == "saves": time.sleep(0.2)
        if is_now("saves"):
            os.mkfifo(sys.argv[1])
            disk = os.open(sys.argv[1], os.O_RDWR)
            os.write(disk, bytes(1 << 20))  # the write
    recorder.checkpoint_saved(step)

def train():
    for batch in recorder.data(map(load_shard, range(8 if case == "leaves" and rank == 2 else 10))):
        with recorder.step():
            late = is_now("crosses")
            if not (late or is_now("skips its pair's")): pair()
            model(batch).sum().backward()
            if is_now("swaps"): dist.broadcast(small, 0)  # the wrong one
            if is_now("differs"): dist.all_reduce(torch.ones(16))  # the larger one
            elif not is_now("skips"):
                dist.all_reduce(small)  # the skipped one
            if late: pair()
            dist.broadcast(small, 0)  # after
            optimizer.step()
            optimizer.zero_grad()
            if is_now("dies"): os.kill(os.getpid(), 9)
            if is_now("holds"): ctypes.PyDLL(None).sleep(600)  # the call
            if is_now("lingers"): raise ValueError("bad batch")  # why
        save(recorder.position()[0])
    if case == "leaves": print("fault at", time.time(), flush=True)
    if case == "asks": threading.Event().wait()

try:
    train()
finally:
    if case == "lingers" and rank == 2: threading.Event().wait()  # as destroy_process_group does
recorder.close()
os._exit(0)
"""
LINES = (JOB + PROGRAM).splitlines()


def line_with(mark: str) -> int:
    return next(number for number, text in enumerate(LINES, 1) if mark in text)


COMPILED = """
import threading, torch
from tachograph.client.blackbox.stacks import is_compiling

main, seen = threading.get_ident(), []

def compiler(graph, inputs):
    seen.append(is_compiling(main))
    def compiled(*given):
        seen.append(is_compiling(main))
        return graph.forward(*given)
    return compiled

step = torch.compile(lambda x: (x * x).sum(), backend=compiler)
for _ in range(2): step(torch.ones(4))
print(seen)
"""


def test_pytorch_s_compiler_is_recognized(torch_program: Any) -> None:
    """While it compiles, and not while what it made runs."""
    assert torch_program(COMPILED).end().splitlines()[-1] == "[True, False, False]"


HEALTHY = """
import sys, threading, time, torch
from tachograph.client.recorder import Recorder
from tachograph.client.signals import standstill
from tachograph.client.blackbox import stacks
standstill.STANDSTILL_SECONDS = standstill.PAUSE_SECONDS = 1.0

looks = []
is_compiling = stacks.is_compiling
stacks.is_compiling = lambda thread: looks.append(is_compiling(thread)) or looks[-1]

def long(seconds=3.0):  # three times as long as a rank may stand still, and three heartbeats
    time.sleep(seconds)

def compiler(graph, inputs):
    long()
    return graph.forward

recorder = Recorder(run="healthy")
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
recorder.watch(net, optimizer)
step = net
for number in range(30):
    if number == 10: step = torch.compile(net, backend=compiler)
    with recorder.step():
        if number == 0: long()
        step(torch.ones(4)).sum().backward()
        optimizer.step()
    if number == 15:
        with recorder.phase("eval"): long()
    if number in (20, 25):
        with recorder.phase("checkpoint"): long()
        recorder.checkpoint_saved(step=number)
recorder.close()
print(looks)
"""


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 100))])
def test_a_healthy_run_leaves_none(torch_program: Any, exporter: Any, tmp_path: Path, number: int) -> None:
    """However long its first step, its compilation, its evaluation and its save take beside its steps."""
    folder = tmp_path / "boxes"
    program = torch_program(HEALTHY, TACHOGRAPH_SOCKET=str(exporter.path), TACHOGRAPH_BLACKBOX=str(folder))
    assert program.end().splitlines()[-1] == "[True]", "it stood still only while it compiled"
    assert exporter.frames("box") == []
    assert not folder.exists()


@pytest.fixture
def job(torch_program: Any, exporter: Any, tmp_path: Path) -> Callable[..., Job]:
    """Starts the job with a case; its boxes are in the folder `boxes`."""
    place = {"TACHOGRAPH_BLACKBOX": str(tmp_path / "boxes"), "STANDSTILL": "2"}

    def start(code: str, **more: str) -> Any:
        return torch_program(code, str(tmp_path / "disk"), **more)

    return lambda case, **more: Job(start, exporter, PROGRAM, WORLD, CASE=case, **place, **more)


def boxes_of(folder: Path, names: str = "rank-?.json") -> dict[int, dict[str, Any]]:
    """The boxes written so far, by rank."""
    return {box["rank"]: box for path in folder.rglob(names) for box in (json.loads(path.read_text()),)}


class Fault(NamedTuple):
    """What rank 2 does in its ninth step, and what the boxes say: how many there are, and the mark of its line."""

    case: str
    kind: str
    mark: str | None = None
    boxes: int = WORLD
    reason: str = ""


FAULTS = (
    Fault("reads", "host_stuck", "# the read", reason="in phase data for"),
    Fault("skips", "skipped_collective", "# the skipped one", reason="called broadcast 8 Float"),
    Fault("skips its pair's", "skipped_collective", "# the pair's", reason="rank 3 called it"),
    Fault("crosses", "skipped_collective", "# the pair's", reason="takes its calls in another order"),
    Fault("swaps", "wrong_order", "# the wrong one", reason="called broadcast 8 Float"),
    Fault("differs", "size_mismatch", "# the larger one", 3, "called all_reduce 16 Float"),  # gloo aborts the third
    Fault("raises", "failed", "# the raise", reason="FileNotFoundError: shard 8"),
    Fault("lingers", "host_stuck", "# why", reason="it raised ValueError: bad batch"),
    Fault("dies", "no_dump", None, 3),
    Fault("leaves", "no_dump", None, 3, "gone early"),
    Fault("holds", "no_dump", None, 3, "stuck where it cannot say so"),
    Fault("saves", "host_stuck", "# the write", reason="in phase checkpoint"),
)
IN_EVERY_RUN = ("reads", "skips", "skips its pair's", "differs", "raises", "lingers", "dies")

WITHOUT_RECORDER = {
    "skips": Fault("skips", "type_mismatch", "broadcast(small, 0)  # after", reason="no recorder says which"),
    "swaps": Fault("swaps", "type_mismatch", "# the wrong one", reason="no recorder says which"),
}


def in_turn(faults: Sequence[Fault], often: Collection[str]) -> list[Any]:
    return [
        pytest.param(fault, id=fault.case, marks=() if fault.case in often else pytest.mark.slow) for fault in faults
    ]


def check(fault: Fault, folder: Path, until: Callable[..., Any], *, recorded: bool) -> None:
    boxes = until(lambda: len(found := boxes_of(folder)) == fault.boxes and found)
    if recorded and not any(box["recorders"].get(GLOO, {}).get("entries") for box in boxes.values()):
        pytest.skip("this PyTorch does not record gloo")
    (culprit,) = analyze(folder).culprits
    assert (culprit.rank, culprit.kind) == (2, fault.kind)
    assert fault.reason in culprit.reason
    if fault.mark is not None:
        assert f"program:{line_with(fault.mark)} " in str(culprit.line)


@pytest.mark.parametrize("fault", in_turn(FAULTS, IN_EVERY_RUN))
def test_who_and_where(fault: Fault, job: Callable[..., Job], tmp_path: Path, until: Callable[..., Any]) -> None:
    """The boxes name the rank alone, why, and its line, before any collective has timed out."""
    job(fault.case)
    check(fault, tmp_path / "boxes", until, recorded=True)


@pytest.mark.parametrize(
    "fault", in_turn([WITHOUT_RECORDER.get(one.case, one) for one in FAULTS if one.case != "differs"], ("reads",))
)
def test_who_and_where_without_a_recorder(
    fault: Fault, job: Callable[..., Job], tmp_path: Path, until: Callable[..., Any]
) -> None:
    """As up to PyTorch 2.8: the same, by counts and lines; but for sizes, which nothing tells."""
    job(fault.case, TORCH_FR_BUFFER_SIZE="0")
    check(fault, tmp_path / "boxes", until, recorded=False)


def test_what_the_boxes_of_a_stuck_loader_hold(
    job: Callable[..., Job], tmp_path: Path, until: Callable[..., Any]
) -> None:
    """Why they were made, phases, and the members of each group with their counts."""
    job("reads")
    boxes = until(lambda: len(found := boxes_of(tmp_path / "boxes")) == WORLD and found)
    assert {box["reason"].partition(" for ")[0] for box in boxes.values()} == {"no step"}
    assert boxes[2]["phase"] == "data"
    members = {tuple(group["ranks"]) for group in boxes[2]["groups"].values()}
    assert members == {(0, 1, 2, 3), (2, 3)}
    assert {group["enqueued"] > 0 for box in boxes.values() for group in box["groups"].values()} == {True}


def test_the_box_of_a_failure_reaches_the_exporter(job: Callable[..., Job], tmp_path: Path, exporter: Any) -> None:
    """After the bye, with the line at which the rank raised, and the exception."""
    job("raises")
    sent = exporter.wait_for("box", lambda frame: frame["reason"] == "failed: data")
    box = json.loads(sent["text"])
    assert box["where"] == f"program:{line_with('# the raise')} load_shard"
    assert box["failure"]["message"] == "FileNotFoundError: shard 8"


def capture(exporter: Any, ranks: Collection[int], reason: str) -> None:
    """Ask ranks for their boxes, as the exporter does."""
    for talk, connection in zip(exporter.talks, exporter._sockets, strict=True):
        if talk.of("hello")[0]["rank"] in ranks:
            connection.sendall(json.dumps({"ok": True, "capture": reason}).encode() + b"\n")


def test_boxes_for_those_who_ask(
    job: Callable[[str], Job], tmp_path: Path, exporter: Any, until: Callable[..., Any]
) -> None:
    """By SIGUSR2 and by the exporter: a rank that waits in a healthy job leaves one, too, and goes on."""
    job("asks")
    until(lambda: len(exporter.talks) == WORLD and len(exporter.frames()) > 2 * WORLD)
    pids = {talk.of("hello")[0]["rank"]: talk.of("hello")[0]["pid"] for talk in exporter.talks}
    os.kill(pids[1], signal.SIGUSR2)
    capture(exporter, [0, 2, 3], "asked for by alice")
    found = until(lambda: len(boxes := boxes_of(tmp_path / "boxes", "rank-?.asked.json")) == WORLD and boxes)
    assert {rank: box["reason"] for rank, box in found.items()} == {
        0: "asked for by alice", 1: "SIGUSR2", 2: "asked for by alice", 3: "asked for by alice",
    }  # fmt: skip
    assert all(Path(f"/proc/{pid}").exists() for pid in pids.values())
