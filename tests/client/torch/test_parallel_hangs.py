"""Hangs of real jobs of four ranks on gloo that mark their steps only: the ranks' frames say who stopped first."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.ranks.conclusions import hangs
from tests.client.torch.jobs import Job
from tests.torch_programs import parallelism_is_public, skip_without_fsdp2

CULPRIT = 2

PARALLEL = """
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

kind, fault = os.environ["KIND"], os.environ["FAULT"]
names = {"ddp": ("dp",), "tensor": ("tp",), "pipeline": ("pp",), "fsdp_tensor": ("fsdp", "tp")}[kind]
shape = (2, 2) if len(names) > 1 else (4,)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
if "tp" in names: parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
if kind == "ddp": model = DistributedDataParallel(model)
if kind == "fsdp_tensor":
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=mesh["fsdp"])
loss_of = lambda output, target: (output - target).square().mean()
if kind == "pipeline":
    stage = PipelineStage(model, rank, world, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 4, loss_fn=loss_of)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
everyone = dist.new_group()
recorder = Recorder()
recorder.watch(model, optimizer)

def train():
    inputs, target = torch.ones(8, 8), torch.zeros(8, 8)
    if kind != "pipeline": loss_of(model(inputs), target).backward()
    elif rank == 0: schedule.step(inputs)
    elif rank == world - 1: schedule.step(target=target)
    else: schedule.step()

for step in range(6):
    faulty = step == 4 and rank == CULPRIT
    if faulty and fault == "leaves": break
    with recorder.step():
        if faulty and fault == "sleeps": time.sleep(600)
        train()
        if not (faulty and fault == "skips"): dist.all_reduce(torch.ones(1), group=everyone)  # the loss
        optimizer.step()
        optimizer.zero_grad()
recorder.close()
time.sleep(600)
"""


def suspects(exporter: Any) -> tuple[set[int], set[int], dict[int, str]]:
    """Wait until every rank has stood for two seconds or left; return who is suspected, who left, and their phases."""
    while True:
        exporter.next_state()
        talks = {talk.of("hello")[0]["rank"]: talk for talk in exporter.talks if talk.of("state")}
        last = {rank: talk.of("state")[-1] for rank, talk in talks.items()}
        left = {rank for rank, talk in talks.items() if talk.of("bye")}
        stood = [
            frame.get("progress_time") is not None and frame["step"] >= 4 and frame["time"] - frame["progress_time"] > 2
            for rank, frame in last.items()
            if rank not in left
        ]
        if len(last) == 4 and all(stood):
            break
    entered = {rank: frame["metrics"]["collective_enqueued"] for rank, frame in last.items()}
    phases = {rank: frame["phase"] for rank, frame in last.items() if rank not in left}
    return set(hangs.hang_suspects(entered, phases)), left, phases


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("fault", ["sleeps", "skips", "leaves"])
@pytest.mark.parametrize("kind", ["ddp", "tensor", "fsdp_tensor", "pipeline"])
def test_who_holds_it_up(torch_program: Any, exporter: Any, kind: str, fault: str) -> None:
    """A rank that sleeps or leaves out a collective is named, not those who wait for it; one that left says so."""
    if kind == "fsdp_tensor":
        skip_without_fsdp2()
    if kind == "pipeline" and not parallelism_is_public():
        pytest.skip("1F1B of this PyTorch hangs on gloo")
    code = f"CULPRIT = {CULPRIT}\n{PARALLEL}"
    Job(torch_program, exporter, code, 4, KIND=kind, FAULT=fault)
    suspected, left, phases = suspects(exporter)
    if fault == "leaves":  # rank:hang_left_timestamp_seconds:max
        assert left == {CULPRIT}
        assert set(phases.values()) == {"backward" if kind == "ddp" else "collective"}
    else:
        assert (suspected, left) == ({CULPRIT}, set())
