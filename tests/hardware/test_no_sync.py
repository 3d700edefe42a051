"""No GPU synchronisation is added: the waiting calls of CUDA's runtime are counted with and without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.hardware

STEPS = 100
"""DDP times one step in a hundred, and waits for its events then: any hundred steps have as many such waits."""

WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")

JOB = """
import collections, json, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
import tachograph

mode, steps, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", TORCH_NCCL_ENABLE_TIMING="1")
dist.init_process_group(
    "nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1,
    device_id=torch.device("cuda", 0) if device == "cuda" else None,
)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).to(device)
model = DistributedDataParallel(model, bucket_cap_mb=8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, 1024, device=device)
recorder = tachograph.Recorder(run="no-sync", enabled=mode != "without")
recorder.watch(model, optimizer)

def step():
    with recorder.step() as one:
        with recorder.phase("forward"):
            loss = model(batch).square().mean()
        with recorder.phase("backward"):
            loss.backward()
        with recorder.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        one.log(loss=loss)
        if mode == "waiting":
            loss.item()

until = time.monotonic() + 5  # frames are sent: CUDA was seen to be in use, its events are being recorded
while time.monotonic() < until:
    step()
activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
with profile(activities=activities) as seen:
    for _ in range(steps):
        step()
counts = collections.Counter(event.name for event in seen.events() if event.name.startswith("cuda"))
for _ in range(20):
    step()
    time.sleep(0.1)  # for a last frame that has what the steps showed
recorder.close()
dist.destroy_process_group()
print(json.dumps(counts))
"""


def count(exporter: Any, mode: str, device: str = "cuda") -> dict[str, int]:
    """Return how often each call of CUDA's runtime was made in a hundred steps."""
    command = [sys.executable, "-W", "ignore", "-c", JOB, mode, str(STEPS), device]
    environment = {**os.environ, **exporter.environment}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as job:
        try:
            if mode == "with":
                exporter.wait("tachograph_train_loss", 100, run="no-sync")  # a rank that has ended shows none
            out, _ = job.communicate(timeout=110)
        finally:
            job.kill()
    assert job.returncode == 0
    counts: dict[str, int] = json.loads(out.splitlines()[-1])
    return counts


def waits(counts: dict[str, int]) -> dict[str, int]:
    """Return those calls that wait for the GPU."""
    return {name: counts.get(name, 0) for name in WAITS}


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("cuda")
def test_no_synchronisation_is_added(exporter: Any) -> None:
    """A logged loss on the GPU, phases timed by events, a DDP hook on NCCL, and not one wait more than without.

    That the count can show one is proved by a third run, which calls `loss.item()`; that we were there, by our events
    and by what the exporter was told.
    """
    without, with_us, waiting = (count(exporter, mode) for mode in ("without", "with", "waiting"))
    print({"without": without, "with": with_us, "waiting": waiting})
    assert waits(with_us) == waits(without)
    assert sum(waits(waiting).values()) >= sum(waits(without).values()) + STEPS
    assert with_us["cudaEventRecord"] >= without.get("cudaEventRecord", 0) + STEPS
    page = exporter.page()
    assert page.all("tachograph_train_phase_device_seconds_total", run="no-sync", phase="forward")
    assert page.all("tachograph_train_collective_wait_seconds_total", run="no-sync", op="all_reduce")
