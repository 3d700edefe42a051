"""Runs the jobs of the fault bench in parallel on the shipped stack, and collects the alerts for each."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fault_scenarios import NODES, Scenario, node_name
from tachograph import wire
from tachograph_lab.demo.stack import Stack
from tachograph_lab.processes import Child, ProcessError, answers, free_port

JOB = Path(__file__).with_name("fault_job.py")
START_GAP_SECONDS = 4.0
"""Between two starts: loading PyTorch takes a core for as long."""

START_SECONDS = 60.0
SLOWER = 4
"""The most that a job may take to its fault: to start, and for each step in nominal ones; pipelines are slower."""

EXPORTER_SECONDS = 30.0

TOLD_SECONDS = 3.0
"""How long an alert must be active and not inhibited to count: the alert that inhibits it may come a moment later."""

AFTERWARDS_SECONDS = 20.0
"""How long a job continues after the expected alert, to catch wrong ones."""

PHASE = re.compile(r"\bin phase (\w+)")


@dataclass
class Told:
    """An alert for a run: when it was first active, and its text then; `node` of those that name no rank."""

    alert: str
    severity: str
    rank: int | None
    phase: str | None
    first: float
    last: float
    text: str
    node: str | None = None


@dataclass
class Outcome:
    """A finished job: its alerts, times in Unix seconds, and the reason why it does not count, if any."""

    scenario: Scenario
    onset: float | None
    began: float
    ended: float
    told: list[Told] = field(default_factory=list)
    fault: str = ""

    def row(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return {"run": self.scenario.run, **asdict(self), "scenario": None}


class Running:
    """One running job."""

    def __init__(self, scenario: Scenario, folder: Path, child: Child) -> None:
        self.scenario, self.folder, self.child = scenario, folder, child
        self.began = time.time()
        self.seen: dict[tuple[str, str, int | None, str | None], Told] = {}

    def hear(self, alert: Mapping[str, Any], now: float) -> None:
        """Record an alert that is active and not inhibited at `now`."""
        labels, text = alert["labels"], alert["annotations"].get("description", "")
        rank = int(labels["rank"]) if "rank" in labels else None
        node = labels.get("instance") if rank is None else None
        key = labels["alertname"], labels["severity"], rank, node
        if key in self.seen:
            self.seen[key].last = now
            return
        phase = PHASE.search(text)
        self.seen[key] = Told(*key[:3], phase.group(1) if phase else None, now, now, text, node)

    @property
    def onset(self) -> float | None:
        """When the fault began, None before."""
        try:
            return float((self.folder / "onset").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def told(self) -> list[Told]:
        """Return the alerts that counted, in order."""
        lasting = (one for one in self.seen.values() if one.last - one.first >= TOLD_SECONDS)
        return sorted(lasting, key=lambda one: one.first)

    def over(self, now: float) -> str | None:
        """Return None while the job must continue, else why the bench failed, empty if it did not."""
        scenario, onset = self.scenario, self.onset
        if not self.child.running and (onset is None or now < onset + scenario.seconds / 2) and not scenario.ends:
            return f"the job ended too early: {self.child.tail(3)}"
        if onset is None:
            late = now > self.began + SLOWER * scenario.onset + START_SECONDS
            return "the job did not come to its fault" if late else None
        expected = scenario.expected
        answered = [one.first for one in self.told() if expected is not None and one.alert == expected.alert]
        enough = onset + scenario.seconds
        if answered:
            enough = min(enough, answered[0] + AFTERWARDS_SECONDS)
        return "" if now > enough else None

    def finish(self, fault: str) -> Outcome:
        """Stop the job and return its outcome."""
        self.child.stop(grace=1.0)
        return Outcome(self.scenario, self.onset, self.began, time.time(), self.told(), fault)


class CrowdedStack(Stack):
    """The shipped stack with four nodes and room for many jobs: those of one node share the first one's exporter."""

    parts = ("node_exporter", "alertmanager", "prometheus")

    def rank_socket(self, node: int) -> Path:
        """Return the path of the socket to which the ranks of a node connect."""
        return self.scratch / f"{node}.sock"

    def _start_nodes(self) -> None:
        """Start an exporter for each node, with a higher limit of ranks; finished ones are removed sooner."""
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(NODES)]
        self.aim("tachograph", {node_name(node): address for node, address in enumerate(addresses)})
        self.aim("node", {node_name(0): self.address("node_exporter")})
        for node, address in enumerate(addresses):
            command = [sys.executable, "-m", "tachograph", "exporter", "--no-gpu", "--web.listen-address", address]
            command += ["--socket", str(self.rank_socket(node)), "--limits.ranks", "256"]
            command += ["--ranks.retention-finished", "30s", "--ranks.retention", "60s"]
            exporter = self.children.start(f"exporter-{node}", command)
            exporter.wait_until(partial(answers, f"http://{address}/-/ready"), EXPORTER_SECONDS)


class FaultStack:
    """The shipped stack with jobs on it; use it as a context manager."""

    def __init__(self, folder: Path, suite: str) -> None:
        self.stack = CrowdedStack(folder, "http://127.0.0.1:9", suite=suite, gpus={})  # port 9: nobody is notified

    def __enter__(self) -> FaultStack:
        self.stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)

    def start(self, scenario: Scenario) -> Running:
        """Start a job; its ranks are running within seconds."""
        folder = self.stack.folder / scenario.run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "onset").unlink(missing_ok=True)
        (folder / "scenario.json").write_text(json.dumps({**asdict(scenario), "expected": None}), encoding="utf-8")
        environment = {
            wire.SOCKET_ENVIRONMENT: str(self.stack.rank_socket(0)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",
        }
        child = self.stack.children.start(scenario.run, [sys.executable, JOB, folder], environment)
        return Running(scenario, folder, child)

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that Alertmanager would send now: those it does not inhibit."""
        url = f"{self.stack.url('alertmanager')}/api/v2/alerts?active=true&inhibited=false&silenced=false"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                found: list[dict[str, Any]] = json.load(response)
        except OSError as error:
            raise ProcessError(f"no answer from {url}: {error}") from error
        return found

    def play(self, scenarios: Sequence[Scenario], jobs: int, until: float) -> Iterator[Outcome]:
        """Run scenarios, `jobs` at a time besides the long ones, and yield each outcome; `until` is in Unix seconds.

        What could not end in time is not begun; a long one is cut off there.
        """
        waiting, running, last_start = list(scenarios), list[Running](), 0.0
        while waiting or running:
            now = time.time()
            by_run = {job.scenario.run: job for job in running}
            for alert in self.alerts():
                if job := by_run.get(alert["labels"].get("run", "")):
                    job.hear(alert, now)
            for job in list(running):
                fault = job.over(now)
                if fault is None and now > until:
                    fault = "the campaign was too short"
                if fault is not None:
                    running.remove(job)
                    yield job.finish(fault)
            waiting = [one for one in waiting if one.long or now + 30 + one.onset + one.seconds < until]
            free = [one for one in waiting if one.long or sum(not job.scenario.long for job in running) < jobs]
            if free and now - last_start > START_GAP_SECONDS:
                last_start = now
                waiting.remove(free[0])
                running.append(self.start(free[0]))
            time.sleep(max(0.0, now + 1 - time.time()))
