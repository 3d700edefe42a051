"""A rank that holds up all others of a real PyTorch job is the one that is named."""

from __future__ import annotations

import re
import time

import pytest

from tachograph_lab.demo import fault_injection
from tachograph_lab.demo.demo_scenarios import names_culprit
from tachograph_lab.demo.launch import Job
from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import Pager
from tests.e2e.job_pages import by_rank, injected, paged, the_page

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

RANKS = 4
HUNG, SLOW = 3, 2
"""The culprit of each test."""


def test_a_hang_names_who_never_boarded(stack: Stack, job: Job, pager: Pager) -> None:
    """A rank stuck in its loader is paged; its collective count stands below all others'."""
    since = time.time()
    with injected(job, fault_injection.HANG, HUNG):
        page = the_page(pager, "RunHung", since)
        enqueued = by_rank(stack, f'tachograph_train_collective_enqueued{{run="{job.run}",group="0"}}')
        phases = {
            s.labels["rank"]: s.labels["phase"]
            for s in stack.query(f'tachograph_rank_phase_seconds{{run="{job.run}"}}')
        }
    assert names_culprit(page, HUNG), page.annotations
    culprit = enqueued.pop(HUNG)
    assert set(enqueued.values()) == {culprit + 1}
    assert phases[str(HUNG)] == "data"
    assert re.search(r"phase data for \d+ s", page.annotations["description"])
    assert [p.alert for p in paged(pager, since)] == ["RunHung"]


def test_a_straggler_is_named_although_all_step_alike(stack: Stack, job: Job, pager: Pager) -> None:
    """Slowed inside backward, one rank drags all to the same step time; the page names it, and only it."""
    since = time.time()
    with injected(job, fault_injection.SLOW, SLOW):
        page = the_page(pager, "StragglerRank", since)
        step_seconds = by_rank(stack, f'max by (rank) (tachograph_train_recent_step_seconds{{run="{job.run}"}})')
    assert names_culprit(page, SLOW), page.annotations
    assert len(step_seconds) == RANKS
    assert max(step_seconds.values()) - min(step_seconds.values()) <= 0.03 * max(step_seconds.values())
    assert [p.alert for p in paged(pager, since)] == ["StragglerRank"]
