"""Trainings on the shipped stack, several at once: and what Prometheus and Alertmanager say of each run, at 5 s."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tachograph import wire
from tachograph_lab.demo.stack import Stack
from tachograph_lab.processes import Child
from tests.frameworks.training import Case
from tests.integrations.scraped import launched

PHASE = re.compile(r"\bphase (\w+)")
LASTING_SECONDS = 3.0
"""How long an alert must be active and not inhibited to count: the alert that inhibits it may come a moment later."""

START_GAP_SECONDS = 5.0
"""Between two starts: loading a framework takes a core for as long."""

STOP_SECONDS = 45.0
"""torchrun gives its ranks 30 s to end."""

FAULTY_RANK = 1


@dataclass
class Alarm:
    """An alert for a run, as Alertmanager has it: when it was first and last active, and the text it had first."""

    alert: str
    severity: str
    rank: int | None
    first: float
    last: float
    text: str

    @property
    def phase(self) -> str | None:
        """The phase that the text names."""
        found = PHASE.search(self.text)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.alert} ({self.severity}) rank {self.rank} in {self.phase}: {self.text}"


@dataclass(frozen=True)
class Fault:
    """A fault of one rank, the phase in which it is, and how soon its alert must be there."""

    kind: str
    phase: str
    alert: str
    seconds: float
    allowed: tuple[str, ...] = ()


FAULTS = {
    "slow in forward": Fault("slow", "forward", "StragglerRank", 150),
    "stuck in forward": Fault("stuck", "forward", "RunHung", 90),
    "stuck in data": Fault("stuck", "data", "RunHung", 90),
    "killed": Fault("killed", "forward", "RankDead", 60, allowed=("RankFailed", "RunHung", "RunDown")),
}
"""What happens to rank 1. That its peers fail with it, or wait, may be said as well; a killed rank has no phase."""


@dataclass(frozen=True)
class Job:
    """A training to play: with a fault `onset` seconds after its first step, or to its end and some time past."""

    case: Case
    fault: Fault | None = None
    onset: float = 35.0
    past: float = 180.0
    limit: float = 900.0

    def environment(self, folder: Path) -> dict[str, str]:
        """The variables that inject the fault."""
        if self.fault is None:
            return {}
        return {
            "FAULT": self.fault.kind,
            "FAULT_PLACE": self.fault.phase,
            "FAULT_RANK": str(FAULTY_RANK),
            "FAULT_SECONDS": str(self.onset),
            "FAULT_ONSET": str(folder / "onset"),
        }


@dataclass
class Played:
    """A training that is played, or was: its process, the alarms of its run, and the ranks that were seen."""

    name: str
    job: Job
    folder: Path
    child: Child
    began: float
    ended: float | None = None
    ranks: set[str] = field(default_factory=set)
    heard: dict[tuple[str, str, int | None], Alarm] = field(default_factory=dict)

    def hear(self, alert: Mapping[str, Any], now: float) -> None:
        """Take an alert that is active now."""
        labels, text = alert["labels"], alert["annotations"].get("description", "")
        rank = int(labels["rank"]) if "rank" in labels else None
        key = labels["alertname"], labels["severity"], rank
        self.heard.setdefault(key, Alarm(*key, now, now, text)).last = now

    @property
    def onset(self) -> float | None:
        """The Unix time at which the fault began."""
        path = self.folder / "onset"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return float(text) if text else None

    def alarms(self) -> list[Alarm]:
        """Return what would have been sent, in order: pages and tickets that lasted."""
        lasting = (one for one in self.heard.values() if one.last - one.first >= LASTING_SECONDS)
        return sorted((one for one in lasting if one.severity != "info"), key=lambda one: one.first)

    def over(self, now: float) -> bool:
        """Whether there is nothing more to hear of it."""
        if not self.child.running and self.ended is None:
            self.ended = now
        if now > self.began + self.job.limit:
            return True
        if self.job.fault is None:
            return self.ended is not None and now > self.ended + self.job.past
        if self.onset is None:
            return self.ended is not None
        answered = [one.first for one in self.alarms() if one.alert == self.job.fault.alert]
        return now > (answered[0] + 15 if answered else self.onset + self.job.fault.seconds)


class AlarmStack(Stack):
    """The shipped stack of one node, which has no GPU."""

    exporter_options = ("--no-gpu", "--limits.ranks", "256")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "http://127.0.0.1:9", gpus={})  # port 9: nobody is notified

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that Alertmanager would send now: those it does not inhibit."""
        url = f"{self.url('alertmanager')}/api/v2/alerts?active=true&inhibited=false&silenced=false"
        with urllib.request.urlopen(url, timeout=30) as response:
            found: list[dict[str, Any]] = json.load(response)
        return found

    def start(self, name: str, job: Job) -> Played:
        """Start a training."""
        folder = self.folder / name
        folder.mkdir()
        environment = {
            wire.SOCKET_ENVIRONMENT: str(self.socket), "TACHOGRAPH_RUN": name, "TRUTH": str(folder / "truth"),
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
            **job.case.variables, **job.environment(folder),
        }  # fmt: skip
        words = launched(job.case.words(name), job.case.ranks)
        command = ["env", "--chdir", str(folder), "nice", str(job.case.python), *words]
        return Played(name, job, folder, self.children.start(name, command, environment), time.time())

    def play(self, jobs: Mapping[str, Job], at_once: int) -> Iterator[Played]:
        """Play trainings, `at_once` of them in training, and yield each that is over."""
        waiting, playing, last_start = dict(jobs), list[Played](), 0.0
        while waiting or playing:
            now = time.time()
            by_run = {each.name: each for each in playing}
            for alert in self.alerts():
                if (each := by_run.get(alert["labels"].get("run", ""))) is not None:
                    each.hear(alert, now)
            for each in [each for each in playing if each.over(now)]:
                playing.remove(each)
                seen = self.query(f'last_over_time(tachograph_rank_up{{run="{each.name}"}}[1h])')
                each.ranks = {series.labels["rank"] for series in seen}
                each.child.stop(grace=STOP_SECONDS)
                yield each
            training = sum(each.ended is None for each in playing)
            if waiting and training < at_once and now > last_start + START_GAP_SECONDS:
                name = next(iter(waiting))
                playing.append(self.start(name, waiting.pop(name)))
                last_start = now
            time.sleep(max(0.0, now + 1 - time.time()))
