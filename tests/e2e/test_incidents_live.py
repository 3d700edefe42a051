"""Incidents replayed in real time, in small: simulated ranks on real exporters, the real Prometheus and Alertmanager.

The whole stories are replayed by `make incidents-live`. Here five run side by side, each in a stack of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tachograph_lab.live.watched_fleet import replay_live
from tachograph_lab.replay.verdict import ReplayVerdict
from tachograph_lab.scenario import load

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]

STORY = """\
title: {name}
story: {name}, on nodes of two GPUs.
seed: 1
lasts: {lasts}
fleet: {{run: {name}, nodes: {nodes}, gpus_per_node: 2}}
faults: [{fault}]
expect: [{expect}]
"""

SHORT = {
    "nan": (
        1,
        48,
        "{fault: nan, at: 16, rank: 1, what: loss}",
        '{alert: LossNotFinite, receiver: page, within: 30, labels: {run: nan, rank: "1", instance: node-0}}',
    ),
    "killed": (
        2,
        50,
        "{fault: kill, at: 16, rank: 1, cause: oom}",
        '{alert: RankDead, receiver: page, within: 30, labels: {run: killed, rank: "1", instance: node-0}}',
    ),
    "frozen": (
        2,
        58,
        "{fault: freeze, at: 16, rank: 2}",
        '{alert: RankFrozen, receiver: page, within: 40, labels: {run: frozen, rank: "2", instance: node-1}}',
    ),
    "caught": (
        2,
        50,
        "{fault: exit, at: 16, ranks: [0], code: 1, others: end}",
        '{alert: RankFailed, receiver: page, within: 32, labels: {run: caught, rank: "0", instance: node-0}}',
    ),
    "new": (
        2,
        100,
        "{fault: stuck, at: 24, rank: 1, phase: data}, {fault: prometheus_restart, at: 30}",
        '{alert: RunHung, receiver: page, within: 65, of: 2, labels: {run: new, rank: "1", instance: node-0}}',
    ),
}
"""Name -> how many nodes, how long it lasts, what happens, and what must be received; nothing else may be."""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[ReplayVerdict]]]:
    folder: Path = tmp_path_factory.mktemp("stories")
    with ThreadPoolExecutor(len(SHORT)) as pool:
        playing = {}
        for name, (nodes, lasts, fault, expect) in SHORT.items():
            path = folder / f"{name}.yaml"
            path.write_text(
                STORY.format(name=name, nodes=nodes, lasts=lasts, fault=fault, expect=expect), encoding="utf-8"
            )
            playing[name] = pool.submit(replay_live, load(path))
        yield playing


@pytest.mark.parametrize("name", SHORT)
def test_one_page_names_the_culprit(verdicts: dict[str, Future[ReplayVerdict]], name: str) -> None:
    """A fault on one rank brings one page, with run, rank and node, and nobody hears anything else."""
    verdict = verdicts[name].result()
    assert verdict.ok, "\n".join(verdict.lines)
