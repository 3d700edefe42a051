"""A real exporter, and supervisors of real processes beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tachograph.supervise import policy
from tachograph.watch.private_exporter import PrivateExporter, private_exporter
from tachograph_lab.processes import Children, answers, free_port
from tests import waiting
from tests.supervise.journals import Journalled

RANKS = Path(__file__).with_name("ranks.py")
DEADLINE = 90.0
ALERTMANAGER = """route: {receiver: nobody, group_wait: 0s}
receivers: [{name: nobody}]
inhibit_rules: [{source_matchers: [alertname="NodeDown"], target_matchers: [severity!="info"], equal: [instance]}]
"""
LAUNCHER = ("TACHOGRAPH", "SLURM", "OMPI", "PMI", "TORCHELASTIC", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")


def until(holds: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Return what holds, once it does."""
    return waiting.until(holds, seconds)


def is_running(pid: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Supervised(Journalled):
    """A run with its folder, its supervisors and what its ranks left in files."""

    exporter: PrivateExporter
    folder: Path
    name: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self,
        mode: str,
        command: Sequence[object],
        *options: object,
        program: Sequence[object] = ("tachograph",),
        **more: str,
    ) -> subprocess.Popen[str]:
        """Start a supervisor."""
        mine = {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHER)}
        environment = {
            **mine, "TACHOGRAPH_SOCKET": str(self.exporter.socket), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", **more,
        }  # fmt: skip
        words = [sys.executable, "-W", "ignore", "-m", *map(str, program)]
        words += ["supervise", "--run", self.name, "--mode", mode]
        impatient = self.folder / "policy.yml"  # the default, but that a frozen rank is not waited for so long
        impatient.write_text(policy.DEFAULT.read_text().replace("for: 2m", "for: 20s"))
        words += ["--state", str(self.state), "--policy", str(impatient)]
        words += [*map(str, options), "--", *map(str, command)]
        self.processes.append(
            subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return self.processes[-1]

    def ranks(
        self, mode: str, *options: object, program: Sequence[object] = ("tachograph",), **more: str
    ) -> subprocess.Popen[str]:
        """Start a supervisor of ranks without PyTorch (`ranks.py`)."""
        return self.start(mode, [sys.executable, RANKS, self.folder, *options], program=program, **more)

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Return its status and what it said, once it has ended."""
        _, said = process.communicate(timeout=DEADLINE)
        return process.returncode, said

    def plans(self) -> list[list[Any]]:
        """Rank, pid, attempt, reason, step, checkpoint and file of each process that has read its plan."""
        path = self.folder / "plans"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def exporter() -> Iterator[PrivateExporter]:
    with private_exporter() as running:
        yield running


@pytest.fixture
def supervised(exporter: PrivateExporter, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Supervised]:
    """A run of its own, of which nothing is left afterwards."""
    one = Supervised(exporter, tmp_path, request.node.name[:60].replace("[", "-").replace("]", ""))
    yield one
    for process in one.processes:
        process.send_signal(signal.SIGTERM)
    for process in one.processes:
        try:
            process.communicate(timeout=90)
        finally:
            process.kill()


@contextmanager
def alertmanager(program: Path, folder: Path, configuration: str) -> Iterator[str]:
    """Run a real Alertmanager until the end of the block; yield its address."""
    url = f"http://127.0.0.1:{free_port()}"
    (folder / "c.yml").write_text(configuration)
    with Children(folder) as children:
        child = children.start("alertmanager", [
            program, f"--config.file={folder / 'c.yml'}", f"--storage.path={folder / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}", "--cluster.listen-address=",
        ])  # fmt: skip
        child.wait_until(lambda: answers(f"{url}/-/ready"), 90)
        yield url


@pytest.fixture(scope="module")
def alertmanager_url(programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real Alertmanager, which notifies nobody."""
    with alertmanager(programs["alertmanager"], tmp_path_factory.mktemp("alertmanager"), ALERTMANAGER) as url:
        yield url
