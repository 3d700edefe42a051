"""A scenario with a supervisor in shadow mode beside its run, in virtual time: what it would have done, and how right.

The supervisor is the real one with its default policy; it asks the real exporter of a simulated node. Its command is
the scenario's attempt, which ends when the simulation has it end, and which a later one follows as of a scheduler.
A supervisor watches one node, so a run of several is put on one.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from tachograph.findings.kinds import ALIVE, LEARNING, PROGRESS, STARTED, kind_of
from tachograph.http_client import HttpError, HttpResponse
from tachograph.supervise import policy
from tachograph.supervise.findings import FindingSource
from tachograph.supervise.hindsight import RIGHT, UNKNOWN, WRONG
from tachograph.supervise.journal import DECISION, JUDGED, Entry, Journal
from tachograph.supervise.launcher import ChildCommand
from tachograph.supervise.ledger import SHADOW
from tachograph.supervise.observer import Clocks
from tachograph.supervise.policy import LEAVE
from tachograph.supervise.run_seen import RunSeen, Unknown
from tachograph.supervise.supervisor import Supervisor
from tachograph.supervise.totals import WOULD
from tachograph.supervise.training import AttemptEnd
from tachograph_lab.fleet.simulation import Simulation
from tachograph_lab.fleet.virtual_node import VirtualNode
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.checks import check
from tachograph_lab.scenario.faults import Fault

STATE_SECONDS = 5.0
"""Between two states of a rank, as in a replay; a real one sends one a second."""

MOST_RANKS = 64
"""Of one user on one node (`limits.ranks`)."""

ACTED_UPON = (ALIVE, STARTED, PROGRESS, LEARNING)
"""Questions about a run: one that is answered with no, by a page, is an incident for which a restart may be right."""


class Judged(NamedTuple):
    """Something that would have been done: when, why, and whether that would have been right."""

    seconds: float
    trigger: str
    action: str
    verdict: str
    why: str


@dataclass(frozen=True)
class SupervisedOutcome:
    """A scenario, whether a page of it is one to act upon, and what would have been done."""

    scenario: Scenario
    needs_action: bool
    judged: tuple[Judged, ...]

    @property
    def wrong(self) -> list[Judged]:
        """Return the actions that would have been wrong: the run went on by itself, or nothing was to be acted upon."""
        return [one for one in self.judged if one.verdict == WRONG]


class _Over(BaseException):
    """The scenario is over; no `except Exception` of the supervisor's holds it up."""


def on_one_node(scenario: Scenario) -> Scenario | None:
    """Return the scenario with its run and all faults of nodes on one node, None if it has other runs or many ranks."""
    fleet = scenario.fleet
    if scenario.runs or fleet.ranks > MOST_RANKS:
        return None
    found = replace(
        scenario, fleet=replace(fleet, nodes=1, gpus_per_node=fleet.ranks), faults=tuple(map(_there, scenario.faults)),
        live=None,
    )  # fmt: skip
    return None if any(check(replace(found, expect=(), may=()))) else found


def _there(fault: Fault) -> Fault:
    """Return a fault at the only node."""
    named = {field.name for field in fields(fault)}
    where: dict[str, object] = {"node": 0, "nodes": (0,)}
    return replace(fault, **{name: value for name, value in where.items() if name in named})  # type: ignore[arg-type]


def needs_action(scenario: Scenario) -> bool:
    """Return whether a page that the scenario expects, or may have, is one to act upon."""
    pages = [one for one in (*scenario.expect, *scenario.may) if one.receiver == "page"]
    return any(kind_of(one.alert).failure or kind_of(one.alert).question in ACTED_UPON for one in pages)


def supervise(scenario: Scenario) -> SupervisedOutcome:
    """Play a scenario whose run is on one node with a supervisor in shadow mode."""
    with tempfile.TemporaryDirectory(prefix="tachograph-supervised-") as folder:
        entries = _SupervisedRun(scenario, Path(folder)).play()
    needed = needs_action(scenario)
    verdicts = {one["id"]: (one["verdict"], one["why"]) for one in entries if one["kind"] == JUDGED}
    judged = []
    for one in entries:
        if one["kind"] != DECISION or one["outcome"] != WOULD or one["action"] == LEAVE:
            continue
        verdict, why = verdicts.get(one["id"], (UNKNOWN, ""))
        if not needed:
            verdict, why = WRONG, "nothing was to be acted upon"
        elif verdict == UNKNOWN:
            verdict, why = RIGHT, "it stood until the end of the scenario"
        judged.append(Judged(one["time"], one["trigger"], one["action"], verdict, why))
    return SupervisedOutcome(scenario, needed, tuple(judged))


class _Source(FindingSource):
    """The exporter of the simulated node; the simulation's processes are none of this machine's."""

    def __init__(self, run: _SupervisedRun) -> None:
        super().__init__("http://simulated", run.names)
        self._run = run

    def ask(self) -> None:
        """Do nothing: what is asked is answered at once."""

    def answer(self) -> HttpResponse:
        exporter = self._run.exporter
        if exporter is None:
            raise HttpError("connection refused")
        return HttpResponse(200, "OK", "application/json", exporter.judgement().encode())

    def look(self, attempt_seconds: float) -> RunSeen | Unknown:
        seen = super().look(attempt_seconds)
        if isinstance(seen, Unknown):
            return seen
        return replace(seen, ranks=tuple(replace(rank, pid="") for rank in seen.ranks))


class _Command:
    """An attempt of the simulation as the supervisor's child: it begins when the simulation's next one does."""

    pid, job = 0, ""

    def __init__(self, run: _SupervisedRun) -> None:
        self._run, self._has_begun = run, False
        self.status: int | None = None

    def fileno(self) -> int:
        return -1

    def send_signal(self, number: int) -> None:
        """Do nothing: nobody sends any."""

    def has_ended(self) -> bool:
        self._has_begun = self._has_begun or self._run.simulation.is_training
        if self.status is None and self._has_begun and not self._run.simulation.is_training:
            self.status = self._run.status()
        return self.status is not None

    def end(self) -> AttemptEnd:
        raise AssertionError("shadow mode ends nothing")

    def wait(self) -> AttemptEnd:
        return AttemptEnd(self.status)


class _SupervisedRun:
    """The simulation, its exporter, and one supervisor after another."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario, self._folder = scenario, folder
        self.names = (scenario.fleet.run, scenario.fleet.shown_run)
        self._flags = [f"--limits.{name}={value}" for name, value in scenario.site_limits.set().items()]
        self.simulation = Simulation(scenario, epoch=0.0)
        self.exporter: VirtualNode | None = None
        self._now = 0.0
        self._due = 0.0

    def play(self) -> list[Entry]:
        """Supervise attempt after attempt until the scenario is over; return the journal."""
        journal = Journal(self._folder, clock=self._seconds)
        try:
            while True:
                Supervisor(
                    self._scenario.fleet.run, policy.read(policy.DEFAULT), SHADOW, journal, _Source(self),
                    launcher=ChildCommand(lambda _: _Command(self)), keep=lambda *_: "", say=lambda _: None,
                    signals=self,  # type: ignore[arg-type]
                    clock=Clocks(self._seconds, self._seconds),
                ).supervise("simulated")  # fmt: skip
        except _Over:
            return journal.entries
        finally:
            journal.close()

    def wait(self, others: Sequence[object], seconds: float) -> list[int]:
        """Let time pass, until the command has ended where that is waited for; the supervisor gets no signals."""
        until = self._now + max(seconds, 0.0)
        while self._now < until:
            self._advance(min(math.floor(self._now) + 1.0, until))
            if any(isinstance(one, _Command) and one.has_ended() for one in others):
                break
        return []

    def status(self) -> int:
        """Return the exit status of a launcher whose ranks have all ended."""
        seen = _Source(self).look(math.inf)
        return int(isinstance(seen, Unknown) or any(rank.state != "finished" for rank in seen.ranks))

    def _seconds(self) -> float:
        return self._now

    def _advance(self, now: float) -> None:
        """Let the simulation go on, and the exporter hear what its ranks send meanwhile."""
        if now >= self._scenario.lasts:
            raise _Over
        self._now = now
        self.simulation.advance(now)
        (node,) = self.simulation.nodes
        is_due = now >= self._due
        if is_due:
            self._due = now + STATE_SECONDS
        messages = self.simulation.messages({node.name} if is_due else set())
        if not (node.up and node.exporter_up):
            self.exporter = None
            return
        if self.exporter is None:
            self.exporter = VirtualNode(node, self._seconds, None, self._flags)
        for message in messages:
            self.exporter.receive(message)
        if is_due:
            self.exporter.tick()


def precision(outcomes: Sequence[SupervisedOutcome]) -> float:
    """Return the share of all actions that would have been right, 1 if there were none."""
    judged = [one for outcome in outcomes for one in outcome.judged]
    return sum(one.verdict == RIGHT for one in judged) / len(judged) if judged else 1.0


def report(outcomes: Sequence[SupervisedOutcome]) -> list[str]:
    """Return in lines how right the supervisor would have been, and each action that would have been wrong."""
    judged = [one for outcome in outcomes for one in outcome.judged]
    by: Mapping[str, int] = {verdict: sum(one.verdict == verdict for one in judged) for verdict in (RIGHT, WRONG)}
    needed = [outcome for outcome in outcomes if outcome.needs_action]
    acted = sum(bool(outcome.judged) for outcome in needed)
    quiet = [outcome for outcome in outcomes if not outcome.needs_action]
    lines = [
        f"{len(outcomes)} scenarios: {len(needed)} to act upon, of which it would have acted in {acted}; "
        f"{len(quiet)} to leave alone, of which it would have left alone {sum(not one.judged for one in quiet)}.",
        f"Of {len(judged)} actions {by[RIGHT]} would have been right, {by[WRONG]} wrong: "
        f"precision {precision(outcomes):.3f}.",
    ]
    for outcome in outcomes:
        lines += [
            f"WRONG {outcome.scenario.title}: to {one.action} as {one.trigger} at {one.seconds:.0f} s: {one.why}"
            for one in outcome.wrong
        ]
    return lines
