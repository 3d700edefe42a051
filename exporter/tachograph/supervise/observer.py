"""Observes one run: its findings, which processes its ranks are, its steps and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tachograph.process_tree import below, started_at
from tachograph.supervise.decision import Hold, Situation
from tachograph.supervise.findings import RankSeen, RunFinding, RunSeen, Unknown
from tachograph.supervise.known_checkpoints import KnownCheckpoints
from tachograph.supervise.launcher import Launcher
from tachograph.supervise.training import RunningAttempt


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

    def look(self, attempt_seconds: float) -> RunSeen | Unknown:
        """Return what is known of the run now."""


Silenced = Callable[[RunFinding, RunSeen, bool], Hold | None]
"""Returns what a maintenance silence holds back; waits a few seconds for an answer if that is asked for."""


def never_silenced(_: RunFinding, __: RunSeen, ___: bool) -> None:
    """Hold nothing back: no Alertmanager is asked."""


class RunObserver:
    """Looks at one run, attempt after attempt; `seen` is what was last noted of this one."""

    def __init__(
        self, source: RunWatch, clock: Clocks, known: KnownCheckpoints, silenced: Silenced, launcher: Launcher
    ) -> None:
        self._source, self._clock, self.silenced, self._launcher = source, clock, silenced, launcher
        self._known = known
        self.seen: RunSeen | None = None
        self.first_step: int | None = None
        """The step from which this attempt goes on; None before it has made one, as a loop is at 0 until it resumes."""
        self._best_before: int | None = None
        self._began = 0.0
        self._processes: dict[int, tuple[int, str]] = {}

    def begin(self, best_step: int | None) -> None:
        """Note that an attempt begins, after others that came to this step."""
        self._source.begin()
        self.seen, self._best_before, self._processes = None, best_step, {}
        self.first_step = None
        self._began = self._clock.monotonic()

    def look(self, training: RunningAttempt) -> RunSeen | Unknown:
        """Return what is known of this attempt now."""
        seen = self._source.look(self._clock.monotonic() - self._began)
        if isinstance(seen, Unknown):
            return seen
        if training.job:
            return _of_job(seen, training.job)
        self._remember_processes(training, seen)
        for rank in seen.ranks:
            if rank.pid and str(self._processes.get(rank.rank, (0, ""))[0]) != rank.pid:
                return Unknown(
                    f"rank {rank.rank} of run {seen.name} is process {rank.pid}, which this command has not started: "
                    "another run has the same name, or the exporter numbers the processes of this container differently"
                )
        if training.pid and not self._processes and not training.has_ended():
            return Unknown(f"no rank of run {seen.name} has been seen to be a process of this command")
        return seen

    def look_for_news(self, training: RunningAttempt) -> RunSeen | Unknown:
        """Return the same, unless it is what was noted last."""
        seen = self.look(training)
        if isinstance(seen, RunSeen) and self.seen is not None and not seen.follows(self.seen):
            return Unknown("the exporter gives the same answer as before: it stands still")
        return seen

    def note(self, seen: RunSeen) -> bool:
        """Note steps and checkpoints; return whether steps were made since the last note."""
        before, self.seen = self.seen, seen
        self.first_step = _first_step(seen) if self.first_step is None else self.first_step
        self._known.note(seen)
        return before is not None and (before.step or 0) < (seen.step or 0)

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
        )

    def _remember_processes(self, training: RunningAttempt, seen: RunSeen) -> None:
        """Note which process each rank is, among those that the command started."""
        new = {
            rank.rank: int(rank.pid)
            for rank in seen.ranks
            if rank.pid.isdecimal() and self._processes.get(rank.rank, (0, ""))[0] != int(rank.pid)
        }
        if new and training.pid:
            ours = {training.pid, *below(training.pid)}
            self._processes.update({rank: (pid, started_at(pid)) for rank, pid in new.items() if pid in ours})

    def _is_there(self, rank: RankSeen) -> bool | None:
        pid, started = self._processes.get(rank.rank, (0, ""))
        return started_at(pid) == started if started else None


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
