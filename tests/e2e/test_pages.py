"""From a real PyTorch job to the page: exporter, Prometheus and Alertmanager are the real ones.

One job for all tests; the last one kills it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tachograph_lab.demo import fault_injection
from tachograph_lab.demo.demo_scenarios import names_culprit
from tachograph_lab.demo.launch import Job
from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import FIRING, Pager
from tests.e2e.job_pages import by_rank, paged, the_page

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]

RANKS = 2
KILLED = 1


def test_healthy_training_is_quiet(stack: Stack, job: Job, pager: Pager, wait_for: Callable[..., Any]) -> None:
    """A job that starts and trains pages nobody; all its ranks are up, running, and speak of their device's peak."""
    assert by_rank(stack, f'tachograph_rank_up{{run="{job.run}"}}') == dict.fromkeys(range(job.ranks), 1)
    assert by_rank(stack, f'tachograph_rank_state{{run="{job.run}",state="running"}}') == dict.fromkeys(
        range(job.ranks), 1
    )
    (mfu,) = wait_for(lambda: stack.query(f'run:mfu:ratio{{run="{job.run}"}}'), 90, "MFU")
    assert 0 < mfu.value < 1
    assert paged(pager, 0) == []


def test_a_killed_rank_is_dead_and_nothing_else(
    stack: Stack, job: Job, pager: Pager, wait_for: Callable[..., Any]
) -> None:
    """SIGKILL pages, naming the rank, though its loader's worker lives on; the others page nobody."""
    since = time.time()
    fault_injection.kill(job.pid(KILLED))
    dead = f'tachograph_rank_up{{run="{job.run}",rank="{KILLED}"}} 0'
    wait_for(lambda: dead in stack.scrape(), 90, "rank_up of 0")
    page = the_page(pager, "RankDead", since)
    assert names_culprit(page, KILLED), page.annotations
    surplus = pager.wait_for(lambda p: p.critical and p.status == FIRING and p is not page, 15, after=since)
    assert surplus is None
