"""Real process groups and real Flight Recorders: which number a recorder knows each group by, and what it says of it.

The hook of PyTorch 2.15 is run by `make test-torch TORCH=torch==2.15.0`: on a backend made here that calls itself
`nccl2`, as there is no GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tachograph_lab.processes import free_port

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def dump(torch: Any) -> Any:
    """PyTorch's function that dumps the Flight Recorder of gloo."""
    found = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    return found or pytest.skip("this PyTorch has no Flight Recorder of gloo")


JOB = """
import json, os, sys, time
import torch, torch.distributed as dist
from tachograph.client.hello.groups import GroupProgress

child = os.fork()
rank = 0 if child else 1
os.environ["RANK"] = str(rank)
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
hashed = dist.new_group([0, 1], use_local_synchronization=True)
gone, idle = dist.new_group([0, 1]), dist.new_group([0, 1])
progress, tensor, said = GroupProgress(), torch.ones(8), []

def found():
    metrics = progress.metrics()
    return metrics["collective_enqueued"], metrics.get("collective_completed", {})

def reduce(group, times):
    for _ in range(times):  # the next one once the last is seen to be over, or worker threads write in any order
        dist.all_reduce(tensor, group=group)
        deadline = time.monotonic() + 90
        while (all_ := found())[1] != {label: count for label, count in all_[0].items() if count}:
            assert time.monotonic() < deadline, all_

reduce(dist.group.WORLD, 2)
reduce(hashed, 3)
reduce(gone, 4)
said.append(found())
dist.destroy_process_group(gone)
late = dist.new_group([0, 1])
reduce(late, 1)
if rank == 0:
    work = dist.all_reduce(tensor, group=hashed, async_op=True)
    said.append(found())
    store.set("seen", "")
    work.wait()
    with open(sys.argv[1] + "/said", "w") as file:
        json.dump(said, file)
else:
    store.wait(["seen"])
    dist.all_reduce(tensor, group=hashed)
dist.destroy_process_group()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_groups_of_a_job_on_gloo(torch_programs: Any, tmp_path: Path) -> None:
    """Hashed names, a group that is gone, one that does nothing, one made later, and a collective that hangs."""
    torch_programs(JOB, tmp_path, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())).end()
    before, after = json.loads((tmp_path / "said").read_text())
    assert before == [
        {"0": 2, "0,1": 3, "0,1 (2)": 4, "0,1 (3)": 0},
        {"0": 2, "0,1": 3, "0,1 (2)": 4},
    ]
    assert after == [
        {"0": 2, "0,1": 4, "0,1 (3)": 0, "0,1 (2)": 1},
        {"0": 2, "0,1": 3, "0,1 (2)": 1},
    ]


HOOK = """
import json
import torch, torch.distributed as dist
from tachograph.client.hello.groups import GroupProgress
from tachograph.client.torch import recorders

native = torch._C._distributed_c10d

class Done(native.Work):
    def wait(self, timeout=None):
        return True

class Made(native.Backend):
    entered = 0
    def allreduce(self, tensors, options=None):
        self.entered += 1
        return Done()
    def getBackendName(self):
        return "nccl2"
    def _get_sequence_number_for_group(self):
        return self.entered

kept = []

def make(options, more=None):
    kept.append(Made(options.group_rank, options.group_size))
    return kept[-1]

dist.Backend.register_backend("made", make, extended_api=True, devices=["cpu"])
dist.init_process_group("cpu:made", store=dist.HashStore(), rank=0, world_size=1)
between, pair = dist.new_group([0], backend="gloo"), dist.new_group([0], backend="cpu:made")
for group, times in ((dist.group.WORLD, 9), (between, 5), (pair, 5)):
    for _ in range(times):
        dist.all_reduce(torch.ones(8), group=group)
progress = GroupProgress()
assert progress.metrics()["collective_enqueued"] == {"0": 9, "0 (2)": 5, "0 (3)": 5}
names = {group.group_name: known for (group, _), known in
         zip(dist.distributed_c10d._world.pg_names.items(), progress._reported, strict=True)}
numbers = {name: known.numbers for name, known in names.items()}
assert numbers == {"0": {"nccl2": 0}, "1": {"gloo": 0}, "2": {"nccl2": 1}}, numbers
recorded = recorders.entries("nccl2")["entries"]
assert {entry["process_group"][0]: entry["pg_id"] for entry in recorded} == {"0": 0, "2": 1}
assert {entry["profiling_name"] for entry in recorded} == {"nccl2:all_reduce"}
status = recorders.status("nccl2")["pg_status"]
assert [status[each]["last_enqueued_collective"] for each in "01"] == ["8", "4"], "counted from 0"
assert recorders.entries("nccl")["entries"] == []
"""


def test_a_hook_numbers_its_own_groups(dump: Any, torch_programs: Any, tmp_path: Path) -> None:
    """By the number in its entries, which a look without entries does not show; a gloo group between has none."""
    if "backend" not in (dump.__doc__ or ""):
        pytest.skip("this PyTorch has one recorder for all, and no hook")
    torch_programs(HOOK, tmp_path).end()
