"""What differs between launchers: how an attempt is started, and what a scheduler says of this one and the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from tachograph.supervise.training import RunningAttempt

IN_PLACE, QUEUED_AGAIN, NOWHERE = "in_place", "queued_again", "nowhere"
"""Where the next attempt can run: where this one does, in the same job once it is queued again, or neither."""


@dataclass(frozen=True)
class Outlook:
    """What a scheduler says: why it is ending the job, how long the job has its nodes, where a next attempt can run.

    `unknown` says why none of it is known, `why` why the next attempt cannot run where this one does, `size` is the
    number of the run's nodes.
    """

    withdrawn: str = ""
    unknown: str = ""
    seconds_left: float | None = None
    where: str = IN_PLACE
    why: str = ""
    size: int = 1


class Launcher(Protocol):
    """Starts the attempts of a run."""

    def start(self, environment: Mapping[str, str], left_out: Collection[str]) -> RunningAttempt:
        """Start an attempt with these variables, on none of the nodes that are left out; raise OSError."""

    def outlook(self, left_out: Collection[str], *, fresh: bool = False) -> Outlook:
        """Return what the scheduler says of a next attempt without these nodes, or said some seconds ago."""

    def queue_again(self, left_out: Collection[str]) -> str:
        """Have the whole job queued again, to run without these nodes; return why that failed, empty if it did not."""


class ChildCommand:
    """A command that starts all ranks of a run on this node, as torchrun does: no scheduler is asked."""

    def __init__(self, start: Callable[[Mapping[str, str]], RunningAttempt]) -> None:
        self._start = start

    def start(self, environment: Mapping[str, str], left_out: Collection[str]) -> RunningAttempt:
        """Start the command."""
        return self._start(environment)

    def outlook(self, left_out: Collection[str], *, fresh: bool = False) -> Outlook:
        """Return that it can always be started again, but on this node alone."""
        return Outlook(where=NOWHERE, why="there is no other node") if left_out else Outlook()

    def queue_again(self, left_out: Collection[str]) -> str:
        """Return that there is no queue."""
        return "there is no scheduler"
