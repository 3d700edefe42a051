"""Ranks that sleep instead of computing and report through the public API: a demonstration without GPU or PyTorch.

One process per rank and a barrier as the all-reduce, so that a slow rank shows as in a real job: equal steps, unequal
waits. `python examples/speaking_ranks.py --ranks 8 --slow-rank 5 --slow-after 120`; Ctrl-C stops it.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier

import tachograph
from tachograph.processes.die_with_parent import die_with_parent

TOKENS_PER_RANK = 4096
FLOPS_PER_TOKEN = 4.6e10
PEAK_FLOPS = 989e12  # an H100's dense bf16: half-second steps then run at 38 % MFU
GRADIENT_BYTES = 14_000_000_000
CHECKPOINT_STEPS = 200
PATIENCE_SECONDS = 60.0
"""A rank that waits longer for its peers fails, as with a collective's timeout."""

SHARES = {"data": 0.04, "forward": 0.3, "backward": 0.5, "optimizer": 0.06}
"""Shares of a step; the rest is the wait for slower peers."""


def loss_at(step: int, noise: random.Random) -> float:
    """Return a loss that falls from 10.5 towards 2.2, with 1 % noise."""
    return (2.2 + 8.3 * math.exp(-step / 500)) * noise.gauss(1, 0.01)


def speak(rank: int, options: argparse.Namespace, barrier: Barrier) -> None:
    """Run one rank until the steps are done, then finish the run."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent(signal.SIGTERM)
    recorder = tachograph.Recorder(
        run=options.run, rank=rank, local_rank=rank, world_size=options.ranks, socket=options.socket,
        tokens_per_step=TOKENS_PER_RANK * options.ranks, flops_per_token=FLOPS_PER_TOKEN, peak_flops=PEAK_FLOPS,
        precision="bf16", global_batch=options.ranks, total_steps=options.steps,
    )  # fmt: skip
    noise, began = random.Random(rank), time.monotonic()

    def work(phase: str, factor: float = 1.0) -> None:
        with recorder.phase(phase):
            time.sleep(max(0.0, SHARES[phase] * options.step_seconds * factor * noise.gauss(1, 0.03)))

    for number in range(1, options.steps + 1):
        slow = rank == options.slow_rank and time.monotonic() - began > options.slow_after
        with recorder.step() as step:
            work("data")
            work("forward")
            work("backward", 2.0 if slow else 1.0)
            with recorder.collective("all_reduce", bytes=GRADIENT_BYTES):
                barrier.wait(PATIENCE_SECONDS)
            work("optimizer")
            warm = min(1.0, number / 200)
            step.log(loss=loss_at(number, noise), grad_norm=noise.gauss(0.9, 0.03), learning_rate=3e-4 * warm)
        if number % CHECKPOINT_STEPS == 0 and rank == 0:
            with recorder.phase("checkpoint"):
                time.sleep(options.step_seconds)
            recorder.checkpoint_saved(step=number, bytes=GRADIENT_BYTES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the ranks, wait for all of them, and return 1 if any failed."""
    parser = argparse.ArgumentParser(description="Simulated ranks that report to the exporter")
    parser.add_argument("--run", default="demo", help="the run's name")
    parser.add_argument("--ranks", type=int, default=8, help="processes on this node")
    parser.add_argument("--socket", help="the exporter's socket, unless in a standard place")
    parser.add_argument("--steps", type=int, default=7200, help="steps until all finish; 7,200 are about an hour")
    parser.add_argument("--step-seconds", type=float, default=0.5, help="seconds per step")
    parser.add_argument("--slow-rank", type=int, default=-1, help="a rank that takes twice as long in backward")
    parser.add_argument("--slow-after", type=float, default=0.0, help="seconds before it does")
    options = parser.parse_args(arguments)
    # The first process of a container gets no default signal handling: without this, `docker stop` would wait.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(options.ranks)
    ranks = [fork.Process(target=speak, args=(rank, options, barrier), daemon=True) for rank in range(options.ranks)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join()
    except KeyboardInterrupt:
        pass
    finally:
        for process in ranks:
            process.terminate()
        for process in ranks:
            process.join(5)
    return int(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    sys.exit(main())
