"""The shipped Prometheus takes the page of a node whose ranks say all that they may, and more."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.catalog import index as catalog
from tachograph.node.gpu.reading_table import ACTIVITIES, CALLS, FIELDS
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.run_names import MAX_SHOWN_BYTES
from tachograph.wire import MAX_NAME_BYTES
from tachograph_lab.monitoring import Monitoring
from tachograph_lab.processes import answers, free_port

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
GPUS = 16
LONGEST = "訓" * (MAX_NAME_BYTES // 3)


def job() -> dict[str, Any]:
    configuration = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    return next(each for each in configuration["scrape_configs"] if each["job_name"] == "tachograph")


def test_the_limits_fit_into_each_other() -> None:
    """The largest page of ranks and sixteen GPUs is below Prometheus' limit, and so is the longest label."""
    of_a_gpu = sum(len(call.values) for call in CALLS) + len(FIELDS) + len(ACTIVITIES)
    links = 18 * 8  # NVLinks, with what is read of each in detail
    by_dcgms_names = sum(len(metric.dcgm) for metric in catalog.METRICS)
    own = 200
    assert Limits().series + GPUS * (of_a_gpu + links + by_dcgms_names) + own <= job()["sample_limit"]
    assert job()["label_value_length_limit"] >= MAX_SHOWN_BYTES > MAX_NAME_BYTES
    assert job()["label_limit"] > max(len(metric.labels) for metric in catalog.METRICS) + len(("instance", "job"))


@pytest.fixture
def hoard(tmp_path: Path) -> Iterator[tuple[Monitoring, list[socket.socket]]]:
    """An exporter that Prometheus scrapes, and 64 ranks that hold all the series they may."""
    with Monitoring(tmp_path / "stack", "http://127.0.0.1:9") as monitoring, ExitStack() as stack:
        port, path = free_port(), monitoring.scratch / "rank.sock"
        command = ["-m", "tachograph", "exporter", "--no-gpu", f"--web.listen-address=127.0.0.1:{port}"]
        exporter = monitoring.children.start("exporter", [sys.executable, *command, f"--socket={path}"])
        exporter.wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 90)
        monitoring.aim("tachograph", {"node-1": f"127.0.0.1:{port}"})
        wide = {
            row.key: {f"{LONGEST[:20]}{label}": 1.0 for label in range(32)}
            for row in catalog.TRAIN_METRICS.values()
            if row.own_label in ("layer", "name", "group") and not row.merged
        }
        ranks = []
        for rank in range(Limits().ranks):
            speaker = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            speaker.connect(str(path))
            hello = {"v": 1, "type": "hello", "run": LONGEST, "rank": rank, "uuid": LONGEST, "world_size": 64}
            state = {"v": 1, "type": "state", "seq": 1, "time": time.time(), "step": 5, "metrics": wide}
            for frame in (hello, state):
                speaker.sendall(json.dumps(frame, ensure_ascii=False).encode() + b"\n")
            ranks.append(speaker)
        yield monitoring, ranks


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_prometheus_takes_a_hoarders_page(hoard: Any, wait_for: Callable[..., Any]) -> None:
    """64 ranks of 256 series, with names as long as they may be in a script of three bytes: the node stays in sight."""
    monitoring, _ = hoard
    full = 'tachograph_exporter_series_dropped_total{reason="series_limit"} > 5000'
    wait_for(lambda: monitoring.query(full), 120, "page with all that it may have")
    wait_for(lambda: monitoring.query('up{job="tachograph"} == 1'), 60, "scrape")
    (scraped,) = monitoring.query('scrape_samples_scraped{job="tachograph"}')
    assert 0.9 * Limits().series <= scraped.value <= job()["sample_limit"]
    wait_for(lambda: monitoring.query(f"count(tachograph_rank_up == 1) == {Limits().ranks}"), 60, "page with all ranks")
