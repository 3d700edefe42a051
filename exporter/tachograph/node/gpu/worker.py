"""The worker process that owns NVML.

It writes one line per interval to stdout (`worker_protocol`), whatever the driver does, and ends when its stdin does,
or with its parent. Each GPU is read in a thread of its own: a driver call that never returns costs that GPU.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from tachograph.node.gpu.node_collector import NodeCollector
from tachograph.node.gpu.worker_protocol import SPENT_STATUS, LineWriter
from tachograph.node.xid.counts import XidWatch
from tachograph.processes.die_with_parent import die_with_parent


def stdin_ended(seconds: float) -> bool:
    """Wait up to `seconds`; return True at once when stdin has ended."""
    readable, _, _ = select.select([0], [], [], max(seconds, 0.0))
    return bool(readable) and not os.read(0, 4096)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Collect until stdin ends, and end at once: threads may come back from the driver while an interpreter ends."""
    os._exit(_collect(arguments))


def _collect(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="tachograph.node.gpu.worker", description="Read GPUs through NVML.")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between collections (default 1)")
    parser.add_argument("--kmsg", default="", metavar="PATH", help="the kernel's log, to find Xids in (default: none)")
    parser.add_argument("--detail", action="store_true", help="read also what costs driver calls of its own")
    options = parser.parse_args(arguments)
    if sys.platform == "linux":
        die_with_parent()  # also inside a driver call
    xids = XidWatch(None, options.kmsg)
    xids.start()
    collector = NodeCollector(interval=options.interval, xids=xids, detail=options.detail)
    writer = LineWriter()
    gc.freeze()  # what is loaded by now stays: the collector need not walk it again
    due = time.monotonic()
    while True:
        collection = collector.collect()
        try:
            sys.stdout.write(writer.line(collection) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            return 0
        if collector.spent:
            return SPENT_STATUS
        due = max(due + options.interval, time.monotonic())
        if stdin_ended(due - time.monotonic()):
            return 0
