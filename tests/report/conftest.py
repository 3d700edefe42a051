"""A made-up incident as samples: an hour of a run that has a loss spike, hangs and is restarted."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml

from tachograph_lab import binaries
from tachograph_lab.processes import Children, answers, free_port

ROOT = Path(__file__).resolve().parents[2]
RUN, HOSTILE = "llama-70b", '</title><script>alert("x")</script>\\$run'
RANKS, NODES, STEP = 32, 4, 15
CULPRIT, LATE = 21, 6
SPIKE, NAN, GAP, HANG, PAGE, END = 600, 1500, (1800, 1980), 2400, 2430, 3000
"""Events of the run, in seconds after its beginning; the last is its restart."""
LENGTH = 3600


@dataclass(frozen=True)
class Incident:
    """The URL of a Prometheus with the samples, and their first and last Unix time."""

    url: str
    start: float
    end: float
    folder: Path


Moment = Callable[[int], float | None]


def line(name: str, labels: dict[str, str], value: Moment, began: float) -> Iterator[str]:
    text = ",".join(f'{key}="{_escaped(content)}"' for key, content in labels.items())
    for age in range(0, LENGTH + 1, STEP):
        number = value(age) if not GAP[0] <= age < GAP[1] else None
        if number is not None:
            yield f"{name}{{{text}}} {number} {began + age}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def hung(age: int) -> bool:
    return HANG <= age < END


def loss(age: int) -> float | None:
    return None if age == NAN else 4.0 - age / 3600 + (9.5 if SPIKE <= age < SPIKE + 30 else 0.0)


def trained(age: int) -> int:
    """Return for how many seconds the run has made steps, two per second."""
    return min(age, HANG) + max(0, age - END)


def within(first: float, last: float, value: float = 1) -> Moment:
    """Return a function that has a value between two ages, and None before and after."""
    return lambda age: value if first <= age < last else None


def of_run(began: float) -> Iterator[tuple[str, dict[str, str], Moment]]:
    """Yield the series that the rules record of the run."""
    values: dict[str, Moment] = {
        "run:ranks:count": lambda _: RANKS,
        "run:nodes:count": lambda _: NODES,
        "run:loss:median": loss,
        "run:loss_nonfinite_ranks:count": lambda age: 1 if age == NAN else None,
        "run:loss_spike_steps:median": lambda age: age - SPIKE + 1 if SPIKE <= age < SPIKE + 30 else 0,
        "run:restarts:max": lambda age: int(age >= END),
        "run:checkpoint_step:max": lambda age: 2 * trained(age - age % 600),
        "run:checkpoint_age_seconds:min": lambda age: age % 600,
        "run:checkpoint_duration_seconds:max": lambda _: 42,
        "run:train_step:max": lambda age: 2 * trained(age),
        "run:mfu:ratio": lambda age: 0.0 if hung(age) else 0.41,
        "run:step_mfu:ratio": lambda age: None if hung(age) else 0.42,
        "run:step_mfu:baseline": lambda _: 0.415,
        "run:step_seconds:mean1m": lambda age: None if hung(age) else 0.5,
        "run:tokens:rate1m": lambda age: 0 if hung(age) else 1e6,
        "run:progress_age_seconds:min": lambda age: age - HANG if hung(age) else 0.5,
        "run:productive_seconds:rate2m": lambda age: 0 if hung(age) else RANKS * 0.9,
    }
    for name, value in values.items():
        yield name, {"run": RUN}, value
    for phase, seconds in (("generate", 0.2), ("backward", 0.2), ("collective", 0.1)):
        part = partial(lambda seconds, age: None if hung(age) else seconds, seconds)
        yield "run:phase_seconds:median", {"run": RUN, "phase": phase}, part
    for cause, lost, while_hung in (("collective", 0.1, 0.0), ("hang", 0.0, 1.0)):
        shares = partial(lambda lost, while_hung, age: RANKS * (while_hung if hung(age) else lost), lost, while_hung)
        yield "run:lost_seconds:rate2m", {"run": RUN, "cause": cause}, shares
    finished = {"run": RUN, "engine": "engine:8000", "operation": "finish"}
    yield "vllm:rl_weight_update_operation_duration_seconds_count", finished, lambda age: trained(age) // 2
    yield "tachograph_run_restarts", {"run": RUN, "attempt": "0", "world_size": str(RANKS)}, within(0, END)
    yield "tachograph_run_restarts", {"run": RUN, "attempt": "1", "world_size": str(RANKS)}, within(END, LENGTH + 1)
    for bound, share in (("0.25", 0.0), ("0.5", 0.9), ("1.0", 1.0), ("+Inf", 1.0)):
        bucket = {"run": RUN, "le": bound, "instance": "node-0"}
        yield (
            "tachograph_train_step_seconds_bucket",
            bucket,
            partial(lambda share, age: 2 * share * trained(age), share),
        )
    for node in range(NODES):
        yield "node:run:info", {"run": RUN, "instance": f"node-{node}"}, lambda _: 1
    yield (
        "node:gpu_lost:info",
        {"instance": "node-2", "gpu": "5", "uuid": "GPU-21"},
        within(HANG, END),
    )
    yield "node:gpu_lost:info", {"instance": "elsewhere", "gpu": "0", "uuid": "GPU-99"}, lambda _: 1
    xid = {"instance": "node-2", "gpu": "5", "uuid": "GPU-21", "xid": "79"}
    yield "tachograph_gpu_xid_timestamp_seconds", xid, lambda age: began + HANG if age >= HANG else None


def of_alerts(began: float) -> Iterator[tuple[str, dict[str, str], Moment]]:
    """Yield the alerts: a page that names the culprit, tickets of twelve ranks, a page of a node, an info."""
    page = {"alertname": "RunHung", "severity": "critical", "tier": "hero", "run": RUN, "rank": str(CULPRIT),
            "instance": "node-2", "gpu": "5"}  # fmt: skip
    spike = {"alertname": "LossSpike", "severity": "info", "run": RUN}
    lost = {"alertname": "GpuLost", "severity": "critical", "instance": "node-2", "gpu": "5", "uuid": "GPU-21"}
    foreign = lost | {"instance": "elsewhere", "gpu": "0"}
    crowd = [{"alertname": "GpuIdleInRun", "severity": "warning", "run": RUN, "rank": str(i)} for i in range(12)]
    when = [(page, PAGE, END), (spike, SPIKE, SPIKE + 45), (lost, HANG, END), (foreign, 0, LENGTH)]
    for labels, first, last in [*when, *((each, PAGE, END) for each in crowd)]:
        yield "ALERTS", labels | {"alertstate": "firing"}, within(first, last)
        yield "ALERTS_FOR_STATE", labels, within(first, last, began + first - 12)


def lately(value: float) -> Moment:
    """Return a figure of a rank's recent steps, which a hang has none of."""
    return lambda age: None if hung(age) else value


def of_ranks() -> Iterator[tuple[str, dict[str, str], Moment]]:
    for rank in range(RANKS):
        own = {"run": RUN, "rank": str(rank), "instance": f"node-{rank // 8}"}
        stuck = "data" if rank == CULPRIT else "collective"
        yield "tachograph_rank_info", own | {"gpu": str(rank % 8), "attempt": "0"}, lambda _: 1
        yield "tachograph_rank_up", own, lambda _: 1
        yield "rank:lag_seconds:mean", own, within(0, LENGTH + 1, 0.3 if rank == LATE else 0.001 * rank)
        for phase, seconds in (("backward", 0.25), ("data", 0.1)):
            yield "tachograph_train_recent_phase_seconds", own | {"phase": phase}, lately(seconds)
        yield "tachograph_rank_phase_seconds", own | {"phase": stuck}, lambda age: age - HANG if hung(age) else None
        yield "tachograph_rank_phase_seconds", own | {"phase": "backward"}, lambda age: None if hung(age) else 0.2
        yield "tachograph_train_recent_step_seconds", own, lately(0.5)
        yield "tachograph_train_recent_wait_seconds", own, lately(0.01 if rank == LATE else 0.15)
    late = {"run": RUN, "rank": str(LATE), "instance": "node-0"}
    yield "rank:late_ratio:mean", late, within(900, 1500, 0.4)
    behind = {"run": RUN, "rank": str(CULPRIT), "instance": "node-2"}
    yield "rank:hang_suspect:behind", behind, within(HANG, END)
    dead = {"run": RUN, "rank": "30", "instance": "node-3", "state": "dead"}
    yield "tachograph_rank_state", dead, lambda age: 1 if END - 60 <= age < END else 0


def exposition(began: float) -> Iterator[str]:
    series = [*of_run(began), *of_alerts(began), *of_ranks()]
    series += [(name, {"run": HOSTILE}, lambda _: 1) for name in ("run:ranks:count", "run:loss:median")]
    series += [(name, {"run": HOSTILE, "rank": "0", "instance": "<b>"}, lambda _: 1) for name in
               ("tachograph_rank_info", "tachograph_rank_up")]  # fmt: skip
    named = {"alertname": "RankDead", "alertstate": "firing", "severity": "critical", "run": HOSTILE, "instance": "<b>"}
    series.append(("ALERTS", named, lambda age: 1 if age > 3000 else None))
    order = sorted(series, key=lambda each: each[0])  # a family is one block of lines
    for name, labels, value in order:
        yield from line(name, labels, value, began)
    yield "# EOF\n"


@pytest.fixture(scope="session")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Incident]:
    """A Prometheus with the incident and our rules."""
    folder, programs = tmp_path_factory.mktemp("incident"), binaries.find("bookworm")
    end = float(int(time.time()) // 60 * 60 - 3600)
    samples, data = folder / "samples.txt", folder / "data"
    with samples.open("w", encoding="utf-8") as file:
        file.writelines(exposition(end - LENGTH))
    make: list[str | Path] = [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", samples, data]
    done = subprocess.run(make, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rules = folder / "rules"
    rules.mkdir()
    for path in (ROOT / "prometheus/rules").glob("*.yml"):  # they are read, and have nothing to do
        text = re.sub(r"(?m)^    interval: .+\n", "", path.read_text(encoding="utf-8"))
        (rules / path.name).write_text(text, encoding="utf-8")
    settings = {
        "global": {"evaluation_interval": "1h"},
        "rule_files": [str(rules / "*.yml")],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with Children(folder) as children:
        url = start(children, programs["prometheus"], folder / "prometheus.yml", data)
        yield Incident(url, end - LENGTH, end, folder)


def start(children: Children, program: Path, settings: Path, data: Path) -> str:
    """Start a Prometheus and return its URL once it answers."""
    address = f"127.0.0.1:{free_port()}"
    # Samples from a file have no end: what stops is to stop at once.
    command: list[str | Path] = [
        program, f"--config.file={settings}", f"--storage.tsdb.path={data}", "--storage.tsdb.retention.time=1y",
        "--query.lookback-delta=20s", f"--web.listen-address={address}",
    ]  # fmt: skip
    prometheus = children.start(f"prometheus-{settings.stem}", command)
    prometheus.wait_until(lambda: answers(f"http://{address}/-/ready"), 90)
    return f"http://{address}"


@pytest.fixture(scope="session")
def bare(incident: Incident) -> Iterator[str]:
    """The URL of a Prometheus without our rules."""
    settings = incident.folder / "bare.yml"
    settings.write_text("{}\n", encoding="utf-8")
    with Children(incident.folder) as children:
        yield start(children, binaries.find("bookworm")["prometheus"], settings, incident.folder / "bare-data")
