"""Faults of ranks' processes: how they end, fall silent, are started again, and how all of them end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tachograph_lab.scenario import values
from tachograph_lab.scenario.faults.fault import RUN, Claim, Fault
from tachograph_lab.scenario.values import optional, place, places, size


@dataclass(frozen=True, kw_only=True)
class Kill(Fault):
    """A rank's process dies without a bye. After 10 s the others hang forever, abort, or end with a bye."""

    word = "kill"
    sets = ("process",)
    lasting = False
    rank: int = place("rank")
    cause: str = optional(values.choice("oom", "segfault"), "oom")
    others: str = optional(values.choice("hang", "abort", "end"), "abort")


@dataclass(frozen=True, kw_only=True)
class Exit(Fault):
    """Ranks leave with an exit status; 2 s later the others fail, or they hang for ever, or train on without them.

    If the bye is lost, the exporter learns of the status from the process alone.
    """

    word = "exit"
    sets = ("process",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")
    code: int = size(values.whole)
    others: str = optional(values.choice("end", "hang", "train"), "end")
    bye: str = optional(values.choice("said", "lost"), "said")


@dataclass(frozen=True, kw_only=True)
class Fail(Fault):
    """These ranks fail one after the other within `within` seconds, all for one reason; the others hang."""

    word = "fail"
    sets = ("process",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")
    category: str = optional(values.choice("oom", "collective", "data", "exception"), "collective")
    within: float = optional(values.duration, 0.0)


@dataclass(frozen=True, kw_only=True)
class Sigterm(Fault):
    """Ranks end on SIGTERM, the others without them; the next attempt starts `requeued` seconds later, or never.

    The others may wait for them instead. If they ignore it, they are killed half a minute later, all at once.
    """

    word = "sigterm"
    sets = ("attempt",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")
    requeued: float = size(values.some_time_or_never)
    ignored: bool = optional(values.flag, False)
    others: str = optional(values.choice("end", "hang"), "end")

    @property
    def until(self) -> float:
        """The second at which the next attempt begins."""
        return self.at + self.requeued

    def claims(self, gpus_per_node: int) -> Iterator[Claim]:
        """Yield the whole run's attempt."""
        yield "attempt", frozenset({RUN})


@dataclass(frozen=True, kw_only=True)
class LeaveEarly(Fault):
    """Ranks leave the loop after their next step and say that they have finished; the others wait for them."""

    word = "leave_early"
    sets = ("process",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")


@dataclass(frozen=True, kw_only=True)
class NoShow(Fault):
    """Ranks are not started with the attempts that begin from then on; the others wait for them in init."""

    word = "no_show"
    sets = ("process",)
    lasting = False
    ranks: tuple[int, ...] = places("ranks")


@dataclass(frozen=True, kw_only=True)
class Freeze(Fault):
    """A rank's process is frozen: its connection stays open, and nothing is sent on it."""

    word = "freeze"
    sets = ("process",)
    rank: int = place("rank")


@dataclass(frozen=True, kw_only=True)
class Gil(Fault):
    """A thread of these ranks holds the interpreter's lock: they compute and send nothing, still connected."""

    word = "gil"
    sets = ("process",)
    one_of = ("for",)
    ranks: tuple[int, ...] = places("ranks")

    def freezes(self) -> Iterator[Freeze]:
        """Yield it as a freeze of each rank, which it is to everyone else."""
        for rank in self.ranks:
            yield Freeze(at=self.at, lasts=self.lasts, rank=rank)


@dataclass(frozen=True, kw_only=True)
class SkipCollective(Fault):
    """A rank skips one all-reduce: it waits in the next one while the others wait for it in this one."""

    word = "skip_collective"
    sets = ("process",)
    lasting = False
    rank: int = place("rank")


@dataclass(frozen=True, kw_only=True)
class RestartLoop(Fault):
    """Attempts of `every` seconds make no progress: one rank fails with `category`, its peers then with collective."""

    word = "restart_loop"
    sets = ("attempt",)
    lasting = False
    every: float = size(values.some_time)
    attempts: int = size(values.count)
    category: str = optional(values.choice("oom", "collective", "data", "exception"), "oom")

    @property
    def until(self) -> float:
        """The second at which the last attempt has failed."""
        return self.at + self.every * self.attempts


@dataclass(frozen=True, kw_only=True)
class PlannedRestart(Fault):
    """All ranks end on SIGTERM; the next attempt starts from the last checkpoint `takes` seconds later."""

    word = "planned_restart"
    sets = ("attempt",)
    lasting = False
    takes: float = size(values.some_time)

    @property
    def until(self) -> float:
        """The second at which the next attempt begins."""
        return self.at + self.takes


@dataclass(frozen=True, kw_only=True)
class Finish(Fault):
    """All ranks say bye: the run is finished."""

    word = "finish"
    lasting = False


def freezes(faults: Iterable[Fault]) -> list[Freeze]:
    """Return everything that freezes a rank, one by one."""
    found: list[Freeze] = []
    for fault in faults:
        found += [fault] if isinstance(fault, Freeze) else fault.freezes() if isinstance(fault, Gil) else []
    return found
