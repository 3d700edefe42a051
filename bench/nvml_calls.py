"""What each NVML call costs on this machine's driver, as the exporter makes them.

`python bench/nvml_calls.py [SECONDS]` prints calls, milliseconds and CPU milliseconds in each collection at 1 Hz, the
dearest first. Field values are told apart by how many are asked for at once.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import Any

import pynvml

from tachograph.node.gpu.node_collector import NodeCollector


class TimedCalls:
    """Has what the module pynvml has, and adds up what its calls take."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(pynvml, name)
        if not name.startswith("nvml") or not callable(found) or isinstance(found, type):
            return found

        def timed(*arguments: Any) -> Any:
            begin, cpu = time.perf_counter(), time.thread_time()
            try:
                return found(*arguments)
            finally:
                took, used = time.perf_counter() - begin, time.thread_time() - cpu
                fields = f" of {len(arguments[1])}" if name == "nvmlDeviceGetFieldValues" else ""
                with self._lock:
                    self.calls[name + fields] += 1
                    self.seconds[name + fields] += took
                    self.cpu[name + fields] += used

        return timed


def main() -> None:
    """Collect once a second, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=30.0)
    until = time.monotonic() + parser.parse_args().seconds
    timed = TimedCalls()
    sys.modules["pynvml"] = timed  # type: ignore[assignment]
    collector, collections = NodeCollector(), 0
    begin = time.process_time()
    while time.monotonic() < until:
        collector.collect()
        collections += 1
        time.sleep(1.0)
    used = time.process_time() - begin
    print(f"{collections} collections, CPU of each {1000 * used / collections:.2f} ms, of it in these calls:")
    for name, cpu in sorted(timed.cpu.items(), key=lambda one: -one[1])[:40]:
        each = [total / collections for total in (timed.calls[name], 1000 * timed.seconds[name], 1000 * cpu)]
        print("{1:6.2f} calls {2:8.3f} ms {3:8.3f} ms of CPU  {0}".format(name, *each))


if __name__ == "__main__":
    main()
