"""The simulated job of docker-compose.yml, against the real exporter."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tachograph_lab.processes import Children, answers, free_port
from tests.waiting import until

JOB = (sys.executable, str(Path(__file__).parents[2] / "examples/speaking_ranks.py"))


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], str]]]:
    """A running exporter: its socket, and the function that scrapes it."""
    address, socket = f"127.0.0.1:{free_port()}", tmp_path / "rank.sock"
    command = [sys.executable, "-m", "tachograph", "exporter", "--no-gpu", "--rank.series=all"]
    command += [f"--web.listen-address={address}", f"--socket={socket}"]

    def scrape() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
            return str(page.read().decode())

    with Children(tmp_path / "logs") as children:
        children.start("exporter", command).wait_until(lambda: answers(f"http://{address}/-/ready"), 90)
        yield socket, scrape


def values(page: str, name: str) -> dict[str, float]:
    """Return rank -> value of a family."""
    return {rank: float(value) for rank, value in re.findall(rf'^{name}{{.*?rank="(\d+)".*?}} (\S+)$', page, re.M)}


def test_a_slow_rank_shows_in_the_waits_and_not_in_the_steps(exporter: tuple[Path, Callable[[], str]]) -> None:
    """As in a real job: steps are equal, the rank that waits least is the one that holds the others up."""
    socket, scrape = exporter
    arguments = ["--run=sim", "--ranks=3", "--steps=20", "--step-seconds=0.1", "--slow-rank=1", f"--socket={socket}"]
    done = subprocess.run([*JOB, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    page = scrape()
    assert values(page, "tachograph_train_steps_total") == {"0": 20, "1": 20, "2": 20}
    waits = values(page, "tachograph_train_collective_wait_seconds_total")
    assert waits["1"] < min(waits["0"], waits["2"])
    for rank in range(3):
        assert f'tachograph_rank_state{{run="sim",rank="{rank}",state="finished"}} 1' in page


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_ranks_end_with_the_job(exporter: tuple[Path, Callable[[], str]], number: int, status: int) -> None:
    """`docker stop` signals the first process alone: every rank ends as one that was terminated, none looks killed."""
    socket, scrape = exporter
    job = subprocess.Popen([*JOB, "--run=sim", "--ranks=2", f"--socket={socket}"], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: len(values(scrape(), "tachograph_train_steps_total")) == 2, 60)
        job.send_signal(number)
        _, errors = job.communicate(timeout=60)
    finally:
        job.kill()
    assert (job.returncode, errors) == (status, "")
    until(lambda: scrape().count('state="failed"} 1') == 2, 60)


NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
READ_ONLY = (
    'mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && shift 2 && '
    'if touch "$0/written" 2>/dev/null || rm "$0/rank.sock" 2>/dev/null; then exit 9; fi; exec "$@"'
)


def test_a_rank_needs_no_right_to_write_beside_the_socket(
    exporter: tuple[Path, Callable[[], str]], tmp_path: Path
) -> None:
    """Where ranks run, the folder of the socket can be mounted read-only, as Compose mounts it: they still connect."""
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True, timeout=60).returncode:
        pytest.skip("no mount namespace to be had here")
    socket, scrape = exporter
    seen = tmp_path / "seen"
    seen.mkdir()
    job = [*JOB, "--run=sim", "--ranks=2", "--steps=5", "--step-seconds=0.05", f"--socket={seen / socket.name}"]
    command = [*NAMESPACE, "bash", "-c", READ_ONLY, str(seen), str(socket.parent), str(seen), *job]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert values(scrape(), "tachograph_train_steps_total") == {"0": 5, "1": 5}
