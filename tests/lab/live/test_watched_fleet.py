"""Faults of Prometheus, and of what it scrapes, also work in real time."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tachograph_lab.live.watched_fleet import WatchedFleet
from tachograph_lab.scenario import Fleet, Scenario
from tachograph_lab.scenario.faults import PrometheusAway, PrometheusRestart, Vanish

STORY = Scenario(
    title="t", story="s", lasts=60, scrape=1, evaluation=2, fleet=Fleet(run="live", nodes=2, gpus_per_node=1),
    faults=(Vanish(at=10, lasts=20, nodes=(1,)), PrometheusAway(at=35, lasts=2), PrometheusRestart(at=40)),
)  # fmt: skip


def targets(watched: WatchedFleet) -> list[str]:
    """Return the nodes whose exporters service discovery names."""
    groups = json.loads((watched.folder / "prometheus/targets/tachograph.yml").read_text(encoding="utf-8"))
    return [group["labels"]["instance"] for group in groups]


def first_seen(watched: WatchedFleet, expression: str) -> float:
    """Return when Prometheus first had a sample, as soon as it has one."""
    deadline = time.monotonic() + 90
    while not (found := watched.query(expression)):
        assert time.monotonic() < deadline, expression
        time.sleep(0.2)
    return found[0].value


def test_a_target_vanishes_and_prometheus_starts_anew(tmp_path: Path) -> None:
    """Service discovery drops the exporter for a while; then the server is another one and knows nothing of before."""
    with WatchedFleet(STORY, tmp_path, "http://127.0.0.1:9", suite="bookworm") as watched:
        assert watched.moments() == [10, 30, 35, 37, 40]
        watched.meet(10)
        assert targets(watched) == ["node-0"]
        watched.meet(30)
        assert targets(watched) == ["node-0", "node-1"]
        oldest = "min(min_over_time(timestamp(up)[1h:1s]))"
        before = first_seen(watched, oldest)
        settings = (watched.folder / "prometheus/prometheus.yml").read_text(encoding="utf-8")
        assert "scrape_interval: 1000ms" in settings
        old = [child.pid for child in watched.children.running if child.name == "prometheus"]
        watched.meet(35)
        assert [child.name for child in watched.children.running if child.name == "prometheus"] == []
        watched.meet(37)
        assert first_seen(watched, oldest) == before
        old = [child.pid for child in watched.children.running if child.name == "prometheus"]
        watched.meet(40)
        new = [child.pid for child in watched.children.running if child.name == "prometheus"]
        assert (len(old), len(new), old != new) == (1, 1, True)
        assert first_seen(watched, oldest) > before
