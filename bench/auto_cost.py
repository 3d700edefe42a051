"""What the folder of `tachograph auto` costs a program that does not train: its start, and inference with PyTorch.

Programs with the folder and without are run in turns, which of them first changes, and CPU time is compared, so that a
machine that gets slower or busier does so for both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tachograph.auto.command import write_copy
from tachograph_lab.table import quantile, save, show

BUDGET_MILLISECONDS = 1.0
ASKED = """
import os, sys, threading, time
import torch
torch.set_num_threads(1)
model, batch = torch.nn.Linear(64, 64).eval(), torch.ones(8, 64)
for _ in sys.stdin:
    began = time.thread_time()
    with torch.no_grad():
        for _ in range(2000):
            model(batch)
    seconds = time.thread_time() - began
    files = (f"/proc/self/fd/{one}" for one in os.listdir("/proc/self/fd"))
    sockets = sum(os.readlink(one).startswith("socket") for one in files if os.path.lexists(one))
    print(seconds / 2000, threading.active_count(), sockets, flush=True)
"""


def environment(folder: Path | None) -> dict[str, str]:
    """Return our environment with this folder, or none, on the path of Python."""
    given = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    return given if folder is None else {**given, "PYTHONPATH": os.fspath(folder)}


def start(folder: Path | None) -> float:
    """Return the CPU seconds of a Python that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "pass"], env=environment(folder))
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def in_turns(pairs: int) -> Iterator[Sequence[bool]]:
    """Yield whether the one with the folder, or the one without, comes first, then the other."""
    for number in range(pairs):
        yield (True, False) if number % 2 else (False, True)


def started(folder: Path, pairs: int) -> dict[bool, list[float]]:
    """Return the milliseconds of starts with the folder and without."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in in_turns(pairs):
        for has in turn:
            seconds[has].append(1e3 * start(folder if has else None))
    return seconds


def inferred(folder: Path, pairs: int) -> tuple[dict[bool, list[float]], dict[bool, list[int]]]:
    """Return the microseconds of forward passes with the folder and without, and the threads and sockets of both."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    held: dict[bool, list[int]] = {}
    with ExitStack() as stack:
        programs = {
            has: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ASKED], env=environment(folder if has else None), text=True, bufsize=1,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )
            )
            for has in (True, False)
        }  # fmt: skip
        for turn in in_turns(pairs):
            for has in turn:
                program = programs[has]
                assert program.stdin
                assert program.stdout
                program.stdin.write("\n")
                took, *numbers = program.stdout.readline().split()
                seconds[has].append(1e6 * float(took))
                held[has] = [int(number) for number in numbers]
    return seconds, held


def row(what: str, unit: str, values: dict[bool, list[float]], left_out: int) -> dict[str, Any]:
    """Return a row of the table; the first pairs, which compile and warm up, are left out."""
    own, alone = values[True][left_out:], values[False][left_out:]
    return {
        "what": what, "pairs": len(own), "unit": unit, "without": statistics.median(alone),
        "with": statistics.median(own), "added p25": quantile(own, 0.25) - quantile(alone, 0.25),
        "added p50": statistics.median(own) - statistics.median(alone),
        "ratio": statistics.median(own) / statistics.median(alone),
    }  # fmt: skip


def main() -> None:
    """Print the table and write bench/out/auto_cost.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "auto"
        write_copy(folder)
        starts = row("python -c pass", "ms of CPU", started(folder, pairs), 2)
        seconds, held = inferred(folder, pairs // 2)
        inference = row("a forward pass, no update", "µs of CPU", seconds, 5)
    show(
        "tachograph auto: what it costs a program that does not train", [starts, inference],
        f"budget: <= {BUDGET_MILLISECONDS:g} ms at a start; threads, sockets: {held[True]}, without {held[False]}",
    )  # fmt: skip
    save("auto_cost", {"start": starts, "inference": inference, "threads and sockets": [held[True], held[False]]})


if __name__ == "__main__":
    main()
