"""Starts and stops the training job of `job.py` with torchrun."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tachograph import wire
from tachograph_lab.demo import fault_injection
from tachograph_lab.processes import Child, Children, free_port

STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Job:
    """A running job: its process, its ranks' process ids, and the control of its faults."""

    run: str
    ranks: int
    folder: Path
    torchrun: Child
    control: fault_injection.FaultControl

    def pid(self, rank: int) -> int:
        """Return a rank's process id; the rank must have started."""
        return int((self.folder / f"rank{rank}.pid").read_text(encoding="utf-8"))

    @property
    def running(self) -> bool:
        """Whether torchrun is running."""
        return self.torchrun.running

    def tail(self) -> str:
        """Return the end of the job's log."""
        return self.torchrun.tail(20)

    def started(self) -> bool:
        """Return whether every rank is past its start-up."""
        return all((self.folder / f"rank{rank}.pid").exists() for rank in range(self.ranks))

    def finish(self) -> bool:
        """Let the job end normally; return whether it did so in time."""
        self.control.inject(fault_injection.InjectedFault(fault_injection.STOP))
        deadline = time.monotonic() + STOP_SECONDS
        while self.running and time.monotonic() < deadline:
            time.sleep(0.05)
        finished = self.torchrun.status == 0
        self.torchrun.stop()
        return finished


def launch(children: Children, run: str, ranks: int, socket: Path, *options: str) -> Job:
    """Start the job with `ranks` ranks that connect to the exporter at `socket`; return before they train.

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
        # torch warns on every import that NumPy is missing; the job does not use it
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",
    }
    torchrun = children.start(f"run-{run}", command, environment)
    return Job(run, ranks, folder, torchrun, fault_injection.FaultControl(folder / "control.json"))
