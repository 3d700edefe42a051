"""Runs to compare: as samples in a real Prometheus with our rules, and as files that the client writes."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import yaml

from tachograph.catalog.rank import PHASES
from tachograph.client.core.steps import StepRecord
from tachograph.client.hello.identity import Identity
from tachograph.export.step_file import StepFile
from tachograph_lab import binaries
from tachograph_lab.processes import Children, answers, free_port

ROOT = Path(__file__).resolve().parents[2]
SCRAPE, HOUR = 15, 3600
RANKS = 16


@dataclass(frozen=True)
class Recorded:
    """The URL of a Prometheus, and the moment at which runs changed: each has an hour before it and one after."""

    url: str
    moment: float


Slowness = Callable[[int], float]
"""By what share a step is longer, at so many seconds after the beginning."""


def samples(run: str, began: float, slowness: Slowness, data_wait: Slowness) -> Iterator[tuple[str, str, float, float]]:
    """Yield name, further labels, value and time, scrape by scrape, of a run whose step takes 0.3 s."""
    random = Random(run)
    seconds = steps = 0.0
    for age in range(0, 2 * HOUR + 1, SCRAPE):
        took = 0.3 * (1 + slowness(age)) * (1 + random.gauss(0, 0.01))
        made = SCRAPE // took
        steps += made
        seconds += made * took * RANKS
        values = {
            "tachograph_train_step_seconds_sum": seconds,
            "tachograph_train_step_seconds_count": steps * RANKS,
            "tachograph_run_steps_total": steps,
            "run:ranks:count": RANKS,
            "run:scrape_interval_seconds:max": SCRAPE,
            "run:train_step:max": steps,
            "run:loss:median": 2 + 2000 / (1000 + steps) + random.gauss(0, 0.01),
            "run:tokens:rate1m": 4096 * RANKS / took,
            "run:step_mfu:ratio": 0.4 * 0.3 / took,
            "run:collective_wait_per_step_seconds:median": 0.02 * random.uniform(0.9, 1.1),
            "run:data_wait:median": data_wait(age),
            "run:data_wait:baseline": 0.05,
        }
        for name, value in values.items():
            yield name, "", value, began + age
        for phase, share in (("data", data_wait(age)), ("forward", 0.3), ("backward", 0.6 - data_wait(age))):
            yield "run:phase_seconds:median", f',phase="{phase}"', took * share, began + age
        yield "run:limit:max", ',name="data_stall_ratio"', 0.2, began + age
        yield "tachograph_train_memory_reserved_bytes", ',rank="3"', 60e9, began + age
        yield "tachograph_rank_info", ',rank="3"', 1, began + age
        yield "node:run:info", ',instance="node-0"', 1, began + age


def exposition(began: float) -> Iterator[str]:
    def later(share: float) -> Slowness:
        return lambda age: share * (age >= HOUR)

    stalls: Slowness = lambda age: 0.5 if 600 <= age < HOUR else 0.05  # noqa: E731
    runs = {
        "changed": (later(0.1), later(0.0)),
        "same/one": (later(0.0), later(0.0)),
        "same/two": (later(0.0), later(0.0)),
        "stalled": (lambda age: 0.3 if age < HOUR else 0.0, stalls),
        "stalling": (later(0.0), lambda age: 0.5 if age % 1800 < 900 else 0.05),
        "dearer": (later(0.1), stalls),
    }
    rows = [
        (name, f'{{run="{run}"{labels}}} {value} {at}')
        for run, figures in runs.items()
        for name, labels, value, at in samples(run, began, *figures)
    ]
    rows.sort(key=lambda row: row[0])  # a family is one block of lines
    yield from (f"{name}{rest}\n" for name, rest in rows)
    yield "# EOF\n"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A Prometheus with the runs and the rules about data."""
    folder, programs = tmp_path_factory.mktemp("recorded"), binaries.find("bookworm")
    began = float(int(time.time()) // 60 * 60 - 2 * HOUR - 600)
    text = folder / "samples.txt"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(exposition(began))
    make: list[str | Path] = [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", text, folder / "data"]
    done = subprocess.run(make, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rules = re.sub(r"(?m)^    interval: .+\n", "", (ROOT / "prometheus/rules/data.yml").read_text(encoding="utf-8"))
    (folder / "data.yml").write_text(rules, encoding="utf-8")
    settings = {"global": {"evaluation_interval": "1h"}, "rule_files": ["data.yml"]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    with Children(folder) as children:
        prometheus = children.start("prometheus", [
            programs["prometheus"], f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            "--storage.tsdb.retention.time=1y", f"--web.listen-address={address}",
        ])  # fmt: skip
        prometheus.wait_until(lambda: answers(f"http://{address}/-/ready"), 90)
        yield Recorded(f"http://{address}", began + HOUR)


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the steps of a run by the client's own file: `name`, by how much it is `slower`, and how many steps."""

    def run(
        name: str,
        slower: float = 0.0,
        *,
        steps: int = 200,
        tokens: float = 4096.0,
        memory: float = 60e9,
        loss: float = 2.0,
    ) -> Path:
        random, path = Random(name), tmp_path / f"{name}.jsonl"
        file = StepFile(path)
        file.start(Identity(name, 0, 0, 8, 0, 0))
        seconds, now, wait = [0.0] * len(PHASES), 0.0, 0.0
        for step in range(steps + 1):
            factor = 1 + random.gauss(0, 0.03)
            seconds[PHASES.index("forward")] += 0.1 * factor
            seconds[PHASES.index("backward")] += 0.2 * factor + 0.3 * slower
            wait += 0.01 * random.uniform(0.5, 1.5)
            began, now = now, now + 0.3 * (factor + slower)
            file.logged(step, {"loss": loss + random.gauss(0, 0.01)})
            file.observe(StepRecord(step, began, now, "warm-up" if step == 0 else None, tuple(seconds), wait))
        totals = {"steps_total": steps, "tokens_total": tokens * steps, "memory_peak_bytes": memory}
        file.write(now, steps + 1, totals)
        file.close()
        return path

    return run
