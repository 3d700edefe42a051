"""The cost of an exporter seen from outside: scrape time, CPU and memory of it and its child processes."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

from tachograph_lab.fake_nvml import library
from tachograph_lab.table import spread


def fake_nvml(folder: Path) -> Path:
    """Build the fake libnvidia-ml.so.1 and return its folder."""
    return Path(library.build(folder))


def children(pid: int) -> list[int]:
    """Return `pid` and all its descendants."""
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
    """Return the duration of one uncompressed scrape, and its text."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return time.perf_counter() - began, text


def wait_for(url: str, **wanted: int) -> None:
    """Return once the page has this many lines beginning with each word; raise RuntimeError after 30 s."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            text = scrape(url)[1]
        except OSError:
            text = ""
        if all(text.count(f"\n{word}{{") == count for word, count in wanted.items()):
            return
        time.sleep(0.2)
    raise RuntimeError(f"the exporter did not show {wanted} within 30 s")


def observe(pid: int, url: str, seconds: float, scrapes: int = 200) -> tuple[dict[str, Any], list[str]]:
    """Scrape every 5 s for `seconds` to measure CPU, then many times in a row; return figures and the last samples."""
    pids = children(pid)
    began, used = time.monotonic(), cpu_seconds(pids)
    while time.monotonic() - began < seconds:
        time.sleep(5)
        scrape(url)
    share = (cpu_seconds(pids) - used) / (time.monotonic() - began)
    costs = []
    text = ""
    for _ in range(scrapes):
        took, text = scrape(url)
        costs.append(took * 1e3)
        time.sleep(0.02)
    times = spread(costs)
    figures = {
        "scrape p50 ms": times["p50"],
        "p99 ms": times["p99"],
        "CPU %": share * 100,
        "PSS MB": memory_mb(pids),
        "RSS MB": resident_mb(pids),
    }
    return figures, [line for line in text.splitlines() if line and not line.startswith("#")]
