"""Runs a GpuCollector on the clock that stdin dictates: a time per line in, what it told per line out."""

import json
import sys

from tachograph.catalog.index import BY_NAME
from tachograph.node.driver.nvml import GpuFailed, Nvml
from tachograph.node.gpu.collector import GpuCollector
from tachograph.node.gpu.readings import shown
from tachograph.node.samples import Sample

now = 0.0
nvml = Nvml()
collector = GpuCollector(nvml, int(sys.argv[1]), lambda: now, detail=sys.argv[2:] == ["detail"])
for line in sys.stdin:
    now = float(line)
    rows, down = [], ""
    try:
        rows = collector.collect(nvml.driver_version(), nvml.cuda_version())
    except GpuFailed as failure:
        down = failure.word
    samples = [Sample(BY_NAME[name], labels, value) for name, labels, value in rows]
    answer = {
        "rows": rows,
        "shown": [(sample.metric.name, sample.labels) for sample in shown(samples)],
        "down": down,
        "failures": collector.failures,
        "notes": collector.notes,
        "pids": collector.pids,
        "gpm": (collector.gpm, collector.gpm_reason),
        "info": collector.info_row,
    }
    print(json.dumps(answer), flush=True)
