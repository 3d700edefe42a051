"""Real jobs of four ranks on gloo whose boxes, as they are written, say who holds the run up, and at which line."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.blackbox.verdict import analyze
from tachograph.client.torch.recorders import GLOO
from tests.client.torch.jobs import JOB, Job

pytestmark = pytest.mark.torch

WORLD = 4

PROGRAM = """
from tachograph.client.signals import standstill
standstill.STANDSTILL_SECONDS = 2.0

case = os.environ["CASE"]
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
small = torch.ones(8)
model = ddp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
recorder = Recorder()
recorder.watch(model, optimizer)

def load_shard(number):
    if number == 8 and rank == 2 and case == "reads":
        receiver, sender = os.pipe()
        os.read(receiver, 1)  # the read
    if number == 8 and rank == 2 and case == "raises":
        raise FileNotFoundError("shard 8")  # the raise
    return torch.ones(4, 64)

def train():
    for batch in recorder.data(map(load_shard, range(10))):
        with recorder.step():
            dist.all_reduce(small, group=pairs[rank // 2])
            model(batch).sum().backward()
            if not (case == "skips" and rank == 2 and recorder.position()[0] == 8):
                dist.all_reduce(small)  # the skipped one
            dist.broadcast(small, 0)
            optimizer.step()
            optimizer.zero_grad()
            if case == "dies" and rank == 2 and recorder.position()[0] == 8: os._exit(1)
            if case == "lingers" and rank == 2 and recorder.position()[0] == 8: raise ValueError("bad batch")  # why
    if case == "asks": threading.Event().wait()

try:
    train()
finally:
    if case == "lingers" and rank == 2: threading.Event().wait()  # as destroy_process_group does
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
standstill.STANDSTILL_SECONDS = standstill.PAUSE_SECONDS = 0.2

looks = []
is_compiling = stacks.is_compiling
stacks.is_compiling = lambda thread: looks.append(is_compiling(thread)) or looks[-1]

def long(seconds=3.0):  # fifteen times as long as a rank may stand still, and three heartbeats
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
    if number == 20:
        with recorder.phase("checkpoint"): long()
        recorder.checkpoint_saved(step=number)
recorder.close()
print(looks)
"""


def test_a_healthy_run_leaves_none(torch_program: Any, exporter: Any, tmp_path: Path) -> None:
    """However long its first step, its compilation, its evaluation and its save take beside its steps."""
    folder = tmp_path / "boxes"
    program = torch_program(HEALTHY, TACHOGRAPH_SOCKET=str(exporter.path), TACHOGRAPH_BLACKBOX=str(folder))
    assert program.end().splitlines()[-1] == "[True]", "it stood still only while it compiled"
    assert exporter.frames("box") == []
    assert not folder.exists()


@pytest.fixture
def job(torch_program: Any, exporter: Any, tmp_path: Path) -> Callable[[str], Job]:
    """Starts the job with a case; its boxes are in the folder `boxes`."""
    folder = str(tmp_path / "boxes")
    return lambda case: Job(torch_program, exporter, PROGRAM, WORLD, CASE=case, TACHOGRAPH_BLACKBOX=folder)


def boxes_of(folder: Path) -> dict[int, dict[str, Any]]:
    """The boxes written so far, by rank."""
    return {box["rank"]: box for path in folder.rglob("rank-?.json") for box in (json.loads(path.read_text()),)}


def verdict_of(folder: Path, until: Callable[..., Any]) -> Any:
    """Wait for four boxes, and return what they say."""
    boxes = until(lambda: len(found := boxes_of(folder)) == WORLD and found)
    if not any(box["recorders"].get(GLOO, {}).get("entries") for box in boxes.values()):
        pytest.skip("this PyTorch does not record gloo")
    return analyze(folder)


def test_a_loader_that_is_stuck_in_a_read(job: Callable[[str], Job], tmp_path: Path, until: Callable[..., Any]) -> None:
    """The four boxes name the rank and the line of the read, before any collective has timed out."""
    job("reads")
    verdict = verdict_of(tmp_path / "boxes", until)
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.kind) == (2, "host_stuck")
    assert culprit.line == f"program:{line_with('# the read')} load_shard"
    assert f":{line_with('.backward()')} train" in culprit.missed_line or "all_reduce" in culprit.reason
    boxes = boxes_of(tmp_path / "boxes")
    assert {box["reason"].partition(" for ")[0] for box in boxes.values()} == {"no step"}
    assert boxes[2]["phase"] == "data"
    members = {tuple(group["ranks"]) for group in boxes[2]["groups"].values()}
    assert members == {(0, 1, 2, 3), (2, 3)}
    assert {group["enqueued"] > 0 for box in boxes.values() for group in box["groups"].values()} == {True}


def test_a_skipped_collective(job: Callable[[str], Job], tmp_path: Path, until: Callable[..., Any]) -> None:
    """The rank that left it out is named, with the line of the call."""
    job("skips")
    verdict = verdict_of(tmp_path / "boxes", until)
    assert 2 in [culprit.rank for culprit in verdict.culprits]
    assert f":{line_with('# the skipped one')} train" in str(verdict.culprits)


def test_a_rank_that_raises(
    job: Callable[[str], Job], tmp_path: Path, exporter: Any, until: Callable[..., Any]
) -> None:
    """Its box, of the failure, has the line at which it did; so the exporter has it, after the bye."""
    job("raises")
    exporter.wait_for("box", lambda frame: frame["reason"] == "failed: data")
    box = until(lambda: boxes_of(tmp_path / "boxes").get(2))
    assert box["where"] == f"program:{line_with('# the raise')} load_shard"
    assert box["failure"]["message"] == "FileNotFoundError: shard 8"


def test_a_rank_that_dies(job: Callable[[str], Job], tmp_path: Path, until: Callable[..., Any]) -> None:
    """It leaves no box and is named; the others, in which a collective raised, are its victims, wherever each was."""
    job("dies")
    until(lambda: len(boxes_of(tmp_path / "boxes")) == WORLD - 1)
    assert {box["failure"]["category"] for box in boxes_of(tmp_path / "boxes").values()} == {"collective"}
    verdict = analyze(tmp_path / "boxes")
    assert [(culprit.rank, culprit.kind) for culprit in verdict.culprits] == [(2, "no_dump")]


def test_a_rank_that_raised_and_never_left(
    job: Callable[[str], Job], tmp_path: Path, until: Callable[..., Any]
) -> None:
    """The line is the one at which it raised, not that at which its clean-up hangs."""
    job("lingers")
    (culprit,) = verdict_of(tmp_path / "boxes", until).culprits
    assert (culprit.rank, culprit.line) == (2, f"program:{line_with('# why')} train")
    assert boxes_of(tmp_path / "boxes")[2]["failure"]["message"] == "ValueError: bad batch"


def test_boxes_for_those_who_ask(
    job: Callable[[str], Job], tmp_path: Path, exporter: Any, until: Callable[..., Any]
) -> None:
    """By SIGUSR2 and by the exporter: a rank that waits in a healthy job leaves one, too, and goes on."""
    job("asks")
    until(lambda: len(exporter.talks) == WORLD and len(exporter.frames()) > 2 * WORLD)
    pids = {talk.of("hello")[0]["rank"]: talk.of("hello")[0]["pid"] for talk in exporter.talks}
    os.kill(pids[1], signal.SIGUSR2)
    for talk in list(exporter._sockets):
        if talk is not exporter._sockets[[*pids].index(1)]:
            talk.sendall(b'{"ok":true,"capture":"asked for by alice"}\n')
    found = until(lambda: len(boxes := boxes_of(tmp_path / "boxes")) == WORLD and boxes)
    assert {rank: box["reason"] for rank, box in found.items()} == {
        0: "asked for by alice", 1: "SIGUSR2", 2: "asked for by alice", 3: "asked for by alice",
    }  # fmt: skip
    assert all(Path(f"/proc/{pid}").exists() for pid in pids.values())
