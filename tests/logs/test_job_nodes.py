"""What a scheduler or a kernel reports of another node, or of another job, is no cause of this one's end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tachograph.__main__ import main
from tachograph.logs.job_nodes import expanded

WATCHDOG = (
    "2026-11-28 21:04:00 [rank{0}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60057 milliseconds before timing out."
)
ALLOCATED = "[2026-11-28T20:59:00.101] sched: Allocate JobId=77 NodeList=gpu-[01-02] #CPUs=64 Partition=p"
DOWN = "[2026-11-28T21:03:00.101] error: Nodes {} not responding, setting DOWN"
PREEMPTED = "[2026-11-28T21:03:00.101] preempted JobId={} has been requeued to reclaim resources for JobId=90"
EVENTS = (
    DOWN.format("gpu-[97-99]"),
    "[2026-11-28T21:03:00.101] requeue job JobId=88 due to failure of node gpu-99",
    "[2026-11-28T21:03:00.101] error: Node gpu-99 unexpectedly rebooted boot_time=1 last response=2",
    "[2026-11-28T21:03:00.101] error: _slurm_rpc_node_registration node=gpu-99: Invalid argument",
    "Nov 28 21:03:00 gpu-99 kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=python, GPU has fallen off the bus.",
    "Nov 28 21:03:00 gpu-99.example.org kernel: Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB",
    "21:03:00 Warning NodeNotReady node/gpu-99 Node gpu-99 status is now: NodeNotReady",
    PREEMPTED.format(88),
    "[2026-11-28T21:03:00.101] Time limit exhausted for JobId=88",
    "[2026-11-28T21:03:00.101] _job_complete: JobId=88 OOM failure",
)


def rank_log(rank: int, prefix: str = "") -> list[str]:
    steps = [f"2026-11-28 21:0{k // 10}:{k % 10 * 6:02} [rank{rank}] step {k} loss 2.1" for k in range(20)]
    return [prefix + line for line in (*steps, WATCHDOG.format(rank))]


def write(folder: Path, **logs: list[str]) -> Path:
    for name, lines in logs.items():
        (folder / f"{name.replace('_', '-')}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def state(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return what the command concludes of a folder, and the node that it names."""
    main(["logs", "--json", str(folder)])
    found = json.loads(capsys.readouterr().out)
    return found["state"], found["findings"][0]["node"]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_of_another_node_or_job(event: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is passed, by the list of nodes in the scheduler's log; the same event of this job's is the cause."""
    ranks = [line for rank in range(4) for line in rank_log(rank, f"{rank}: ")]
    (tmp_path / "slurm-77.out").write_text("\n".join(ranks) + "\n", encoding="utf-8")
    write(tmp_path, slurmctld=[ALLOCATED, event])
    assert state(tmp_path, capsys)[0] == "no_cause"
    own = event.replace("gpu-[97-99]", "gpu-02").replace("gpu-99", "gpu-02").replace("JobId=88", "JobId=77")
    write(tmp_path, slurmctld=[ALLOCATED, event, own])
    assert state(tmp_path, capsys)[0] == "cause"


@pytest.mark.parametrize(("node", "expected"), [("gpu-03", "no_cause"), ("gpu-02", "cause")], ids=["other", "own"])
def test_nodes_that_logs_name(node: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of nodes whose ranks are known say which nodes there are; so does Slurm's variable."""
    down = [DOWN.format(node)]
    ranks = [[*rank_log(2 * at), *rank_log(2 * at + 1)] for at in range(2)]
    (tmp_path / "files").mkdir()
    assert state(write(tmp_path / "files", gpu_01=ranks[0], gpu_02=ranks[1], sched=down), capsys)[0] == expected
    (tmp_path / "listed").mkdir()
    listed = ["SLURM_JOB_NODELIST=gpu-[01,02]", *ranks[0], *ranks[1]]
    assert state(write(tmp_path / "listed", train=listed, sched=down), capsys)[0] == expected


def test_nodes_that_are_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the node of one rank alone is known, any other may be this job's, and so may a node called otherwise."""
    ranks = [line for rank in range(4) for line in rank_log(rank)]
    exited = "srun: error: gpu-01: task 1: Exited with exit code 1"
    assert state(write(tmp_path, train=[*ranks, exited], sched=[DOWN.format("gpu-02")]), capsys) == ("cause", "gpu-02")
    write(tmp_path, train=["SLURM_NODELIST=gpu-[01-02]", *ranks], sched=[DOWN.format("ip-10-0-0-2")])
    assert state(tmp_path, capsys) == ("cause", "ip-10-0-0-2")


@pytest.mark.parametrize(
    ("pod", "expected"), [("bert-worker-1", "no_cause"), ("llama-master-0", "cause")], ids=["other", "own"]
)
def test_pods_of_another_job(pod: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pod whose name begins in another way is of another job; one of this job's may have left no log."""
    evicted = (
        f"21:03:00 Warning Evicted pod/{pod} The node was low on resource: memory. Container trainer was using 5Gi."
    )
    write(tmp_path, llama_worker_0=rank_log(0), llama_worker_1=rank_log(1), events=[evicted])
    assert state(tmp_path, capsys)[0] == expected


def test_pods_that_name_no_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their names are those of the files; a node that is lost while all of them make steps was none of theirs."""
    healthy = [f"2026-11-28 21:{at // 60:02}:{at % 60:02} INFO step {at} loss 2.1" for at in range(0, 600, 6)]
    events = [
        "2026-11-28 21:05:30 Warning Evicted pod/db-1 The node was low on resource: memory.",
        "2026-11-28 21:05:30 Warning NodeNotReady node/pool-9 Node pool-9 status is now: NodeNotReady",
    ]
    write(tmp_path, llm_worker_0=healthy, llm_worker_1=healthy, events=events)
    assert state(tmp_path, capsys)[0] == "nothing_wrong"
    write(tmp_path, llm_worker_1=healthy[:55])
    assert state(tmp_path, capsys) == ("cause", "pool-9")


def test_a_job_by_its_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Slurm's own name of a log has the number of its job."""
    ranks = [line for rank in range(4) for line in rank_log(rank)]
    (tmp_path / "slurm-77.out").write_text("\n".join(ranks) + "\n", encoding="utf-8")
    assert state(write(tmp_path, slurmctld=[PREEMPTED.format(88)]), capsys)[0] == "no_cause"
    assert state(write(tmp_path, slurmctld=[PREEMPTED.format(77)]), capsys)[0] == "cause"


@pytest.mark.parametrize(
    ("event", "ended", "expected"),
    [
        ("3m Warning FailedScheduling pod/other-0 0/4 nodes are available: 4 Insufficient nvidia.com/gpu.", True, True),
        ("2m Warning NodeNotReady node/pool-9 Node pool-9 status is now: NodeNotReady", True, True),
        ("2m Warning BackOff pod/other-1 Back-off restarting failed container", True, True),
        ("2m Warning NodeNotReady node/pool-9 Node pool-9 status is now: NodeNotReady", False, False),
        ("slurmstepd: error: *** JOB 77 ON pool-9 CANCELLED AT 2026-11-28T21:00 DUE TO TIME LIMIT ***", True, False),
    ],
)
def test_a_training_that_came_to_its_end(
    event: str, ended: bool, expected: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An event of a pod or a node that nobody knows has not ended it; that the job's time was up has."""
    steps = [f"step {k} loss 2.1" for k in range(20)]
    end = ["{'train_runtime': 812.1, 'train_loss': 2.1, 'epoch': 1.0}"] if ended else []
    write(tmp_path, rank_0=steps + end, rank_1=steps + end, events=[event])
    main(["logs", "--json", str(tmp_path)])
    assert (json.loads(capsys.readouterr().out)["state"] == "nothing_wrong") is expected


def test_lists_of_nodes() -> None:
    """Ranges keep their zeros."""
    assert list(expanded("gpu-[01-03,07],login1")) == ["gpu-01", "gpu-02", "gpu-03", "gpu-07", "login1"]
    assert list(expanded("cn[8-10]")) == ["cn8", "cn9", "cn10"]
