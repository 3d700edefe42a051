"""A made-up past as samples in a real Prometheus: five days of 24 nodes and two runs, with known answers."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tachograph_lab import binaries
from tachograph_lab.processes import Children, answers, free_port

ROOT = Path(__file__).resolve().parents[2]
HOUR, DAY = 3600, 86_400
LENGTH = 5 * DAY
NODES = [f"node-{number:02}" for number in range(24)]
BLAMED = {"node-03": 9, "node-07": 5, "node-11": 1, "node-12": 1, "node-13": 1, "node-20": 1}
"""Incidents of each node."""
AFTER_SAVES, ELSEWHERE = 18, 8
"""Failures of the run, by what precedes them."""


@dataclass(frozen=True)
class MadePast:
    """The URL of a Prometheus with the past, its first and last Unix time, and the times of the run's failures."""

    url: str
    start: int
    end: int
    failures: list[int]


class Exposition:
    """Samples in OpenMetrics text, a family at a time."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, at: float, value: float, **labels: str) -> None:
        """Add a sample."""
        text = ",".join(f'{key}="{content}"' for key, content in labels.items())
        self._families.setdefault(name, []).append(f"{name}{{{text}}} {value} {at}\n")

    def write(self, path: Path) -> None:
        """Write everything to a file."""
        with path.open("w", encoding="utf-8") as file:
            for lines in self._families.values():
                file.writelines(lines)
            file.write("# EOF\n")


def alert(page: Exposition, began: int, seconds: int, **labels: str) -> None:
    """Add an alert that fires for a while."""
    for at in range(began, began + seconds, 60):
        page.add("ALERTS", at, 1, alertstate="firing", severity="critical", **labels)
        page.add("ALERTS_FOR_STATE", at, began, severity="critical", **labels)


def of_run(page: Exposition, start: int, chance: random.Random) -> list[int]:
    """Add a run that saves every hour, and fails after saves far more often than else; return when it failed."""
    saves = [start + hour * HOUR + 600 for hour in range(LENGTH // HOUR)]
    chosen = chance.sample(saves[3:-2], AFTER_SAVES + ELSEWHERE)
    after = [at + 200 for at in chosen[:AFTER_SAVES]]
    failures = sorted([*after, *(at + chance.randrange(1200, 2400) for at in chosen[AFTER_SAVES:])])
    evaluations = sorted(start + chance.randrange(LENGTH) for _ in range(250))
    xids = sorted(start + chance.randrange(LENGTH) for _ in range(30))
    changes = [start + 20 * HOUR, start + 70 * HOUR]
    for at in range(start, start + LENGTH, 60):
        down = any(300 <= at - one < 600 for one in failures)
        if not down:
            page.add("run:alive_timestamp_seconds:max", at, at, run="hurt")
            page.add("node:run:info", at, 1, run="hurt", instance="node-05")
        page.add("run:restarts:max", at, sum(one + 600 <= at for one in failures), run="hurt")
        if before := [one for one in saves if one <= at]:
            page.add("run:checkpoint_timestamp_seconds:max", at, before[-1], run="hurt")
        if any(0 <= at - one < 120 for one in evaluations):
            page.add("run:lost_seconds:rate2m", at, 4, run="hurt", cause="eval")
        if before := [one for one in xids if one <= at]:
            page.add("tachograph_gpu_xid_timestamp_seconds", at, before[-1], instance="node-05", gpu="0", xid="13")
        if before := [one for one in changes if one <= at]:
            page.add("tachograph_run_batch_changed_seconds", at, at - before[-1], run="hurt", instance="node-05")
        page.add(
            "run:learning_rate:max",
            at,
            (3e-4 if at < changes[0] else 1e-4) * (1 - (at - start) / LENGTH / 2),
            run="hurt",
        )
    for one in failures:
        alert(page, one, 300, alertname="RankFailed", run="hurt", rank="3", instance="node-05")
        alert(page, one + 60, 200, alertname="RunHung", run="hurt")
    return failures


def of_nodes(page: Exposition, start: int, chance: random.Random) -> None:
    """Add the nodes, and what each was blamed for."""
    for node in NODES:
        for at in range(start, start + LENGTH, 240 if node == NODES[0] else DAY):
            page.add("node:exporter_up:max", at, 1, instance=node)
    for node, number in BLAMED.items():
        for place in range(number):
            at = start + (place * LENGTH // 10 + chance.randrange(HOUR)) // 300 * 300
            name = "NicLinkDown" if node == "node-07" and place < 2 else "GpuXidFatal" if place < 4 else "StragglerNode"
            labels = {"alertname": name, "instance": node, "run": f"run-{place % 3}", "severity": "critical"}
            if name == "GpuXidFatal":
                labels |= {"gpu": "3", "uuid": f"GPU-{node}"}
            for seconds in (120, 180):  # as rules do that are evaluated every minute
                page.add("node:blamed_timestamp_seconds:min", at + seconds, at, **labels)
            if name == "NicLinkDown":
                for seconds in (0, 60, 120):
                    page.add(
                        "node:nic_down_seconds:max", at + seconds, seconds, instance=node, device="mlx5_0", port="1"
                    )


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadePast]:
    """A Prometheus with the past and our rules."""
    folder, programs = tmp_path_factory.mktemp("past"), binaries.find("bookworm")
    end = int(time.time()) // 1800 * 1800 - HOUR
    start, page, chance = end - LENGTH, Exposition(), random.Random(7)
    failures = of_run(page, start, chance)
    of_nodes(page, start, chance)
    for at in range(start, end, 60):
        page.add("run:alive_timestamp_seconds:max", at, at, run="well")
        page.add("node:run:info", at, 1, run="beside", instance="node-07" if at < start + LENGTH // 4 else "node-08")
    for run in ("hurt", "well", "beside"):
        for at in range(start, end, 1800):
            page.add("tachograph_rank_info", at, 1, run=run, rank="0", instance="node-05")
    page.write(folder / "samples.txt")
    make = [programs["promtool"], "tsdb", "create-blocks-from", "--max-block-duration=168h", "openmetrics"]
    done = subprocess.run(
        [*make, folder / "samples.txt", folder / "data"], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    rules = folder / "rules"
    rules.mkdir()
    for path in (ROOT / "prometheus/rules").glob("*.yml"):  # they are read, and have nothing to do
        text = re.sub(r"(?m)^    interval: .+\n", "", path.read_text(encoding="utf-8"))
        (rules / path.name).write_text(text, encoding="utf-8")
    settings = {"global": {"evaluation_interval": "1h"}, "rule_files": [str(rules / "*.yml")]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with Children(folder) as children:
        address = f"127.0.0.1:{free_port()}"
        command: list[str | Path] = [
            programs["prometheus"], f"--config.file={folder / 'prometheus.yml'}", "--storage.tsdb.retention.time=1y",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
        ]  # fmt: skip
        prometheus = children.start("prometheus", command)
        prometheus.wait_until(lambda: answers(f"http://{address}/-/ready"), 90)
        yield MadePast(f"http://{address}", start, end, failures)
