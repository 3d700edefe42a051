"""Two runs in trouble, as samples in a real Prometheus: what ranks and GPUs report, and what our rules record of it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tachograph.catalog import index as c
from tachograph_lab import binaries
from tachograph_lab.processes import Child, Children, answers, free_port

ROOT = Path(__file__).resolve().parents[2]
HUNG, SICK = "llama-70b", "mixtral"
RANKS, PER_NODE = 64, 8
CULPRIT, HOT = 43, 17
STRAGGLER, DEAD, MOVED, NAN = 3, 5, 6, 2
AGE, EVERY = 1800, 30
GIB = 2**30

Line = tuple[str, dict[str, object], float]
"""Name, labels, value."""


@dataclass(frozen=True)
class Crowd:
    """Where it is, and when its last samples are."""

    url: str
    now: int
    process: Child


def uuid(node: object, number: int) -> str:
    return f"GPU-{node}-{number % PER_NODE}"


def seat(run: str, rank: int, first_node: int) -> dict[str, object]:
    return {"run": run, "rank": rank, "instance": f"node-{first_node + rank // PER_NODE:02d}", "job": "tachograph"}


def rank(at: dict[str, object], now: float, *, state: str, phase: str, step: int, loss: float, wait: float,
         lag: float | None) -> Iterator[Line]:  # fmt: skip
    """Yield what is known of one rank."""
    number = int(str(at["rank"]))
    gpu = number % PER_NODE
    sharing = {"local_rank": gpu, "world_size": RANKS, "attempt": 0, "gpu": gpu, "uuid": uuid(at["instance"], number)}
    alive = state in {"running", "frozen"}
    yield c.RANK_INFO.name, at | sharing, 1
    yield c.RANK_UP.name, at, float(alive)
    yield c.RANK_STATE.name, at | {"state": state}, 1
    yield c.TRAIN_STEP.name, at, step
    yield c.RANK_PROGRESS.name, at, now - 41
    if alive:
        yield c.RANK_PHASE.name, at | {"phase": phase}, 42.5 if phase == "data" else 41.5
        yield c.TRAIN_LOSS.name, at, loss
        own = {"run": at["run"], "rank": number, "instance": at["instance"]}
        yield c.TRAIN_RECENT_WAIT.name, own, wait
        if lag is None:  # where a run stands still, nobody is late
            return
        yield "rank:lag_seconds:mean", own, lag
        if lag > 0.06:
            yield "rank:late_ratio:mean", own, lag


def gpu(node: object, run: str, number: int, active: float, heat: float) -> Iterator[Line]:
    """Yield what is known of one GPU."""
    own: dict[str, object] = {"instance": node, "gpu": number % PER_NODE, "uuid": uuid(node, number)}
    yield "node:gpu_rank:info", {"instance": node, "uuid": uuid(node, number), "run": run, "rank": number}, 1
    yield "node:gpu_sm_active:ratio", own, active
    yield "node:gpu_tensor_active:ratio", own, active / 2
    yield "node:gpu_power:watts", own, 640
    yield c.GPU_INFO.name, own | {"name": "NVIDIA H100 80GB HBM3"}, 1
    yield c.GPU_TEMPERATURE.name, own | {"sensor": "gpu"}, heat
    yield c.GPU_TEMPERATURE.name, own | {"sensor": "memory"}, heat + 20
    yield c.GPU_POWER_LIMIT.name, own, 700
    yield c.GPU_MEMORY_USED.name, own, 71.5 * GIB
    yield c.GPU_MEMORY_TOTAL.name, own, 80 * GIB


def alert(name: str, severity: str, since: float, **labels: object) -> Iterator[Line]:
    own = {"alertname": name, "severity": severity, **labels}
    yield "ALERTS", own | {"alertstate": "firing"}, 1
    yield "ALERTS_FOR_STATE", own, since


def hung(now: float) -> Iterator[Line]:
    """A run in which one rank never came to the collective."""
    for number in range(RANKS):
        at = seat(HUNG, number, 0)
        late = number == CULPRIT
        yield from rank(at, now, state="running", phase="data" if late else "backward", step=48_201, loss=2.1,
                        wait=0.3, lag=None)  # fmt: skip
        dimensions = dict.fromkeys(c.DIMENSIONS, "") | {"dp": number % 32, "pp": number // 32}
        yield c.RANK_COORDINATES.name, at | dimensions, 1
        hot = number == HOT
        yield from gpu(at["instance"], HUNG, number, 0.0 if late else 0.97, 91 if hot else 64)
        yield "node:run:info", {"run": HUNG, "instance": at["instance"]}, 1
    own = {key: value for key, value in seat(HUNG, CULPRIT, 0).items() if key != "job"}
    culprit = own | {"gpu": CULPRIT % PER_NODE, "uuid": uuid(own["instance"], CULPRIT)}
    node = seat(HUNG, HOT, 0)["instance"]
    hot = {"instance": node, "gpu": HOT % PER_NODE, "uuid": uuid(node, HOT)}
    yield "ALERTS", {**own, "alertname": "RunHung", "alertstate": "firing"}, 1
    yield "rank:hang_suspect:behind", own, 1
    evidence = {"phase": "data", "why": "elsewhere", "pid": 4242, "where": "data.py:88 load_shard"}
    yield c.RUN_HANG_SUSPECT.name, culprit | evidence, 42
    yield "node:gpu_thermal_slowdown:ratio", hot, 0.4
    yield "run:hung_seconds:min", {"run": HUNG}, 34
    yield "run:train_step:max", {"run": HUNG}, 48_201
    yield "run:progress_timestamp_seconds:max", {"run": HUNG}, now - 41
    yield from alert("RunHung", "critical", now - 30, **culprit)
    yield from alert("GpuThermalThrottling", "warning", now - 300, **hot)
    yield from alert("GoodputLow", "warning", now - 600, run=HUNG)
    yield from alert("TachographWatchdog", "none", now - 6000)
    yield from alert("MfuDropped", "critical", now - 60, run=SICK)


def sick(now: float) -> Iterator[Line]:
    """A run with a straggler, a dead rank, one that moved to another node, and one whose loss is NaN."""
    for number in range(PER_NODE):
        at = seat(SICK, number, 20)
        yield from rank(at, now, state="dead" if number in {DEAD, MOVED} else "running", phase="backward", step=900,
                        loss=float("nan") if number == NAN else 3.5, wait=0.01 if number == STRAGGLER else 0.3,
                        lag=0.29 if number == STRAGGLER else 0.0)  # fmt: skip
        yield c.TRAIN_MISUSE.name, at | {"kind": "unknown_name"}, 9003
    yield from rank(seat(SICK, MOVED, 29), now, state="running", phase="forward", step=900, loss=3.5, wait=0.3, lag=0)
    dead, straggler, nan = (
        {key: value for key, value in seat(SICK, one, 20).items() if key != "job"} for one in (DEAD, STRAGGLER, NAN)
    )
    yield c.RANK_ENDED.name, dead | {"reason": "died"}, now - 12
    yield "rank:first_end:timestamp", dead | {"kind": "died", "reason": "died"}, now - 12
    yield "rank:straggler:level", straggler, 2
    yield c.TRAIN_RECENT_PHASE.name, straggler | {"phase": "backward"}, 0.5
    yield "run:phase_seconds:median", {"run": SICK, "phase": "backward"}, 0.2
    yield "rank:loss_nonfinite_first:step", nan, 900
    yield "run:loss_nonfinite_ranks:count", {"run": SICK}, 1
    yield "run:tokens:rate1m", {"run": SICK}, 3_940_000
    yield "run:step_interval_seconds:mean2m", {"run": SICK}, 1.25
    yield "run:phase_seconds:median", {"run": SICK, "phase": "generate"}, 0.75
    yield "run:phase_seconds:median", {"run": SICK, "phase": "collective"}, 0.25
    yield "run:step_mfu:baseline", {"run": SICK}, 0.43
    yield "run:limit:max", {"run": SICK, "name": "data_stall_ratio"}, 0.5


def exposition(now: int) -> Iterator[str]:
    """Yield all of it as OpenMetrics: figures over half an hour, the rest at its end."""
    for name, labels, value in (*hung(now), *sick(now)):
        text = ",".join(f'{label}="{content}"' for label, content in labels.items())
        yield from (f"{name}{{{text}}} {value} {at}\n" for at in (now - EVERY, now))
    for i, at in enumerate(range(now - AGE, now + 1, EVERY)):
        yield f'run:loss:median{{run="{SICK}"}} {4 - i / 60} {at}\n'
        yield f'run:step_mfu:ratio{{run="{SICK}"}} {0.43 if i < 40 else 0.3} {at}\n'
    yield "# EOF\n"


@contextmanager
def standing(folder: Path) -> Iterator[Crowd]:
    """Put the samples into a Prometheus with our rules for runs, and keep it up."""
    programs, now = binaries.find("bookworm"), int(time.time())
    (folder / "samples").write_text("".join(exposition(now)), encoding="utf-8")
    make = [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", folder / "samples", folder / "data"]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    settings = {"rule_files": [str(ROOT / "prometheus/rules/runs.yml")]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        programs["prometheus"], f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=1y", f"--web.listen-address={address}",
    ]  # fmt: skip
    with Children(folder) as children:
        process = children.start("prometheus", command)
        process.wait_until(lambda: answers(f"http://{address}/-/ready"), 60)
        yield Crowd(f"http://{address}", now, process)
