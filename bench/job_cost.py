"""The cost of recording for a real PyTorch job: the gradient hook on a 50 ms step, and everything on at a 300 ms step.

1. Two gloo ranks train the same DistributedDataParallel model in turns, with and without the communication hook, in one
   process group: a step of each after the other, the order turned round every time, so that a machine that gets slower
   or busier does so for both.
2. One process trains a model with everything on that `watch` offers on a CPU, beside a twin of it without. What a step
   adds to the training thread is far below what two steps of 300 ms differ by, so it is counted where it happens: every
   call of the recorder and every hook on the optimizer, by the thread's own clock.

GPU figures are another matter: CUDA events, asynchronous copies and NCCL are not in these.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from client import exporter
from tachograph_lab.processes import free_port
from tachograph_lab.table import quantile, save, show

HOOK_BUDGET_PERCENT = 1.0
STEP_HOOK, STEP_JOB = 0.05, 0.3
JOB_BUDGET_PERCENT, JOB_BUDGET_MICROSECONDS = 0.5, 20.0
EVERYTHING: dict[str, Any] = {
    "layers": 8,
    "activations": True,
    "update_every": 100,
    "checksum_every": 100,
    "memory_layers": True,
}


def model_of(torch: Any, width: int, layers: int) -> Any:
    """Return a plain network of square layers."""
    torch.manual_seed(0)
    blocks = [block for _ in range(layers) for block in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*blocks)


def batch_for(torch: Any, step: Callable[[Any], float], width: int, seconds: float) -> Any:
    """Return a batch with which `step` takes about `seconds`."""
    rows = 64
    while True:
        batch = torch.ones(rows, width)
        took = min(step(batch) for _ in range(4))
        if took >= 0.85 * seconds or rows >= 2**16:
            return batch
        rows = int(rows * min(max(0.95 * seconds / took, 1.15), 4.0))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, by order statistics (binomial, normal approximation)."""
    ordered, count = sorted(values), len(values)
    half = 1.96 * math.sqrt(count) / 2
    low, high = math.floor(count / 2 - half), math.ceil(count / 2 + half)
    return ordered[max(low, 0)], ordered[min(high, count - 1)]


def train(model: Any, batch: Any) -> float:
    """Run forward and backward and return the seconds."""
    began = time.perf_counter()
    model(batch).sum().backward()
    return time.perf_counter() - began


def hook_rank(rank: int, port: int, pairs: int) -> None:
    """Be one of two ranks; rank 0 prints the seconds of each pair of steps, bare and hooked."""
    import torch
    import torch.distributed as dist

    import tachograph

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    recorder = tachograph.Recorder(run="hook", rank=rank, world_size=2)
    width = 512
    models = [torch.nn.parallel.DistributedDataParallel(model_of(torch, width, 6)) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-4) for model in models]
    recorder.watch(models[1])

    def step(which: int, batch: Any) -> float:
        began = time.perf_counter()
        optimizers[which].zero_grad()
        models[which](batch).sum().backward()
        optimizers[which].step()
        return time.perf_counter() - began

    plain = model_of(torch, width, 6)
    rows = torch.tensor([batch_for(torch, lambda batch: train(plain, batch), width, STEP_HOOK).shape[0]])
    dist.broadcast(rows, 0)  # rank 0's choice
    batch = torch.ones(int(rows), width)
    costs = []
    for pair in range(pairs + 5):
        first = pair % 2
        took = {which: step(which, batch) for which in (first, 1 - first)}
        costs.append((took[0], took[1]))
    dist.barrier()
    dist.destroy_process_group()
    recorder.close()
    if rank == 0:
        print(json.dumps(costs[5:]))


def hook_cost(pairs: int) -> dict[str, float]:
    """Return milliseconds of a step with and without the hook, and the median of what it adds, in per cent."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, exporter(Path(folder) / "rank.sock", state="alive"):
        environment = {**os.environ, "TACHOGRAPH_SOCKET": str(Path(folder) / "rank.sock"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", __file__, "--pairs", str(pairs), "--port", str(port), "--hook-rank"]
        ranks = [
            subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        try:
            printed = [rank.communicate(timeout=540)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    costs = json.loads(printed[0].splitlines()[-1])
    added = [100 * (hooked / bare - 1) for bare, hooked in costs]
    low, high = median_interval(added)
    return {
        "pairs": float(len(added)), "bare ms": 1e3 * statistics.median(bare for bare, _ in costs),
        "hooked ms": 1e3 * statistics.median(hooked for _, hooked in costs), "added %": statistics.median(added),
        "95 % from": low, "to": high,
    }  # fmt: skip


class Spent:
    """Adds up the seconds that a thread spends in calls of ours: those made through `around`, and hooks we hang."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` with its time added up."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began

        return timed

    def hooks_of(self, owner: type, names: Sequence[str]) -> None:
        """Have every hook that is hung on objects of `owner` from now on timed: all of them are ours."""
        for name in names:
            register = getattr(owner, name)

            def hang(this: Any, hook: Any, *more: Any, register: Any = register, **named: Any) -> Any:
                return register(this, self.around(hook), *more, **named)

            setattr(owner, name, hang)


def job_rank(steps: int) -> None:
    """Be one process with everything on; print the step's seconds and the microseconds of ours, for each step."""
    import torch

    import tachograph

    torch.set_num_threads(1)
    spent, width = Spent(), 512
    spent.hooks_of(torch.nn.Module, ("register_forward_pre_hook", "register_forward_hook"))
    spent.hooks_of(torch.optim.Optimizer, ("register_step_pre_hook", "register_step_post_hook"))
    recorder = tachograph.Recorder(run="job", rank=0, world_size=1, tokens_per_step=4096, flops_per_token=1e9)
    model = model_of(torch, width, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    recorder.watch(model, optimizer, scheduler=scheduler, **EVERYTHING)
    batch = batch_for(torch, lambda batch: train(model, batch), width, STEP_JOB)
    enter = spent.around(lambda context: context.__enter__())
    begin, phase_of = spent.around(recorder.step), spent.around(recorder.phase)
    losses: list[Any] = []

    def with_phase(name: str, work: Callable[[], object]) -> None:
        phase = phase_of(name)
        enter(phase)
        work()
        spent.around(phase.__exit__)(None, None, None)

    rows = []
    for number in range(steps + 3):
        spent.seconds = 0.0
        began = time.perf_counter()
        step = begin()
        enter(step)
        with_phase("forward", lambda: losses.append(model(batch).sum()))
        with_phase("backward", losses[-1].backward)
        with_phase("optimizer", optimizer.step)
        optimizer.zero_grad()
        spent.around(step.log)(loss=losses.pop(), learning_rate=1e-4)
        spent.around(step.__exit__)(None, None, None)
        if number >= 3:
            rows.append((time.perf_counter() - began, spent.seconds * 1e6))
        scheduler.step()
    recorder.close()
    print(json.dumps(rows))


def job_cost(steps: int) -> dict[str, float]:
    """Return what everything costs the training thread: the usual step's, and the mean with the sampled ones in it."""
    with tempfile.TemporaryDirectory() as folder, exporter(Path(folder) / "rank.sock", state="alive"):
        environment = {**os.environ, "TACHOGRAPH_SOCKET": str(Path(folder) / "rank.sock")}
        command = [sys.executable, "-W", "ignore", __file__, "--job", "--steps", str(steps)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    took, ours = [row[0] for row in rows], [row[1] for row in rows]
    step = statistics.median(took)
    return {
        "steps": float(len(rows)), "step ms": 1e3 * step, "ours p50 µs": statistics.median(ours),
        "p90 µs": quantile(ours, 0.9), "max µs": max(ours), "mean µs": statistics.fmean(ours),
        "mean %": statistics.fmean(ours) / step / 1e4,
    }  # fmt: skip


def main() -> None:
    """Print both tables and write bench/out/job_cost.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hook-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=400, help="pairs of steps with and without the hook")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=400, help="steps with everything on")
    options = parser.parse_args()
    if options.hook_rank is not None:
        hook_rank(options.hook_rank, options.port, options.pairs)
        return
    if options.job:
        job_rank(options.steps)
        return
    hook = hook_cost(options.pairs)
    show("The gradient hook: two gloo ranks, pairs of steps in turns", [hook], f"budget: <= {HOOK_BUDGET_PERCENT:g} %")
    job = job_cost(options.steps)
    note = f"budget: <= {JOB_BUDGET_MICROSECONDS:g} µs and <= {JOB_BUDGET_PERCENT:g} % a step on the training thread"
    show("Everything on: microseconds of ours in the training thread, per step", [job], note)
    save("job_cost", {"hook": hook, "everything on": job})


if __name__ == "__main__":
    main()
