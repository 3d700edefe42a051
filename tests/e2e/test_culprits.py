"""A rank that holds up all others of a real PyTorch job is the one that is named."""

from __future__ import annotations

import re
import time
from html import unescape
from urllib.parse import urlsplit

import pytest

from tachograph_lab.demo import fault_injection
from tachograph_lab.demo.demo_scenarios import names_culprit
from tachograph_lab.demo.launch import Job
from tachograph_lab.demo.stack import Stack
from tachograph_lab.monitoring import get
from tachograph_lab.pager import Pager
from tests.e2e.job_pages import by_rank, injected, paged, the_page

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

RANKS = 4
HUNG, SLOW = 3, 2
"""The culprit of each test."""


def test_a_hang_names_who_never_boarded(stack: Stack, job: Job, pager: Pager) -> None:
    """A rank stuck in its loader is paged; the page leads to its line, and to the call that it never made."""
    since = time.time()
    with injected(job, fault_injection.HANG, HUNG):
        page = the_page(pager, "RunHung", since)
        phases = {
            s.labels["rank"]: s.labels["phase"]
            for s in stack.query(f'tachograph_rank_phase_seconds{{run="{job.run}"}}')
        }
        verdict = black_box(stack, page.annotations["blackbox_url"])
    assert re.match(rf"Rank {HUNG} \(.*\): stuck on the host: never called all_reduce ", verdict), verdict
    assert re.search(r"it stands at \w+\.py:\d+ \w+", verdict), verdict
    assert names_culprit(page, HUNG), page.annotations
    assert phases[str(HUNG)] == "data"
    assert re.search(r"for \S+ in phase data", page.annotations["description"])
    assert [p.alert for p in paged(pager, since)] == ["RunHung"]


def black_box(stack: Stack, url: str) -> str:
    """Return the first sentence of the page to which an alert links, here at the exporter's own port."""
    assert url.startswith("http://")
    assert ":10024/blackbox/" in url

    def analyzed() -> str | None:
        page = get(stack.url("exporter") + urlsplit(url).path)
        return None if "http-equiv" in page or 'class="state idle"' in page else page

    end = time.monotonic() + 90
    while (page := analyzed()) is None and time.monotonic() < end:
        time.sleep(0.5)
    assert page is not None, "no verdict within 30 s of the page"
    return unescape(re.sub(r"<[^>]*>", "", page[page.index('<p class="verdict">') :].partition("</p>")[0]))


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
