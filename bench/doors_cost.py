"""What measuring waits adds to a step of a real job: four gloo ranks, with and without it in turns.

A pair is one step of each, the second first in every other pair, in one process group and between two barriers each. A
step sleeps where it would compute, so that two cores suffice for four ranks and what is left is communication. Without
it, PyTorch's functions are as they were; DDP, whose wait its hook measures, trains a second model without one.

Other programs make steps longer, by far more than we do: the half of the pairs that took longest together is left out.
That favours neither, for both of a pair count alike.

What our part of the waits takes is far below what two steps differ by, so it is also counted where it happens, in
further steps: the time of each wait with us, less that of PyTorch's own function inside it.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from client import exporter
from tachograph.client.torch.waits.wait_functions import WAIT_FUNCTIONS, attach
from tachograph_lab.processes import free_port
from tachograph_lab.table import save, show

WORLD, LAYERS, WIDTH, SAMPLES = 4, 4, 64, 16
SLEEP = 0.03
"""Of each layer in backward; a step of four takes 120 ms and its communication."""

WARM_UP = 5
BUDGET_PERCENT = 1.0
METERED = 100
OUTSIDE, INSIDE = 1, -1
KINDS = ("ddp", "fsdp2", "tensor", "1f1b", "all_reduce")

Step = Callable[[], object]


def layers() -> Any:
    """Return a network whose layers sleep."""
    import torch

    class Compute(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            time.sleep(SLEEP)
            return gradient

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
            self.down = torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

        def forward(self, x: Any) -> Any:
            return x + self.down(Compute.apply(self.up(x)))

    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))


def pipeline_step() -> Step:
    """Return a step of 1F1B, a layer on each rank and four micro-batches: 210 ms with the bubble."""
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = torch.distributed.get_rank()
    stage = PipelineStage(layers()[rank : rank + 1], rank, WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, _: y.square().mean())
    x = torch.ones(SAMPLES, WIDTH)
    given: dict[int, tuple[dict[str, Any], tuple[Any, ...]]] = {0: ({}, (x,)), WORLD - 1: ({"target": x}, ())}
    named, positional = given.get(rank, ({}, ()))
    return lambda: schedule.step(*positional, **named)


def step_of(model: Any, after: Step = lambda: None) -> Step:
    """Return a step of this model, and what comes after its backward pass."""
    import torch

    x = torch.ones(SAMPLES, WIDTH)

    def step() -> None:
        model.zero_grad()
        model(x).square().mean().backward()
        after()

    return step


def steps_of(kind: str, recorder: Any) -> tuple[Step, Step]:
    """Return a step to be measured without us and one with us: the same but for DDP."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    if kind == "ddp":
        bare, hooked = (DistributedDataParallel(layers()) for _ in range(2))
        recorder.watch(hooked)
        return step_of(bare), step_of(hooked)
    if kind == "1f1b":
        step = pipeline_step()
        return step, step
    model = layers()
    if kind == "fsdp2":
        for layer in model:
            fully_shard(layer)
        step = step_of(fully_shard(model))
    elif kind == "tensor":
        ways = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        plan = {f"{i}.{name}": way for i in range(LAYERS) for name, way in ways.items()}
        step = step_of(parallelize_module(model, init_device_mesh("cpu", (WORLD,)), plan))
    else:
        step = step_of(model, lambda: [dist.all_reduce(parameter.grad) for parameter in model.parameters()])
    return step, step


class Meter:
    """Adds up the time between us and who calls us, and takes away what is between us and PyTorch."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    @contextmanager
    def attached(self, factor: int) -> Iterator[None]:
        """Have the seconds of every wait added, times this factor."""
        attached = [attach(target, lambda call: self._timed(call, factor)) for target in WAIT_FUNCTIONS]
        try:
            yield
        finally:
            for one in attached:
                if one is not None:
                    one.detach()

    def _timed(self, call: Callable[..., Any], factor: int) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                self.seconds += factor * (time.perf_counter() - began)
                self.calls += factor == OUTSIDE

        return timed


def measured(kind: str, pairs: int) -> dict[str, Any]:
    """Return the seconds of each pair of steps on this rank, and the rest of a row."""
    import torch.distributed as dist

    import tachograph
    from tachograph.client.torch.waits.waits import Waits

    recorder = tachograph.Recorder(run="doors")
    steps = steps_of(kind, recorder)
    calls: Any = recorder._calls
    collectives = calls.state.collectives
    collectives.release()

    @contextmanager
    def doors() -> Iterator[None]:
        """Measure waits as `watch` has it done; the sender thread reports them."""
        collectives.waits = Waits(calls.clock, collectives.wait, lambda: None)
        collectives.waits.attach()
        try:
            yield
        finally:
            collectives.release()

    def timed(with_us: int) -> float:
        with doors() if with_us else nullcontext():
            dist.barrier()
            began = time.perf_counter()
            with recorder.step(), recorder.phase("backward"):
                steps[with_us]()
            took = time.perf_counter() - began
            dist.barrier()
        return took

    costs = []
    for pair in range(WARM_UP + pairs):
        took = {with_us: timed(with_us) for with_us in (pair % 2, 1 - pair % 2)}
        costs.append((took[0], took[1]))
    meters, lengths = [], []
    for _ in range(METERED):
        meter, began = Meter(), time.perf_counter()
        with meter.attached(INSIDE), doors(), meter.attached(OUTSIDE), recorder.step(), recorder.phase("backward"):
            steps[1]()
        lengths.append(time.perf_counter() - began)
        meters.append(meter)
    recorder.close()
    return {
        "costs": costs[WARM_UP:],
        "waits": meters[-1].calls,
        "ours µs": [1e6 * meter.seconds for meter in meters],
        "ours %": [100 * meter.seconds / length for meter, length in zip(meters, lengths, strict=True)],
    }


def job(kinds: list[str], pairs: int) -> None:
    """Be a job of four ranks; rank 0 prints, for each kind, a line of what it measured."""
    import torch
    import torch.distributed as dist

    children = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
            break
        children.append(child)
    else:
        sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for kind in kinds:
        result = measured(kind, pairs)
        if rank == 0:
            print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def pseudomedian(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of the means of any two (Hodges, Lehmann) and its 95 % interval (Wilcoxon's signed ranks)."""
    count = len(values)
    means = sorted((one + other) / 2 for i, one in enumerate(values) for other in values[i:])
    half = 1.96 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    low = max(0, math.floor(len(means) / 2 - half))
    return statistics.median(means), means[low], means[-1 - low]


def doors_cost(kinds: Sequence[str], pairs: int) -> list[dict[str, Any]]:
    """Return, for each kind, milliseconds of a step without us and with us, and what we add to it in per cent."""
    with tempfile.TemporaryDirectory() as folder, exporter(Path(folder) / "rank.sock", state="alive"):
        environment = {
            **os.environ, "TACHOGRAPH_SOCKET": str(Path(folder) / "rank.sock"), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        }  # fmt: skip
        command = [sys.executable, "-W", "ignore", __file__, "--pairs", str(pairs), "--job", *kinds]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [row(kind, json.loads(line)) for kind, line in zip(kinds, lines, strict=True)]


def row(kind: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a kind from what its job measured."""
    costs = sorted(result["costs"], key=sum)[: len(result["costs"]) // 2]
    added, added_low, added_high = pseudomedian([100 * math.log(ours / bare) for bare, ours in costs])
    counted, counted_low, counted_high = pseudomedian(result["ours %"])
    return {
        "job": kind,
        "pairs": len(costs),
        "without ms": 1e3 * statistics.median(bare for bare, _ in costs),
        "with ms": 1e3 * statistics.median(ours for _, ours in costs),
        "added %": added,
        "95 %": f"{added_low:.2f} to {added_high:.2f}",
        "waits": result["waits"],
        "counted µs": statistics.median(result["ours µs"]),
        "counted %": counted,
        "95 % ": f"{counted_low:.3f} to {counted_high:.3f}",
    }


def main() -> None:
    """Print the table and write bench/out/doors_cost.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="JOB", help=f"of {', '.join(KINDS)}; default all")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=600, help="pairs of steps with and without us")
    options = parser.parse_args()
    if options.job:
        job(options.kinds, options.pairs)
        return
    rows = doors_cost(options.kinds, options.pairs)
    show("Waits measured: four gloo ranks, pairs of steps in turns", rows, f"budget: <= {BUDGET_PERCENT:g} %")
    save("doors_cost", {"rows": rows})


if __name__ == "__main__":
    main()
