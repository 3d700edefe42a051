"""A known load: bf16 matrix multiplications on one GPU, reported as a rank; JSON on stdout.

`python load.py SECONDS [RECORD]`: prints {"began": …, "ended": …, "flops_per_second": …, "samples": […]},
times in Unix seconds, samples in seconds per step. With RECORD the steps are recorded as run `matmul`.
"""

from __future__ import annotations

import json
import sys
import time

import torch

import tachograph

SIZE = 8192
PER_STEP = 20
FLOPS_PER_STEP = PER_STEP * 2 * SIZE**3


def main(seconds: float, *, record: bool) -> None:
    device = torch.device("cuda", 0)
    left = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    right = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(left)
    for _ in range(2 * PER_STEP):
        torch.matmul(left, right, out=out)
    torch.cuda.synchronize()
    recorder = (
        tachograph.Recorder(run="matmul", rank=0, world_size=1, local_rank=0, flops_per_step=FLOPS_PER_STEP)
        if record
        else None
    )
    began = time.time()
    samples = []
    while time.time() - began < seconds:
        start = time.perf_counter()
        if recorder is None:
            step(left, right, out)
        else:
            with recorder.step():
                step(left, right, out)
        samples.append(time.perf_counter() - start)
    ended = time.time()
    rate = len(samples) * FLOPS_PER_STEP / (ended - began)
    print(json.dumps({"began": began, "ended": ended, "flops_per_second": rate, "samples": samples}), flush=True)


def step(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    for _ in range(PER_STEP):
        torch.matmul(left, right, out=out)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(float(sys.argv[1]), record=len(sys.argv) > 2)
