"""The node under attack: a real exporter with eight GPUs, observed from outside."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hostile_attacks import WITNESS
from observe import children, fake_nvml, resident_mb, scrape

DESCRIPTORS = 1024
"""The soft limit that systemd and most shells give."""


@dataclass(frozen=True)
class Look:
    """The state of the node at one moment."""

    scrape: float
    series: int
    """The samples of all runs except the witness's."""
    descriptors: int
    resident_mb: float
    witness_runs: bool


class Node:
    """A running exporter."""

    def __init__(self, process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
        self.process, self.socket, self._log = process, socket, log
        deadline = time.monotonic() + 30
        while not (found := re.search(r"msg=serving address=127\.0\.0\.1:(\d+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the exporter did not come up:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}/metrics"

    def log_bytes(self) -> int:
        """Return the size of the log so far."""
        return self._log.stat().st_size

    def resident_mb(self) -> float:
        """Return the resident memory of the exporter and its child processes, 0 if it is gone."""
        try:
            return resident_mb(children(self.process.pid))
        except OSError:  # a process that ends while it is looked at
            return 0.0

    def look(self) -> Look | None:
        """Return the state from a scrape on a new connection and /proc, None if there is no answer."""
        try:
            took, page = scrape(self.url)
            descriptors = len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208 - only how many
        except OSError:
            return None
        lines = [line for line in page.splitlines() if line and not line.startswith("#")]
        others = sum(f'run="{WITNESS}"' not in line for line in lines)
        runs = f'tachograph_rank_state{{run="{WITNESS}",rank="0",state="running"}} 1' in lines
        return Look(took, others, descriptors, self.resident_mb(), runs)


@contextmanager
def node(library: Path | None, retention: float, core: int | None) -> Iterator[Node]:
    """Run an exporter on one core, with `library` in place of NVML if it is given."""
    with tempfile.TemporaryDirectory(prefix="tachograph-hostile-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # other users reach the socket
        socket, log = folder / "rank.sock", folder / "log"
        environment = {**os.environ} | ({"LD_LIBRARY_PATH": str(library)} if library else {})
        command = [sys.executable, "-m", "tachograph", "exporter", "--web.listen-address=127.0.0.1:0"]
        command += [f"--socket={socket}", "--gpu.kmsg="]
        command += [f"--ranks.retention={retention:g}s", f"--ranks.retention-finished={retention:g}s"]
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr,
                preexec_fn=lambda: _confine(core),  # noqa: PLW1509 - there are no threads here
            )  # fmt: skip
        try:
            yield Node(process, socket, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _confine(core: int | None) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, -10)  # other programs of this machine are no part of an attack
    if core is not None:
        os.sched_setaffinity(0, {core})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))


def stand_in(folder: Path) -> Path | None:
    """Return the folder of the fake NVML library; None if this machine has the driver's own."""
    return None if shutil.which("nvidia-smi") else fake_nvml(folder)
