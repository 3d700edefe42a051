"""A real Slurm of several nodes, all this machine, each with an exporter; and jobs in it that are supervised."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tachograph_lab.processes import Child, Children, free_port
from tests.supervise.conftest import LAUNCHER, until
from tests.supervise.journals import Journalled

ROOT = Path(__file__).parents[2]
RANK = Path(__file__).with_name("slurm_rank.py")
HOST = platform.node().partition(".")[0]
NODES = ("n1", "n2", "n3")
CPUS = 2


class Cluster:
    """slurmctld, a slurmd for each node, munge and exporters, in a folder."""

    def __init__(self, folder: Path, children: Children) -> None:
        self.folder, self._children = folder, children
        self._configure()
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        munge = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        socket = folder / "munge.socket"
        self._start("munged", socket.exists, "munged", "--force", "--foreground", f"--socket={socket}", *munge)
        self._start("slurmctld", lambda: self.works("sinfo"), "slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        self._of_node: dict[str, list[Child]] = {}
        for node in NODES:
            self._start_node(node)
        until(self.is_idle)

    def _start_node(self, node: str) -> None:
        flags = (f"--socket={self.folder / node}.sock", "--web.listen-address=127.0.0.1:0", "--gpu.kmsg=")
        web = self.folder / f"{node}.web.sock"
        exporter = [sys.executable, str(ROOT / "tests/quick_exporter.py"), *flags]
        slurmd = ["slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf")]
        self._of_node[node] = [
            self._start(f"exporter-{node}", web.exists, *exporter),
            self._start(f"slurmd-{node}", lambda: True, *slurmd),
        ]

    def lose(self, node: str, pid: int) -> None:
        """Have all of a node vanish, with the rank of that process id, as without power; Slurm learns of it."""
        stepd = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        for each in (pid, stepd, *(child.pid for child in self._of_node[node])):
            os.kill(each, signal.SIGKILL)
        (self.folder / f"{node}.web.sock").unlink()
        self("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def bring_back(self, node: str) -> None:
        """Have a node that was lost begin again."""
        for child in self._of_node[node]:
            child.stop()
        self._start_node(node)

    def _configure(self) -> None:
        hook = self.folder / "task-prolog"
        hook.write_text(f'#!/bin/sh\necho "export TACHOGRAPH_SOCKET={self.folder}/$SLURMD_NODENAME.sock"\n')
        hook.chmod(0o755)
        settings = {
            "ClusterName": "test", "SlurmctldHost": f"{HOST}(127.0.0.1)", "SlurmUser": "root", "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder / 'munge.socket'}", "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none", "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CPU",
            "ReturnToService": 2, "SlurmctldPort": free_port(), "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool.%n", "SlurmctldPidFile": self.folder / "ctld.pid",
            "SlurmdPidFile": self.folder / "d.%n.pid", "SlurmdParameters": "config_overrides",
            "TaskProlog": hook, "KillWait": 3, "OverTimeLimit": 0, "MpiDefault": "none", "MinJobAge": 300,
            "SchedulerParameters": "sched_interval=1", "JobRequeue": 1,
            "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE",
        }  # fmt: skip
        lines = [f"{name}={value}" for name, value in settings.items()]
        lines += [  # by weight the first nodes are given first
            f"NodeName={node} NodeHostname={HOST} NodeAddr=127.0.0.1 Port={free_port()} CPUs={CPUS} Weight={place + 1}"
            for place, node in enumerate(NODES)
        ]
        names = ",".join(NODES)
        lines += [
            f"PartitionName=all Nodes={names} Default=YES PriorityTier=1 PreemptMode=REQUEUE",
            f"PartitionName=urgent Nodes={names} PriorityTier=10 PreemptMode=OFF",
        ]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "state").mkdir()

    def _start(self, name: str, ready: Callable[[], bool], *command: str) -> Child:
        child = self._children.start(name, command, self._environment())
        child.wait_until(ready, 90.0)
        return child

    def _environment(self) -> Mapping[str, str]:
        mine = {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHER)}
        return {**mine, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def __call__(self, *command: str) -> str:
        """Run a command of Slurm and return what it printed."""
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def works(self, *command: str) -> bool:
        """Return whether a command of Slurm ends with 0."""
        return (
            subprocess.run(command, env=self._environment(), capture_output=True, timeout=60, check=False).returncode
            == 0
        )

    def is_idle(self) -> bool:
        """Return whether no job is left, and every node waits for one."""
        return not self("squeue", "-h") and set(self("sinfo", "-h", "-N", "-o", "%t").split()) == {"idle"}

    def clear(self) -> None:
        """End what a test has left."""
        for node in NODES:
            if any(word in self("scontrol", "show", "node", "-o", node) for word in ("DRAIN", "DOWN")):
                self("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self("scancel", "--user=root")
        until(self.is_idle)

    def supervised(self, run: str, folder: Path) -> Job:
        """Return a job of that name to be, which keeps its files in a folder."""
        return Job(self, run, folder)


@dataclass
class Job(Journalled):
    """A training of one rank a node that `tachograph supervise` starts in its batch script."""

    cluster: Cluster
    run: str
    folder: Path
    number: str = ""
    program: Sequence[str] = ()
    """What srun starts once on each node, if not the rank without PyTorch."""

    def command(self, *options: str, mode: str = "act") -> list[str]:
        """Return the command that supervises it."""
        return [
            sys.executable, "-W", "ignore", "-m", "tachograph", "supervise", "--run", self.run, "--mode", mode,
            "--state", str(self.state), "--exporter", f"unix:{self.cluster.folder}/{{node}}.web.sock", *options, "--",
            "srun", "--ntasks-per-node=1", "--kill-on-bad-exit=1",
            *(self.program or [sys.executable, "-W", "ignore", str(RANK), str(self.folder)]),
        ]  # fmt: skip

    def submit(
        self, nodes: int, *options: str, sbatch: Sequence[str] = (), mode: str = "act", twice: bool = False
    ) -> None:
        """Submit it, with these options of ours and of sbatch's; `twice`: another supervisor after the first one."""
        command = shlex.join(self.command(*options, mode=mode))
        inner = f"cd {ROOT}; {command}; {command}" if twice else f"cd {ROOT}; exec {command}"
        self.number = self.cluster(
            "sbatch", "--parsable", f"--nodes={nodes}", "--exclusive", "--open-mode=append",
            f"--output={self.folder}/out", *sbatch, f"--wrap={inner}",
        )  # fmt: skip

    def plans(self, attempt: int) -> list[dict[str, Any]]:
        """What the ranks of an attempt left, by rank."""
        path = self.folder / "plans"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return sorted((one for one in found if one["attempt"] == attempt), key=lambda one: int(one["rank"]))

    def began(self, attempt: int, ranks: int = 2, steps: int = 30) -> list[dict[str, Any]]:
        """Wait until all ranks of an attempt have made so many steps, 20 a second; return what they left."""
        found = list(until(lambda: len(now := self.plans(attempt)) == ranks and now))
        begin = [self._steps(rank) for rank in range(ranks)]
        until(lambda: all(self._steps(rank) >= begin[rank] + steps for rank in range(ranks)))
        return found

    def _steps(self, rank: int) -> int:
        saved = self.folder / f"saved-{rank}"
        return int(saved.read_text()) if saved.exists() else 0

    def strike(self, node: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Have the rank on a node send itself a signal."""
        asked = self.folder / f"{number.name}-{node}"
        asked.touch()
        until(lambda: not asked.exists())

    def finish(self) -> None:
        """Have all ranks end well, and the job with them."""
        (self.folder / "finish").touch()
        until(lambda: self.facts()["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"))
        assert self.facts()["JobState"] == "COMPLETED", self.said()

    def facts(self) -> dict[str, str]:
        """What Slurm says of the job."""
        words = self.cluster("scontrol", "show", "job", "-o", self.number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def requeued(self) -> None:
        """Wait until it is queued again, and have it begin now instead of in two minutes."""
        until(lambda: self.cluster("squeue", "-h", "-j", self.number, "-o", "%t %r") == "PD BeginTime")
        self.cluster("scontrol", "update", f"JobId={self.number}", "StartTime=now")

    def said(self) -> str:
        """What its supervisors and its ranks wrote."""
        return (self.folder / "out").read_text()
