"""How programs of PyTorch end when others end them: a scheduler, a terminal, a launcher."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph_lab.processes import free_port
from tests.client.torch.jobs import JOB

LOADER = """
import os, signal, time
from torch.utils.data import DataLoader
from tachograph.client.recorder import Recorder

asked = []
signal.signal(signal.{name}, lambda *_: asked.append(1))  # as a loop that saves once more before it ends
recorder = Recorder(run="asked")

class Slow:
    def __len__(self): return 100_000
    def __getitem__(self, index):
        signal.signal(signal.{name}, signal.SIG_DFL)
        time.sleep(0.02)
        return index

for batch in DataLoader(Slow(), num_workers=2):
    with recorder.step(): pass
"""

HANGS = """
recorder = Recorder(run="job", rank=rank)
for _ in range(2):
    with recorder.step(): dist.all_reduce(Model()(torch.randn(4, 64)).detach())
recorder.close()
if rank == 0:
    dist.all_reduce(torch.ones(4), async_op=True)  # which rank 1 never enters: gloo waits for it before it lets go
    open(sys.argv[1] + "/destroying", "w").close()
    dist.destroy_process_group()
    open(sys.argv[1] + "/destroyed", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(("name", "category"), [("SIGTERM", "terminated"), ("SIGHUP", "terminated")])
def test_a_signal_to_the_whole_process_group(
    exporter: Any, torch_program: Callable[..., Any], name: str, category: str
) -> None:
    """The loader's workers die of it, and the training of their loss: the scheduler is the reason, not the data."""
    program = torch_program(LOADER.format(name=name), TACHOGRAPH_SOCKET=str(exporter.path))
    exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] > 1)
    os.killpg(program.pid, getattr(signal, name))
    assert program.wait() == 1
    bye = exporter.wait_for("bye")
    assert (bye["outcome"], bye["category"]) == ("failed", category)
    assert "DataLoader worker" in bye["message"]


def test_a_process_group_that_cannot_be_destroyed(
    exporter: Any, torch_program: Callable[..., Any], until: Callable[..., Any], tmp_path: Path
) -> None:
    """What hangs after `recorder.close()` is no part of the training, and does not survive SIGTERM."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    program = torch_program(JOB + HANGS, tmp_path, TACHOGRAPH_SOCKET=str(exporter.path), **place)
    until(lambda: len(exporter.frames("bye")) == 2)
    until((tmp_path / "destroying").exists)
    pids = {hello["rank"]: hello["pid"] for hello in exporter.frames("hello")}
    for rank in (0, 1):
        os.kill(pids[rank], signal.SIGTERM)
        until(lambda rank=rank: not Path(f"/proc/{pids[rank]}").exists() or rank)  # its parent has collected it
    assert program.wait() == 1
    assert [bye["outcome"] for bye in exporter.frames("bye")] == ["finished", "finished"]
    assert not (tmp_path / "destroyed").exists()
