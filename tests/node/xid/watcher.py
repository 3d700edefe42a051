"""Runs an XidWatch on the kernel log that its argument names: a word per line in, an answer per line out.

With a second argument it first gives up root's right to pass over the mode of a file.
"""

import ctypes
import json
import os
import sys

from tachograph.node.driver.nvml import Nvml, NvmlFailure
from tachograph.node.samples import GpuIdentity
from tachograph.node.xid import events
from tachograph.node.xid.counts import XidWatch

events.WAIT_MILLISECONDS = 100
events.PROBE_SECONDS = events.FIRST_RETRY_SECONDS = 0.2

UUID = "GPU-fa4e0000-0000-4000-8000-{:012x}"
IDENTITIES = [GpuIdentity(str(index), UUID.format(index), "made up") for index in range(8)]

if len(sys.argv) > 2:
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP, in force from the next program on
    os.execv(sys.executable, [sys.executable, *sys.argv[:2]])

try:
    nvml: "Nvml | None" = Nvml()
except NvmlFailure:
    nvml = None
watch = XidWatch(nvml, sys.argv[1])
watch.start()
for line in sys.stdin:
    answer: object = {}
    if line == "rows\n":
        answer = {
            "rows": [(metric.name, labels, value) for (metric, labels), value in watch.rows(IDENTITIES)],
            "trouble": watch.trouble,
            "notes": watch.notes,
        }
    elif line == "reinitialise\n":
        watch.detach()
        if nvml is not None:
            nvml.close()
        nvml = Nvml()
        watch.attach(nvml)
    elif line == "close\n":
        watch.close()
    print(json.dumps(answer), flush=True)
