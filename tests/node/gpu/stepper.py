"""Runs a NodeCollector on the clock that stdin dictates: a time per line in, a collection per line out."""

import sys
from pathlib import Path
from types import SimpleNamespace

from tachograph.node.driver import nvml
from tachograph.node.gpu.node_collector import NodeCollector
from tachograph.node.gpu.worker_protocol import LineWriter

now = 0.0
nvml.time = SimpleNamespace(monotonic=lambda: now)  # type: ignore[assignment]  # a call begins on this clock too
collector = NodeCollector(lambda: now, answer_seconds=float(sys.argv[1]), root=Path(sys.argv[2]))
writer = LineWriter()
for line in sys.stdin:
    now = float(line)
    answer = writer.line(collector.collect())
    print("spent" if collector.spent else "", answer, flush=True)
