"""Asks Slurm about a job, its nodes and its steps, and tells it what to do with them: `scontrol` and `scancel`."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tachograph.bisect.nodes import expand
from tachograph.processes.process_tree import started_at

ASK_SECONDS = 10.0
POLL_SECONDS = 0.2
REQUEUED_SECONDS = 5.0
"""How long a job may take to be pending once it is queued again; its processes have 30 s to end by default."""
GONE_SECONDS = 15.0
"""How long a step may take to go once its processes get SIGKILL."""

RUNNING = "RUNNING"
LIVE = (RUNNING, "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
"""States of a job whose processes may be there."""
_GONE = re.compile(r"not found|Invalid job id")
_UNUSABLE = re.compile(
    r"\b(DOWN|DRAIN\w*|FAIL\w*|INVAL\w*|NOT_RESPONDING|PLANNED_DOWN|POWER\w*|REBOOT\w*|UNKNOWN)\b|\*"
)
"""States and flags of a node that takes no new work."""
_LOST = re.compile(r"\b(DOWN|NOT_RESPONDING)\b|\*")


class SlurmError(Exception):
    """Slurm does not answer, or refuses; the text is its own."""


@dataclass(frozen=True)
class JobSeen:
    """A job: `preempted` says whether it gives way to another one, `nodes` are states by name in Slurm's order."""

    state: str
    preempted: bool
    may_queue_again: bool
    seconds_left: float | None
    left_out: tuple[str, ...]
    nodes: Mapping[str, str]

    def lost(self, node: str) -> bool:
        """Return whether Slurm says of a node that it is down or does not answer, or has taken it from the job."""
        return _LOST.search(self.nodes.get(node, "DOWN")) is not None

    def unusable(self, node: str) -> bool:
        """Return whether Slurm says of a node that nothing new should run there."""
        return _UNUSABLE.search(self.nodes.get(node, "UNKNOWN")) is not None


def job(number: str) -> JobSeen:
    """Return what Slurm says of a job; raise SlurmError."""
    said = _fields(_call("scontrol", "show", "job", "-o", number))
    names = _nodes(said.get("NodeList", ""))
    states: dict[str, str] = {}
    if names:
        for line in _call("scontrol", "show", "node", "-o", ",".join(names)).splitlines():
            node = _fields(line)
            states[node.get("NodeName", "")] = node.get("State", "UNKNOWN")
    end = said.get("EndTime", "")
    return JobSeen(
        state=said.get("JobState", ""),
        preempted=said.get("PreemptTime", "None") not in ("None", "N/A"),
        may_queue_again=said.get("Requeue") == "1" and said.get("BatchFlag") == "1",
        seconds_left=float(end) - time.time() if end.isdigit() else None,
        left_out=tuple(_nodes(said.get("ExcNodeList", ""))),
        nodes={name: states.get(name, "UNKNOWN") for name in names},
    )


def is_over(number: str) -> bool:
    """Return whether nothing of a job runs any more; raise SlurmError."""
    try:
        return _fields(_call("scontrol", "show", "job", "-o", number)).get("JobState") not in LIVE
    except SlurmError as error:
        if _GONE.search(str(error)):
            return True
        raise


def queue_again(number: str, left_out: tuple[str, ...]) -> None:
    """Queue a job again, to run on none of these nodes; its processes end meanwhile, this one too. Raise SlurmError."""
    _call("scontrol", "requeue", number)
    deadline = time.monotonic() + REQUEUED_SECONDS
    while left_out:
        try:
            _call("scontrol", "update", f"JobId={number}", f"ExcNodeList={','.join(left_out)}")  # refused while it runs
            return
        except SlurmError:  # or scontrol got the SIGTERM that is meant for the job
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class JobStep:
    """A step of a job, and the process id of the srun that waits for it; 0 where it is on another node or is none."""

    name: str
    srun: int


def steps(number: str) -> list[JobStep]:
    """Return the steps of a job that tasks run in; raise SlurmError."""
    try:
        said = _call("scontrol", "show", "step", number)
    except SlurmError as error:
        if _GONE.search(str(error)):
            return []
        raise
    return list(_steps(said))


def _steps(said: str) -> Iterator[JobStep]:
    here = socket.gethostname().partition(".")[0]
    for block in said.split("\n\n"):
        fields = _fields(block)
        name = fields.get("StepId", "")
        host, _, pid = fields.get("SrunHost:Pid", "").rpartition(":")
        if re.fullmatch(r"\d+\.\d+(\+\d+)?", name):
            yield JobStep(name, int(pid) if pid.isdigit() and host.partition(".")[0] == here else 0)


def end_steps(number: str, srun: int, grace: float) -> bool:
    """End what an srun has started on all nodes, after so many seconds by SIGKILL; return whether it is gone for sure.

    An srun that is itself killed leaves that to Slurm; one that gets SIGTERM has its tasks killed at once.
    """
    begin = time.monotonic()
    deadline = begin + grace + GONE_SECONDS
    is_told = False
    while time.monotonic() < deadline:
        try:
            left = [step.name for step in steps(number) if step.srun == srun]
            if not left:
                return True
            if not is_told:
                is_told = True
                _call("scancel", "--signal=TERM", *left)
                _call("scancel", "--signal=CONT", *left)  # a stopped one handles nothing before
            if time.monotonic() >= begin + grace:
                _call("scancel", *left)
        except SlurmError:  # asked again: it may be restarting
            pass
        time.sleep(POLL_SECONDS)
    return False


def end_abandoned_steps(number: str) -> bool:
    """End the steps of a job whose srun ran here and is gone; return whether there is none any more."""
    try:
        abandoned = {step.srun for step in steps(number) if step.srun and not started_at(step.srun)}
    except SlurmError:
        return False
    return all(end_steps(number, srun, 0.0) for srun in abandoned)


def _call(*command: str) -> str:
    """Return what a program of Slurm prints; raise SlurmError."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ASK_SECONDS,
            env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{command[0]} has not answered for {ASK_SECONDS:g} s") from error
    except OSError as error:
        raise SlurmError(f"{command[0]}: {error.strerror or error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        raise SlurmError(f"{command[0]}: {said}")
    return done.stdout


def _fields(text: str) -> dict[str, str]:
    """Return the first value of each `Name=value`."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", text):
        found.setdefault(name, value)
    return found


def _nodes(text: str) -> list[str]:
    """Return the nodes of a list as Slurm writes it, none of `(null)`; raise SlurmError."""
    try:
        return expand(text) if text and not text.startswith("(") else []
    except ValueError as error:
        raise SlurmError(str(error)) from error
