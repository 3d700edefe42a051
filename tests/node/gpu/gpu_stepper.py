"""Runs a GpuCollector on the clock that stdin dictates: a time per line in, its reading per line out."""

import json
import sys

from tachograph.node.driver.nvml import Nvml
from tachograph.node.gpu.gpu_collector import GpuCollector
from tachograph.node.shown_gpus import shown

now = 0.0
nvml = Nvml()
collector = GpuCollector(nvml, int(sys.argv[1]), lambda: now, detail=sys.argv[2:] == ["detail"])
for line in sys.stdin:
    now = float(line)
    reading = collector.collect(nvml.driver_version(), nvml.cuda_version())
    samples = reading.samples()
    answer = {
        "rows": [(sample.metric.name, sample.labels, sample.value) for sample in samples],
        "shown": [(sample.metric.name, sample.labels) for sample in shown(samples)],
        "down": reading.word,
        "failures": reading.failures,
        "notes": reading.notes,
        "pids": reading.pids,
        "gpm": reading.gpm,
    }
    print(json.dumps(answer), flush=True)
