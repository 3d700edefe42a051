"""Runs a NodeCollector in each child, on the clock that a test dictates: a time per line in, a collection out."""

from pathlib import Path
from types import SimpleNamespace

from tachograph.node.driver import nvml
from tachograph.node.gpu.node_collector import NodeCollector
from tachograph.node.gpu.worker_protocol import LineWriter
from tests.forking import asked

arguments, file = asked()
now = 0.0
nvml.time = SimpleNamespace(monotonic=lambda: now)  # type: ignore[assignment]  # a call begins on this clock too
collector = NodeCollector(lambda: now, answer_seconds=float(arguments[0]), root=Path(arguments[1]))
writer = LineWriter()
for line in file:
    now = float(line)
    answer = writer.line(collector.collect())
    print("spent" if collector.spent else "", answer, file=file, flush=True)
