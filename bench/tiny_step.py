"""Real training steps of a tiny model in PyTorch: bare, under Tachograph, and under TraceML."""

from __future__ import annotations

import importlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Step = Callable[[int], None]


def tiny(torch: Any) -> tuple[Any, Any, Any]:
    """Return a model of one small layer, its optimizer, and a batch."""
    model = torch.nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), torch.ones(1, 4)


def torch_bare() -> Step:
    """Train the tiny model for one step."""
    import torch

    model, optimizer, batch = tiny(torch)

    def step(i: int) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def torch_tachograph(**watched: Any) -> Step:
    """Train the tiny model under the recorder, with three phases and its loss logged."""
    import torch

    import tachograph

    recorder = tachograph.Recorder(run="bench", rank=0, world_size=1, tokens_per_step=4096, flops_per_token=1e9)
    model, optimizer, batch = tiny(torch)
    if watched:
        recorder.watch(model, optimizer, scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer), **watched)

    def step(i: int) -> None:
        with recorder.step() as now:
            optimizer.zero_grad()
            with recorder.phase("forward"):
                loss = model(batch).sum()
            with recorder.phase("backward"):
                loss.backward()
            with recorder.phase("optimizer"):
                optimizer.step()
            now.log(loss=loss)

    return step


def torch_unmarked() -> Step:
    """Train the tiny model under the recorder that watches it, with no phase marked."""
    import torch

    import tachograph

    recorder = tachograph.Recorder(run="bench", rank=0, world_size=1, tokens_per_step=4096, flops_per_token=1e9)
    model, optimizer, batch = tiny(torch)
    recorder.watch(model, optimizer)

    def step(i: int) -> None:
        with recorder.step() as now:
            optimizer.zero_grad()
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            now.log(loss=loss)

    return step


def torch_everything() -> Step:
    """Train the tiny model with all that `watch` can do on a CPU."""
    return torch_tachograph(layers=8, activations=True, update_every=100, checksum_every=100, memory_layers=True)


def torch_traceml(mode: str) -> Step:
    """Train the tiny model under TraceML, its instrumentation automatic or by hand."""
    import torch

    traceml: Any = importlib.import_module("traceml_ai")
    port = int(os.environ["TRACEML_BENCH_PORT"])
    traceml.init(
        mode=mode, ui_mode="summary", aggregator_host="127.0.0.1", aggregator_port=port, session_id="bench",
        logs_dir=tempfile.mkdtemp(), on_missing_aggregator="raise",
    )  # fmt: skip
    model, optimizer, batch = tiny(torch)
    if mode == "auto":

        def step(i: int) -> None:
            with traceml.trace_step(model):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()

        return step
    model, optimizer = traceml.wrap_forward(model), traceml.wrap_optimizer(optimizer)

    def manual_step(i: int) -> None:
        with traceml.trace_step(model):
            optimizer.zero_grad()
            traceml.wrap_backward(model(batch).sum()).backward()
            optimizer.step()

    return manual_step


ROWS: dict[str, Callable[[], Step]] = {
    "tachograph": torch_tachograph,
    "tachograph, watched, no marks": torch_unmarked,
    "tachograph, everything on": torch_everything,
    "TraceML 0.5.0 manual": lambda: torch_traceml("manual"),
    "TraceML 0.5.0 auto": lambda: torch_traceml("auto"),
}


def measure_torch(name: str, rounds: int = 60, block: int = 50) -> dict[str, float]:
    """Return microseconds of a bare and of an instrumented step, in turns, and what one adds: median and mean.

    The mean is of the thread's CPU time, so that a busy machine does not count; it holds what is done at sampled steps
    only, which the median does not show.
    """
    steps = (torch_bare(), ROWS[name]())
    costs: tuple[list[float], list[float]] = ([], [])
    cpu = [0.0, 0.0]
    for round_number in range(rounds + 4):
        for which, step in enumerate(steps):
            used = time.thread_time()
            for i in range(block):
                began = time.perf_counter()
                step(i)
                if round_number >= 4:
                    costs[which].append((time.perf_counter() - began) * 1e6)
            if round_number >= 4:
                cpu[which] += time.thread_time() - used
        time.sleep(0.05)
    bare, instrumented = (statistics.median(kept) for kept in costs)
    return {
        "bare p50": bare, "with it p50": instrumented, "added p50": instrumented - bare,
        "added mean": (cpu[1] - cpu[0]) / (rounds * block) * 1e6,
    }  # fmt: skip


@contextmanager
def aggregator(folder: Path) -> Iterator[int]:
    """Run TraceML's aggregator without any display and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "traceml"), "serve", "--mode", "summary", "--run-name", "bench"]
    command += ["--logs-dir", str(folder), "--aggregator-port", str(port)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError("TraceML's aggregator did not come up") from None
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()
