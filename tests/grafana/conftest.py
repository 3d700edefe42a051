"""A fleet that exists only as samples: every metric of the catalog, 64 ranks on 8 nodes, in a real Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph import catalog as c
from tachograph.lab import binaries
from tachograph.lab.processes import Children, answers, free_port

ROOT = Path(__file__).resolve().parents[2]
RUN = "llama-7b"
GPUS_PER_NODE = 8
RANKS = 64  # more than the 50 series that a panel may draw
PAST, FUTURE, STEP = 900, 120, 15  # seconds of samples before and after now: the rules run live over them
SLOW, DEAD = 5, 11


@dataclass(frozen=True)
class Fleet:
    """Where the samples are, and when they begin."""

    url: str
    began: float

    def now(self) -> int:
        """Return the newest moment for which the rules have been evaluated."""
        return int(time.time()) - 1

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of an API answer; raise on anything but success."""
        body = urllib.parse.urlencode(parameters).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", body, timeout=20) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]


@pytest.fixture(scope="session")
def dashboard() -> dict[str, Any]:
    """The committed dashboard, as Grafana would read it."""
    return json.loads((ROOT / "grafana/dashboards/run.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Every panel that draws something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@pytest.fixture(scope="session")
def rules() -> list[dict[str, Any]]:
    """Every recording rule and alert, in order."""
    files = sorted((ROOT / "prometheus/rules").glob("*.yml"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="session")
def fill() -> Callable[..., str]:
    """Return the function that puts values where Grafana would: the run, everything else, a window."""

    def filled(expression: str, instance: str = ".*", rank: str = ".*") -> str:
        for variable, value in (("run", RUN), ("instance", instance), ("rank", rank), ("__rate_interval", "30s")):
            expression = expression.replace(f"${variable}", value)
        assert "$" not in expression, f"an unknown variable in {expression}"
        return expression

    return filled


OWN_LABELS = {
    "group": ("0",),
    "op": ("all_reduce",),
    "world_size": (str(RANKS),),
    "phase": ("forward", "backward"),
    "error": ("corrected", "uncorrected"),
    "scope": ("volatile",),
}
"""Values of labels that the catalog leaves open; any other label is "x"."""


Moment = Callable[[int, float, float], float | None]
VALUES: dict[str, Moment] = {
    c.RANK_UP.name: lambda place, _, age: float(not dead(place, age)),
    c.RANK_HEARTBEAT.name: lambda _, now, __: now,
    c.RANK_PROGRESS.name: lambda _, now, __: now,
    c.TRAIN_CHECKPOINT_TIMESTAMP.name: lambda _, now, age: now - age % 300,
    c.TRAIN_STEP.name: lambda _, __, age: age // 0.5,
    c.TRAIN_STEPS.name: lambda _, __, age: age // 0.5,
    c.TRAIN_COLLECTIVE_ENQUEUED.name: lambda place, _, age: age // 0.5 - (place == SLOW),
    c.TRAIN_COLLECTIVE_COMPLETED.name: lambda _, __, age: age // 0.5 - 1,
    c.TRAIN_COLLECTIVE_WAIT.name: lambda place, _, age: age * (0.02 if place == SLOW else 0.3),
    c.TRAIN_FLOPS.name: lambda _, __, age: age * 4e14,
    c.RANK_PEAK_FLOPS.name: lambda _, __, ___: 989e12,
    c.TRAIN_LOSS_SPIKE_STEPS.name: lambda _, __, ___: 0.0,
    c.GPU_ECC_ERRORS.name: lambda _, __, ___: 0.0,
    c.GPU_UP.name: lambda _, __, ___: 1.0,
}
"""What a rank or GPU shows, by its place, the time, and the fleet's age; the rest follows from the kind."""


def dead(place: int, age: float) -> bool:
    """Whether the rank at this place has died by now."""
    return place == DEAD and age > PAST - 30


def value(metric: c.Metric, labels: dict[str, str], place: int, now: float, age: float) -> float | None:
    """Return a sample's value, or None where there is no sample."""
    if metric is c.RANK_STATE:
        return float(labels["state"] == ("dead" if dead(place, age) else "running"))
    if metric is c.RANK_PHASE:
        here = not dead(place, age) and labels["phase"] == ("forward" if place == SLOW else "backward")
        return age % 0.5 if here else None
    if metric.name in VALUES:
        return VALUES[metric.name](place, now, age)
    steady = 1.0 if metric.kind == c.INFO else 0.4 + 0.001 * place
    return age * steady if metric.kind == c.COUNTER else steady


def families(metric: c.Metric) -> Iterator[tuple[str, dict[str, str], int, float]]:
    """Yield name, labels, place and scale of every series of a family over the whole fleet."""
    places = range(RANKS) if set(metric.labels) & {"rank", "gpu"} else range(0, RANKS, GPUS_PER_NODE)
    own = [label for label in metric.labels if label not in ("run", "rank", "gpu", "uuid")]
    combinations = list(product(*(metric.values or OWN_LABELS.get(label, ("x",)) for label in own)))
    for place in places:
        node, gpu = divmod(place, GPUS_PER_NODE)
        facts = {"run": RUN, "rank": str(place), "gpu": str(gpu), "uuid": f"GPU-{place:04d}"}
        fixed = {"instance": f"node-{node:02d}", "job": "tachograph"} | {
            k: facts[k] for k in metric.labels if k in facts
        }
        for combination in combinations:
            labels = fixed | dict(zip(own, combination, strict=True))
            if metric.kind == c.HISTOGRAM:
                for bound, share in (("0.25", 0.0), ("0.5", 0.9), ("1.0", 1.0), ("+Inf", 1.0)):
                    yield f"{metric.name}_bucket", labels | {"le": bound}, place, share
                yield f"{metric.name}_sum", labels, place, 0.5
                yield f"{metric.name}_count", labels, place, 1.0
            else:
                yield metric.name, labels, place, 1.0


def exposition(began: float, end: float) -> Iterator[str]:
    """Yield the fleet's samples as OpenMetrics."""
    moments = [began + i * STEP for i in range(int((end - began) / STEP))]
    for metric in c.METRICS:
        for name, labels, place, scale in families(metric):
            text = ",".join(f'{label}="{content}"' for label, content in labels.items())
            for now in moments:
                age = now - began
                counted = age * 2 if metric.kind == c.HISTOGRAM else value(metric, labels, place, now, age)
                if counted is not None:
                    yield f"{name}{{{text}}} {counted * scale} {now}\n"
    yield "# EOF\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A Prometheus that holds the fleet and runs the shipped rules over it."""
    folder, programs = tmp_path_factory.mktemp("fleet"), binaries.ensure("bookworm")
    began = float(int(time.time()) - PAST)
    samples, data = folder / "samples.txt", folder / "data"
    with samples.open("w", encoding="utf-8") as file:
        file.writelines(exposition(began, began + PAST + FUTURE))
    make = [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", samples, data]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    (folder / "rules").mkdir()
    for path in (ROOT / "prometheus/rules").glob("*.yml"):  # all of them each second: no test waits for a slow group
        text = re.sub(r"(?m)^    interval: .+\n", "", path.read_text(encoding="utf-8"))
        (folder / "rules" / path.name).write_text(text, encoding="utf-8")
    settings = {
        "global": {"evaluation_interval": "1s", "external_labels": {"grafana_url": "http://localhost:3000"}},
        # The samples reach beyond now, and what the rules record at now lies before the newest of them.
        "storage": {"tsdb": {"out_of_order_time_window": "1h"}},
        "rule_files": [str(folder / "rules/*.yml")],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        programs["prometheus"],
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=1y",
        f"--web.listen-address={address}",
    ]
    with Children(folder) as children:
        prometheus = children.start("prometheus", command)
        prometheus.wait_until(lambda: answers(f"http://{address}/-/ready"), 20)
        found = Fleet(f"http://{address}", began)
        evaluated = 'rank:lag_seconds:mean and on () ALERTS{alertname="RankDead"} and on () node:gpu_sm_active:ratio'
        prometheus.wait_until(lambda: bool(found.ask("query", query=evaluated, time=found.now())["result"]), 30)
        yield found
