"""PyTorch's devices, as the checks use them. PyTorch is imported where it is used: most checks do without."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from tachograph.preflight.site import CPU

LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""PyTorch's own, which otherwise tells of each wait that is longer than usual."""


def torch_problem() -> str:
    """Return why PyTorch cannot be used, empty where it can; this imports it."""
    if find_spec("torch") is None:
        return "PyTorch is not installed here"
    os.environ.setdefault(LOG_LEVEL, "ERROR")
    try:
        import torch.distributed
    except (ImportError, OSError, AttributeError) as error:
        return f"PyTorch cannot be imported: {str(error).partition(chr(10))[0]}"
    return "" if torch.distributed.is_available() else "this PyTorch has no torch.distributed"


def devices(kind: str | None, local_rank: int | None) -> Sequence[str]:
    """Return where to compute: the GPU of a local rank, all of them for None, or the CPU; raise ValueError."""
    import torch

    count = torch.cuda.device_count() if kind != CPU and torch.cuda.is_available() else 0
    if kind == "cuda" and not count:
        raise ValueError("--device cuda: PyTorch sees no GPU here")
    if not count:
        return (CPU,)
    if local_rank is None:
        return tuple(f"cuda:{index}" for index in range(count))
    if count == 1:  # as where the scheduler shows each rank its own
        return ("cuda:0",)
    if local_rank >= count:
        raise ValueError(f"local rank {local_rank} has no GPU of its own: PyTorch sees {count}")
    return (f"cuda:{local_rank}",)


def use(device: str) -> None:
    """Make a GPU the current one of this thread; every thread begins with the first."""
    if device != CPU:
        import torch

        torch.cuda.set_device(device)


def synchronize(device: str) -> None:
    """Wait until a device has done what it was given."""
    if device != CPU:
        import torch

        torch.cuda.synchronize(device)


def fastest(
    work: Callable[[], Any],
    device: str,
    *,
    least_seconds: float,
    samples: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds that `work` takes at best, in samples long enough that others on the CPU take their share.

    The best sample, because what disturbs a measurement only ever makes it slower. With `time.process_time` as the
    clock what others take does not count.
    """
    work()
    synchronize(device)
    times = 1
    best = float("inf")
    done = 0
    while done < samples:
        began = clock()
        for _ in range(times):
            work()
        synchronize(device)
        took = clock() - began
        if took < least_seconds and not done:
            times = min(max(times + 1, int(1.2 * times * least_seconds / max(took, 1e-6))), 1000 * times)
            continue
        best = min(best, took / times)
        done += 1
    return best


def device_name(device: str) -> str:
    """Return a device's product name."""
    if device == CPU:
        return f"{os.cpu_count()} CPUs"
    import torch

    return str(torch.cuda.get_device_name(device))
