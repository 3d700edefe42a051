"""A fleet that exists only as samples: every metric of the catalog, 64 ranks on 8 nodes, in a real Prometheus."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tachograph.catalog import index as c
from tachograph_lab import binaries
from tachograph_lab.processes import Children, answers, free_port

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
NAMES = sorted(path.stem for path in (ROOT / "grafana/dashboards").glob("*.json"))
RUN = "llama-7b"
GPUS_PER_NODE = 8
RANKS = 64  # more than the 50 series that a panel may draw
PAST, FUTURE, STEP = 900, 120, 15  # seconds of samples before and after now: the rules run live, over 20 s and more
SLOW, DEAD, SILENT = 5, 11, 20
DIED = PAST - 30
WINDOW = {"__rate_interval": "30s", "__interval": "15s", "__range": "300s"}


@dataclass(frozen=True)
class Fleet:
    """Where the samples are, and the moment at which everything is asked: the rules have been evaluated then."""

    url: str
    moment: int

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of an API answer; raise on anything but success."""
        body = urllib.parse.urlencode(parameters).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", body, timeout=60) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]


@pytest.fixture(scope="session")
def expressions() -> Iterator[ModuleType]:
    """The module grafana/expressions.py: what dashboards ask."""
    sys.path.insert(0, str(ROOT / "grafana"))
    yield importlib.import_module("expressions")
    sys.path.remove(str(ROOT / "grafana"))


@pytest.fixture(scope="session")
def dashboards(expressions: ModuleType) -> dict[str, Json]:
    """Every committed dashboard by the name of its file, as Grafana would read it."""
    loaded: dict[str, Json] = expressions.load()
    return loaded


@pytest.fixture(params=NAMES)
def dashboard(request: pytest.FixtureRequest, dashboards: dict[str, Json]) -> Json:
    """Each dashboard in turn."""
    return dashboards[request.param]


@pytest.fixture
def panels(dashboard: Json, expressions: ModuleType) -> list[Json]:
    """Every panel of the dashboard that draws something."""
    return [panel for panel in expressions.panels(dashboard) if panel["type"] != "row"]


@pytest.fixture(scope="session")
def fill(expressions: ModuleType) -> Callable[..., str]:
    """Return the function that puts values where Grafana would: what a person finds, or what is given."""

    def filled(dashboard: Json, expression: str, **chosen: str) -> str:
        text = expressions.filled(expression, expressions.defaults(dashboard, RUN) | WINDOW | chosen)
        return re.sub(r":(1m|15s)\]", ":1s]", text)  # the rules have run for seconds only: a wider grid may miss them

    return filled


OWN_LABELS = {
    "group": ("0",),
    "op": ("all_reduce",),
    "world_size": (str(RANKS),),
    "phase": ("data", "forward", "backward"),
    "error": ("corrected", "uncorrected"),
    "scope": ("volatile",),
    "reason": ("died",),
    "kind": ("died",),
    "state": ("running",),
    "unit": ("mfu", "flops", "hardware_flops", "tokens", "samples"),
}
"""Values of labels that the catalog leaves open; any other label is "x"."""


Moment = Callable[[int, float, float], float | None]
VALUES: dict[str, Moment] = {
    c.EXPORTER_TIME.name: lambda _, now, __: now,  # else every clock is decades behind, and each end decades ahead
    c.RANK_UP.name: lambda place, _, age: float(not dead(place, age)),
    c.RANK_HEARTBEAT.name: lambda _, now, __: now,
    # A dead rank shows none; written to disk, the ones before would be seen for five minutes more.
    c.RANK_START.name: lambda place, now, age: None if place == DEAD else now - age,
    c.RANK_PROGRESS.name: lambda _, now, __: now,
    c.RUN_PROGRESS.name: lambda _, now, __: now,
    # The rest waits for the dead rank: a run that goes on has outlived its end after a minute, and names it no more.
    c.RUN_PROGRESS_AGE.name: lambda _, __, age: max(0.0, age - DIED),
    c.RUN_OVERDUE.name: lambda _, __, ___: 0.0,
    c.RUN_START_STALLED.name: lambda _, __, ___: 0.0,
    c.RUN_EXCUSED.name: lambda _, __, age: 100 + age,
    c.RUN_PAUSED.name: lambda _, __, age: 100 + age,
    c.RUN_HANG_LIMIT.name: lambda _, __, ___: 18.0,
    c.RUN_RANKS.name: lambda place, _, age: float(
        GPUS_PER_NODE - (dead(DEAD, age) and place <= DEAD < place + GPUS_PER_NODE)
    ),
    c.TRAIN_CHECKPOINT_TIMESTAMP.name: lambda _, now, age: now - age % 300,
    c.TRAIN_STEP.name: lambda _, __, age: age // 0.5,
    c.TRAIN_TOTAL_STEPS.name: lambda _, __, ___: 1e6,
    c.TRAIN_STEPS.name: lambda _, __, age: age // 0.5,
    c.TRAIN_COLLECTIVE_ENQUEUED.name: lambda place, _, age: age // 0.5 - (place == SLOW),
    c.TRAIN_COLLECTIVE_COMPLETED.name: lambda _, __, age: age // 0.5 - 1,
    c.TRAIN_RECENT_WAIT.name: lambda place, _, __: 0.02 if place == SLOW else 0.3,
    c.TRAIN_FLOPS.name: lambda _, __, age: age * 4e14,
    c.RANK_PEAK_FLOPS.name: lambda _, __, ___: 989e12,
    c.RUN_FIRST_END.name: lambda place, _, age: age - DIED if place == DEAD and dead(place, age) else None,
    c.RUN_FROZEN.name: lambda place, _, age: (
        40 + age if place == SILENT else None
    ),  # one: many would crowd out the dead one
    c.RUN_CHECKPOINT_TIMESTAMP.name: lambda _, now, age: now - age % 300,
    c.RUN_UNSAVED.name: lambda _, __, age: age % 300,
    c.RUN_RANK_STEP.name: lambda _, __, age: age // 0.5,
    c.RUN_TRAIN_STEP.name: lambda _, __, age: age // 0.5,
    c.RUN_STEPS.name: lambda _, __, age: age // 0.5,
    c.RUN_LEAST_WAIT.name: lambda place, _, __: 0.02 if place == SLOW else 0.3,
    c.TRAIN_LOSS_SPIKE_STEPS.name: lambda _, __, ___: 0.0,
    c.RUN_LOSS_SPIKE_STEPS.name: lambda _, __, ___: 0.0,
    c.GPU_ECC_ERRORS.name: lambda _, __, ___: 0.0,
    c.GPU_UP.name: lambda _, __, ___: 1.0,
}
"""The value of a rank or GPU, by its place, the time and the age of the fleet; other metrics follow from their kind."""
TROUBLES = (
    c.RUN_ENDED_TOGETHER, c.RUN_ENDED_ATTEMPT, c.RUN_ENDED, c.RUN_STEPS_SHORT, c.RUN_FRUITLESS_ATTEMPTS,
    c.RUN_FINISHED, c.RUN_LOSS_SPIKED, c.RUN_LOSS_NONFINITE_STEP, c.RUN_LOSS_NONFINITE_RANKS,
    c.RUN_LOSS_NONFINITE_SECONDS, c.RUN_GRAD_NORM_NONFINITE_STEPS, c.RUN_GRAD_NORM_SPIKE_STEPS, c.RUN_VAL_LOSS_SPIKE,
    c.RUN_AMP_SKIPPED, c.RUN_GLOBAL_BATCH_WRONG_STEPS, c.RUN_CHECKPOINT_FAILED, c.RUN_CHECKPOINT_SAVING,
    c.RUN_DATA_STALL, c.RUN_HANG_STILL, c.RUN_HANG_ENQUEUED, c.RUN_HANG_SUSPECT, c.RUN_HANG_SUSPECT_ENQUEUED,
    c.RUN_MEMORY_LEAK, c.RUN_MEMORY_LEAKING, c.RUN_MEMORY_RETRIES, c.RANK_SHARES_GPU,
)  # fmt: skip
"""What nodes say of troubles that this fleet does not have: nothing."""
VALUES |= {metric.name: lambda *_: None for metric in TROUBLES}


def dead(place: int, age: float) -> bool:
    """Whether the rank at this place has died by now."""
    return place == DEAD and age > DIED


def value(metric: c.Metric, labels: dict[str, str], place: int, now: float, age: float) -> float | None:
    """Return a sample's value, or None where there is no sample."""
    if metric is c.RANK_STATE:
        return float(labels["state"] == ("dead" if dead(place, age) else "running"))
    if metric is c.RANK_ENDED:
        return now - age + DIED if dead(place, age) else None
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
            if metric.kind == c.NATIVE_HISTOGRAM:
                continue  # scraped as text
            if metric.kind == c.HISTOGRAM:
                for bound, share in (("0.25", 0.0), ("0.5", 0.9), ("1.0", 1.0), ("+Inf", 1.0)):
                    yield f"{metric.name}_bucket", labels | {"le": bound}, place, share
                yield f"{metric.name}_sum", labels, place, 0.5
                yield f"{metric.name}_count", labels, place, 1.0
            else:
                yield metric.name, labels, place, 1.0


ENGINE = {"run": RUN, "engine": "engine:8000", "model_name": "m"}
"""What vLLM's metrics are labelled with here; one engine on each node, under one name."""

POD = {"namespace": "research", "pod": "train-0", "uid": "5"}
"""Of a pod in kube-state-metrics."""

HOSTS: dict[str, tuple[Moment, dict[str, str]]] = {
    'up{job="tachograph"}': (lambda *_: 1.0, {}),
    'up{job="node"}': (lambda *_: 1.0, {}),
    'scrape_duration_seconds{job="tachograph"}': (lambda place, *_: 0.01 + 0.001 * place, {}),
    'scrape_samples_scraped{job="tachograph"}': (lambda *_: 1000.0, {}),
    'process_cpu_seconds_total{job="tachograph"}': (lambda _, __, age: age * 0.005, {}),
    'process_resident_memory_bytes{job="tachograph"}': (lambda *_: 5e7, {}),
    "node_memory_MemAvailable_bytes": (lambda *_: 6e11, {}),
    "node_memory_MemTotal_bytes": (lambda *_: 1e12, {}),
    "node_pressure_cpu_waiting_seconds_total": (lambda _, __, age: age * 0.01, {}),
    "node_pressure_memory_stalled_seconds_total": (lambda *_: 0.0, {}),
    "node_pressure_io_stalled_seconds_total": (lambda _, __, age: age * 0.001, {}),
    "node_filesystem_avail_bytes": (lambda *_: 4e11, {"device": "/dev/md0", "mountpoint": "/"}),
    "node_filesystem_size_bytes": (lambda *_: 1e12, {"device": "/dev/md0", "mountpoint": "/"}),
    "node_filesystem_readonly": (lambda *_: 0.0, {"device": "/dev/md0", "mountpoint": "/"}),
    "node_disk_read_bytes_total": (lambda _, __, age: age * 1e8, {"device": "md0"}),
    "node_network_receive_bytes_total": (lambda _, __, age: age * 1e8, {"device": "eth0"}),
    "node_infiniband_port_data_transmitted_bytes_total": (lambda _, __, age: age * 1e10, {"device": "mlx5_0"}),
    "node_infiniband_port_data_received_bytes_total": (lambda _, __, age: age * 1e10, {"device": "mlx5_0"}),
    "node_infiniband_np_cnp_packets_sent_total": (lambda *_: 0.0, {"device": "mlx5_0"}),
    'vllm:num_requests_running{job="engines"}': (lambda place, *_: 12.0 + place, ENGINE),
    'vllm:num_requests_waiting{job="engines"}': (lambda *_: 3.0, ENGINE),
    'vllm:generation_tokens_total{job="engines"}': (lambda _, __, age: age * 2100.0, ENGINE),
    'vllm:kv_cache_usage_perc{job="engines"}': (lambda *_: 0.6, ENGINE),
    'vllm:num_preemptions_total{job="engines"}': (lambda _, __, age: age * 0.01, ENGINE),
    'vllm:e2e_request_latency_seconds_sum{job="engines"}': (lambda _, __, age: age * 11.0, ENGINE),
    'vllm:e2e_request_latency_seconds_count{job="engines"}': (lambda _, __, age: age * 0.5, ENGINE),
    'vllm:rl_weight_update_operation_duration_seconds_count{job="engines"}': (
        lambda _, __, age: age // 60,
        ENGINE | {"operation": "finish"},
    ),
    "node_infiniband_local_ack_timeout_errors_total": (lambda *_: 0.0, {"device": "mlx5_0"}),
    'slurm_jobs_pending{job="slurm"}': (lambda *_: 27.0, {}),
    'kube_pod_status_phase{job="kube-state-metrics"}': (lambda *_: 1.0, POD | {"phase": "Pending"}),
    'kube_pod_created{job="kube-state-metrics"}': (lambda _, now, age: now - age - 60.0, POD),
    'kube_pod_container_resource_requests{job="kube-state-metrics"}': (
        lambda *_: 8.0,
        POD | {"container": "train", "resource": "nvidia_com_gpu", "unit": "integer"},
    ),
}
"""Series of Prometheus itself, for each exporter, and of node_exporter; a name may include its job."""


def hosts() -> Iterator[tuple[str, dict[str, str], int, Moment]]:
    """Yield name, labels, place and values of every series that no exporter of ours shows."""
    for key, (moment, labels) in HOSTS.items():
        name, _, job = key.partition("{")
        fixed = {"job": job.split('"')[1] if job else "node"} | labels
        for place in range(RANKS // GPUS_PER_NODE):
            yield name, {"instance": f"node-{place:02d}"} | fixed, place, moment


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
    for name, labels, place, moment in hosts():
        text = ",".join(f'{label}="{content}"' for label, content in labels.items())
        for now in moments:
            yield f"{name}{{{text}}} {moment(place, now, now - began)} {now}\n"
    yield "# EOF\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A Prometheus that holds the fleet and runs the shipped rules over it."""
    folder, programs = tmp_path_factory.mktemp("fleet"), binaries.find("bookworm")
    began = float(int(time.time()) - PAST)
    samples, data = folder / "samples.txt", folder / "data"
    with samples.open("w", encoding="utf-8") as file:
        file.writelines(exposition(began, began + PAST + FUTURE))
    make = [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", samples, data]
    subprocess.run(make, check=True, capture_output=True, timeout=250)
    (folder / "rules").mkdir()
    for path in (ROOT / "prometheus/rules").glob("*.yml"):  # all of them each second: no test waits for a slow group
        text = re.sub(r"(?m)^    interval: .+\n", "", path.read_text(encoding="utf-8"))
        (folder / "rules" / path.name).write_text(text, encoding="utf-8")
    ours, theirs = (f"127.0.0.1:{free_port()}" for _ in range(2))
    settings = {
        "global": {"evaluation_interval": "1s", "scrape_interval": "1s"},
        # The samples reach beyond now, and what the rules record at now lies before the newest of them.
        "storage": {"tsdb": {"out_of_order_time_window": "1h"}},
        "rule_files": [str(folder / "rules/*.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [theirs]}]}]},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]}
            for job, address in (("prometheus", ours), ("alertmanager", theirs))
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [
        programs["prometheus"],
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=1y",
        f"--web.listen-address={ours}",
    ]
    alerting = [
        programs["alertmanager"],
        f"--config.file={ROOT / 'alertmanager/alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={theirs}",
        "--cluster.listen-address=",
    ]
    with Children(folder) as children:
        children.start("alertmanager", alerting)
        prometheus = children.start("prometheus", command)
        prometheus.wait_until(lambda: answers(f"http://{ours}/-/ready"), 60)
        # Records are made of records, five deep at most; Prometheus counts its own rounds. And a sample must have come
        # since the run's first record: its batch changed a moment before each sample.
        ready = (
            "min(prometheus_rule_group_iterations_total) >= 7 and on () process_cpu_seconds_total{job='alertmanager'}"
            f" and on () (timestamp({c.RUN_BATCH_CHANGED.name})"
            " > on (instance) min_over_time(timestamp(node:run:info)[5m:1s]) + 1)"
        )
        live = Fleet(f"http://{ours}", 0)
        moment = 0

        def is_ready() -> bool:
            nonlocal moment
            moment = int(time.time()) - 1
            return bool(live.ask("query", query=ready, time=moment)["result"])

        prometheus.wait_until(is_ready, 250)
        # Everything is asked at that moment: further rounds would only take a core from the questions.
        seldom = {"global": {"evaluation_interval": "1h", "scrape_interval": "1s"}}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings | seldom), encoding="utf-8")
        prometheus.process.send_signal(signal.SIGHUP)
        yield Fleet(live.url, moment)
