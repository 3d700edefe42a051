"""What the exporter costs with 8 GPUs and 8 ranks: scrape time, CPU, memory of exporter and worker together.

The ranks are real `tachograph.Recorder`s in one process each; the GPUs are read by the real pynvml, from the driver's
library where there is one, else from the small C library in tests/nvml.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from table import save, show, spread

ROOT = Path(__file__).parent.parent
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


def fake_nvml(folder: Path) -> Path:
    """Build the C stand-in for libnvidia-ml.so.1 and return its folder."""
    spec = importlib.util.spec_from_file_location("fake_nvml_build", ROOT / "tests" / "nvml" / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return Path(module.build(folder))


def children(pid: int) -> list[int]:
    """Return `pid` and every process below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += children(int(child))
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU seconds the processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(pids: list[int]) -> float:
    """Return the proportional set size of the processes, in MB: shared pages are counted once."""
    total = 0
    for pid in pids:
        match = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
        total += int(match[1]) if match else 0
    return total / 1024


def resident_mb(pids: list[int]) -> float:
    """Return the summed resident set size of the processes, in MB: shared pages counted for each."""
    total = 0
    for pid in pids:
        match = re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)
        total += int(match[1]) if match else 0
    return total / 1024


def scrape(url: str) -> tuple[float, str]:
    """Return the seconds one gzip-less scrape took, and its text."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return time.perf_counter() - began, text


def wait_for(url: str, ranks: int, gpus: int) -> None:
    """Return once the page shows every rank and GPU."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            text = scrape(url)[1]
        except OSError:
            text = ""
        if text.count("\ntachograph_rank_up{") == ranks and text.count("\ntachograph_gpu_up{") == gpus:
            return
        time.sleep(0.2)
    raise RuntimeError("the exporter did not show all ranks and GPUs within 30 s")


def main() -> None:
    """Print the table and write bench/out/exporter.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long CPU is measured, scraped every 5 s")
    parser.add_argument("--port", type=int, default=10924, help="loopback port of the exporter under test")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "TACHOGRAPH_SOCKET": str(folder / "rank.sock")}
        if not shutil.which("nvidia-smi"):
            environment["LD_LIBRARY_PATH"] = str(fake_nvml(folder / "nvml"))
        url = f"http://127.0.0.1:{options.port}/metrics"
        command = [sys.executable, "-m", "tachograph", "exporter", "--web.listen-address", f"127.0.0.1:{options.port}"]
        quiet: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        exporter = subprocess.Popen(command, **quiet)
        ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(i)], **quiet) for i in range(8)]
        try:
            wait_for(url, 8, 8)
            result = observe(exporter.pid, url, options.seconds)
        finally:
            for process in [*ranks, exporter]:
                process.send_signal(signal.SIGTERM)
            for process in [*ranks, exporter]:
                process.wait(10)
    show("Exporter with 8 GPUs and 8 ranks", [result], "budget: 1 % of a core, 80 MB with its worker, scrape p99 20 ms")
    save("exporter", result)


def observe(pid: int, url: str, seconds: float) -> dict[str, Any]:
    """Scrape every 5 s for `seconds` to measure CPU, then 200 times in a row to measure the scrape itself."""
    pids = children(pid)
    began, used = time.monotonic(), cpu_seconds(pids)
    while time.monotonic() - began < seconds:
        time.sleep(5)
        scrape(url)
    share = (cpu_seconds(pids) - used) / (time.monotonic() - began)
    costs = []
    for _ in range(200):
        took, text = scrape(url)
        costs.append(took * 1e3)
        time.sleep(0.02)
    samples = [line for line in text.splitlines() if line and not line.startswith("#")]
    per = Counter(match[1] for line in samples if (match := re.search(r'(?:\{|,)(gpu|rank)="\d+"', line)))
    times = spread(costs)
    return {
        "scrape p50 ms": times["p50"],
        "p99 ms": times["p99"],
        "CPU %": share * 100,
        "PSS MB": memory_mb(pids),
        "RSS MB": resident_mb(pids),
        "samples": len(samples),
        "per GPU": per["gpu"] / 8,
        "per rank": per["rank"] / 8,
    }


if __name__ == "__main__":
    main()
