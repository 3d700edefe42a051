"""`tachograph capture`: records the answers of this machine's NVML, for tests and bug reports.

A capture is JSON, one call on a line; a repeated answer is written once:

    {"format": 1, "gpu": "NVIDIA H100 80GB HBM3", "driver": "580.95.05", "tachograph": "0.3.0", "calls": [
    {"call": "nvmlDeviceGetPowerUsage", "arguments": ["gpu 0"], "result": 620000},
    {"call": "nvmlDeviceGetFanSpeed", "arguments": ["gpu 0"], "error": 3},
    ...]}

Field values and GPM metrics, which NVML serves in lists, are recorded one by one: other versions ask for other lists.
Nothing in it identifies the machine: UUIDs, serial numbers and pids are replaced by made-up ones.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tachograph._version import __version__
from tachograph.command_line import CommandParser
from tachograph.node.driver.call_recorder import CallRecorder
from tachograph.node.driver.nvml import Nvml, NvmlFailure, Untyped
from tachograph.node.gpu.node_collector import NodeCollector
from tachograph.text.wrapping import fitted

FORMAT = 1
DEFAULT_SECONDS, SHORTEST_SECONDS, LONGEST_SECONDS = 3.0, 0.2, 3600.0
INTERVAL = 1.0  # at most: GPM and every rate need two collections
PATIENCE_SECONDS = 20.0  # without persistence mode the driver needs seconds for each GPU; one that hangs is left out


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a capture; return the exit status."""
    parser = CommandParser(
        prog="tachograph capture",
        description="Record what this machine's NVML answers.",
        statuses={0: "written", 1: "no driver or GPU, or the file cannot be written", 2: "wrong arguments"},
    )
    parser.add_argument("--out", metavar="FILE", help="where to write (default: GPU__DRIVER.json in this folder)")
    parser.add_argument(
        "--seconds", type=_seconds, default=DEFAULT_SECONDS, help=f"how long to record (default {DEFAULT_SECONDS:.0f})"
    )
    options = parser.parse_args(arguments)
    try:
        nvml = Nvml()
    except NvmlFailure as failure:
        return _fail(f"{failure}; run this on a machine with an NVIDIA driver and a GPU")
    try:
        capture = record(nvml, options.seconds)
        path = Path(options.out or file_name(capture))
        path.write_text(render(capture), encoding="utf-8")
    except NvmlFailure as failure:
        return _fail(str(failure))
    except OSError as error:
        return _fail(f"cannot write the capture: {error}")
    # NVML is not shut down: a GPU may hang in a thread, and then that would too.
    what = f"{path}: {len(capture['calls'])} answers of {capture['gpu']}, driver {capture['driver']}"
    sys.stdout.write(fitted(what) + "\n")
    return 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text}: expected {SHORTEST_SECONDS} to {LONGEST_SECONDS:.0f}")
    return seconds


def _fail(why: str) -> int:
    sys.stderr.write(f"tachograph capture: {why}\n")
    return 1


def record(nvml: Nvml, seconds: float) -> dict[str, Untyped]:
    """Return the capture of a few collections, with and without detail; raise NvmlFailure where there is no GPU."""
    if not nvml.count():
        raise NvmlFailure("the driver shows no GPU")
    recorder = CallRecorder(nvml.pynvml)
    with _in_place_of_pynvml(recorder):
        collectors = [
            NodeCollector(interval=PATIENCE_SECONDS, answer_seconds=PATIENCE_SECONDS, detail=detail)
            for detail in (False, True)
        ]
        until = time.monotonic() + seconds
        for number in itertools.count(1):
            for collector in collectors:
                collector.collect()
            if number > 1 and time.monotonic() >= until:  # activity is between two collections, however slow the first
                break
            time.sleep(min(INTERVAL, seconds / 2))
    calls = recorder.calls()
    names = (call["result"] for call in calls if call["call"] == "nvmlDeviceGetName" and "result" in call)
    return {
        "format": FORMAT,
        "gpu": next(names, "unknown"),
        "driver": nvml.driver_version(),
        "tachograph": __version__,
        "calls": calls,
    }


@contextlib.contextmanager
def _in_place_of_pynvml(recorder: CallRecorder) -> Iterator[None]:
    # Nvml imports pynvml when it is opened, in whichever thread: this is the one place that all calls go through.
    real = sys.modules["pynvml"]
    sys.modules["pynvml"] = recorder  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules["pynvml"] = real


def render(capture: Mapping[str, Untyped]) -> str:
    """Return a capture as it is written."""
    head = json.dumps({key: value for key, value in capture.items() if key != "calls"}, ensure_ascii=False)
    calls = ",\n".join(json.dumps(call, ensure_ascii=False) for call in capture["calls"])
    return f'{head[:-1]}, "calls": [\n{calls}\n]}}\n'


def file_name(capture: Mapping[str, Untyped]) -> str:
    """Return the name of a capture's file, such as nvidia-h100-80gb-hbm3__580.95.05.json."""
    gpu = re.sub(r"[^a-z0-9]+", "-", str(capture["gpu"]).lower()).strip("-")
    return f"{gpu}__{capture['driver']}.json"
