"""The cost of the exporter with 8 GPUs and 8 ranks: scrape time, CPU, memory of exporter and worker together.

The ranks are processes that each send a full frame a second, as a `tachograph.Recorder` on a GPU does; the GPUs are
read by the real pynvml, from the driver's library where there is one, else from the small C library of
the lab.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

import tachograph
from observe import fake_nvml, observe, wait_for
from tachograph.node.app import Exporter
from tachograph.node.config import read_config
from tachograph.node.exposition import TEXT, Exposition
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.process_end import ProcessEnds
from tachograph.node.ranks.rank_connection import RankConnection
from tachograph_lab.table import save, show

_encode = msgspec.json.encode
FRAME = Path(__file__).parents[1] / "tests/node/full_frame.json"
"""A state of a rank of a DDP job on CUDA, with all that a loop gets without asking for layers or checksums."""

RANK = """
import json, os, socket, sys, time
rank, frame = int(sys.argv[1]), json.load(open(sys.argv[2]))
exporter = socket.socket(socket.AF_UNIX)
while exporter.connect_ex(os.environ["TACHOGRAPH_SOCKET"]):
    time.sleep(0.1)
def grown(value, by):
    return {key: grown(each, by) for key, each in value.items()} if isinstance(value, dict) else value * by
def say(**frame):
    exporter.sendall(json.dumps({"v": 1, **frame}).encode() + b"\\n")
say(type="hello", run="bench", rank=rank, local_rank=rank, world_size=8, pid=os.getpid(),
    visible_devices="0,1,2,3,4,5,6,7", job={"scheduler": "slurm", "job_id": "4711"})
for seq in range(1, 10**9):
    now = time.time()
    moment = {"seq": seq, "step": 480 + seq, "time": now, "phase_since": now - 0.2, "progress_time": now - 0.1}
    say(**{**frame, **moment, "metrics": grown(frame["metrics"], 1 + seq / 1e4)})
    time.sleep(1.0)
"""

LAST_READ = "tachograph_gpu_energy_joules_total" if shutil.which("nvidia-smi") else "tachograph_gpu_sm_cycles_total"
"""What a GPU shows once all of its first readings are there; not every real one counts cycles."""


@contextmanager
def ready_exporter(port: int, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run an exporter with 8 GPUs and 8 ranks; give its process and the address of its page once both show."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "TACHOGRAPH_SOCKET": str(folder / "rank.sock")}
        if not shutil.which("nvidia-smi"):
            environment["LD_LIBRARY_PATH"] = str(fake_nvml(folder / "nvml"))
        url = f"http://127.0.0.1:{port}/metrics"
        command = [sys.executable, "-m", "tachograph", "exporter", "--web.listen-address", f"127.0.0.1:{port}", *flags]
        quiet: dict[str, Any] = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        exporter = subprocess.Popen(command, **quiet)
        ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(i), str(FRAME)], **quiet) for i in range(8)]
        try:
            wait_for(url, tachograph_rank_up=8, **{LAST_READ: 8})
            yield exporter, url
        finally:
            for process in [*ranks, exporter]:
                process.send_signal(signal.SIGTERM)
            for process in [*ranks, exporter]:
                process.wait(10)


def calls() -> dict[str, float]:
    """Return the Python calls per frame taken in, and per rank and scrape, of 8 ranks: the same on every machine."""
    hours = count(step=3600.0)  # no frame comes too soon
    with tempfile.TemporaryDirectory() as folder:
        exporter = Exporter(read_config([f"--socket={folder}/rank.sock", "--no-gpu"], {}), None)
        ends = ProcessEnds(Limits())
        ranks = [RankConnection(exporter.table, hours.__next__, Peer(0, pid), print, ends) for pid in range(1, 9)]

        def receive(**frame: object) -> None:
            for number, rank in enumerate(ranks):
                line = _encode({"v": 1, "run": "bench", "rank": number, "world_size": 8, **frame}) + b"\n"
                rank.get_buffer(-1)[: len(line)] = line
                rank.buffer_updated(len(line))

        for rank in ranks:
            pipe = SimpleNamespace(is_closing=bool, get_write_buffer_size=int, write=len, get_extra_info={}.get)
            rank.connection_made(pipe)  # type: ignore[arg-type]
        receive(type="hello")
        exposition = Exposition()
        per_frame = per_scrape = 0
        for seq in (1, 2):  # the second frame and the second scrape are the usual ones
            state = json.loads(FRAME.read_text(), parse_float=lambda text: float(text) * seq) | {"seq": seq}  # noqa: B023
            per_frame = _calls(lambda: receive(**state))  # noqa: B023
            per_scrape = _calls(lambda: exposition.render(exporter.samples(), TEXT))
    return {"calls per frame": per_frame / 8, "per rank and scrape": per_scrape / 8}


def _calls(do: Callable[[], object]) -> int:
    """Return how many Python functions are called, and generators resumed, while `do` runs."""
    events = Counter[str]()
    sys.setprofile(lambda _frame, event, _argument: events.update((event,)))
    try:
        do()
    finally:
        sys.setprofile(None)
    return events["call"]


def main() -> None:
    """Print the table and write bench/out/exporter.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long CPU is measured, scraped every 5 s")
    parser.add_argument("--port", type=int, default=10924, help="loopback port of the exporter under test")
    options = parser.parse_args()
    compileall.compile_dir(Path(tachograph.__file__).parent, quiet=1)  # as pip does: compiling at each start takes 2 MB
    with ready_exporter(options.port) as (exporter, url):
        result, samples = observe(exporter.pid, url, options.seconds)
    per = Counter(match[1] for line in samples if (match := re.search(r'(?:\{|,)(gpu|rank)="\d+"', line)))
    result |= {"samples": len(samples), "per GPU": per["gpu"] / 8, "per rank": per["rank"] / 8}
    result |= calls()
    show("Exporter with 8 GPUs and 8 ranks", [result], "budget: 1 % of a core, 50 MB with its worker, scrape p99 20 ms")
    save("exporter", result)


if __name__ == "__main__":
    main()
