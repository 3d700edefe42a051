"""VictoriaMetrics in Prometheus' place, started as docs/deploy/other-prometheus.md says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tachograph_lab import binaries
from tachograph_lab.commands import replay as command
from tachograph_lab.live.victoria import FLAGS, VictoriaFleet
from tachograph_lab.live.watched_fleet import replay_live
from tachograph_lab.replay.verdict import ReplayVerdict
from tachograph_lab.scenario import load

PAGE = Path(__file__).resolve().parents[3] / "docs/deploy/other-prometheus.md"

STORY = """\
title: {name}
story: {name}, on two nodes of two GPUs.
seed: 1
lasts: 140
fleet: {{run: {name}, nodes: 2, gpus_per_node: 2}}
checkpoint: {{every: {every}, takes: 40s}}
faults: [{fault}]
expect: [{expect}]
"""

SHORT: Mapping[str, tuple[str, str, str]] = {
    "nan": (
        "1h",
        "{fault: nan, at: 60, rank: 3, what: loss}",
        '{alert: LossNotFinite, receiver: page, within: 10, labels: {run: nan, rank: "3", instance: node-1}}',
    ),
    "killed": (
        "1h",
        "{fault: kill, at: 60, rank: 3, cause: oom}",
        '{alert: RankDead, receiver: page, within: 10, labels: {run: killed, rank: "3", instance: node-1}}',
    ),
    "stuck": (
        "1h",
        "{fault: stuck, at: 60, rank: 3, phase: data}",
        '{alert: RunHung, receiver: page, within: 33, labels: {run: stuck, rank: "3", instance: node-1}}',
    ),
    "saves": ("50s", "", ""),
}
"""Name -> how often the run saves, what happens, and what Prometheus makes of it; nothing else may be received."""


def test_the_flags_are_those_of_the_page() -> None:
    """Whoever starts it as the page says has what was tried."""
    page = PAGE.read_text(encoding="utf-8")
    assert all(FLAGS.values())
    assert not [flag for flags in FLAGS.values() for flag in flags if flag not in page]


def test_another_store_is_for_live_replays(capsys: pytest.CaptureFixture[str]) -> None:
    """Virtual time has no programs but promtool."""
    with pytest.raises(SystemExit):
        command.main(["--store", "victoria", "9"])
    assert "--store needs --live" in capsys.readouterr().err


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[ReplayVerdict]]]:
    try:
        binaries.find_victoria()
    except binaries.BinariesUnavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("stories")
    with ThreadPoolExecutor(len(SHORT)) as pool:
        playing = {}
        for name, (every, fault, expect) in SHORT.items():
            path = folder / f"{name}.yaml"
            path.write_text(STORY.format(name=name, every=every, fault=fault, expect=expect), encoding="utf-8")
            playing[name] = pool.submit(replay_live, load(path), watch=VictoriaFleet)
        yield playing


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_the_same_is_paged_as_by_prometheus(verdicts: dict[str, Future[ReplayVerdict]], name: str) -> None:
    """One page that names the culprit, at most half a minute later; none of a run that saves."""
    verdict = verdicts[name].result()
    assert verdict.ok, "\n".join(verdict.lines)
