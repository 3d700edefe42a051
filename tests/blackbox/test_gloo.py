"""Real jobs of four ranks on gloo, with the recorder of the PyTorch that is installed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tachograph.blackbox.findings import Verdict
from tachograph.blackbox.verdict import analyze

pytestmark = pytest.mark.torch

PROGRAM = """
import json, os, sys, threading, time
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d

case, folder, form = sys.argv[1:]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{folder}/../store", rank=rank, world_size=4)
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
tensor, small = torch.ones(64), torch.ones(8)

def stands():  # in the call that the rank named never makes
    last = json.loads(c10d._dump_fr_trace_json(True, False))["entries"][-1]
    return last["process_group"][0] == "0" and last["collective_seq_id"] == 8 and not last["retired"]

def leave():
    while not (idle.is_set() or stands()):
        time.sleep(0.02)
    name = f"{folder}/comm_lib_trace_rank_{rank}"
    data = c10d._dump_fr_trace(True, True, False) if form == "pickle" else c10d._dump_fr_trace_json(True, False)
    with open(name + ".part", "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
    os.rename(name + ".part", name)
    while len([one for one in os.listdir(folder) if not one.endswith(".part")]) < 4:
        time.sleep(0.02)
    os._exit(0)

idle = threading.Event()
def step(skips=False, stuck=False):
    dist.all_reduce(small, group=pairs[rank // 2])
    if stuck:
        idle.set()
        threading.Event().wait()
    if not skips:
        dist.all_reduce(tensor)  # the skipped one
    dist.broadcast(small, 0)

for _ in range(3):
    step()
dist.barrier()
if not hasattr(c10d, "_dump_fr_trace") or not json.loads(c10d._dump_fr_trace_json(True, False))["entries"]:
    os._exit(77)
threading.Thread(target=leave).start()
step(skips=case == "skipped" and rank == 2, stuck=case == "stuck" and rank == 2)
threading.Event().wait()
"""
LINE = {text: number for number, text in enumerate(PROGRAM.strip().splitlines(), 1)}
SKIPPED = next(number for text, number in LINE.items() if "the skipped one" in text)


def verdict_of(torch_programs: Any, folder: Path, case: str, form: str = "pickle") -> Verdict:
    (folder / "dumps").mkdir()
    with ExitStack() as running:
        ranks = []
        for rank in range(4):
            program = torch_programs(PROGRAM.strip(), case, folder / "dumps", form, RANK=str(rank))
            running.callback(program.stop)
            ranks.append(program)
        if {program.wait() for program in ranks} == {77}:
            pytest.skip("this PyTorch does not record gloo")
        for program in ranks:
            program.end()
    return analyze(folder / "dumps")


def test_a_skipped_collective(torch_programs: Any, tmp_path: Path) -> None:
    """The rank that skipped an all_reduce is named, with the line of the call that it skipped."""
    verdict = verdict_of(torch_programs, tmp_path, "skipped")
    assert [(one.rank, one.kind) for one in verdict.culprits] == [(2, "skipped_collective")]
    assert f":{SKIPPED} step" in (verdict.culprits[0].line or "")
    assert verdict.backends == ("gloo",)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_stuck_on_the_host(torch_programs: Any, form: str, tmp_path: Path) -> None:
    """The rank that never called it is named, by pickles and by JSON, which has no lines."""
    verdict = verdict_of(torch_programs, tmp_path, "stuck", form)
    assert [(one.rank, one.kind) for one in verdict.culprits] == [(2, "host_stuck")]
    assert f":{SKIPPED} step" in (verdict.culprits[0].missed_line or "") or form == "json"
