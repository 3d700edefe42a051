"""Observes one run: its findings, which processes its ranks are, its steps and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from tachograph.processes.process_tree import below, started_at
from tachograph.supervise.decision import Hold, Situation
from tachograph.supervise.known_checkpoints import KnownCheckpoints
from tachograph.supervise.launcher import Launcher
from tachograph.supervise.run_seen import AlertSeen, RankSeen, RunSeen, Unknown
from tachograph.supervise.training import RunningAttempt
from tachograph.supervise.triggers import RunFinding
from tachograph.text.humanize import age, listed


class Clocks:
    """A monotonic clock, and the time of the day by it, so that a clock that is set changes no budget and no wait."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._ahead = wall() - monotonic()

    def now(self) -> float:
        """Return the time of the day as it was when this was made, and what has passed since."""
        return self._ahead + self.monotonic()


class RunWatch(Protocol):
    """Where findings come from."""

    def begin(self) -> None:
        """Note that an attempt begins: what is shown now is of earlier ones."""

    def look(self, attempt_seconds: float, *, in_turns: bool = False) -> RunSeen | Unknown:
        """Return what is known of the run now; where nodes take turns, nothing is wrong by those that are asked."""


Silenced = Callable[[RunFinding, RunSeen, bool], Hold | None]
"""Returns what a maintenance silence holds back; waits a few seconds for an answer if that is asked for."""


def never_silenced(_: RunFinding, __: RunSeen, ___: bool) -> None:
    """Hold nothing back: no Alertmanager is asked."""


Alerts = Callable[[RunSeen, bool], Sequence[AlertSeen] | None]
"""Returns the active alerts of a run, of whichever attempt, None if they are not known; waits a few seconds for an
answer of now if that is asked for."""


def no_alerts(_: RunSeen, __: bool) -> None:
    """Know of none: no Alertmanager is asked."""


ATTEMPT_SECONDS = 60.0
"""After an attempt has begun, from when an alert is of it: before, it may be about the one that ended, as its metrics
are read and its rule is evaluated every few seconds, or the clocks of two machines differ. An alert that begins so much
later than now shows that they differ by more."""


class OwnProcess(NamedTuple):
    """A rank's process: its number as the exporter shows it, its number here, and when it began; see `started_at`."""

    shown: str
    pid: int
    started: str


NO_PROCESS = OwnProcess("", 0, "")


class RunObserver:
    """Looks at one run, attempt after attempt; `seen` is what was last noted of this one."""

    def __init__(
        self,
        source: RunWatch,
        clock: Clocks,
        known: KnownCheckpoints,
        launcher: Launcher,
        *,
        silenced: Silenced,
        alerts: Alerts,
        say: Callable[[str], None],
    ) -> None:
        self._source, self._clock, self._known, self._launcher = source, clock, known, launcher
        self.silenced, self._alerts, self._say = silenced, alerts, say
        self._ahead: set[tuple[str, float]] = set()
        """Name and begin of the active alerts that began in the future when they were first seen."""
        self.seen: RunSeen | None = None
        self.first_step: int | None = None
        """The step from which this attempt goes on; None before it has made one, as a loop is at 0 until it resumes."""
        self._best_before: int | None = None
        self._first_seen: int | None = None
        self._furthest: int | None = None
        self._gained_at: float | None = None
        self._first_at = self._began = self._began_at = 0.0
        self._processes: dict[int, OwnProcess] = {}

    def begin(self, best_step: int | None, since: float | None = None) -> None:
        """Note that an attempt begins, after others that came to this step.

        One that began under an earlier supervisor did so at the time `since`, by the time of the day.
        """
        self._source.begin()
        self.seen, self._best_before, self._processes = None, best_step, {}
        self.first_step = self._first_seen = None
        self._furthest, self._gained_at = best_step, None
        self._began, self._began_at = self._clock.monotonic(), self._clock.now()
        if since is not None:
            self._began, self._began_at = self._began - max(self._began_at - since, 0.0), min(since, self._began_at)

    def look(self, training: RunningAttempt, *, sure: bool = False, in_turns: bool = False) -> RunSeen | Unknown:
        """Return what is known of this attempt now; if it must be `sure`, by no answer from before.

        Nodes may be asked in turns while nothing is wrong.
        """
        seen = self._of_nodes(training, in_turns)
        if isinstance(seen, Unknown) or (alerts := self._alerts(seen, sure)) is None:
            return seen
        since = self._began_at + ATTEMPT_SECONDS
        self._note_ahead(alerts)
        found = (alert for alert in alerts if alert.starts >= since and (alert.name, alert.starts) not in self._ahead)
        return replace(seen, alerts=tuple(found))

    def _note_ahead(self, alerts: Sequence[AlertSeen]) -> None:
        """Note which alerts began by a clock that is ahead of this one: of which attempt they are is never known."""
        limit, before = self._clock.now() + ATTEMPT_SECONDS, self._ahead
        begins = {(alert.name, alert.starts) for alert in alerts}
        self._ahead = {one for one in begins if one in before or one[1] > limit}
        if self._ahead - before:
            self._say(
                f"by Alertmanager, {listed(sorted({name for name, _ in self._ahead}))} began more than "
                f"{age(ATTEMPT_SECONDS)} from now, and is left alone: compare the clock of this node with Prometheus'"
            )

    def _of_nodes(self, training: RunningAttempt, in_turns: bool) -> RunSeen | Unknown:
        """Return what the exporters of its nodes conclude."""
        seen = self._source.look(self._clock.monotonic() - self._began, in_turns=in_turns)
        if isinstance(seen, Unknown):
            return seen
        if training.job:
            return _of_job(seen, training.job)
        self._remember_processes(training, seen)
        for rank in seen.ranks:
            if rank.pid and self._processes.get(rank.rank, NO_PROCESS).shown != rank.pid:
                return Unknown(
                    f"rank {rank.rank} of run {seen.name} is process {rank.pid}, which this command has not started: "
                    "another run has the same name, or the exporter cannot see the processes of this container"
                )
        if training.pid and not self._processes and not training.has_ended():
            return Unknown(f"no rank of run {seen.name} has been seen to be a process of this command")
        ours = [replace(rank, pid=str(self._processes[rank.rank].pid)) if rank.pid else rank for rank in seen.ranks]
        return replace(seen, ranks=tuple(ours))

    def look_for_news(self, training: RunningAttempt, *, in_turns: bool = False) -> RunSeen | Unknown:
        """Return the same, unless it is what was noted last."""
        seen = self.look(training, in_turns=in_turns)
        if isinstance(seen, RunSeen) and self.seen is not None and not seen.follows(self.seen):
            return Unknown("the exporter gives the same answer as before: it stands still")
        return seen

    def note(self, seen: RunSeen) -> bool:
        """Note steps and checkpoints; return whether steps were made since the last note."""
        before = self.seen
        self.seen = replace(seen, times={**({} if before is None else before.times), **seen.times})
        if self.first_step is None and (first := _first_step(seen)) is not None:
            self.first_step, self._first_seen, self._first_at = first, seen.step, self._clock.monotonic()
        if self.gains(seen):
            self._furthest, self._gained_at = seen.step, self._clock.now()
        self._known.note(seen)
        return before is not None and (before.step or 0) < (seen.step or 0)

    def gains(self, seen: RunSeen) -> bool:
        """Return whether a look shows a step that none before it has shown, of whichever attempt."""
        return seen.step is not None and (self._furthest is None or seen.step > self._furthest)

    def situation(
        self, finding: RunFinding, seen: RunSeen, since: float, *, ended: bool, moved: bool = False
    ) -> Situation:
        """Return a finding with what surrounds it; `since` when it has held, by the monotonic clock."""
        furthest, best = seen.step, self._best_before
        return Situation(
            finding=finding,
            run=seen,
            lasted=self._clock.monotonic() - since,
            now=self._clock.now(),
            ended=ended,
            steps_moved=moved,
            is_there=self._is_there,
            newest=self._known.newest,
            gained=furthest is not None and (best is None or furthest > best),
            outlook=self._launcher.outlook,
            silence=self.silenced(finding, seen, ended),
            step_seconds=self._step_seconds(seen),
            gained_at=self._gained_at,
        )

    def _step_seconds(self, seen: RunSeen) -> float | None:
        """Return how long a step of this attempt has taken, None while it has made none."""
        made = 0 if seen.step is None or self._first_seen is None else seen.step - self._first_seen
        return (self._clock.monotonic() - self._first_at) / made if made > 0 else None

    def _remember_processes(self, training: RunningAttempt, seen: RunSeen) -> None:
        """Note which process each rank is, among those that the command started."""
        new = [
            rank for rank in seen.ranks
            if rank.pid.isdecimal() and self._processes.get(rank.rank, NO_PROCESS).shown != rank.pid
        ]  # fmt: skip
        if new and training.pid:
            ours = {training.pid, *below(training.pid)}
            for rank in new:
                if (known := _own_process(rank, ours)) is not None:
                    self._processes[rank.rank] = known

    def _is_there(self, rank: RankSeen) -> bool | None:
        known = self._processes.get(rank.rank, NO_PROCESS)
        return started_at(known.pid) == known.started if known.started else None


def _own_process(rank: RankSeen, ours: Collection[int]) -> OwnProcess | None:
    """Return which of our processes a rank is: the exporter numbers it as the node does, or it is in a container.

    Numbers in containers are small, and the same in many: when the process began tells them apart.
    """
    for number in (rank.pid, rank.own_pid):
        if number.isdecimal() and int(number) in ours:
            started = started_at(int(number))
            if rank.process_started in ("", started) and (rank.process_started or number == rank.pid):
                return OwnProcess(rank.pid, int(number), started)
    return None


def _first_step(seen: RunSeen) -> int | None:
    """Return the step before which its ranks have made none, as far as is known; None before they have made one."""
    begun = [rank.step - (rank.steps or 0) for rank in seen.ranks if rank.step is not None and rank.steps != 0]
    return max(begun, default=None)


def _of_job(seen: RunSeen, job: str) -> RunSeen | Unknown:
    """Return a run whose ranks all say that they are in this job, as what Slurm gives to its tasks tells them."""
    for rank in seen.ranks:
        if rank.job_id != job:
            which = f"in job {rank.job_id}" if rank.job_id else "in no job of Slurm that its exporter knows"
            return Unknown(f"rank {rank.rank} of run {seen.name} is {which}, and not in {job}: it may be another run's")
    return seen
