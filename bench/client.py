"""The cost of one training step on the training thread: Tachograph beside its peers, in one run.

A step is four phases and four scalars. Each row runs in a process of its own; the step itself is empty, so the figure
is the instrumentation alone.

TraceML measures what PyTorch does, so an empty step says nothing of it: the second table adds each to a real step of a
tiny model, bare and instrumented in turns within one process. TraceML runs as its documentation has it for a direct
launch: `traceml serve --mode summary` (no terminal UI, no dashboard, no browser; 127.0.0.1 only) and
`traceml.init(ui_mode="summary", on_missing_aggregator="raise")`, so that it cannot pass for free by being off.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tachograph_lab.table import save, show, spread
from tiny_step import ROWS as TORCH
from tiny_step import aggregator, measure_torch

PHASES = ("data", "forward", "backward", "optimizer")
SCALARS = ("loss", "grad_norm", "learning_rate", "step_time")
Step = Callable[[int], None]


def tachograph_step() -> Step:
    """Time one step of `tachograph.Recorder`."""
    import tachograph

    recorder = tachograph.Recorder(run="bench", rank=0, world_size=1, tokens_per_step=4096, flops_per_token=1e9)

    def step(i: int) -> None:
        with recorder.step() as now:
            with recorder.phase("data"):
                pass
            with recorder.phase("forward"):
                pass
            with recorder.phase("backward"):
                pass
            with recorder.phase("optimizer"):
                pass
            now.log(loss=2.5, grad_norm=0.9, learning_rate=3e-4, memory_allocated_bytes=i)

    return step


def prometheus_step() -> Step:
    """Time the same with prometheus_client: four phases, four gauges, a histogram, two counters; handles kept."""
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    registry = CollectorRegistry()
    gauges = [Gauge(name, name, registry=registry) for name in SCALARS]
    seconds = Counter("phase_seconds", "phases", ["phase"], registry=registry)
    phases = [seconds.labels(name) for name in PHASES]
    durations = Histogram("step_seconds", "steps", registry=registry)
    steps = Counter("steps", "steps", registry=registry)
    tokens = Counter("tokens", "tokens", registry=registry)

    def step(i: int) -> None:
        began = last = time.perf_counter()
        for phase in phases:
            now = time.perf_counter()
            phase.inc(now - last)
            last = now
        for gauge in gauges:
            gauge.set(2.5 + i)
        durations.observe(time.perf_counter() - began)
        steps.inc()
        tokens.inc(4096)

    return step


def opentelemetry_step() -> Step:
    """Time the same with the OpenTelemetry SDK's gauges, counter and histogram."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    meter = MeterProvider([InMemoryMetricReader()]).get_meter("bench")
    gauges = [meter.create_gauge(name) for name in SCALARS]
    seconds = meter.create_counter("phase_seconds")
    steps = meter.create_histogram("step_seconds")
    rank = {"rank": "0"}
    phases = [{"rank": "0", "phase": name} for name in PHASES]

    def step(i: int) -> None:
        began = last = time.perf_counter()
        for attributes in phases:
            now = time.perf_counter()
            seconds.add(now - last, attributes)
            last = now
        for gauge in gauges:
            gauge.set(2.5 + i, rank)
        steps.record(time.perf_counter() - began, rank)

    return step


def tensorboard_step() -> Step:
    """Time eight scalars and a step time written with TensorBoard's own writer."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tempfile.mkdtemp())

    def step(i: int) -> None:
        began = last = time.perf_counter()
        for name in PHASES:
            now = time.perf_counter()
            writer.add_scalar(name, now - last, i)
            last = now
        for name in SCALARS:
            writer.add_scalar(name, 2.5 + i, i)
        writer.add_scalar("step_seconds", time.perf_counter() - began, i)

    return step


def wandb_step() -> Step:
    """Time the same nine values in one `wandb` offline log call."""
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(silent=True, x_disable_stats=True))

    def step(i: int) -> None:
        began = last = time.perf_counter()
        values: dict[str, float] = {}
        for name in PHASES:
            now = time.perf_counter()
            values[name] = now - last
            last = now
        for name in SCALARS:
            values[name] = 2.5 + i
        values["step_seconds"] = time.perf_counter() - began
        run.log(values)

    return step


PEERS: dict[str, tuple[Callable[[], Step], int]] = {
    "tachograph": (tachograph_step, 20_000),
    "prometheus_client (not sent)": (prometheus_step, 20_000),
    "OpenTelemetry SDK (not sent)": (opentelemetry_step, 10_000),
    "W&B offline": (wandb_step, 3_000),
    "TensorBoard": (tensorboard_step, 3_000),
}


def run_torch_row(name: str) -> dict[str, float]:
    """Measure one row of the second table in a process of its own, with what it speaks to running."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "rank.sock"
        environment = {**os.environ, "TACHOGRAPH_SOCKET": str(path)}
        if name.startswith("TraceML"):
            environment["TRACEML_BENCH_PORT"] = str(stack.enter_context(aggregator(Path(folder))))
        else:
            stack.enter_context(exporter(path, state="alive"))
        return in_process(["--torch-row", name], environment, folder)


def in_process(arguments: list[str], environment: dict[str, str], folder: str) -> dict[str, float]:
    """Run this file again with `arguments` and return the row it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, *arguments],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    row: dict[str, float] = json.loads(next(line for line in done.stdout.splitlines()[::-1] if line.startswith("{")))
    return row


def measure(name: str, steps: int) -> dict[str, float]:
    """Run `steps` steps of one row in this process and return microseconds: p50, p99, max, and p50 after a pause.

    Every 400 steps there is a pause of 100 ms: background threads get their turn as in training, and the step after it
    finds the processor's caches cold, as a step of a real loop does.
    """
    make, _ = PEERS[name]
    step = make()
    for i in range(200):
        step(i)
    costs, cold = [], []
    for i in range(steps):
        began = time.perf_counter()
        step(i)
        cost = (time.perf_counter() - began) * 1e6
        costs.append(cost)
        if i % 400 == 0:
            cold.append(cost)
        if i % 400 == 399:
            time.sleep(0.1)
    return {**spread(costs), "p50 after a pause": statistics.median(cold)}


@contextmanager
def exporter(path: Path, *, state: str) -> Iterator[int]:
    """Run the real exporter and yield its pid; 0 without one where `state` is none."""
    if state == "none":
        yield 0
        return
    command = [sys.executable, "-m", "tachograph", "exporter", "--socket", str(path), "--no-gpu"]
    command += ["--web.listen-address", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not path.exists():
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"the exporter did not come up (exit status {process.poll()})")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def run_row(name: str, state: str, steps: int) -> dict[str, float]:
    """Measure one row in a process of its own, with the exporter in `state`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank.sock"
        with exporter(path, state=state) as pid:
            environment = {**os.environ, "TACHOGRAPH_SOCKET": str(path), "WANDB_SILENT": "true"}
            arguments = ["--row", name, "--state", state, "--steps", str(steps), "--exporter-pid", str(pid)]
            return in_process(arguments, environment, folder)


def measure_row(name: str, state: str, steps: int, pid: int) -> dict[str, float]:
    """Bring the exporter into its state once the rank is connected, then measure."""
    make, _ = PEERS[name]
    if state in ("dead", "stopped"):
        warm = make()
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:  # long enough for a hello and two heartbeats
            warm(0)
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL if state == "dead" else signal.SIGSTOP)
        PEERS[name] = (lambda: warm, steps)
    return measure(name, steps)


def import_cost() -> dict[str, float]:
    """Return milliseconds of loading the client in a fresh interpreter and the private MB it adds, medians of nine."""
    code = (
        "import time\n"
        "mb=lambda:int(open('/proc/self/smaps_rollup').read().split('Private_Dirty:')[1].split()[0])/1024\n"
        "m=mb();t=time.perf_counter();import tachograph;tachograph.Recorder;print((time.perf_counter()-t)*1e3,mb()-m)"
    )
    runs = []
    with tempfile.TemporaryDirectory() as folder:  # bytecode, as an installed package has it, whatever the shell says
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        for _ in range(10):
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
            )
            runs.append([float(word) for word in done.stdout.split()])
    del runs[0]  # the one that compiled
    return {"ms": sorted(run[0] for run in runs)[4], "MB": sorted(run[1] for run in runs)[4]}


def main() -> None:
    """Print both tables and write bench/out/client.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", choices=list(PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--torch-row", choices=list(TORCH), help=argparse.SUPPRESS)
    parser.add_argument("--state", default="alive", help=argparse.SUPPRESS)
    parser.add_argument("--exporter-pid", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure_row(options.row, options.state, options.steps, options.exporter_pid)))
        return
    if options.torch_row:
        print(json.dumps(measure_torch(options.torch_row)))
        return
    peers: list[dict[str, Any]] = []
    for name, (_, steps) in PEERS.items():
        peers.append({"µs per step": name, **run_row(name, "alive" if name == "tachograph" else "none", steps)})
    show("One step on the training thread: 4 phases, 4 scalars", peers)
    real = [{"µs per step": name, **run_torch_row(name)} for name in TORCH]
    show("The same on a real step: a layer of 4 × 4, forward, backward, SGD, in PyTorch on a CPU", real)
    states: list[dict[str, Any]] = []
    for state in ("none", "alive", "dead", "stopped"):
        row = run_row("tachograph", state, 20_000)
        peer = run_row("prometheus_client (not sent)", "none", 20_000)  # in turns: the machine's speed may change
        ratios = {f"{key} / prometheus_client": row[key] / peer[key] for key in ("p50", "p99")}
        states.append({"exporter": state, **row, **ratios})
    budget = "budget: p50 <= 3, p99 <= 15; p50 <= 0.5 and p99 <= 1.0 of prometheus_client's, in every state"
    show("The same step, exporter in four states (µs)", states, budget)
    imported = import_cost()
    show("import tachograph, without torch", [imported], "budget: <= 30 ms, <= 3 MB")
    save("client", {"peers": peers, "real step": real, "states": states, "import": imported})


if __name__ == "__main__":
    main()
