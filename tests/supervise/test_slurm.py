"""`tachograph supervise` over several nodes of a real Slurm: swaps, requeues, preemption, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tachograph.supervise import journal
from tachograph_lab.processes import Children, free_port
from tests.supervise.conftest import is_running, until
from tests.supervise.slurm_cluster import ROOT, Cluster, Job
from tests.supervise.test_resilient import EVERY, STEPS, TRAIN, assert_made_again, attempts, losses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip("needs root and a Slurm: apt-get install slurm-wlm munge")
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, Children(Path(name)) as children:
        found = Cluster(Path(name), children)
        yield found
        found.clear()


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    yield cluster.supervised(request.node.name[5:50], tmp_path)
    cluster.clear()


def test_a_dead_rank_on_another_node_is_restarted_in_place(job: Job) -> None:
    """The findings of both nodes are one run's; the step on both ends before the next one begins."""
    job.submit(2)
    first = job.began(0)
    assert [(one["node"], one["head"]) for one in first] == [("n1", "n1"), ("n2", "n1")]
    job.strike("n2")
    job.began(1)
    assert not any(is_running(one["pid"]) for one in first)
    job.finish()
    assert job.decisions() == [("act", "dead", "restart")], job.said()
    (decision,) = [one for one in job.entries() if one["kind"] == "decision"]
    assert (decision["ranks"], decision["nodes"]) == ([1], ["n2"])
    (kept,) = (job.state / "evidence").iterdir()
    assert {path.name for path in kept.glob("node-*.json")} == {"node-n1.json", "node-n2.json"}
    assert '"died"' in (kept / "node-n2.json").read_text()


def test_a_rank_that_is_stopped_on_another_node_is_ended_and_restarted(job: Job) -> None:
    """Nobody but Slurm reaches it there: it is gone on both nodes before the next attempt begins."""
    policy = job.folder / "policy.yml"
    policy.write_text("""
version: 1
restarts: {per_hour: 1, per_run: 1}
triggers:
  frozen: {for: 5s, cool_down: 1s, ladder: [restart: {per_hour: 1, per_run: 1}, stop]}
""")
    job.submit(2, "--policy", str(policy))
    first = job.began(0)
    job.strike("n2", signal.SIGSTOP)
    after = job.began(1)
    assert [(one["reason"], one["twins"]) for one in after] == [("frozen", [])] * 2
    assert not any(is_running(one["pid"]) for one in first)
    job.finish()
    assert job.decisions() == [("act", "frozen", "restart")]


def test_a_spare_takes_the_place_of_a_node_that_failed_twice(job: Job) -> None:
    """The first time it is restarted in place; what is left out is no part of the budget of restarts."""
    job.submit(3, "--spares", "1")
    assert [one["node"] for one in job.began(0)] == ["n1", "n2"]
    job.strike("n1")
    assert [one["node"] for one in job.began(1)] == ["n1", "n2"]
    job.strike("n1")
    swapped = job.began(2)
    assert [(one["node"], one["head"]) for one in swapped] == [("n2", "n2"), ("n3", "n2")]
    job.finish()
    assert [action for _, _, action in job.decisions()] == ["restart", "exclude_node"]
    assert "n1 failed before; another takes its place" in job.said()
    assert job.facts()["Restarts"] == "0"


def test_without_a_spare_the_job_is_queued_again_without_the_node(job: Job) -> None:
    """Slurm chooses another one; the next supervisor goes on with the plan, and remembers who is left out."""
    job.submit(2)
    job.began(0)
    job.strike("n2")
    job.began(1)
    job.strike("n2")
    job.requeued()
    assert job.facts()["ExcNodeList"] == "n2"
    after = job.began(2)
    assert [(one["node"], one["reason"], one["queued"]) for one in after] == [("n1", "dead", 1), ("n3", "dead", 1)]
    job.finish()
    assert [action for _, _, action in job.decisions()] == ["restart", "exclude_node"]
    assert [one["left_out"] for one in job.entries() if one["kind"] == "queued"] == [["n2"]]


def test_a_node_that_slurm_takes_away_is_not_restarted_on(job: Job, cluster: Cluster) -> None:
    """Its health check has drained it: the dead rank's restart has the job queued again, to begin elsewhere."""
    job.submit(2)
    job.began(0)
    cluster("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    job.strike("n2")
    job.requeued()
    assert [(one["node"], one["queued"]) for one in job.began(1)] == [("n1", 1), ("n3", 1)]
    job.finish()
    assert job.decisions() == [("act", "dead", "restart")]
    assert "1 of the run's 2 nodes (n2 is " in job.said()


def test_a_spare_takes_the_place_of_a_node_that_is_lost(job: Job, cluster: Cluster) -> None:
    """Its exporter is silent, and that is no reason to do anything: that Slurm says it is down is one."""
    job.submit(3, "--spares", "1", sbatch=["--no-kill"])
    _, second = job.began(0, steps=250)  # the supervisor looks every 5 s
    try:
        cluster.lose("n2", second["pid"])
        assert [one["node"] for one in job.began(1)] == ["n1", "n3"]
    finally:
        cluster.bring_back("n2")
    job.finish()
    assert job.decisions() == [("act", "exited", "restart")]
    assert "n2 is down or does not answer its scheduler" in job.said()


def test_a_preempted_job_is_left_alone(job: Job, cluster: Cluster) -> None:
    """No decision, no part of the budget; Slurm queues it again, and the next supervisor starts the next attempt."""
    job.submit(2)
    job.began(0)
    urgent = cluster(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=3", "--output=/dev/null", "--wrap=sleep 600"
    )
    until(lambda: job.facts()["JobState"] == "PENDING")
    cluster("scancel", urgent)
    job.requeued()
    assert {one["reason"] for one in job.began(1)} == {""}
    job.finish()
    assert job.decisions() == []
    assert [one["how"] for one in job.entries() if one["kind"] == "ended"] in (
        ["external", "finished"],
        ["lost", "finished"],
    )


def test_a_job_with_too_little_time_left_is_not_restarted(job: Job) -> None:
    """It would end before it trains again: the status is the command's."""
    job.submit(2, sbatch=["--time=5"])
    _, second = job.began(0)
    job.strike(second["node"])
    until(lambda: job.facts()["JobState"] == "FAILED")
    assert job.decisions() == [("held", "dead", "time_left")]
    assert job.plans(1) == []


def test_a_second_supervisor_of_a_run_is_refused(job: Job, cluster: Cluster) -> None:
    """By the lock, and by what Slurm says of another job, where locks do not reach from node to node."""
    job.submit(2)
    job.began(0)

    def second(**more: str) -> tuple[int, str]:
        environment = {**os.environ, "SLURM_CONF": str(cluster.folder / "slurm.conf"), **more}
        done = subprocess.run(
            job.command(), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stderr

    elsewhere = {"SLURM_JOB_ID": "999", "SLURM_JOB_NODELIST": "n3"}
    (owner,) = [one["pid"] for one in job.entries() if one["kind"] == "supervisor"]
    status, said = second(**elsewhere)
    assert status == 4
    assert f"process {owner} on " in said
    lines = (job.state / journal.NAME).read_bytes()
    (job.state / journal.NAME).rename(job.state / "locked")
    (job.state / journal.NAME).write_bytes(lines)
    status, said = second(**elsewhere)
    assert status == 4
    assert f"job {job.number} already supervises this run" in said
    (job.state / "locked").rename(job.state / journal.NAME)
    job.finish()


@pytest.mark.parametrize("killed", ["supervisor", "both"])
def test_a_killed_supervisor_leaves_nothing_on_any_node(job: Job, killed: str) -> None:
    """Its ranks end on both nodes, with the warden between killed, too; only then does the next one start others."""
    job.submit(2, twice=True)
    first = job.began(0)
    (owner,) = [one["pid"] for one in job.entries() if one["kind"] == "supervisor"]
    wardens = [int(one) for one in Path(f"/proc/{owner}/task/{owner}/children").read_text().split()]
    for process in [owner, *(wardens if killed == "both" else [])]:
        os.kill(process, signal.SIGKILL)
    until(lambda: not any(is_running(one["pid"]) for one in first))
    assert [one["twins"] for one in job.began(1)] == [[], []]
    job.finish()
    assert [one["how"] for one in job.entries() if one["kind"] == "ended"] == ["lost", "finished"]
    assert job.decisions() == []


@pytest.mark.torch
def test_torchrun_over_two_nodes_goes_on_where_it_was(job: Job) -> None:
    """A rank is killed on the second node: what is trained again has the same losses, bit for bit, on both."""
    torchrun = (
        f"exec {sys.executable} -W ignore -m torch.distributed.run --nnodes $SLURM_STEP_NUM_NODES --nproc-per-node 1 "
        f"--rdzv-backend c10d --rdzv-endpoint ${{TACHOGRAPH_HEAD_NODE/n?/localhost}}:{free_port()} "
        f"{TRAIN} --folder {job.folder} --steps {STEPS} --every {EVERY}"
    )
    job.program = ["env", "GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1", "bash", "-c", torchrun]
    job.submit(2)
    until(lambda: all((job.folder / f"losses-{rank}").exists() for rank in range(2)))
    until(lambda: len(losses(job.folder, 0)) > 2 * EVERY + 5)
    os.kill(attempts(job.folder, 1)[-1], signal.SIGKILL)
    until(lambda: job.facts()["JobState"] in ("COMPLETED", "FAILED"), 200)
    assert job.facts()["JobState"] == "COMPLETED", job.said()
    assert job.decisions() == [("act", "dead", "restart")]
    assert_made_again(job.folder)
