"""From a fault in a real PyTorch job to the page: exporter, Prometheus and Alertmanager are the real ones.

One job for all: the tests give it one fault after the other, and the last one kills it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tachograph_lab.demo import fault_injection
from tachograph_lab.demo.demo_scenarios import names_culprit
from tachograph_lab.demo.fault_injection import InjectedFault
from tachograph_lab.demo.launch import Job
from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import FIRING, PagedAlert, Pager

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]

PAGE_SECONDS = 150.0
HUNG, SLOW, KILLED = 3, 2, 1
"""The culprit of each test."""


def by_rank(stack: Stack, expression: str) -> dict[int, float]:
    return {int(sample.labels["rank"]): sample.value for sample in stack.query(expression)}


def paged(pager: Pager, since: float) -> list[PagedAlert]:
    return [page for page in pager.pages() if page.critical and page.status == FIRING and page.time > since]


def the_page(pager: Pager, alert: str, since: float) -> PagedAlert:
    """Return the page of an alert; how soon it comes is asserted in virtual time, by the rule tests and the replays."""
    page = pager.wait_for(lambda page: page.alert == alert and page.status == FIRING, PAGE_SECONDS, after=since)
    assert page is not None, f"no {alert}, but {[(p.alert, dict(p.labels)) for p in paged(pager, since)]}"
    return page


def test_healthy_training_is_quiet(stack: Stack, job: Job, pager: Pager, wait_for: Callable[..., Any]) -> None:
    """A job that starts and trains pages nobody; all its ranks are up, running, and speak of their device's peak."""
    assert by_rank(stack, f'tachograph_rank_up{{run="{job.run}"}}') == dict.fromkeys(range(job.ranks), 1)
    assert by_rank(stack, f'tachograph_rank_state{{run="{job.run}",state="running"}}') == dict.fromkeys(
        range(job.ranks), 1
    )
    (mfu,) = wait_for(lambda: stack.query(f'run:mfu:ratio{{run="{job.run}"}}'), 15, "MFU")
    assert 0 < mfu.value < 1
    assert paged(pager, 0) == []


@pytest.mark.slow
def test_a_hang_names_who_never_boarded(stack: Stack, job: Job, pager: Pager) -> None:
    """A rank stuck in its loader is paged; its collective count stands below all others'."""
    since = time.time()
    job.control.inject(InjectedFault(fault_injection.HANG, rank=HUNG))
    try:
        page = the_page(pager, "RunHung", since)
        enqueued = by_rank(stack, f'tachograph_train_collective_enqueued{{run="{job.run}",group="0"}}')
        phases = {
            s.labels["rank"]: s.labels["phase"]
            for s in stack.query(f'tachograph_rank_phase_seconds{{run="{job.run}"}}')
        }
    finally:
        job.control.heal(fault_injection.HANG)
    assert names_culprit(page, HUNG), page.annotations
    culprit = enqueued.pop(HUNG)
    assert set(enqueued.values()) == {culprit + 1}
    assert phases[str(HUNG)] == "data"
    assert re.search(r"phase data for \d+ s", page.annotations["description"])
    assert [p.alert for p in paged(pager, since)] == ["RunHung"]


@pytest.mark.slow
def test_a_straggler_is_named_although_all_step_alike(stack: Stack, job: Job, pager: Pager) -> None:
    """Slowed inside backward, one rank drags all to the same step time; the page names it, and only it."""
    since = time.time()
    job.control.inject(InjectedFault(fault_injection.SLOW, rank=SLOW))
    try:
        page = the_page(pager, "StragglerRank", since)
        step_seconds = by_rank(stack, f'max by (rank) (tachograph_train_recent_step_seconds{{run="{job.run}"}})')
    finally:
        job.control.heal(fault_injection.SLOW)
    assert names_culprit(page, SLOW), page.annotations
    assert len(step_seconds) == 4
    assert max(step_seconds.values()) - min(step_seconds.values()) <= 0.03 * max(step_seconds.values())
    assert [p.alert for p in paged(pager, since)] == ["StragglerRank"]


def test_a_killed_rank_is_dead_and_nothing_else(
    stack: Stack, job: Job, pager: Pager, wait_for: Callable[..., Any]
) -> None:
    """SIGKILL pages, naming the rank, though its loader's worker lives on; the others page nobody."""
    since = time.time()
    fault_injection.kill(job.pid(KILLED))
    dead = f'tachograph_rank_up{{run="{job.run}",rank="{KILLED}"}} 0'
    wait_for(lambda: dead in stack.scrape(), 30, "rank_up of 0")
    page = the_page(pager, "RankDead", since)
    assert names_culprit(page, KILLED), page.annotations
    surplus = pager.wait_for(lambda p: p.critical and p.status == FIRING and p is not page, 15, after=since)
    assert surplus is None
