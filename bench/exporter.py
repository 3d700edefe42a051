"""What the exporter costs with 8 GPUs and 8 ranks: scrape time, CPU, memory of exporter and worker together.

The ranks are real `tachograph.Recorder`s in one process each; the GPUs are read by the real pynvml, from the driver's
library where there is one, else from the small C library in tests/nvml.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from observe import fake_nvml, observe, wait_for
from table import save, show

RANK = """
import sys, time, tachograph
rank = int(sys.argv[1])
facts = dict(local_rank=rank, world_size=8, tokens_per_step=1e6, flops_per_token=1e9)
recorder = tachograph.Recorder(run="bench", rank=rank, **facts)
while True:
    with recorder.step() as step:
        with recorder.phase("data"): time.sleep(0.02)
        with recorder.phase("forward"): time.sleep(0.05)
        with recorder.phase("backward"): time.sleep(0.1)
        with recorder.phase("optimizer"): time.sleep(0.03)
        step.log(loss=2.5, grad_norm=0.9, learning_rate=3e-4)
"""


@contextmanager
def ready_exporter(port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run an exporter with 8 GPUs and 8 ranks; give its process and the address of its page once both show."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "TACHOGRAPH_SOCKET": str(folder / "rank.sock")}
        if not shutil.which("nvidia-smi"):
            environment["LD_LIBRARY_PATH"] = str(fake_nvml(folder / "nvml"))
        url = f"http://127.0.0.1:{port}/metrics"
        command = [sys.executable, "-m", "tachograph", "exporter", "--web.listen-address", f"127.0.0.1:{port}"]
        quiet: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        exporter = subprocess.Popen(command, **quiet)
        ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(i)], **quiet) for i in range(8)]
        try:
            wait_for(url, tachograph_rank_up=8, tachograph_gpu_up=8)
            yield exporter, url
        finally:
            for process in [*ranks, exporter]:
                process.send_signal(signal.SIGTERM)
            for process in [*ranks, exporter]:
                process.wait(10)


def main() -> None:
    """Print the table and write bench/out/exporter.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long CPU is measured, scraped every 5 s")
    parser.add_argument("--port", type=int, default=10924, help="loopback port of the exporter under test")
    options = parser.parse_args()
    with ready_exporter(options.port) as (exporter, url):
        result, samples = observe(exporter.pid, url, options.seconds)
    per = Counter(match[1] for line in samples if (match := re.search(r'(?:\{|,)(gpu|rank)="\d+"', line)))
    result |= {"samples": len(samples), "per GPU": per["gpu"] / 8, "per rank": per["rank"] / 8}
    show("Exporter with 8 GPUs and 8 ranks", [result], "budget: 1 % of a core, 80 MB with its worker, scrape p99 20 ms")
    save("exporter", result)


if __name__ == "__main__":
    main()
