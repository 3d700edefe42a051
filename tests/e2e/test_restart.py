"""An exporter killed under load: the ranks neither lose nor double a count."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tachograph_lab.processes import Child, Children, answers, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

RANKS = 8
OUTAGE_SECONDS = 2.0
RANK = textwrap.dedent(
    """
    import pathlib, sys, time
    import tachograph

    rank, socket, stop = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    recorder = tachograph.Recorder(run="restart", rank=rank, world_size=8, socket=socket, tokens_per_step=8000)
    count = 0
    while not stop.exists():
        with recorder.step() as step:
            with recorder.phase("forward"):
                pass
            with recorder.phase("backward"):
                pass
            step.log(loss=2.0, grad_norm=1.0)
        count += 1
        time.sleep(0.005)
    print(count, flush=True)
    sys.stdin.read()
    """
)


def start_exporter(children: Children, port: int, socket: Path) -> Child:
    command = ["-m", "tachograph", "exporter", "--web.listen-address", f"127.0.0.1:{port}", "--socket", str(socket)]
    exporter = children.start("exporter", [sys.executable, *command])
    exporter.wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 90)
    return exporter


def by_rank(port: int, metric: str) -> dict[int, float]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            page = response.read().decode()
    except URLError:
        return {}
    found = re.findall(rf'^{metric}{{run="restart",rank="(\d+)"}} (\S+)$', page, re.MULTILINE)
    return {int(rank): float(value) for rank, value in found}


def all_up(port: int) -> bool:
    return by_rank(port, "tachograph_rank_up") == dict.fromkeys(range(RANKS), 1)


def test_counters_are_exact_after_a_kill(tmp_path: Path, wait_for: Callable[..., Any]) -> None:
    """After kill -9 and a restart every counter equals what the rank counted; `bench/client.py` has what steps cost."""
    socket, stop, port = tmp_path / "rank.sock", tmp_path / "stop", free_port()
    with Children(tmp_path / "logs") as children:
        exporter = start_exporter(children, port, socket)
        command = [sys.executable, "-c", RANK]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(socket), str(stop)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for rank in range(RANKS)
        ]
        try:
            wait_for(lambda: all_up(port), 30, "8 ranks")
            exporter.process.kill()
            exporter.process.wait()
            time.sleep(OUTAGE_SECONDS)
            start_exporter(children, port, socket)
            wait_for(lambda: all_up(port), 30, "8 ranks after the restart")
            stop.touch()
            steps = {number: int(rank.stdout.readline()) for number, rank in enumerate(ranks) if rank.stdout}
            wait_for(lambda: by_rank(port, "tachograph_train_steps_total") == steps, 30, f"exact counters: {steps}")
            assert by_rank(port, "tachograph_train_tokens_total") == {rank: 1000 * n for rank, n in steps.items()}
        finally:
            for rank in ranks:
                rank.communicate("", timeout=60)
