"""Runs of examples/resilient, with a supervisor and without: started, and read from what is in their folders."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tachograph import wire
from tachograph.supervise import journal, policy
from tachograph.supervise.journal import ATTEMPT, DECISION, STARTED, Entry
from tachograph.supervise.policy import RESTARTS
from tachograph.supervise.totals import DECIDED
from tachograph_lab.checkout import root
from tachograph_lab.processes import Child, Children, free_port

RANKS, STEPS, EVERY = 4, 400, 20
BUDGET = "restarts: {per_hour: 3, per_run: 10}", "restarts: {per_hour: 20, per_run: 40}"
"""The line of the default policy that is not kept: five faults within minutes are more than it allows."""


class StepMade(NamedTuple):
    """A step that rank 0 made: in which attempt, its number and its loss, and when it ended (Unix time)."""

    attempt: int
    step: int
    loss: float
    time: float


class FaultMade(NamedTuple):
    """A fault such as `kill@130` and when it was made (Unix time)."""

    text: str
    time: float

    @property
    def kind(self) -> str:
        """Its kind, without its step."""
        return self.text.partition("@")[0]


@dataclass(frozen=True)
class Recovery:
    """A fault, the trigger that it was found as and the action that was taken; None where nothing was done.

    `seconds` is from the fault to the end of the first step after the restart, `load_seconds` what of it came after the
    start of the command. `lost_steps` were made before the restart, and are made again or left out.
    """

    fault: FaultMade
    trigger: str | None = None
    action: str | None = None
    seconds: float = math.nan
    load_seconds: float = math.nan
    lost_steps: int = 0
    from_step: int | None = None
    """That of the checkpoint that it went back to."""

    @property
    def is_over(self) -> bool:
        """Whether the run makes steps again."""
        return math.isfinite(self.seconds)


@dataclass(frozen=True)
class ResilientRun:
    """A run in its folder."""

    folder: Path
    process: Child

    def steps(self) -> list[StepMade]:
        """Return the steps that have been made, in their order."""
        made: list[StepMade] = []
        attempt = 0
        path = self.folder / "losses-0"
        for line in path.read_text().splitlines() if path.exists() else []:
            first, second, third = line.split()
            if first == "attempt":
                attempt = int(second)
            else:
                made.append(StepMade(attempt, int(first), float.fromhex(second), float(third)))
        return made

    def faults(self) -> list[FaultMade]:
        """Return the faults that have been made, in their order."""
        found = [FaultMade(path.name.removeprefix("fault-"), float(path.read_text() or "nan"))
                 for path in self.folder.glob("fault-*")]  # fmt: skip
        return sorted((one for one in found if not math.isnan(one.time)), key=lambda one: one.time)

    def entries(self) -> list[Entry]:
        """Return the journal of its supervisor."""
        path = self.folder / "state" / journal.NAME
        return journal.read(path) if path.exists() else []

    def validation(self) -> float:
        """Return the loss on what was held out, NaN where the run has not come to its end."""
        path = self.folder / "validation"
        return float.fromhex(path.read_text()) if path.exists() else math.nan

    def recoveries(self) -> list[Recovery]:
        """Return what has become of each fault so far."""
        faults = self.faults()
        ends = [*(fault.time for fault in faults), math.inf][1:]
        steps, entries = self.steps(), self.entries()
        return [_recovery(fault, end, steps, entries) for fault, end in zip(faults, ends, strict=True)]


def _recovery(fault: FaultMade, end: float, steps: Sequence[StepMade], entries: Sequence[Entry]) -> Recovery:
    mine = [one for one in entries if fault.time <= one["time"] < end]
    decided = [one for one in mine if one["kind"] == DECISION and one["outcome"] == DECIDED]
    if not decided:
        return Recovery(fault)
    last = decided[-1]
    found = Recovery(fault, last["trigger"], last["action"])
    begun = [one["attempt"] for one in mine if one["kind"] == ATTEMPT]
    started = [one["time"] for one in mine if one["kind"] == STARTED]
    if last["action"] not in RESTARTS or not begun or not started:
        return found
    after = [one for one in steps if one.attempt == begun[-1]]
    if not after:
        return found
    before = [one.step for one in steps if one.attempt < begun[-1] and one.time < after[0].time]
    return replace(
        found, seconds=after[0].time - fault.time, load_seconds=after[0].time - started[-1],
        lost_steps=max(before, default=-1) + 1 - after[0].step, from_step=last["resume_step"],
    )  # fmt: skip


def start_supervised(children: Children, folder: Path, run: str, socket: Path, *options: object) -> ResilientRun:
    """Start the example under a supervisor in act mode; `options` are the example's."""
    own = folder / "policy.yml"
    folder.mkdir(parents=True)
    own.write_text(policy.DEFAULT.read_text().replace(*BUDGET))
    supervise = [sys.executable, "-W", "ignore", "-m", "tachograph", "supervise", "--run", run, "--mode", "act",
                 "--state", folder / "state", "--policy", own, "--"]  # fmt: skip
    return _start(children, folder, run, socket, [*supervise, *_example(folder, options)])


def start_alone(children: Children, folder: Path, run: str, *options: object) -> ResilientRun:
    """Start the example without supervisor and exporter."""
    folder.mkdir(parents=True)
    return _start(children, folder, run, folder / "none.sock", _example(folder, options))


def _example(folder: Path, options: Sequence[object]) -> list[object]:
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", RANKS]
    torchrun += ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    example = root() / "examples/resilient/train.py"
    return [*torchrun, example, "--folder", folder, "--steps", STEPS, "--every", EVERY, *options]


def _start(children: Children, folder: Path, name: str, socket: Path, command: Sequence[object]) -> ResilientRun:
    environment = {wire.SOCKET_ENVIRONMENT: str(socket), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return ResilientRun(folder, children.start(name, list(map(str, command)), environment))
