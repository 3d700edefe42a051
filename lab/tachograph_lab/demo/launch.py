"""Starting and ending the real job of `job.py` with torchrun."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tachograph import wire
from tachograph_lab.demo import faults
from tachograph_lab.processes import Child, Children, free_port

STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Job:
    """A running job: its ranks' process ids and the control of its faults."""

    run: str
    ranks: int
    folder: Path
    torchrun: Child
    control: faults.Control

    def pid(self, rank: int) -> int:
        """Return a rank's process id; the rank must have started."""
        return int((self.folder / f"rank{rank}.pid").read_text(encoding="utf-8"))

    def started(self) -> bool:
        """Return whether every rank is past its start-up."""
        return all((self.folder / f"rank{rank}.pid").exists() for rank in range(self.ranks))

    def finish(self) -> bool:
        """Let the job end normally; return whether it did so in time."""
        self.control.inject(faults.Fault(faults.STOP))
        deadline = time.monotonic() + STOP_SECONDS
        while self.torchrun.running and time.monotonic() < deadline:
            time.sleep(0.05)
        finished = not self.torchrun.running and self.torchrun.process.returncode == 0
        self.torchrun.stop()
        return finished


def launch(children: Children, run: str, ranks: int, socket: Path, *options: str) -> Job:
    """Start the job with `ranks` ranks that speak to the exporter at `socket`; return before they train.

    `options` are further command-line options of `tachograph_lab.demo.job`.
    """
    folder = children.folder / f"run-{run}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [
        sys.executable,
        *("-m", "torch.distributed.run"),
        *("--nproc-per-node", str(ranks)),
        *("--master-addr", "127.0.0.1"),
        *("--master-port", str(free_port())),
        *("--max-restarts", "0"),
        *("-m", "tachograph_lab.demo.job", "--name", run, "--folder", str(folder)),
        *options,
    ]
    environment = {
        wire.SOCKET_ENVIRONMENT: str(socket),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        # torch says on every import that there is no NumPy; nothing in the job uses it
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",
    }
    torchrun = children.start(f"run-{run}", command, environment)
    return Job(run, ranks, folder, torchrun, faults.Control(folder / "control.json"))
