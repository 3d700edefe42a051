"""Runs a NodeCollector on the clock that stdin dictates: a time per line in, a collection per line out."""

import json
import sys

from tachograph.node.gpu_collector import NodeCollector
from tachograph.node.nvml import DriverMismatch

now = 0.0
collector = NodeCollector(lambda: now)
for line in sys.stdin:
    now = float(line)
    try:
        answer: object = collector.collect()
    except DriverMismatch as failure:
        answer = {"mismatch": str(failure)}
    print(json.dumps(answer), flush=True)
