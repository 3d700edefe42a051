"""The hooks for Slurm: by themselves, and in a real Slurm of one node with two GPUs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tachograph_lab.processes import Children, free_port

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "deploy/slurm"
DEADLINE = 90.0
HOST = platform.node().partition(".")[0]
SCRIPT = """
import sys, time, tachograph
recorder = tachograph.Recorder()
for _ in range(10_000):
    with recorder.step():
        time.sleep(0.05)
"""
"""A rank that gives its recorder no name."""


def hook(folder: Path, context: str, **job: str) -> int:
    """Run the prolog or the epilog as slurmd does: no PATH, its own variables alone."""
    environment = {"TACHOGRAPH_JOBS": str(folder), "SLURM_SCRIPT_CONTEXT": f"{context}_slurmd", **job}
    done = subprocess.run([HOOKS / "tachograph-jobs"], env=environment, capture_output=True, timeout=90, check=False)
    assert (done.stdout, done.stderr) == (b"", b"")
    return done.returncode


def jobs(folder: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().split() for path in folder.iterdir() if not path.name.startswith(".")}


def test_each_gpu_has_a_file_with_its_jobs_until_they_end(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    assert hook(folder, "prolog", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,11") == 0
    assert hook(folder, "prolog", SLURM_JOB_ID="8", SLURM_JOB_GPUS="11") == 0
    assert hook(folder, "prolog", SLURM_JOB_ID="8", SLURM_JOB_GPUS="11") == 0  # queued again, without an epilog
    assert jobs(folder) == {"0": ["7"], "11": ["7", "8"]}
    assert hook(folder, "epilog", SLURM_JOB_ID="7") == 0
    assert jobs(folder) == {"11": ["8"]}
    assert hook(folder, "epilog", SLURM_JOB_ID="8", SLURM_JOB_GPUS="11") == 0
    assert jobs(folder) == {}


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "../0,x y"}])
def test_it_never_fails(tmp_path: Path, job: Mapping[str, str]) -> None:
    """A prolog that fails drains the node."""
    (tmp_path / "file").touch()
    for context in ("prolog", "epilog", "unknown"):
        for folder in (tmp_path / "new", tmp_path / "file", Path("/proc/nothing")):
            assert hook(folder, context, **job) == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"new", "file"}


@pytest.mark.parametrize(
    ("job", "run"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "llama"}, "export TACHOGRAPH_RUN=llama-7\n"),
        (
            {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"},
            "export TACHOGRAPH_RUN=job-7_2\n",
        ),
        ({"SLURM_JOB_ID": "7", "TACHOGRAPH_RUN": "mine"}, ""),
        ({}, ""),
    ],
)
def test_a_run_is_named_after_its_job(job: Mapping[str, str], run: str) -> None:
    done = subprocess.run(
        [HOOKS / "task-prolog"], env=dict(job), capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout) == (0, run)


class Cluster:
    """A real Slurm: one node, this machine, with two GPUs that are device files alone, and an exporter beside it."""

    def __init__(self, folder: Path, children: Children, gpus: Mapping[str, str]) -> None:
        self.folder = folder
        self._children = children
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self._configure()
        munge = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        socket = folder / "munge.socket"
        self._start("munged", socket.exists, "munged", "--force", "--foreground", f"--socket={socket}", *munge)
        flags = (f"--socket={folder / 'rank.sock'}", f"--gpu.job-mapping-dir={folder / 'jobs'}", "--gpu.kmsg=")
        exporter = [
            sys.executable,
            str(ROOT / "tests/quick_exporter.py"),
            "--web.listen-address=127.0.0.1:0",
            "--rank.series=all",
            *flags,
        ]
        child = children.start("exporter", exporter, os.environ | gpus)
        serving = re.compile(r"msg=serving address=(\S+)")
        child.wait_until(lambda: bool(serving.search(child.log.read_text())), DEADLINE)
        self._url = f"http://{serving.findall(child.log.read_text())[0]}/metrics"
        self._start("slurmctld", lambda: self("sinfo")[0] == 0, "slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        idle = lambda: "idle" in self("sinfo", "-h", "-o", "%t")[1]  # noqa: E731
        self._start("slurmd", idle, "slurmd", "-D", "-N", HOST, "-f", str(folder / "slurm.conf"))

    def _configure(self) -> None:
        for index in range(2):
            os.mknod(self.folder / f"gpu{index}", 0o666 | 0o020000, os.makedev(1, 3))
        (self.folder / "prolog").write_text(
            f"#!/bin/sh\nTACHOGRAPH_JOBS={self.folder / 'jobs'} exec {HOOKS / 'tachograph-jobs'}\n"
        )
        (self.folder / "prolog").chmod(0o755)
        (self.folder / "gres.conf").write_text(f"NodeName={HOST} Name=gpu File={self.folder}/gpu[0-1]\n")
        settings = {
            "ClusterName": "test", "SlurmctldHost": f"{HOST}(127.0.0.1)", "SlurmUser": "root", "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder / 'munge.socket'}", "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none", "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CPU",
            "GresTypes": "gpu", "ReturnToService": 2,
            "SlurmctldPort": free_port(), "SlurmdPort": free_port(), "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool", "SlurmctldPidFile": self.folder / "ctld.pid",
            "SlurmdPidFile": self.folder / "d.pid", "Prolog": self.folder / "prolog", "Epilog": self.folder / "prolog",
            "PrologFlags": "Alloc", "TaskProlog": HOOKS / "task-prolog", "KillWait": 2, "OverTimeLimit": 0,
            "MpiDefault": "none", "MinJobAge": 2, "SchedulerParameters": "sched_interval=1", "JobRequeue": 1,
        }  # fmt: skip
        lines = [f"{name}={value}" for name, value in settings.items()]
        lines += [
            f"NodeName={HOST} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2",
            f"PartitionName=all Nodes={HOST} Default=YES",
        ]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "state").mkdir()

    def _start(self, name: str, ready: Callable[[], bool], *command: str) -> None:
        environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._children.start(name, command, environment).wait_until(ready, DEADLINE)

    def __call__(self, *command: str) -> tuple[int, str]:
        """Run a command of Slurm; return its status and what it printed."""
        environment = os.environ | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "TACHOGRAPH_SOCKET": str(self.folder / "rank.sock"),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    def submit(self, name: str, *options: str) -> str:
        """Submit a training job of one rank on one GPU; return its id."""
        files = f"--output={self.folder}/{name}.out"
        inner = f"exec srun {sys.executable} {self.script}"
        status, out = self(
            "sbatch", "--parsable", f"--job-name={name}", "--gres=gpu:1", files, *options, f"--wrap={inner}"
        )
        assert status == 0
        return out.strip()

    def cancel_all(self) -> None:
        """End what a test that failed has left: jobs outlive the daemons."""
        self("scancel", "--user=root")
        deadline = time.monotonic() + DEADLINE
        while self("squeue", "-h")[1] and time.monotonic() < deadline:
            time.sleep(0.2)

    def shows(self, *parts: str) -> str:
        """Wait for a line of the exporter's page that has all parts; return it."""
        deadline = time.monotonic() + DEADLINE
        while True:
            with urllib.request.urlopen(self._url, timeout=90) as page:
                lines = page.read().decode().splitlines()
            found = next((line for line in lines if all(part in line for part in parts)), None)
            if found is not None:
                return found
            assert time.monotonic() < deadline, "\n".join(line for line in lines if "tachograph_rank_" in line)
            time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Cluster]:
    from tachograph_lab.fake_nvml.library import FakeNvml

    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip("needs root and a Slurm: apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    with Children(folder) as children:
        found = Cluster(folder, children, FakeNvml(library, folder / "nvml").environment())
        yield found
        found.cancel_all()


@pytest.mark.slow
def test_a_job_is_seen_with_its_gpu_and_its_name(cluster: Cluster) -> None:
    job = cluster.submit("llama")
    run = f'run="llama-{job}"'
    cluster.shows("tachograph_rank_up{", run, " 1")
    cluster.shows("tachograph_rank_job_info{", run, f'job_id="{job}"', 'scheduler="slurm"')
    gpu = cluster.shows("tachograph_gpu_job_info{", f'job_id="{job}"')
    assert re.search(r'gpu="[01]"', gpu)
    cluster("scancel", job)
    cluster.shows("tachograph_rank_ended_timestamp_seconds{", run, 'reason="terminated"')


@pytest.mark.slow
def test_the_first_minute_of_a_hang_leads_to_the_rank(cluster: Cluster) -> None:
    """RunHung's line for Slurm opens a shell beside the rank, where `scontrol listpids` has its process."""
    job = cluster.submit("hung")
    cluster.shows("tachograph_rank_up{", f'run="hung-{job}"', " 1")
    (line,) = re.findall(r"^(srun .+?)  +# Slurm$", (ROOT / "runbooks/RunHung.md").read_text(), re.MULTILINE)
    words = line.replace("<job>", job).replace("<node>", HOST).split()
    _, listed = cluster(*words, "-c", f"scontrol listpids {job}")
    ranks = [row.split()[0] for row in listed.splitlines() if row.split()[3:] == ["0", "0"]]
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in ranks if Path(f"/proc/{pid}").exists()]
    assert any(str(cluster.script) in command for command in commands), listed
    cluster("scancel", job)


@pytest.mark.slow
def test_each_task_of_an_array_is_a_run_with_its_own_gpu(cluster: Cluster) -> None:
    """Slurmd does not give its prolog the array: rank and GPU are joined by the task's own job id."""
    array = cluster.submit("sweep", "--array=3-4")
    gpus = set()
    for task in (3, 4):
        rank = cluster.shows("tachograph_rank_job_info{", f'run="sweep-{array}_{task}"', 'scheduler="slurm"')
        (job,) = re.findall(r'job_id="(\d+)"', rank)
        gpus |= set(re.findall(r'gpu="([01])"', cluster.shows("tachograph_gpu_job_info{", f'job_id="{job}"')))
    assert gpus == {"0", "1"}
    cluster("scancel", array)


@pytest.mark.slow
def test_a_job_that_is_queued_again_is_the_next_attempt_of_its_run(cluster: Cluster) -> None:
    job = cluster.submit("again")
    run = f'run="again-{job}"'
    cluster.shows("tachograph_rank_info{", run, 'attempt="0"')
    cluster("scontrol", "requeue", job)
    deadline = time.monotonic() + DEADLINE
    while cluster("squeue", "-h", "-j", job, "-o", "%t %r")[1].strip() != "PD BeginTime":  # two minutes from now
        assert time.monotonic() < deadline, cluster("squeue")[1]
        time.sleep(0.2)
    cluster("scontrol", "update", f"jobid={job}", "starttime=now")
    cluster.shows("tachograph_rank_info{", run, 'attempt="1"')
    cluster("scancel", job)


@pytest.mark.slow
def test_a_job_out_of_time_was_terminated(cluster: Cluster) -> None:
    job = cluster.submit("late", "--time=0:01")
    cluster.shows("tachograph_rank_ended_timestamp_seconds{", f'run="late-{job}"', 'reason="terminated"')
    cluster("scancel", job)


@pytest.mark.slow
def test_the_node_is_never_drained(cluster: Cluster) -> None:
    """After all these jobs, and with nothing of them left on a GPU."""
    deadline = time.monotonic() + DEADLINE
    while jobs(cluster.folder / "jobs") or "idle" not in cluster("sinfo", "-h", "-o", "%t")[1]:
        assert time.monotonic() < deadline, cluster("sinfo")[1]
        time.sleep(0.2)
