"""The faults of the demo, the page that each must cause and how soon, and how a received page is judged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tachograph_lab.demo.fault_injection import ENGINE_KILLED, HANG, KILLED, NAN, SLOW, SPIKE, InjectedFault
from tachograph_lab.pager import PagedAlert
from tachograph_lab.scenario.definition import SCRAPE_SECONDS

FIRST_RUN, SECOND_RUN = "demo", "demo-nan"


@dataclass(frozen=True)
class DemoScenario:
    """One fault and the one page that it must cause within `seconds` + `steps` × the run's step time.

    Of scrapes that are further apart than every 5 s, `scrapes` times what they are more is added.
    """

    title: str
    fault: InjectedFault
    alert: str
    seconds: float
    steps: int = 0
    scrapes: int = 3
    run: str = FIRST_RUN
    heals: bool = True

    def budget(self, step_seconds: float, scrape_seconds: float = SCRAPE_SECONDS) -> float:
        """Return the seconds within which the page must be received."""
        return self.seconds + self.steps * step_seconds + self.scrapes * max(scrape_seconds - SCRAPE_SECONDS, 0)


SCENARIOS = (
    DemoScenario("rank 2 slow in backward", InjectedFault(SLOW, rank=2), "StragglerRank", 90),
    DemoScenario("a loss spike that stays", InjectedFault(SPIKE), "LossSpikeNotRecovering", 15, steps=20),
    DemoScenario("rank 3 stuck in loader", InjectedFault(HANG, rank=3), "RunHung", 30, steps=3),
    DemoScenario("rank 1 gets SIGKILL", InjectedFault(KILLED, rank=1), "RankDead", 10, scrapes=2, heals=False),
    DemoScenario(
        "NaN loss on rank 2", InjectedFault(NAN, rank=2), "LossNotFinite", 10, scrapes=2, run=SECOND_RUN, heals=False
    ),
)
"""In order. The kill ends the first run, and nothing recovers from the NaN, so that one gets a second run, at last."""

RL_SCENARIOS = (
    DemoScenario(
        "rank 1 generates 5 times as long",
        InjectedFault(SLOW, rank=1),
        "StragglerRank",
        90,
        run="rl-slow",
        heals=False,
    ),
    DemoScenario(
        "its engine gets SIGKILL", InjectedFault(ENGINE_KILLED), "EngineDown", 150, run="rl-engine", heals=False
    ),
    DemoScenario(
        "rank 1 stuck in its reward", InjectedFault(HANG, rank=1), "RunHung", 330, run="rl-reward", heals=False
    ),
)
"""Of loops that generate what they train on, in the order of their pages. Who generates for long is judged by ten
iterations, an engine may be silent for two minutes, and a reward may take five."""


@dataclass(frozen=True)
class DemoResult:
    """A scenario, the page received for it (None: none was) and how many seconds after the fault."""

    scenario: DemoScenario
    budget: float
    page: PagedAlert | None = None
    delay: float = 0.0
    resolved_after: float | None = None

    @property
    def culprit(self) -> str:
        """The rank or run that the page names."""
        if self.page is None:
            return "-"
        rank = self.page.labels.get("rank")
        return f"rank {rank}" if rank is not None else f"run {self.page.labels.get('run', '?')}"

    @property
    def fault(self) -> str:
        """The reason why the result is wrong; empty if it is right, even if the page was late."""
        if self.page is None:
            return "missing"
        if not names_culprit(self.page, self.scenario.fault.rank):
            return "wrong culprit"
        if self.scenario.heals and self.resolved_after is None:
            return "not resolved"
        return ""

    @property
    def late(self) -> bool:
        """Whether the page came after its budget; that happens on a busy machine and is no error."""
        return self.page is not None and self.delay > self.budget

    @property
    def verdict(self) -> str:
        """The result in a word or two: the fault, else late or ok."""
        return self.fault or ("late" if self.late else "ok")

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values for the summary file."""
        return {
            "fault": self.scenario.title,
            "expected": self.scenario.alert,
            "received": self.page.alert if self.page else None,
            "culprit": self.culprit,
            "delay_seconds": round(self.delay, 2) if self.page else None,
            "budget_seconds": round(self.budget, 2),
            "resolved_after_seconds": None if self.resolved_after is None else round(self.resolved_after, 2),
            "verdict": self.verdict,
        }


def names_culprit(page: PagedAlert, rank: int | None) -> bool:
    """Return whether the label and text of a page name this rank; for None, whether it names no single rank."""
    if rank is None:
        return "rank" not in page.labels
    words = page.annotations.get("description", "")
    return page.labels.get("rank") == str(rank) and re.search(rf"\brank {rank}\b", words, re.IGNORECASE) is not None


def surplus(pages: list[PagedAlert], results: list[DemoResult]) -> list[PagedAlert]:
    """Return the critical alerts that fired although no fault called for them."""
    answers = [result.page for result in results]
    return [page for page in pages if page.critical and page.status == "firing" and page not in answers]
