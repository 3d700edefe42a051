"""A run that is a step of a Slurm job: `srun …` over the job's nodes, started on the batch host, which leads the run.

A node that is left out is replaced by one that the job has to spare, or else the whole job is queued again without it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tachograph.bisect.nodes import expand
from tachograph.supervise import slurm
from tachograph.supervise.launcher import IN_PLACE, NOWHERE, QUEUED_AGAIN, Outlook, restarter
from tachograph.supervise.slurm import JobSeen, SlurmError
from tachograph.supervise.training import AttemptProcesses
from tachograph.text.humanize import listed

HEAD_ENVIRONMENT = "TACHOGRAPH_HEAD_NODE"
"""The first of an attempt's nodes, for the rendezvous: it changes as nodes are left out."""

OLD_SECONDS = 10.0
"""What Slurm said longer ago is asked again: slurmctld answers all users of a cluster."""


def is_srun(command: Sequence[str]) -> bool:
    """Return whether a command is srun itself, and within a job."""
    return Path(command[0]).name == "srun" and bool(os.environ.get("SLURM_JOB_ID"))


def job_nodes() -> tuple[str, ...]:
    """Return the nodes of this job."""
    return tuple(expand(os.environ["SLURM_JOB_NODELIST"]))


class SlurmJob:
    """The job that this process is in, and the command that starts a run on its nodes, all but `spares` of them."""

    def __init__(self, number: str, nodes: Sequence[str], command: Sequence[str], lock: int, spares: int = 0) -> None:
        self.number = number
        self.used: tuple[str, ...] = tuple(nodes)
        """The nodes of the attempt that runs, or of the next one."""
        self._allocated, self._needed = tuple(nodes), max(len(nodes) - spares, 1)
        self._command, self._lock, self._restarter = tuple(command), lock, restarter(command, os.environ)
        self._seen: JobSeen | SlurmError = SlurmError("it was not asked")
        self._asked = -OLD_SECONDS

    def start(self, environment: Mapping[str, str], left_out: Collection[str]) -> AttemptProcesses:
        """Start the command on as many nodes as the run has; raise OSError."""
        if not slurm.end_abandoned_steps(self.number):
            raise OSError("Slurm does not say that nothing of an earlier attempt runs in this job")
        self.used = self._chosen(left_out)
        place = (
            [] if self.used == self._allocated else [f"--nodes={len(self.used)}", f"--nodelist={','.join(self.used)}"]
        )
        given = {**environment, HEAD_ENVIRONMENT: self.used[0], **self._tasks()}
        return AttemptProcesses([self._command[0], *place, *self._command[1:]], given, self._lock, self.number)

    def outlook(self, left_out: Collection[str], *, fresh: bool = False) -> Outlook:
        """Return what Slurm says of the job now, or said 10 s ago at most."""
        seen = self._look(fresh=fresh)
        if isinstance(seen, SlurmError):
            return Outlook(unknown=f"Slurm does not say how its job {self.number} is: {seen}", size=self._needed)
        withdrawn = ""
        if seen.preempted:
            withdrawn = f"Slurm gives the nodes of job {self.number} to another one"
        elif seen.state != slurm.RUNNING:
            withdrawn = f"Slurm is ending job {self.number}, which is {seen.state}"
        usable = [node for node in self._allocated if node not in left_out and not seen.unusable(node)]
        where, why = IN_PLACE, ""
        if len(usable) < self._needed:
            gone = [f"{node} is {seen.nodes.get(node, 'gone')}" for node in self._allocated if seen.unusable(node)]
            lacking = [*(f"{node} is left out" for node in self._allocated if node in left_out), *gone]
            why = f"job {self.number} has {len(usable)} of the run's {self._needed} nodes ({listed(lacking)})"
            where = QUEUED_AGAIN if seen.may_queue_again else NOWHERE
            why += "" if seen.may_queue_again else ", and it may not be queued again (sbatch --requeue)"
        lost = tuple(node for node in self.used if seen.lost(node))
        return Outlook(withdrawn, "", seen.seconds_left, where, why, self._needed, self._restarter, lost)

    def queue_again(self, left_out: Collection[str]) -> str:
        """Have the job queued again without these nodes; Slurm ends this process soon after."""
        try:
            seen = slurm.job(self.number)
            slurm.queue_again(self.number, tuple(sorted({*seen.left_out, *left_out})))
        except SlurmError as error:
            return str(error)
        return ""

    def _look(self, *, fresh: bool) -> JobSeen | SlurmError:
        if fresh or time.monotonic() - self._asked >= OLD_SECONDS:
            try:
                self._seen = slurm.job(self.number)
            except SlurmError as error:
                self._seen = error
            self._asked = time.monotonic()
        return self._seen

    def _chosen(self, left_out: Collection[str]) -> tuple[str, ...]:
        """Return the nodes of the next attempt: the first that may be used, in the order of the allocation."""
        seen = self._look(fresh=True)
        bad = {node for node in self._allocated if isinstance(seen, JobSeen) and seen.unusable(node)}
        for out in ({*left_out, *bad}, {*left_out}):
            usable = [node for node in self._allocated if node not in out]
            if len(usable) >= self._needed:
                return tuple(usable[: self._needed])
        raise OSError(f"job {self.number} has {len(usable)} of the {self._needed} nodes that the run needs")

    def _tasks(self) -> dict[str, str]:
        """Return the number of tasks for fewer nodes, where the job was given one for all of its nodes."""
        names = [name for name in ("SLURM_NTASKS", "SLURM_NPROCS") if os.environ.get(name, "").isdecimal()]
        share = len(self.used) / len(self._allocated)
        return {name: str(round(int(os.environ[name]) * share)) for name in names}
