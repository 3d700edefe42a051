"""Runs the checks: rank 0 leads, the others measure what it asks for, and nobody is waited for beyond the limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tachograph.preflight import limited
from tachograph.preflight.devices import use
from tachograph.preflight.finding import (
    ERROR,
    FAIL,
    SKIPPED,
    CheckReport,
    Conclusion,
    Facts,
    PreflightFinding,
    skip,
    state_of,
)
from tachograph.preflight.site import CPU, PreflightCheck, PreflightSite
from tachograph.text.humanize import duration, plural

GRACE_SECONDS = 5.0
"""A rank that is late says so itself, a little later."""
LATE = "late"
PROGRESS = "progress"
END = "end"


@dataclass
class Leader:
    """Rank 0, or a process that is alone: runs checks and concludes. `starting` is told of each check before it."""

    site: PreflightSite
    checks: Sequence[PreflightCheck]
    starting: Callable[[PreflightCheck, int], None]
    _alive: list[int] = field(default_factory=list)
    _steps: int = 0
    _broken: str = ""

    def run(self) -> Iterator[CheckReport]:
        """Yield the report of each check as it is done."""
        if self.site.under_launcher:
            yield self._arrivals()
        else:
            self.site.node_of, self.site.local_rank_of = {0: self.site.node}, {0: 0}
            self._alive = [0]
        for number, check in enumerate(self.checks, 1):
            self.starting(check, number)
            began = time.monotonic()
            why = self._why_not(check)
            conclusion = skip(why) if why else self._conclusion(check)
            self.site.slow_ranks |= conclusion.slow_ranks
            yield report(check.name, conclusion, time.monotonic() - began)

    def end(self, message: Mapping[str, Any]) -> None:
        """Send the others home, and wait for them a little: this process may hold the store."""
        self._publish({END: message})
        self.site.exchange.gather("bye", [rank for rank in self._alive if rank], GRACE_SECONDS)

    def _arrivals(self) -> CheckReport:
        began = time.monotonic()
        site = self.site
        site.exchange.publish("here/0", [site.node, site.local_rank])
        here = site.exchange.gather("here", range(site.world_size), site.options.join_limit)
        site.node_of = {rank: node for rank, (node, _) in here.items()}
        site.local_rank_of = {rank: local for rank, (_, local) in here.items()}
        self._alive = sorted(here)
        missing = sorted(set(range(site.world_size)) - set(here))
        findings = []
        if missing:
            self._broken = f"{site.who(missing)} did not come"
            what = f"{site.who(missing)} did not come within {duration(site.options.join_limit)}"
            then = "look at the launcher's log there: the job's start, the image, MASTER_ADDR"
            findings.append(PreflightFinding(FAIL, what, then, tuple(missing)))
        nodes = plural(len(set(site.node_of.values())), "node")
        conclusion = Conclusion(f"{len(here)} of {site.world_size} on {nodes}", findings)
        return report("ranks", conclusion, time.monotonic() - began)

    def _why_not(self, check: PreflightCheck) -> str:
        site = self.site
        reasons = (
            (bool(missing := check.missing(site.options)), missing),
            (check.needs_torch and bool(site.torch_problem), site.torch_problem),
            (check.needs_ranks and not site.under_launcher, "start it under torchrun"),
            (check.needs_ranks and site.world_size == 1, "there is one rank alone"),
            (check.grouped and bool(self._broken), self._broken),
            (check.grouped and check.name != "group" and not site.group, "there is no process group"),
        )
        return next((why for holds, why in reasons if holds), "")

    def _conclusion(self, check: PreflightCheck) -> Conclusion:
        facts: dict[int, Facts] = {}
        for ranks in self._waves(check):
            facts |= self._wave(check, ranks)
        findings = list(self._failures(check, facts))
        good = {rank: one for rank, one in sorted(facts.items()) if ERROR not in one}
        if check.grouped and len(good) < self.site.world_size:
            self._broken = f"the check {check.name} did not end on all ranks"
        if not good:
            return Conclusion("", findings)
        conclusion = check.conclude(good, self.site)
        if check.better is not None and conclusion.slow_ranks:
            for ranks in self._waves(check):
                for rank, one in self._wave(check, [rank for rank in ranks if rank in conclusion.slow_ranks]).items():
                    good[rank] = good[rank] if ERROR in one else check.better(good[rank], one)
            conclusion = check.conclude(good, self.site)
        return replace(
            conclusion, findings=[*findings, *conclusion.findings], skipped="" if findings else conclusion.skipped
        )

    def _waves(self, check: PreflightCheck) -> list[list[int]]:
        """Return who measures at the same time: all, or on CPUs one rank of each node after the other."""
        if not check.turns or self.site.device != CPU or not self.site.under_launcher:
            return [list(self._alive)]
        waves: dict[int, list[int]] = {}
        for rank in self._alive:
            waves.setdefault(self.site.local_rank_of[rank], []).append(rank)
        return [waves[local] for local in sorted(waves)]

    def _wave(self, check: PreflightCheck, ranks: Sequence[int]) -> dict[int, Facts]:
        name = self._publish({"check": check.name, "ranks": ranks})
        began = time.monotonic()
        facts: dict[int, Facts] = {}
        if self.site.rank in ranks:
            facts[self.site.rank] = measured(check, self.site)
        others = [rank for rank in ranks if rank != self.site.rank]
        left = self.site.options.limit + GRACE_SECONDS - (time.monotonic() - began)
        facts |= self.site.exchange.gather(f"facts/{name}", others, max(left, GRACE_SECONDS))
        return facts

    def _failures(self, check: PreflightCheck, facts: Mapping[int, Facts]) -> Iterator[PreflightFinding]:
        silent = [rank for rank in self._alive if rank not in facts]
        if silent:
            what = f"{self.site.who(silent)} stopped answering during {check.name}"
            yield PreflightFinding(
                FAIL, what, "its process may have died: look at its log and the kernel's", tuple(silent)
            )
            self._alive = [rank for rank in self._alive if rank not in silent]
            self._broken = f"{self.site.who(silent)} stopped answering"
        problems: dict[str, list[int]] = {}
        for rank, one in facts.items():
            if ERROR in one:
                problems.setdefault(one[ERROR], []).append(rank)
        late = problems.pop(LATE, [])
        if late and not (check.grouped and silent):  # who waits for a rank that is gone is not at fault
            yield self._late(check, late, facts)
        for problem, ranks in sorted(problems.items()):
            yield PreflightFinding(FAIL, f"{check.name} failed on {self.site.who(ranks)}: {problem}", "", tuple(ranks))

    def _late(self, check: PreflightCheck, late: list[int], facts: Mapping[int, Facts]) -> PreflightFinding:
        """Return the finding about ranks that took too long: of those that wait for each other, the furthest behind."""
        least = min(facts[rank].get(PROGRESS, 0) for rank in late)
        behind = [rank for rank in late if facts[rank].get(PROGRESS, 0) == least] if check.grouped else late
        waiting = f"; {self.site.who_does(set(late) - set(behind), 'waits', 'wait')} for it" if behind != late else ""
        what = (
            f"{check.name} did not end within {duration(self.site.options.limit)} on {self.site.who(behind)}{waiting}"
        )
        return PreflightFinding(FAIL, what, "look at that rank, or give it more time: --limit", tuple(behind))

    def _publish(self, step: Mapping[str, Any]) -> str:
        name = str(self._steps)
        self.site.exchange.publish(f"step/{name}", step)
        self._steps += 1
        return name


def follow(site: PreflightSite, checks: Sequence[PreflightCheck]) -> Mapping[str, Any]:
    """Measure what rank 0 asks for until it says the end, and return what it says then; raise TimeoutError."""
    by_name = {check.name: check for check in checks}
    site.exchange.publish(f"here/{site.rank}", [site.node, site.local_rank])
    # rank 0 may wait for a rank that never comes, then for ranks of a node that measure in turn
    patience = site.options.join_limit + (site.options.limit + GRACE_SECONDS) * (site.local_world_size + 1)
    number = 0
    while True:
        step = site.exchange.read(f"step/{number}", patience)
        if END in step:
            site.exchange.publish(f"bye/{site.rank}", 1)
            end: Mapping[str, Any] = step[END]
            return end
        if site.rank in step["ranks"]:
            facts = measured(by_name[step["check"]], site)
            site.exchange.publish(f"facts/{number}/{site.rank}", facts)
        number += 1


def measured(check: PreflightCheck, site: PreflightSite) -> Facts:
    """Return what a check measures here, or under ERROR why it does not."""
    try:
        return limited.in_thread(lambda: _measured(check, site), site.options.limit)
    except limited.Late:
        site.left_behind = True
        return {ERROR: LATE, PROGRESS: site.progress}
    except Exception as error:  # noqa: BLE001 - a driver, PyTorch, a library: what failed is the finding
        first = str(error).strip().partition("\n")[0]
        return {ERROR: f"{type(error).__name__}: {first}"[:500]}


def _measured(check: PreflightCheck, site: PreflightSite) -> Facts:
    site.progress = 0
    if check.needs_torch:
        use(site.device)
    return check.measure(site)


def report(name: str, conclusion: Conclusion, seconds: float) -> CheckReport:
    """Return the report of a check."""
    state = state_of(conclusion)
    summary = conclusion.skipped if state == SKIPPED else conclusion.summary
    return CheckReport(name, state, summary, seconds, conclusion.findings, conclusion.measured)
