"""A run, an exporter and a clock that a test plays, around a real supervisor, policy and journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tachograph.supervise import policy
from tachograph.supervise.journal import NAME, Journal, read
from tachograph.supervise.launcher import ChildCommand, Launcher, OutlivingLauncher
from tachograph.supervise.ledger import ACT
from tachograph.supervise.observer import Clocks, Silenced, never_silenced
from tachograph.supervise.run_seen import AlertSeen, CheckpointSeen, RankSeen, RunSeen, Unknown
from tachograph.supervise.supervisor import Supervisor
from tachograph.supervise.training import AttemptEnd

BEGIN = 1_790_000_000.0

RANK = RankSeen(
    rank=0, restarts=0, state="running", ended_seconds=None, end_reason="", message="", step=10, phase="forward",
    phase_seconds=0.1, pid="", where="", process="", uuid="", is_lost=False, nonfinite_step=None,
)  # fmt: skip


def rank(number: int = 0, **facts: Any) -> RankSeen:
    """A rank that runs, but for these facts."""
    return replace(RANK, rank=number, **facts)


def run(*ranks: RankSeen, saved: Sequence[int] = (), **facts: Any) -> RunSeen:
    """A run that makes steps, but for these facts; `saved` are the steps of its checkpoints."""
    usual = {
        "name": "r", "times": {"": 0.0}, "state": "running", "world_size": 2, "seconds_without_step": 0.1,
        "hang_limit": 15.0, "saving_seconds": None, "culprit": None, "problems": (), "gpu_trouble": (),
        "checkpoints": tuple(CheckpointSeen(step, BEGIN + step, "") for step in saved),
    }  # fmt: skip
    return RunSeen(ranks=ranks or (rank(0), rank(1)), **(usual | facts))


def hung(step: int = 10, **facts: Any) -> RunSeen:
    """A run that hangs as rank 1 does not come."""
    stands = {"step": step, "phase": "backward", "phase_seconds": 40.0}
    usual = {"state": "hung", "seconds_without_step": 40.0, "culprit": 1}
    return run(rank(0, **stands), rank(1, **stands), **(usual | facts))


def dead(step: int = 10, **facts: Any) -> RunSeen:
    """A run whose rank 1 died, after which its launcher ended rank 0."""
    end = {"step": step, "ended_seconds": 0.5, "phase": "", "phase_seconds": 0.0}
    told = rank(0, state="failed", end_reason="terminated", **end)
    return run(told, rank(1, state="dead", end_reason="died", **end), state="dead", **facts)


def killed_at(second: float) -> Callable[[World], None]:
    """Return what ends the supervisor in its first wait that reaches beyond a second."""

    def kill(world: World) -> None:
        if world.now > second:
            raise KeyboardInterrupt

    return kill


@dataclass
class Child:
    """An attempt: it ends by itself at a time, if at all."""

    world: World
    status: int | None
    at: float
    pid: int = 0
    job: str = ""
    outlives: bool = False
    told: list[int] = field(default_factory=list)
    was_ended: bool = False
    left: int = 0

    def fileno(self) -> int:
        return -1

    def send_signal(self, number: int) -> None:
        self.told.append(number)

    def has_ended(self) -> bool:
        return self.was_ended or (self.status is not None and self.world.now >= self.at)

    def end(self) -> AttemptEnd:
        self.was_ended = True
        self.world.did.append("ended")
        return AttemptEnd(-15, "", self.left)

    def wait(self) -> AttemptEnd:
        return AttemptEnd(self.status, "", self.left)


@dataclass
class World:
    """What surrounds a supervisor: `look` says what the exporter shows, by attempt and its seconds."""

    folder: Path
    look_at: Callable[[int, float], RunSeen | Unknown]
    ends: Iterable[tuple[int | None, float]] = ()
    """By attempt: the status with which the command ends, and after how many seconds."""

    mode: str = ACT
    launcher: Launcher | None = None
    outliving: OutlivingLauncher | None = None
    """The launcher, if its attempts outlive their supervisor."""

    policy: Path = policy.DEFAULT
    signals: Mapping[float, int] = field(default_factory=dict)
    """Signals that the supervisor gets, by seconds since the beginning."""

    now: float = 0.0
    began: float = 0.0
    said: list[str] = field(default_factory=list)
    did: list[str] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    plans: list[Mapping[str, str]] = field(default_factory=list)
    set_clock: Mapping[float, float] = field(default_factory=dict)
    """By how many seconds somebody sets the time of the day, by seconds since the beginning."""
    on_wait: Callable[[World], None] = lambda _: None
    silenced: Silenced = never_silenced
    alerts: Callable[[RunSeen], Sequence[AlertSeen] | None] = lambda _: None
    sure: bool = False
    """Whether the last question for alerts was one for an answer of now."""
    told: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)
    """What the exporter is told, and when."""
    looks: list[tuple[float, bool]] = field(default_factory=list)
    """When it was looked at the run, and whether its nodes were to take turns."""
    last: float = 1800.0

    def wait(self, others: object, seconds: float) -> list[int]:
        before, self.now = self.now, self.now + max(seconds, 0.0)
        assert self.now < self.last, "it never ends"
        self.on_wait(self)
        return [number for at, number in self.signals.items() if before < at <= self.now]

    def wall(self) -> float:
        """The time of the day, as it is set."""
        return BEGIN + self.now + sum(by for at, by in self.set_clock.items() if at <= self.now)

    def begin(self) -> None:
        """All of it is of the new attempt."""

    def look(self, _: float, *, in_turns: bool = False) -> RunSeen | Unknown:
        self.looks.append((self.now, in_turns))
        seen = self.look_at(len(self.children) - 1, self.now - self.began)
        return replace(seen, times=dict.fromkeys(seen.times, self.now)) if isinstance(seen, RunSeen) else seen

    def start(self, environment: Mapping[str, str]) -> Child:
        status, after = dict(enumerate(self.ends)).get(len(self.children), (None, 0.0))
        self.began = self.now
        self.children.append(Child(self, status, self.now + after))
        self.plans.append(environment)
        self.did.append("started")
        return self.children[-1]

    def keep(self, number: str, seen: RunSeen) -> str:
        self.did.append("kept")
        return f"kept as {number}"

    def ask_alerts(self, seen: RunSeen, sure: bool) -> Sequence[AlertSeen] | None:
        self.sure = sure
        return self.alerts(seen)

    def supervisor(self) -> Supervisor:
        journal = Journal(self.folder, clock=self.wall)
        return Supervisor(
            "r", policy.read(self.policy), self.mode, journal, self,
            launcher=self.outliving or self.launcher or ChildCommand(self.start), outliving=self.outliving,
            keep=self.keep, say=self.said.append, signals=self,  # type: ignore[arg-type]
            clock=Clocks(self.wall, lambda: self.now),
            tell=lambda facts: self.told.append((self.now, facts())), silenced=self.silenced,
            alerts=self.ask_alerts,
        )  # fmt: skip

    def supervise(self) -> int:
        """Supervise to the end, and return the status."""
        supervisor = self.supervisor()
        try:
            return supervisor.supervise("train")
        finally:
            self.entries = supervisor._ledger._journal.entries
            assert len(read(self.folder / NAME)) == len(self.entries), "an entry is written that is not read"
            supervisor._ledger._journal.close()

    def decisions(self) -> list[tuple[str, str, str]]:
        """What was decided: outcome, trigger, and the action or the guard."""
        found = [one for one in self.entries if one["kind"] == "decision"]
        return [(one["outcome"], one["trigger"], one["guard"] or one["action"]) for one in found]
