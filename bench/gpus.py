"""Reading eight GPUs: Tachograph beside nvitop-exporter, on the same NVML library, one after the other in one run.

Both read once a second. The library is the machine's own where there is a driver, else the lab's small C
library, which answers at once: then the figures are the cost of the exporters themselves, without the driver.
The worth of a page is measured twice: by its number of GPU families, and by the questions of an on-call engineer that
it answers (QUESTIONS: a pattern for each, the same for both pages).
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from observe import fake_nvml, observe, wait_for
from tachograph_lab.table import save, show

QUESTIONS = {
    "is it there": r"gpu_up\b|gpu_lost",
    "is it busy": r"(?i)sm_active",
    "do its tensor cores work": r"(?i)tensor",
    "does any kernel run": r"(?i)gpu_utilization",
    "is its memory full": r"(?i)memory_used",
    "is its memory busy": r"(?i)memory_utilization|memory_controller|dram_active",
    "how hot is it": r"(?i)temperature_c",
    "how far from throttling": r"(?i)temperature_(margin|threshold)",
    "power now": r"(?i)power_(watts|usage)",
    "power it may use": r"(?i)power_limit",
    "energy used": r"(?i)energy",
    "how fast is its clock": r"(?i)clock_(sm|hertz)",
    "how fast could it be": r"(?i)clock_max|max_clock",
    "why is it slower": r"(?i)clock_event|throttle",
    "for how long was it": r"(?i)clock_event_seconds|violation",
    "memory errors": r"(?i)ecc",
    "memory repairs waiting or failed": r"(?i)remap|retired",
    "driver errors": r"(?i)xid",
    "what the driver asks for": r"(?i)recovery_action",
    "PCIe as wide and fast as it should be": r"(?i)pcie_link",
    "PCIe errors": r"(?i)pcie_replay",
    "PCIe traffic": r"(?i)pcie_(tx|rx|bytes|rate)",
    "NVLink traffic": r"(?i)nvlink_(bytes|tx|rx|total_(tx|rx)|mean)",
    "NVLink links down": r"(?i)nvlink_links",
    "NVLink errors": r"(?i)nvlink_errors",
    "which board is it": r"(?i)serial",
    "what it could compute": r"(?i)peak_flops",
}


class Contender(NamedTuple):
    """An exporter: how it is started on a port, and the family that has one line for each GPU."""

    name: str
    command: tuple[str, ...]
    witness: str
    gpu_line: str


def contenders(port: int) -> tuple[Contender, ...]:
    """Return both exporters, each as its own documentation starts it."""
    address = f"127.0.0.1:{port}"
    return (
        Contender(
            "Tachograph",
            (sys.executable, "-m", "tachograph", "exporter", "--web.listen-address", address, "--gpu.interval", "1s"),
            "tachograph_gpu_up",
            r'\bgpu="',
        ),
        Contender(
            "nvitop-exporter",
            (
                sys.executable,
                "-m",
                "nvitop_exporter",
                "--hostname",
                "127.0.0.1",
                "--port",
                str(port),
                "--interval",
                "1",
            ),
            "gpu_temperature_C",
            r"^gpu_",
        ),
    )


def measure(one: Contender, port: int, environment: dict[str, str], gpus: int, seconds: float) -> dict[str, Any]:
    """Run one exporter and return its row of the table."""
    quiet: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(one.command, **quiet)
    url = f"http://127.0.0.1:{port}/metrics"
    try:
        wait_for(url, **{one.witness: gpus})
        figures, samples = observe(process.pid, url, seconds)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    about = [line for line in samples if re.search(one.gpu_line, line)]
    families = {re.split(r"[{ ]", line, maxsplit=1)[0] for line in about}
    answered = [
        question for question, pattern in QUESTIONS.items() if any(re.search(pattern, name) for name in families)
    ]
    # What stands only in a label counts as well.
    labels = " ".join(about)
    answered += [q for q in QUESTIONS if q == "which board is it" and q not in answered and 'serial="' in labels]
    return {
        "": one.name,
        **figures,
        "series per GPU": len(about) / gpus,
        "GPU families": len(families),
        f"questions of {len(QUESTIONS)}": len(answered),
        "unanswered": [question for question in QUESTIONS if question not in answered],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and write bench/out/gpus.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40, help="how long CPU is measured, scraped every 5 s")
    parser.add_argument("--port", type=int, default=10925, help="loopback port of the exporter under test")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "TACHOGRAPH_SOCKET": str(folder / "rank.sock")}
        gpus = 8
        if smi := shutil.which("nvidia-smi"):
            gpus = len(subprocess.run([smi, "-L"], check=True, capture_output=True, text=True).stdout.splitlines())
        else:
            environment["LD_LIBRARY_PATH"] = str(fake_nvml(folder / "nvml"))
        rows = [measure(one, options.port, environment, gpus, options.seconds) for one in contenders(options.port)]
    missing = {row[""]: row.pop("unanswered") for row in rows}
    show(f"Reading {gpus} GPUs once a second", rows, "scraped every 5 s; memory and CPU with all processes it started")
    for who, questions in missing.items():
        print(f"  {who} does not say: {', '.join(questions) or 'nothing of what was asked'}")
    save("gpus", {"gpus": gpus, "rows": rows, "unanswered": missing})


if __name__ == "__main__":
    main()
