"""A client of no library of ours, with plain counters only, is judged as ours is: the right rank, as soon."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import FIRING, PagedAlert, Pager

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

CLIENT = Path(__file__).with_name("plain_client.py")
RANKS, CULPRIT, AT = 4, 2, 300
"""The fault comes at the 300th step, after 45 s."""

STEPS_BETWEEN_FRAMES = 20
"""More than a rank makes between two frames, a second apart."""

DEADLINE = 240.0
FAULTS = {"hang": "RunHung", "slow": "StragglerRank", "die": "RankDead", "nan": "LossNotFinite"}
"""Each fault, and its page."""


@pytest.fixture(scope="module")
def stack(pager: Pager, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("stack"), pager.url) as running:
        yield running


def test_each_fault_names_its_rank(stack: Stack, pager: Pager, record_property: Callable[[str, object], None]) -> None:
    """Four runs at once on one node, each with a fault of its own; each has its one page, and nobody else's."""
    environment = {"TACHOGRAPH_SOCKET": str(stack.socket)}
    for fault in FAULTS:
        command = [sys.executable, CLIENT, fault, str(RANKS), fault, str(CULPRIT), str(AT)]
        stack.children.start(f"client-{fault}", command, environment)
    for fault, alert in FAULTS.items():
        page = pager.wait_for(lambda page, alert=alert: page.alert == alert and page.status == FIRING, DEADLINE)  # type: ignore[misc]
        assert page is not None, [(each.alert, dict(each.labels)) for each in pager.pages()]
        run, rank = page.labels["run"], page.labels["rank"]
        assert (run.rpartition("/")[2], rank) == (fault, str(CULPRIT)), page.annotations
        if fault == "nan":
            step = re.search(
                r"NaN or infinite, first on rank 2 \([^)]*\) at step (\d+)", page.annotations["description"]
            )
            assert step is not None, page.annotations
            assert AT <= int(step[1]) <= AT + STEPS_BETWEEN_FRAMES
        began = float(next((stack.folder).glob(f"**/client-{fault}*.log")).read_text(encoding="utf-8").split()[0])
        record_property(f"seconds to {alert}", round(page.time - began, 1))
        print(f"{alert}: {page.time - began:.1f} s after the fault")
    time_of_all = time.time()
    unexpected = [each for each in critical(pager) if each.time <= time_of_all and each.alert not in FAULTS.values()]
    assert not unexpected, [dict(each.labels) for each in unexpected]


def critical(pager: Pager) -> list[PagedAlert]:
    """The pages that woke somebody."""
    return [each for each in pager.pages() if each.critical and each.status == FIRING]
