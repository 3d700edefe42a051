"""Waits in code compiled with `torch.compile`: no graph is broken because of us."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import torch, torch._dynamo as dynamo, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from tachograph.client.recorder import Recorder

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

def waits(x): return functional.wait_tensor(functional.all_reduce(x * 2, "sum", dist.group.WORLD)) + 1
def plain(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1
def breaks(x):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1

def graphs():
    found = []
    for function in (waits, plain, breaks):
        dynamo.reset()
        explained = dynamo.explain(function)(torch.ones(3))
        found.append((function.__name__, explained.graph_count, explained.graph_break_count))
    for function in (waits, plain):
        dynamo.reset()
        torch.compile(function, backend="eager", fullgraph=True)(torch.ones(3))
    return found

before = graphs()
recorder = Recorder()
recorder.watch(torch.nn.Linear(1, 1))
assert functional.wait_tensor.__code__.co_filename.endswith("waits.py")
with recorder.step():
    during = graphs()
recorder.close()
assert before == during == graphs(), (before, during)
assert before[2][2] == 1, before
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_graph_breaks_where_it_did_before_and_nowhere_else() -> None:
    """Graphs and graph breaks of compiled waits are the same before `watch`, within a step, and after `close`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
