"""A run of the demo: jobs that train, faults injected one after another, and the page received for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tachograph.humanize import age, duration, plural
from tachograph_lab.demo import fault_injection
from tachograph_lab.demo.demo_scenarios import FIRST_RUN, DemoResult, DemoScenario, surplus
from tachograph_lab.demo.launch import Job, launch
from tachograph_lab.demo.screen import Screen
from tachograph_lab.demo.stack import Stack
from tachograph_lab.demo.vitals import vitals
from tachograph_lab.pager import FIRING, RESOLVED, PagedAlert, Pager
from tachograph_lab.processes import ProcessError

T = TypeVar("T")

RANKS = 4
POLL_SECONDS = 0.5
HEALTHY_SCRAPES = 6
"""The rules learn the run's usual step from so many scrapes, and the loss detector its usual loss meanwhile."""

SECOND_RUN_HEALTHY_SCRAPES = 2
START_SECONDS = 60.0
RESOLVE_SECONDS = 180.0
QUIET_SECONDS = 15.0
"""How long to watch for a second, surplus page after a fault that nothing heals."""

LATE_SECONDS = 30.0
"""How long to wait for a page after its budget, to tell late from missing."""


class DemoRun:
    """One run of the demo: the stack, the pager, the screen it is shown on, and the results so far."""

    def __init__(self, stack: Stack, pager: Pager, screen: Screen, scrape_seconds: float) -> None:
        self.stack = stack
        self.pager = pager
        self.screen = screen
        self._scrape_seconds = scrape_seconds
        self.results: list[DemoResult] = []
        self._shown = 0
        self._since = time.time()
        self._expected = ""
        self._job: Job | None = None

    def run(self, scenarios: Sequence[DemoScenario], healthy_seconds: float | None) -> None:
        """Inject every fault in turn and collect the results; None: the first run is healthy as long as rules learn."""
        for number, scenario in enumerate(scenarios, start=1):
            first = scenario.run == FIRST_RUN
            if self._job is None or self._job.run != scenario.run:
                needed = (HEALTHY_SCRAPES if first else SECOND_RUN_HEALTHY_SCRAPES) * self._scrape_seconds
                self._train(scenario.run, needed if healthy_seconds is None or not first else healthy_seconds)
            self.screen.chapter(scenario.title, f"{number}/{len(scenarios)}")
            self.results.append(self._break(scenario))
        self._end()

    def surplus(self) -> list[PagedAlert]:
        """Return the pages that no fault called for."""
        return surplus(self.pager.pages(), self.results)

    def _train(self, run: str, healthy_seconds: float) -> None:
        self._end()
        self.screen.chapter(f"Starting run {run}, a job of {RANKS} ranks")
        job = self._job = launch(self.stack.children, run, RANKS, self.stack.socket)
        counted = f'count(tachograph_train_steps_total{{run="{run}"}} > 0) == {RANKS}'
        self.screen.waiting(f"waiting for {RANKS} ranks to train", START_SECONDS)
        if not self._until(lambda: self.stack.query(counted) or not job.running, START_SECONDS):
            raise ProcessError(f"run {run} does not train:\n{job.tail()}")
        self._running()
        self.screen.note(f"{RANKS} ranks are training, and Prometheus sees them")
        self.screen.waiting("healthy training: no page is expected", healthy_seconds)
        self._until(lambda: None, healthy_seconds)
        pages = len(self.surplus())
        pace = f"{duration(self._step_seconds())} per step"
        self.screen.note(f"{age(healthy_seconds)} of healthy training at {pace}: {plural(pages, 'page')}", not pages)

    def _break(self, scenario: DemoScenario) -> DemoResult:
        """Inject a fault into the job, wait for its page, heal the job, wait until the page is resolved."""
        job = self._running()
        budget = scenario.budget(self._step_seconds(), self._scrape_seconds)
        self._since, self._expected = time.time(), scenario.alert
        if scenario.fault.kind == fault_injection.KILLED:
            fault_injection.kill(job.pid(scenario.fault.rank or 0))
        else:
            job.control.inject(scenario.fault)
        self.screen.waiting(f"waiting for {scenario.alert}", budget)
        page = self._until(lambda: self._answer(scenario), budget + LATE_SECONDS)
        result = DemoResult(scenario, budget, page, page.time - self._since if page else 0.0)
        if page is None:
            self.screen.note(f"no {scenario.alert} within {age(budget + LATE_SECONDS)}", good=False)
        if not scenario.heals:
            self.screen.waiting("no other page is expected", QUIET_SECONDS)
            self._until(lambda: None, QUIET_SECONDS)
            return result
        job.control.heal(scenario.fault.kind)
        return self._resolved(result, page) if page else result

    def _answer(self, scenario: DemoScenario) -> PagedAlert | None:
        for page in self.pager.pages():
            ours = page.critical and page.alert == scenario.alert and page.labels.get("run") == scenario.run
            if ours and page.status == FIRING and page.time > self._since:
                return page
        return None

    def _resolved(self, result: DemoResult, page: PagedAlert) -> DemoResult:
        healed = time.time()

        def resolution() -> PagedAlert | None:
            same = (other for other in self.pager.pages() if other.fingerprint == page.fingerprint)
            return next((other for other in same if other.status == RESOLVED and other.time > page.time), None)

        self.screen.waiting("healed; waiting until the page is resolved", RESOLVE_SECONDS)
        if (end := self._until(resolution, RESOLVE_SECONDS)) is None:
            self.screen.note(f"{page.alert} was not resolved within {age(RESOLVE_SECONDS)} after healing", good=False)
            return result
        self.screen.note(f"healed, and resolved {age(end.time - healed)} later")
        return replace(result, resolved_after=end.time - healed)

    def _until(self, look: Callable[[], T], seconds: float) -> T | None:
        """Return the first true value of `look`, showing pages as they arrive; None if `seconds` pass before."""
        deadline = time.monotonic() + seconds
        while True:
            self._show()
            if found := look():
                return found
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)

    def _show(self) -> None:
        for page in self.pager.pages()[self._shown :]:
            self._shown += 1
            if page.critical and page.status == FIRING:
                self.screen.page(page, page.time - self._since, page.alert == self._expected)
        if self._job is not None and self.screen.live:
            self.screen.show(self._job.run, vitals(self.stack, self._job.run))

    def _step_seconds(self) -> float:
        """Return the usual duration of a recent step, 0 without any."""
        samples = self.stack.query(f'avg(tachograph_train_recent_step_seconds{{run="{self._running().run}"}})')
        return samples[0].value if samples else 0.0

    def _running(self) -> Job:
        if self._job is None or not self._job.running:
            raise ProcessError(f"the job ended by itself:\n{self._job.tail() if self._job else ''}")
        return self._job

    def _end(self) -> None:
        """Let the job end by itself if it still can; a normal end must not cause a page."""
        if self._job is None:
            return
        self.screen.waiting("waiting for the job to end", 20)
        if not self._job.running:
            self.screen.note(f"run {self._job.run} is gone, and torchrun with it")
        elif self._job.finish():
            self.screen.note(f"run {self._job.run} ended normally")
        else:
            self.screen.note(f"run {self._job.run} had to be stopped", good=False)
        self._job = None
        self.screen.waiting("")
