"""The stack in containers, where this machine has an engine: every service is healthy, and the straggler is paged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tachograph.servers.alertmanager_api import Alertmanager, AlertmanagerError
from tachograph_lab.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
PROJECT = f"tachograph-test-{os.getpid()}"
COMPOSE = [Path(sys.executable).parent / "docker-compose", "--project-name", PROJECT, "--profile", "demo"]
FETCHED_OR_BUILT = 900
PAGED = 600
"""Seconds: the rank slows down after three minutes."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(FETCHED_OR_BUILT + PAGED + 120)]


def engine_answers() -> bool:
    """Return whether `docker` reaches an engine."""
    docker = shutil.which("docker")
    return bool(docker) and subprocess.run([str(docker), "info"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def stack() -> Iterator[Mapping[str, str]]:
    """The stack with the demo profile, all its services healthy, on ports of its own; yields its variables."""
    if not engine_answers():
        pytest.skip("no container engine answers")
    ports = {f"{name}_PORT": str(free_port()) for name in ("EXPORTER", "PROMETHEUS", "ALERTMANAGER", "GRAFANA")}
    variables = {**os.environ, **ports}
    try:
        compose(variables, "up", "--wait", seconds=FETCHED_OR_BUILT)
        yield variables
    finally:
        compose(variables, "down", "--volumes", seconds=60)


def compose(variables: Mapping[str, str], *arguments: str, seconds: float) -> str:
    done = subprocess.run(
        [*COMPOSE, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=seconds
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_top_runs_in_the_exporter(stack: Mapping[str, str]) -> None:
    """The image has the commands, and its exporter the ranks of the demo."""
    shown = compose(stack, "exec", "--no-TTY", "exporter", "tachograph", "top", "--once", seconds=60)
    assert "8 of 8 ranks up" in shown


def test_the_slow_rank_of_the_demo_is_paged(stack: Mapping[str, str]) -> None:
    """From its socket in one container to Alertmanager in another; nobody else is paged."""
    alertmanager = Alertmanager(f"http://127.0.0.1:{stack['ALERTMANAGER_PORT']}")
    pages: list[tuple[str, str]] = []
    deadline = time.monotonic() + PAGED
    while not pages and time.monotonic() < deadline:
        time.sleep(1)
        try:
            pages = alertmanager.ask(
                "GET",
                "alerts?filter=severity=critical",
                lambda found: [(one["labels"]["alertname"], one["labels"]["rank"]) for one in found],
            )
        except AlertmanagerError:
            continue  # the deadline ends it
    assert pages == [("StragglerRank", "5")]
