"""Two Alertmanagers that know each other send what one alone would."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tachograph_lab.live.cells import PEER_TIMEOUT
from tachograph_lab.pager import RESOLVED, Pager
from tachograph_lab.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (ROOT / "alertmanager/alertmanager.yml").read_text(encoding="utf-8")
PAGER = "http://localhost:5001"
RUNS = 12
GAP_SECONDS = 1.3
"""So that ends are spread over all of what an Alertmanager waits for the other one, 15 s by default."""

AT_MOST = RUNS // 4
"""What may be repeated all the same: what ends between the turns of the two, which are some moments apart on a busy
machine. With the default 10 of 12 were."""


def test_the_documents_have_the_flag() -> None:
    """The lab runs what a site is told to run."""
    assert PEER_TIMEOUT in (ROOT / "docs/deploy/scale-out.md").read_text(encoding="utf-8")


@pytest.mark.e2e
@pytest.mark.slow
def test_what_has_ended_is_not_sent_again(
    programs: Mapping[str, Path], alertmanager: Callable[..., Any], tmp_path: Path
) -> None:
    """The second one waits for the first in each turn. Longer than a turn, and it repeats what has ended since."""
    gossip = [free_port(), free_port()]
    with ExitStack() as stack:
        pager = stack.enter_context(Pager())
        text = SHIPPED.replace(PAGER, pager.url)
        both = [
            stack.enter_context(
                alertmanager(
                    programs["alertmanager"], tmp_path / f"am-{number}", text,
                    f"--cluster.listen-address=127.0.0.1:{gossip[number]}",
                    f"--cluster.peer=127.0.0.1:{gossip[1 - number]}", PEER_TIMEOUT,
                )
            )
            for number in range(2)
        ]  # fmt: skip
        alerts = [{"alertname": "RankDead", "run": f"r{number}", "rank": "3"} for number in range(RUNS)]
        began = time.time()
        for one in both:
            one.raise_alerts(alerts)
        pager.wait_for(lambda _: len(pager.pages()) == RUNS, 60)
        for alert in alerts:
            for one in both:
                one.end_alerts([alert], began)
            pager.wait_for(lambda _: False, GAP_SECONDS)
        pager.wait_for(lambda _: pager.times_sent("RankDead", RESOLVED) >= RUNS, 60)
        pager.wait_for(lambda _: pager.times_sent("RankDead") > RUNS, 25)
        assert RUNS <= pager.times_sent("RankDead") <= RUNS + AT_MOST
        assert RUNS <= pager.times_sent("RankDead", RESOLVED) <= RUNS + AT_MOST
