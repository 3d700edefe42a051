"""Jobs of several ranks on gloo, forked by a program that has imported PyTorch."""

from __future__ import annotations

import textwrap
from typing import Any

from tachograph_lab.processes import free_port

JOB = """
import os, sys, threading, time
import torch, torch._dynamo, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tachograph.client.recorder import Recorder

children = []
for rank in range(int(os.environ["WORLD_SIZE"])):
    child = os.fork()
    if child == 0:
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        break
    children.append(child)
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

class Delay(torch.autograd.Function):
    seconds = 0.0
    @staticmethod
    def forward(context, x): return x.clone()
    @staticmethod
    def backward(context, gradient):
        time.sleep(Delay.seconds)
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    def forward(self, x): return self.second(Delay.apply(self.first(x)))

def ddp(): return DistributedDataParallel(Model(), bucket_cap_mb=0.01)
def finish():
    dist.barrier()
    dist.destroy_process_group()
"""


class Job:
    """One run: its ranks are processes that report to `exporter`."""

    def __init__(self, torch_program: Any, exporter: Any, code: str, world: int, **more: str) -> None:
        self._program = torch_program(
            JOB + textwrap.dedent(code), TACHOGRAPH_SOCKET=str(exporter.path), TACHOGRAPH_RUN="job",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(world), **more,
        )  # fmt: skip
        self._exporter = exporter

    def end(self) -> None:
        """Wait for every rank to end well."""
        self._program.end()

    def last_states(self) -> list[dict[str, Any]]:
        """The last state of each rank, in their order."""
        talks = {talk.of("hello")[0]["rank"]: talk.of("state")[-1] for talk in self._exporter.talks if talk.of("state")}
        return [state for _, state in sorted(talks.items())]
