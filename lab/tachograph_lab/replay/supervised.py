"""Scenarios with a supervisor in shadow mode beside their run, in virtual time: what it would have done, and how right.

The supervisor is the real one with its default policy; it asks the real exporters of the simulated nodes, and the model
of Alertmanager, which has what the shipped rules fire. Its command is the scenario's attempt, which ends when the
simulation has it end, and which a later one follows as of a scheduler. A run of several nodes has a spare.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from tachograph.findings.kinds import ALIVE, LEARNING, PROGRESS, STARTED, kind_of
from tachograph.servers.http_client import HttpError, HttpResponse
from tachograph.supervise import policy
from tachograph.supervise.alerts import NAMES, ONLY_PAGES, ActiveAlerts, read_alerts
from tachograph.supervise.findings import FindingSource
from tachograph.supervise.hindsight import RIGHT, UNKNOWN, WRONG
from tachograph.supervise.journal import DECISION, JUDGED, Entry, Journal
from tachograph.supervise.launcher import ChildCommand, Outlook
from tachograph.supervise.ledger import SHADOW
from tachograph.supervise.observer import Clocks
from tachograph.supervise.policy import LEAVE
from tachograph.supervise.run_seen import AlertSeen, RunSeen, Unknown
from tachograph.supervise.several_nodes import SeveralNodes
from tachograph.supervise.supervisor import Supervisor
from tachograph.supervise.totals import WOULD
from tachograph.supervise.training import AttemptEnd
from tachograph.supervise.triggers import OF_ALERTS
from tachograph_lab.fleet.simulated_node import SimulatedNode
from tachograph_lab.fleet.simulation import Simulation
from tachograph_lab.fleet.virtual_node import VirtualNode
from tachograph_lab.replay import alertmanager_config
from tachograph_lab.replay.alertmanager import Firing, active
from tachograph_lab.replay.virtual import CONFIGURATION, firings_of
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.definition import Tolerated

STATE_SECONDS = 5.0
"""Between two states of a rank, as in a replay; a real one sends one a second."""

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


def needs_action(scenario: Scenario) -> bool:
    """Return whether a page that the scenario expects, or may have, is one to act upon."""
    return any(map(_is_acted_upon, (*scenario.expect, *scenario.may)))


def _is_acted_upon(told: Tolerated) -> bool:
    """Return the same of one notification: a ticket is acted upon where it alone says what is wrong."""
    kind = kind_of(told.alert)
    if told.receiver == "ticket":
        return kind.trigger in OF_ALERTS and kind.trigger not in ONLY_PAGES
    return told.receiver == "page" and bool(kind.trigger or kind.failure or kind.question in ACTED_UPON)


def supervise_all(pack: Sequence[Scenario], suite: str) -> list[SupervisedOutcome]:
    """Play scenarios, each of one run, with a supervisor in shadow mode and the alerts that the shipped rules fire.

    Raises EvaluationError where a rule fails, and BinariesUnavailable.
    """
    fired = firings_of(pack, suite)
    return [supervise(scenario, firings) for scenario, (firings, _) in zip(pack, fired, strict=True)]


def supervise(scenario: Scenario, firings: Sequence[Firing] = ()) -> SupervisedOutcome:
    """Play a scenario of one run with a supervisor in shadow mode, while these alerts fire."""
    with tempfile.TemporaryDirectory(prefix="tachograph-supervised-") as folder:
        entries = _SupervisedRun(scenario, Path(folder), firings).play()
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
    """The exporter of a simulated node; the simulation's processes are none of this machine's."""

    def __init__(self, run: _SupervisedRun, node: SimulatedNode) -> None:
        super().__init__("http://simulated", run.names, "" if run.is_on_one_node else node.name)
        self._run, self._name = run, node.name

    def ask(self) -> None:
        """Do nothing: what is asked is answered at once."""

    def answer(self) -> HttpResponse:
        exporter = self._run.exporters.get(self._name)
        if exporter is None:
            raise HttpError("connection refused")
        return HttpResponse(200, "OK", "application/json", exporter.api_node().encode())

    def part(self, attempt_seconds: float) -> RunSeen | Unknown:
        seen = super().part(attempt_seconds)
        if isinstance(seen, Unknown):
            return seen
        return replace(seen, node=self._name, ranks=tuple(replace(rank, pid="") for rank in seen.ranks))


class _Alerts(ActiveAlerts):
    """Alertmanager, as its model has it; it always answers at once."""

    def __init__(self, run: _SupervisedRun, firings: Sequence[Firing]) -> None:
        super().__init__("http://simulated", lambda _: None)
        self._now, self._firings = run.seconds, firings
        self._configuration = alertmanager_config.read(CONFIGURATION)

    def of(self, seen: RunSeen, wait: bool = False) -> tuple[AlertSeen, ...]:
        now = self._now()
        if not any(one.alert in NAMES and one.start <= now for one in self._firings):
            return ()
        said = [_said(one) for one in active(self._firings, self._configuration, now) if "run" in one.labels]
        found = (self.about(alert, seen) for alert in read_alerts(said, seen.name))
        return tuple(alert for alert in found if alert is not None)


def _said(firing: Firing) -> Mapping[str, object]:
    """Return an alert as Alertmanager's API has it."""
    return {
        "labels": firing.labels,
        "annotations": firing.annotations,
        "status": {"state": "active", "silencedBy": [], "inhibitedBy": []},
        "startsAt": datetime.fromtimestamp(firing.start, timezone.utc).isoformat(),
    }


class _Command:
    """An attempt of the simulation as the supervisor's child: it begins when the simulation's next one does."""

    pid, job, outlives = 0, "", False

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


class _Scheduler(ChildCommand):
    """Starts nothing: the simulation does. A run of several nodes has one to spare."""

    def __init__(self, run: _SupervisedRun) -> None:
        super().__init__(lambda _: _Command(run))
        self._nodes = run.simulation.nodes

    def outlook(self, left_out: Collection[str], *, fresh: bool = False) -> Outlook:
        return super().outlook(left_out) if len(self._nodes) == 1 else Outlook(size=len(self._nodes))


class _SupervisedRun:
    """The simulation, its exporters, and one supervisor after another."""

    def __init__(self, scenario: Scenario, folder: Path, firings: Sequence[Firing]) -> None:
        self._scenario, self._folder = scenario, folder
        self.names = (scenario.fleet.run, scenario.fleet.shown_run)
        self._flags = [f"--limits.{name}={value}" for name, value in scenario.site_limits.set().items()]
        self.simulation = Simulation(scenario, epoch=0.0)
        self.is_on_one_node = len(self.simulation.nodes) == 1
        self.exporters: dict[str, VirtualNode] = {}
        self._now = 0.0
        self._due = 0.0
        self._firings = firings

    def play(self) -> list[Entry]:
        """Supervise attempt after attempt until the scenario is over; return the journal."""
        journal = Journal(self._folder, clock=self.seconds)
        alerts = _Alerts(self, self._firings)
        try:
            while True:
                Supervisor(
                    self._scenario.fleet.run, policy.read(policy.DEFAULT), SHADOW, journal, self._watch(),
                    launcher=_Scheduler(self), keep=lambda *_: "", say=lambda _: None,
                    signals=self,  # type: ignore[arg-type]
                    clock=Clocks(self.seconds, self.seconds), alerts=alerts.of,
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
        seen = self._watch().look(math.inf)
        return int(isinstance(seen, Unknown) or any(rank.state != "finished" for rank in seen.ranks))

    def seconds(self) -> float:
        """Return the second of the scenario."""
        return self._now

    def _watch(self) -> SeveralNodes | FindingSource:
        sources = {node.name: _Source(self, node) for node in self.simulation.nodes}
        return next(iter(sources.values())) if self.is_on_one_node else SeveralNodes(sources, lambda: sources)

    def _advance(self, now: float) -> None:
        """Let the simulation go on, and the exporters hear what its ranks send meanwhile."""
        if now >= self._scenario.lasts:
            raise _Over
        self._now = now
        self.simulation.advance(now)
        is_due = now >= self._due
        if is_due:
            self._due = now + STATE_SECONDS
        messages = list(self.simulation.messages({node.name for node in self.simulation.nodes if is_due}))
        for node in self._reached():
            exporter = self.exporters[node.name]
            for message in messages:
                if message.node == node.name:
                    exporter.receive(message)
            if is_due:
                exporter.tick()

    def _reached(self) -> Iterator[SimulatedNode]:
        """Yield the nodes whose exporter runs, which is started if it was down."""
        for node in self.simulation.nodes:
            if not (node.up and node.exporter_up):
                self.exporters.pop(node.name, None)
                continue
            if node.name not in self.exporters:
                self.exporters[node.name] = VirtualNode(node, self.seconds, None, self._flags)
            yield node


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
