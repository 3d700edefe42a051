"""The health checks of the image and of Compose, run unchanged with and without a real exporter."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tachograph.files.shipped import read_yaml
from tachograph_lab.processes import Children, answers, free_port
from tests.http_servers import serving

ROOT = Path(__file__).resolve().parents[2]
SERVICES: dict[str, Any] = read_yaml(ROOT / "docker-compose.yml")["services"]


def check(service: str) -> list[str]:
    """Return a service's health check as its container runs it."""
    kind, *command = SERVICES[service]["healthcheck"]["test"]
    assert kind == "CMD"
    return [word.replace("$$", "$") for word in command]


def checked(port: int) -> int:
    """Return the exit status of the exporter's check, on a port that is free here."""
    command = [word.replace("10024", str(port)) for word in check("exporter")]
    return subprocess.run(command, check=False, capture_output=True, timeout=90).returncode


def test_image_and_compose_check_alike() -> None:
    """The check is the same in both files."""
    dockerfile = (ROOT / "exporter/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^HEALTHCHECK .*? CMD (\[.*\])$", dockerfile, re.M)
    assert json.loads(line) == check("exporter")


@pytest.mark.parametrize("name", SERVICES)
def test_checks_are_cheap(name: str) -> None:
    """No check starts an interpreter, and a running service is checked twice a minute."""
    healthcheck = SERVICES[name]["healthcheck"]
    assert healthcheck["test"][1] != "python"
    assert (healthcheck["interval"], healthcheck["start_interval"]) == ("30s", "1s")


def test_a_ready_exporter_is_healthy(tmp_path: Path) -> None:
    """The check succeeds once the socket is open, and fails without an exporter."""
    port = free_port()
    assert checked(port) != 0
    command = [sys.executable, "-m", "tachograph", "exporter", "--no-gpu", f"--web.listen-address=127.0.0.1:{port}"]
    with Children(tmp_path / "logs") as children:
        child = children.start("exporter", [*command, f"--socket={tmp_path / 'rank.sock'}"])
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 90)
        assert checked(port) == 0


@pytest.fixture
def answering() -> Iterator[Callable[[int], int]]:
    """Return the function that starts a server with a status; it returns the port."""
    with ExitStack() as servers:
        yield lambda status: urlsplit(servers.enter_context(serving(lambda *_: (status, b"")))).port or 0


def test_one_that_is_not_ready_is_not_healthy(answering: Callable[[int], int]) -> None:
    """Any other status, or no response, is unhealthy."""
    assert checked(answering(200)) == 0
    for status in (204, 404, 500, 503):
        assert checked(answering(status)) != 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert checked(silent.getsockname()[1]) != 0


def test_a_job_without_ranks_has_ended() -> None:
    """The demo's check succeeds if the first process of its container has children, and fails if it has none."""
    command = [word.replace("/proc/1/task/1", "/proc/$PARENT/task/$PARENT") for word in check("demo")]
    for children, healthy in (("sleep 60 & read -r _", True), ("read -r _", False)):
        parent = subprocess.Popen(["bash", "-c", f"echo; {children}; kill %1"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        while healthy and not Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text(encoding="ascii"):
            assert parent.poll() is None
        done = subprocess.run(
            command, env={"PARENT": str(parent.pid), "PATH": "/bin:/usr/bin"}, check=False, timeout=90
        )
        parent.stdin.close()
        parent.stdout.close()
        parent.wait(90)
        assert (done.returncode == 0) is healthy
