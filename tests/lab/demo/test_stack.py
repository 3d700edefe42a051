"""The stack on loopback: it starts completely and leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tachograph_lab.demo.launch import launch
from tachograph_lab.demo.stack import Stack
from tachograph_lab.monitoring import Monitoring
from tachograph_lab.pager import Pager
from tachograph_lab.processes import Children, ProcessError

ROOT = Path(__file__).parents[3]


def rules_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("rules/*.yml")}


@pytest.mark.e2e
def test_the_stack_starts_with_the_shipped_rules_and_leaves_nothing(tmp_path: Path) -> None:
    """Every program answers, rules and configuration are the shipped ones, and afterwards no process is left."""
    with Pager() as pager, Stack(tmp_path / "stack", pager.url) as stack:
        pids = [child.pid for child in stack.children.running]
        assert len(pids) == 4
        assert all(child.cpu_seconds() > 0 for child in stack.children.running)
        assert "tachograph_exporter_info" in stack.scrape()
        assert [sample.value for sample in stack.query("vector(1)")] == [1]
        assert rules_of(stack.folder / "prometheus") == rules_of(ROOT / "prometheus")
        shipped = (ROOT / "prometheus/prometheus.yml").read_bytes()
        assert (stack.folder / "prometheus/prometheus.yml").read_bytes() == shipped
        scratch = stack.socket.parent
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not scratch.exists()


@pytest.mark.slow  # Prometheus takes 10 s to scrape a new target; tests/e2e see aimed nodes by their names
@pytest.mark.e2e
def test_what_is_aimed_at_is_scraped_under_its_name(tmp_path: Path) -> None:
    """Targets given before the start are scraped under their instance names; apart from them only the pair is."""

    class Aimed(Monitoring):
        def _start_nodes(self) -> None:
            self.aim("node", {"node-7": self.address("alertmanager")})

    with Pager() as pager, Aimed(tmp_path / "aimed", pager.url) as monitoring:
        assert [child.name for child in monitoring.children.running] == ["alertmanager", "prometheus"]
        monitoring.children.running[1].wait_until(lambda: len(monitoring.query("up == 1")) == 3, 90)
        up = {(sample.labels["job"], sample.labels["instance"]) for sample in monitoring.query("up")}
        assert up == {("node", "node-7"), ("prometheus", monitoring.node), ("alertmanager", monitoring.node)}


@pytest.mark.e2e
def test_a_part_that_cannot_start_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one program fails to start, the others are stopped, and the end of its log is in the error."""
    stack = Stack(tmp_path / "stack", "http://127.0.0.1:1")
    taken = socket.create_server(("127.0.0.1", 0))
    stack.ports["prometheus"] = taken.getsockname()[1]
    pids: list[int] = []
    start = Children.start

    def noted(*arguments: object, **named: object) -> object:
        child = start(*arguments, **named)  # type: ignore[arg-type]
        pids.append(child.pid)
        return child

    monkeypatch.setattr(Children, "start", noted)
    with taken, pytest.raises(ProcessError, match="address already in use"):
        stack.__enter__()
    assert len(pids) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
@pytest.mark.torch
def test_the_job_trains_and_ends(tmp_path: Path) -> None:
    """Two ranks of the real job train without an exporter, save checkpoints, and end by themselves with status 0."""
    with Children(tmp_path) as children:
        job = launch(children, "smoke", 2, tmp_path / "no.sock", "--steps", "20", "--checkpoint-steps", "10")
        assert job.torchrun.process.wait(90) == 0, job.tail()
        assert job.started()
        assert (job.folder / "checkpoint.pt").stat().st_size > 1_000_000


def test_the_demo_refuses_a_folder_in_use(tmp_path: Path) -> None:
    """A second demo in the same folder says so in one line and touches nothing."""
    script = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); print(1, flush=True); time.sleep(60)\n"
    )
    first = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / ".lock")], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        first.stdout.readline()
        command = [sys.executable, "-m", "tachograph_lab", "demo", "--stop", "--folder", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    finally:
        first.kill()
        first.communicate()
    assert done.returncode == 1
    assert done.stderr.startswith("tachograph-lab demo: another demo is using ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.e2e
def test_a_stack_scrapes_and_evaluates_as_often_as_asked(tmp_path: Path) -> None:
    """Nothing but these intervals is different from what is shipped."""
    with Pager() as pager, Stack(tmp_path / "stack", pager.url, intervals={"scrape": 15, "evaluation": 15}) as stack:
        used = (stack.folder / "prometheus/prometheus.yml").read_text().splitlines()
        shipped = (ROOT / "prometheus/prometheus.yml").read_text().splitlines()
        assert [line.strip() for line in used if line not in shipped] == [
            "scrape_interval: 15000ms", "scrape_timeout: 12000ms", "evaluation_interval: 15000ms",
        ]  # fmt: skip
        assert [sample.value for sample in stack.query("vector(1)")] == [1]
