"""Starts, breaks and stops a training job, that of `job.py` or of `rl_job.py`, with torchrun."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tachograph import wire
from tachograph_lab.demo import fault_injection
from tachograph_lab.processes import Child, Children, free_port

STOP_SECONDS = 45.0
"""On a busy machine: a rank takes two seconds of CPU to leave PyTorch and TRL."""


@dataclass(frozen=True)
class StartedEngine:
    """A running engine of `engine.py`."""

    address: str
    server: Child


@dataclass(frozen=True)
class Job:
    """A running job: its process, its ranks' process ids, the control of its faults, and the engine that it has."""

    run: str
    ranks: int
    folder: Path
    torchrun: Child
    control: fault_injection.FaultControl
    engine: StartedEngine | None = None

    def strike(self, fault: fault_injection.InjectedFault) -> None:
        """Inject a fault, or kill the process of which it is the end."""
        if fault.kind == fault_injection.KILLED:
            fault_injection.kill(self.pid(fault.rank or 0))
        elif fault.kind == fault_injection.ENGINE_KILLED and self.engine is not None:
            fault_injection.kill(self.engine.server.pid)
        else:
            self.control.inject(fault)

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
        """Heal the job and let it end normally; return whether it did so in time."""
        self.control.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while self.running and time.monotonic() < deadline:
            time.sleep(0.05)
        finished = self.torchrun.status == 0
        self.torchrun.stop()
        return finished


def launch(children: Children, run: str, ranks: int, socket: Path, *options: str, module: str = "job") -> Job:
    """Start the job with `ranks` ranks that connect to the exporter at `socket`; return before they train.

    `options` are further command-line options of the `module` of this package.
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
        *("-m", f"tachograph_lab.demo.{module}", "--name", run, "--folder", str(folder)),
        *options,
    ]
    environment = {
        wire.SOCKET_ENVIRONMENT: str(socket),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        # torch warns on every import that NumPy is missing; the job does not use it
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",
    }
    torchrun = children.start(f"run-{run}", command, environment)
    return Job(run, ranks, folder, torchrun, fault_injection.FaultControl(folder / "control.json"))


def launch_rl(children: Children, run: str, ranks: int, socket: Path) -> Job:
    """Start a job that generates, with an engine of its own, and return before it trains."""
    address = f"127.0.0.1:{free_port()}"
    server = children.start(f"engine-{run}", [sys.executable, "-m", "tachograph_lab.demo.engine", address])
    job = launch(children, run, ranks, socket, "--engine", address, module="rl_job")
    return replace(job, engine=StartedEngine(address, server))
