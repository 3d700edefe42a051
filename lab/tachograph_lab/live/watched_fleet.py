"""A replay in real time: simulated ranks and real exporters, the real Prometheus and Alertmanager, and a pager."""

from __future__ import annotations

import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tachograph_lab import binaries
from tachograph_lab.live.live_fleet import Announcement, read_announcement
from tachograph_lab.monitoring import Monitoring
from tachograph_lab.pager import PagedAlert, Pager
from tachograph_lab.processes import Child, Children, ProcessError
from tachograph_lab.replay.verdict import ReceivedAlert, ReplayVerdict, judge
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.definition import EVALUATION_SECONDS
from tachograph_lab.scenario.faults import Fault, PrometheusAway, PrometheusRestart, Vanish

OPENING_SECONDS = 60.0
POLL_SECONDS = 0.25

Note = Callable[[str], None]
"""Called with a line for each event while the replay runs."""


def replay_live(scenario: Scenario, suite: str = binaries.SYSTEM, note: Note | None = None) -> ReplayVerdict:
    """Play a scenario to its end and return the verdict on what was received; takes as long as the scenario lasts.

    Raises BinariesUnavailable and ProcessError.
    """
    say: Note = note or (lambda line: None)
    with (
        tempfile.TemporaryDirectory(prefix="tachograph-") as folder,
        Pager(record=lambda page: say(f"{page.receiver} {page.status}: {page.alert} {_labels(page)}")) as pager,
        WatchedFleet(scenario, Path(folder), pager.url, suite=suite) as watched,
    ):
        epoch, nodes = watched.announcement.epoch, len(watched.announcement.nodes)
        say(f"{watched.description()}, {nodes} exporters; second 0 in {epoch - time.time():.0f} s")
        for second in watched.moments():
            wait(watched.children.running, until=epoch + second)
            watched.meet(second)
        wait(watched.children.running, until=epoch + scenario.lasts)
        received = [_received(page, epoch) for page in pager.pages()]
        say(_cost(watched))
        last = read_announcement(watched.scratch) or watched.announcement
    return judge(scenario, received, last.errors)


class WatchedFleet(Monitoring):
    """A scenario's fleet with Prometheus and Alertmanager watching it; `announcement` has the nodes' addresses."""

    def __init__(self, scenario: Scenario, folder: Path, pager_url: str, *, suite: str = binaries.SYSTEM) -> None:
        intervals = {"scrape": scenario.scrape, "evaluation": scenario.evaluation or EVALUATION_SECONDS}
        super().__init__(folder, pager_url, suite=suite, intervals=intervals)
        self._scenario = scenario
        self.announcement: Announcement

    def _start_nodes(self) -> None:
        self.announcement = start_fleet(self.children, self.scratch, self._scenario)
        self.aim("tachograph", {name: node.exporter for name, node in self.announcement.nodes.items()})
        if self._scenario.node_exporter:
            self.aim("node", {name: node.host for name, node in self.announcement.nodes.items()})

    def moments(self) -> list[float]:
        """Return the seconds at which something happens to Prometheus or to what it scrapes, in order."""
        seconds = {moment for fault in self._of_prometheus() for moment in (fault.at, fault.until)}
        return sorted(second for second in seconds if second < self._scenario.lasts)

    def meet(self, second: float) -> None:
        """Make happen what a moment brings: a target that vanishes or is back, a Prometheus that goes, or returns."""
        gone = {
            run.fleet.node_name(node)
            for run in self._scenario.every_run
            for fault in run.faults
            if isinstance(fault, Vanish) and fault.at <= second < fault.until
            for node in fault.nodes
        }
        exporters = {name: node.exporter for name, node in self.announcement.nodes.items() if name not in gone}
        self.aim("tachograph", exporters)
        for fault in self._of_prometheus():
            if isinstance(fault, PrometheusRestart) and fault.at == second:
                self.start_anew("prometheus")
            elif isinstance(fault, PrometheusAway) and fault.at == second:
                self.children.end("prometheus")
            elif isinstance(fault, PrometheusAway) and fault.until == second:
                self.start_again()

    def _of_prometheus(self) -> list[Fault]:
        return [
            fault
            for fault in self._scenario.every_fault
            if isinstance(fault, (PrometheusAway, PrometheusRestart, Vanish))
        ]


def start_fleet(children: Children, folder: Path, scenario: Scenario) -> Announcement:
    """Start a scenario's nodes and ranks as one process; return the announcement once the nodes are up."""
    plan = folder / "scenario.pickle"
    plan.write_bytes(pickle.dumps(replace(scenario, expect=(), may=(), live=None)))  # the fleet needs no expectations
    module = "tachograph_lab.live.live_fleet"
    fleet = children.start("fleet", [sys.executable, "-m", module, plan, folder])
    found: list[Announcement] = []

    def announced() -> bool:
        found.extend(filter(None, [read_announcement(folder)]))
        return bool(found)

    fleet.wait_until(announced, OPENING_SECONDS)
    return found[0]


def wait(children: Iterable[Child], until: float) -> None:
    """Return at a Unix time; raise ProcessError if one of these processes ends before it."""
    while time.time() < until:
        for child in children:
            if not child.running:
                raise ProcessError(f"{child.name} ended with status {child.status}:\n{child.tail(20)}")
        time.sleep(min(POLL_SECONDS, max(0.0, until - time.time())))


def _received(page: PagedAlert, epoch: float) -> ReceivedAlert:
    return ReceivedAlert(page.time - epoch, page.receiver, page.status, page.labels, page.annotations)


def _labels(page: PagedAlert) -> str:
    shown = (f"{name} {page.labels[name]}" for name in ("run", "rank", "instance", "gpu") if name in page.labels)
    return ", ".join(shown)


def _cost(watched: WatchedFleet) -> str:
    """Return the share of a core each process has used since second 0, and the rule evaluations that were missed."""
    seconds = time.time() - watched.announcement.epoch
    shares = ", ".join(f"{child.name} {child.cpu_seconds() / seconds:.2f}" for child in watched.children.running)
    missed = watched.query("sum(prometheus_rule_group_iterations_missed_total)")
    return f"cores used: {shares}; rule evaluations missed: {missed[0].value if missed else 0:.0f}"
