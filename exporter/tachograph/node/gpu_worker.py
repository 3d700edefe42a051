"""The worker process that owns NVML: `python -m tachograph.node.gpu_worker --interval 1`.

It writes one JSON line per collection to stdout and ends when its stdin does, or with its parent. A driver call that
never returns blocks this process and nothing else. A line, shortened:

    {"samples":[["tachograph_gpu_up",["0","GPU-…"],1],["tachograph_gpu_power_watts",["0","GPU-…"],612.3]],
     "gpus":[["0","GPU-…","NVIDIA H100 80GB HBM3"]],"duration":0.004,"ok":true,"reason":"","failures":{}}
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

from tachograph.node.gpu_collector import Collection, NodeCollector
from tachograph.node.nvml import DriverMismatch

MISMATCH_STATUS = 75
"""Exit status that asks for a fresh process, which can load the new driver's library (EX_TEMPFAIL)."""

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, even inside a driver call (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stdin_ended(seconds: float) -> bool:
    """Wait up to `seconds`; return True at once when stdin has ended."""
    readable, _, _ = select.select([0], [], [], max(seconds, 0.0))
    return bool(readable) and not os.read(0, 4096)


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect until stdin ends; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tachograph.node.gpu_worker", description="Read GPUs through NVML.")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between collections (default 1)")
    interval: float = parser.parse_args(arguments).interval
    die_with_parent()
    collector = NodeCollector()
    due = time.monotonic()
    while True:
        mismatch = ""
        try:
            line = collector.collect()
        except DriverMismatch as failure:
            mismatch = str(failure)
            line = Collection(samples=[], gpus=[], duration=0.0, ok=False, reason=mismatch, failures={})
        try:
            sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            return 0
        if mismatch:
            return MISMATCH_STATUS
        due = max(due + interval, time.monotonic())
        if stdin_ended(due - time.monotonic()):
            return 0


if __name__ == "__main__":
    sys.exit(main())
