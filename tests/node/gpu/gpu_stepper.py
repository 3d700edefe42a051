"""Runs a GpuCollector in each child, on the clock that a test dictates: a time per line in, a reading per line out."""

import json

from tachograph.node.driver.nvml import Nvml
from tachograph.node.gpu.gpu_collector import GpuCollector
from tachograph.node.shown_gpus import shown
from tests.forking import asked

arguments, file = asked()
now = 0.0
nvml = Nvml()
collector = GpuCollector(nvml, int(arguments[0]), lambda: now, detail=arguments[1:] == ["detail"])
for line in file:
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
    print(json.dumps(answer), file=file, flush=True)
