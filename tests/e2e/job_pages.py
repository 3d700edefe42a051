"""From a fault in a real PyTorch job to the page: how soon it comes is asserted by the rule tests and the replays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tachograph_lab.demo.fault_injection import InjectedFault
from tachograph_lab.demo.launch import Job
from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import FIRING, PagedAlert, Pager

PAGE_SECONDS = 150.0


@contextmanager
def injected(job: Job, fault: str, rank: int) -> Iterator[None]:
    """Inject a fault into a rank of a job for as long as the block lasts."""
    job.control.inject(InjectedFault(fault, rank=rank))
    try:
        yield
    finally:
        job.control.heal(fault)


def by_rank(stack: Stack, expression: str) -> dict[int, float]:
    """Return an instant query's values by their rank."""
    return {int(sample.labels["rank"]): sample.value for sample in stack.query(expression)}


def paged(pager: Pager, since: float) -> list[PagedAlert]:
    """Return the critical alerts that have fired since."""
    return [page for page in pager.pages() if page.critical and page.status == FIRING and page.time > since]


def the_page(pager: Pager, alert: str, since: float) -> PagedAlert:
    """Return the page of an alert."""
    page = pager.wait_for(lambda page: page.alert == alert and page.status == FIRING, PAGE_SECONDS, after=since)
    assert page is not None, f"no {alert}, but {[(p.alert, dict(p.labels)) for p in paged(pager, since)]}"
    return page
