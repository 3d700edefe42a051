"""The interface of launchers: how an attempt is started, and how its scheduler sees this one and the next."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tachograph.supervise.training import RunningAttempt

IN_PLACE, QUEUED_AGAIN, NOWHERE = "in_place", "queued_again", "nowhere"
"""Where the next attempt can run: where this one does, in the same job once it is queued again, or neither."""


@dataclass(frozen=True)
class Outlook:
    """A scheduler's view: why it is ending the job, how long the job has its nodes, where a next attempt can run.

    `unknown` says why none of it is known, `why` why the next attempt cannot run where this one does, `size` is the
    number of the run's nodes, `restarter` a program that restarts ranks itself while the command runs, `lost` are nodes
    of this attempt that are down.
    """

    withdrawn: str = ""
    unknown: str = ""
    seconds_left: float | None = None
    where: str = IN_PLACE
    why: str = ""
    size: int = 1
    restarter: str = ""
    lost: tuple[str, ...] = ()


FT_LAUNCHER = "ft_launcher"
MOST_DIGITS = 6


def restarter(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return which program of a command restarts ranks on its own: NVIDIA's ft_launcher or torchft; empty if none."""
    if any(Path(word).name == FT_LAUNCHER for text in command for word in text.split()):
        return FT_LAUNCHER
    return "torchft" if environment.get("TORCHFT_LIGHTHOUSE") else ""


NODES = re.compile(r"--(?:nnodes|num[_-]machines)(?:=|\s+)([0-9]+)(?::[0-9]+)?(?!\S)")
"""What torchrun and accelerate are told of the number of nodes; torchrun takes a range, too."""


def nodes_needed(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return how many nodes a launcher in a command waits for, 1 if nothing says that there are others.

    Torchrun takes from PET_NNODES, which Kubeflow's operators set, what it is not told.
    """
    for text in (" ".join(command), f"--nnodes {environment.get('PET_NNODES', '')}"):
        if found := NODES.search(text):
            return int(found[1][:MOST_DIGITS])
    return 1


class Launcher(Protocol):
    """Starts the attempts of a run."""

    def start(self, environment: Mapping[str, str], left_out: Collection[str]) -> RunningAttempt:
        """Start an attempt with these variables, on none of the nodes that are left out; raise OSError."""

    def outlook(self, left_out: Collection[str], *, fresh: bool = False) -> Outlook:
        """Return what the scheduler says of a next attempt without these nodes, or said some seconds ago."""

    def queue_again(self, left_out: Collection[str]) -> str:
        """Have the whole job queued again, to run without these nodes; return why that failed, empty if it did not."""


class OutlivingLauncher(Launcher, Protocol):
    """Starts attempts that go on when their supervisor ends, so that the next one takes them over."""

    @property
    def is_created(self) -> bool:
        """Whether the last one that was to be started is there, or was."""

    @property
    def places(self) -> Mapping[str, str]:
        """The nodes that all of it is on, and their addresses; none while a part of it is on none yet."""

    def mark(self) -> str:
        """Return by what the next attempt is to be known, for the journal."""

    def go_on(
        self,
        environment: Mapping[str, str],
        left_out: Collection[str],
        mark: str,
        *,
        is_created: bool,
        places: Mapping[str, str],
    ) -> RunningAttempt:
        """Take over the attempt with this mark, which an earlier supervisor may not have started; raise OSError.

        `places` are where that one saw it.
        """


class ChildCommand:
    """A command that starts all ranks of a run on this node, as torchrun does: no scheduler is asked."""

    def __init__(self, start: Callable[[Mapping[str, str]], RunningAttempt], restarter: str = "") -> None:
        self._start, self._restarter = start, restarter

    def start(self, environment: Mapping[str, str], left_out: Collection[str]) -> RunningAttempt:
        """Start the command."""
        return self._start(environment)

    def outlook(self, left_out: Collection[str], *, fresh: bool = False) -> Outlook:
        """Return that it can always be started again, but on this node alone."""
        where, why = (NOWHERE, "there is no other node") if left_out else (IN_PLACE, "")
        return Outlook(where=where, why=why, restarter=self._restarter)

    def queue_again(self, left_out: Collection[str]) -> str:
        """Return that there is no queue."""
        return "there is no scheduler"
