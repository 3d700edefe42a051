"""Runs a NodeCollector on the clock that stdin dictates: a time per line in, a collection per line out."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from tachograph.node.driver import nvml
from tachograph.node.gpu.node_collector import NodeCollector

now = 0.0
nvml.time = SimpleNamespace(monotonic=lambda: now)  # type: ignore[assignment]  # a call begins on this clock too
collector = NodeCollector(lambda: now, answer_seconds=float(sys.argv[1]), root=Path(sys.argv[2]))
for line in sys.stdin:
    now = float(line)
    collection = collector.collect()
    answer: object = {"mismatch": collection["reason"]} if collector.spent else collection
    print(json.dumps(answer), flush=True)
