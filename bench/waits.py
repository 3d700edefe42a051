"""The cost of one measured wait for a collective on the training thread: `Work.wait` of a collective that is complete.

Beside it what a phase marked by hand costs, which does the same: two readings of the clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tachograph_lab.processes import free_port
from tachograph_lab.table import save, show

ROUNDS, CALLS = 400, 1000
BUDGET_US = 0.5


def cheapest(call: Callable[[], Any]) -> float:
    """Return microseconds per call in the best of many rounds: other programs only ever add to it."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, perf_counter() - began)
    return 1e6 * best / CALLS


def main() -> None:
    """Print the table and write bench/out/waits.json."""
    import torch
    import torch.distributed as dist

    import tachograph

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    dist.init_process_group("gloo", rank=0, world_size=1)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()

    def wait() -> None:
        work.wait()

    bare = cheapest(wait)
    recorder = tachograph.Recorder(run="bench", rank=0, world_size=1)
    phase = recorder.phase("forward")

    def marked() -> None:
        with phase:
            pass

    def nothing() -> None:
        pass

    mark = cheapest(marked) - cheapest(nothing)
    recorder.watch(torch.nn.Linear(1, 1))
    outside = cheapest(wait) - bare
    with recorder.step(), recorder.phase("forward"):
        inside = cheapest(wait) - bare
    recorder.close()
    closed = cheapest(wait) - bare
    dist.destroy_process_group()
    rows = [
        {"added to a wait": where, "µs": added, "times a phase": added / mark}
        for where, added in (("in a step", inside), ("outside", outside), ("after close", closed))
    ]
    show(f"Work.wait: {bare:.2f} µs bare; a phase: {mark:.2f} µs", rows, f"budget: <= {BUDGET_US} µs in a step")
    save("waits", {"bare": bare, "phase": mark, "added": rows})


if __name__ == "__main__":
    main()
