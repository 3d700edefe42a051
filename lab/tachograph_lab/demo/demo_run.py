"""A run of the demo: jobs that train, faults injected one after another, and the page received for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tachograph.text.humanize import age, duration, plural
from tachograph_lab.demo.demo_scenarios import FIRST_RUN, DemoResult, DemoScenario, surplus
from tachograph_lab.demo.launch import STOP_SECONDS, Job
from tachograph_lab.demo.screen import Screen
from tachograph_lab.demo.stack import Stack
from tachograph_lab.demo.vitals import vitals
from tachograph_lab.pager import FIRING, RESOLVED, PagedAlert, Pager
from tachograph_lab.processes import ProcessError

T = TypeVar("T")

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
    """One run of the demo: the stack, the pager, the screen it is shown on, and the results so far.

    `start` starts a job of this name, of `ranks` ranks.
    """

    def __init__(
        self, stack: Stack, pager: Pager, screen: Screen, scrape_seconds: float,
        *, ranks: int, start: Callable[[str], Job],
    ) -> None:  # fmt: skip
        self.stack = stack
        self.pager = pager
        self.screen = screen
        self._scrape_seconds = scrape_seconds
        self._ranks = ranks
        self._start = start
        self.results: list[DemoResult] = []
        self._shown = 0
        self._began = time.time()
        self._jobs: dict[str, Job] = {}
        self._struck: dict[str, tuple[float, str]] = {}
        """Run -> when its last fault was injected, and the alert that is expected for it."""

    def run(self, scenarios: Sequence[DemoScenario], healthy_seconds: float | None) -> None:
        """Inject every fault in turn and collect the results; None: the first run is healthy as long as rules learn."""
        for number, scenario in enumerate(scenarios, start=1):
            first = scenario.run == FIRST_RUN
            if scenario.run not in self._jobs:
                needed = (HEALTHY_SCRAPES if first else SECOND_RUN_HEALTHY_SCRAPES) * self._scrape_seconds
                self._train([scenario.run], needed if healthy_seconds is None or not first else healthy_seconds)
            self.screen.chapter(scenario.title, f"{number}/{len(scenarios)}")
            self.results.append(self._break(scenario))
        self._end()

    def run_at_once(self, scenarios: Sequence[DemoScenario], healthy_seconds: float) -> None:
        """Train a run for each fault at the same time, inject all of them, and collect the results."""
        self._train([scenario.run for scenario in scenarios], healthy_seconds)
        budgets = [self._strike(scenario) for scenario in scenarios]
        for number, (scenario, budget) in enumerate(zip(scenarios, budgets, strict=True), start=1):
            self.screen.chapter(f"Run {scenario.run}: {scenario.title}", f"{number}/{len(scenarios)}")
            self.results.append(self._await(scenario, budget))
        self._wait_quietly()
        self._end()

    def surplus(self) -> list[PagedAlert]:
        """Return the pages that no fault called for."""
        return surplus(self.pager.pages(), self.results)

    def _train(self, runs: Sequence[str], healthy_seconds: float) -> None:
        self._end()
        size = f"{self._ranks} ranks"
        which = f"run {runs[0]}, a job of {size}" if len(runs) == 1 else f"runs {', '.join(runs)}, jobs of {size} each"
        self.screen.chapter(f"Starting {which}")
        self._jobs = {run: self._start(run) for run in runs}
        self.stack.aim_engines({run: job.engine.address for run, job in self._jobs.items() if job.engine})
        ranks, limit = plural(self._ranks * len(runs), "rank"), START_SECONDS * len(runs)
        self.screen.waiting(f"waiting for {ranks} to train", limit)
        for run, job in self._jobs.items():
            if not self._until(partial(self._trains, run), limit):
                raise ProcessError(f"run {run} does not train:\n{job.tail()}")
        self.screen.note(f"{ranks} are training, and Prometheus sees them")
        self.screen.waiting("healthy training: no page is expected", healthy_seconds)
        self._until(lambda: None, healthy_seconds)
        pages = len(self.surplus())
        pace = f"{duration(self._step_seconds(runs[0]))} per step"
        self.screen.note(f"{age(healthy_seconds)} of healthy training at {pace}: {plural(pages, 'page')}", not pages)

    def _trains(self, run: str) -> bool:
        self._running(run)
        counted = f'count(tachograph_train_steps_total{{run="{run}"}} > 0)'
        return bool(self.stack.query(f"{counted} == {self._ranks}"))

    def _break(self, scenario: DemoScenario) -> DemoResult:
        """Inject a fault into the job, wait for its page, heal the job, wait until the page is resolved."""
        result = self._await(scenario, self._strike(scenario))
        if not scenario.heals:
            self._wait_quietly()
            return result
        self._jobs[scenario.run].control.heal(scenario.fault.kind)
        return self._resolved(result, result.page) if result.page else result

    def _strike(self, scenario: DemoScenario) -> float:
        """Inject a fault; return the seconds within which its page must be received."""
        budget = scenario.budget(self._step_seconds(scenario.run), self._scrape_seconds)
        self._struck[scenario.run] = time.time(), scenario.alert
        self._running(scenario.run).strike(scenario.fault)
        return budget

    def _await(self, scenario: DemoScenario, budget: float) -> DemoResult:
        since, _ = self._struck[scenario.run]
        left = since + budget - time.time()
        self.screen.waiting(f"waiting for {scenario.alert}", left)
        page = self._until(lambda: self._answer(scenario, since), left + LATE_SECONDS)
        if page is None:
            self.screen.note(f"no {scenario.alert} within {age(budget + LATE_SECONDS)}", good=False)
        return DemoResult(scenario, budget, page, page.time - since if page else 0.0)

    def _wait_quietly(self) -> None:
        self.screen.waiting("no other page is expected", QUIET_SECONDS)
        self._until(lambda: None, QUIET_SECONDS)

    def _answer(self, scenario: DemoScenario, since: float) -> PagedAlert | None:
        for page in self.pager.pages():
            ours = page.critical and page.alert == scenario.alert and page.labels.get("run") == scenario.run
            if ours and page.status == FIRING and page.time > since:
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
                since, expected = self._struck.get(page.labels.get("run", ""), (self._began, ""))
                self.screen.page(page, page.time - since, page.alert == expected)
        if self._jobs and self.screen.live:
            run = next((run for run in reversed(self._jobs) if run in self._struck), next(iter(self._jobs)))
            self.screen.show(run, vitals(self.stack, run))

    def _step_seconds(self, run: str) -> float:
        """Return the usual duration of a recent step, 0 without any."""
        self._running(run)
        samples = self.stack.query(f'avg(tachograph_train_recent_step_seconds{{run="{run}"}})')
        return samples[0].value if samples else 0.0

    def _running(self, run: str) -> Job:
        job = self._jobs[run]
        if not job.running:
            raise ProcessError(f"the job ended by itself:\n{job.tail()}")
        return job

    def _end(self) -> None:
        """Let the jobs end by themselves if they still can; a normal end must not cause a page."""
        for job in self._jobs.values():
            job.control.stop()
        for run, job in self._jobs.items():
            self.screen.waiting("waiting for the job to end", STOP_SECONDS)
            if not job.running:
                self.screen.note(f"run {run} is gone, and torchrun with it")
            elif job.engine is not None and not job.engine.server.running:
                job.torchrun.stop()
                self.screen.note(f"run {run} is stopped: its engine is gone")
            elif job.finish():
                self.screen.note(f"run {run} ended normally")
            else:
                self.screen.note(f"run {run} had to be stopped", good=False)
        self._jobs = {}
        self.screen.waiting("")
