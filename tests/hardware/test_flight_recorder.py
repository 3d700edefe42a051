"""A real Flight Recorder of NCCL in a world of one: lengths on the GPU, and the wait of a step by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.hardware

JOB = """
import json, pickle, time
import torch, torch.distributed as dist
import tachograph

device = torch.device("cuda", 0)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
recorder = tachograph.Recorder(run="ring", rank=0, world_size=1, local_rank=0)
model = torch.nn.Linear(2048, 2048).to(device)
recorder.watch(model)
batch, shard = torch.randn(256, 2048, device=device), torch.ones(1 << 24, device=device)
whole = torch.empty_like(shard)
until = time.monotonic() + 80  # the first look, and two more 15 to 24 s apart
while time.monotonic() < until:
    with recorder.step():
        model(batch).sum().backward()
        dist.all_gather_into_tensor(whole, shard)  # on the current stream: nothing waits for it in Python
        torch.cuda.synchronize()
        time.sleep(0.02)
time.sleep(1)  # the watchdog has seen the last one
native = torch._C._distributed_c10d
dump = pickle.loads(native._dump_nccl_trace(includeCollectives=True, includeStackTraces=False))
last = dump["entries"][-1]
lengths = [entry.get("duration_ms") for entry in dump["entries"][-50:]]
print(json.dumps({"version": dump["version"], "keys": sorted(last), "name": last["profiling_name"], "ms": lengths}),
      flush=True)
recorder.close()
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("cuda")
def test_lengths_and_the_wait_by_them(exporter: Any) -> None:
    """Every collective has a length above 0, the keys are those that are read, and a rank shows its wait by them."""
    environment = {**os.environ, **exporter.environment, "TORCH_NCCL_ENABLE_TIMING": "1"}
    command = [sys.executable, "-W", "ignore", "-c", JOB]
    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        page = exporter.wait("tachograph_train_recent_wait_seconds", 110, run="ring")
        out, _ = job.communicate(timeout=150)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0
    seen = json.loads(out.splitlines()[-1])
    print(seen)
    assert all(length is not None and length > 0 for length in seen["ms"])
    read = {"record_id", "process_group", "collective_seq_id", "p2p_seq_id", "time_created_ns", "duration_ms"}
    assert read <= set(seen["keys"])
    wait = page.value("tachograph_train_recent_wait_seconds", run="ring")
    assert 0 < wait < page.value("tachograph_train_recent_step_seconds", run="ring")
    assert page.value("tachograph_train_collective_seconds_total", run="ring", op="all_gather") > 0


BETWEEN = """
import json, time
import torch, torch.distributed as dist
from tachograph.client.hello.groups import GroupProgress

device = torch.device("cuda", 0)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
store, pair = dist.new_group([0], backend="gloo", group_desc="store"), dist.new_group([0], group_desc="tp")
for group, times, at in ((dist.group.WORLD, 9, device), (store, 5, "cpu"), (pair, 5, device)):
    for _ in range(times):
        dist.all_reduce(torch.ones(8, device=at), group=group)
torch.cuda.synchronize()
progress, until, found, ended = GroupProgress(), time.monotonic() + 30, {}, {}
while (ended.get("0"), ended.get("tp 0")) != (9, 5) and time.monotonic() < until:
    time.sleep(0.2)
    found = progress.metrics()
    ended = found.get("collective_completed", {})
print(json.dumps([found, [known.numbers for known in progress._reported]]), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("cuda")
def test_a_gloo_group_between_two_of_nccl() -> None:
    """NCCL numbers only its own groups, whichever implementation this PyTorch has; each group has its own count."""
    command = [sys.executable, "-W", "ignore", "-c", BETWEEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found, numbers = json.loads(done.stdout.splitlines()[-1])
    print(found, numbers)
    assert found["collective_enqueued"] == {"0": 9, "store 0": 5, "tp 0": 5}
    ended = found["collective_completed"]
    assert (ended["0"], ended["tp 0"]) == (9, 5)
    assert 0 < ended["store 0"] <= 5  # gloo's threads write it in any order
    kind = next(iter(numbers[0]))
    assert numbers == [{kind: 0}, {"gloo": 0}, {kind: 1}]
