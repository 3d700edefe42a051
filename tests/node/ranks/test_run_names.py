"""The names that runs are shown by: whose run it is, no other user can say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.clock import Clock
from tachograph.node.config import read_config
from tachograph.node.config_file import ConfigError
from tachograph.node.ranks import run_names
from tachograph.node.ranks.frames import FrameError, Hello, Peer, State
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.run_names import MAX_SHOWN_BYTES, RunNames, slurm_jobs
from tachograph.node.ranks.shown_ranks import ShownRanks
from tachograph.node.samples import Sample

ALICE, MALLORY, CONTAINER, EXPORTER, ROOT, UNMAPPED = 1001, 1002, 1003, 990, 0, 65534
USERS = {ALICE: "alice", MALLORY: "mallory", EXPORTER: "tachograph", ROOT: "root"}
UUID = "0f8c1f0e-5b1c-4a64-9a5e-3c4f8a1b2d3e"
SLURM = {"scheduler": "slurm", "job_id": "4711"}
IN_JOB, IN_OTHER_JOB, OUTSIDE = 100, 101, 102
JOBS = {IN_JOB: frozenset({"4711"}), IN_OTHER_JOB: frozenset({"4712"})}


def names(policy: str = "auto") -> RunNames:
    return RunNames(policy, EXPORTER, USERS.get, lambda pid: JOBS.get(pid, frozenset()))


@pytest.mark.parametrize(
    ("run", "job", "uid", "shown"),
    [
        ("llama-7b", None, ALICE, "alice/llama-7b"),
        ("llama-7b", None, MALLORY, "mallory/llama-7b"),
        ("llama-7b", None, EXPORTER, "llama-7b"),
        ("llama-7b", None, ROOT, "llama-7b"),
        ("llama-7b", None, CONTAINER, "uid:1003/llama-7b"),
        ("llama-7b", None, UNMAPPED, "uid:65534/llama-7b"),
        ("alice/llama-7b", None, MALLORY, "mallory/alice/llama-7b"),
        ("alice/llama-7b", None, CONTAINER, "uid:1003/alice/llama-7b"),
        ("alice/llama-7b", None, ROOT, "root/alice/llama-7b"),
        ("<x>/llama-7b", None, ROOT, "root/<x>/llama-7b"),
        ("ann lee/llama-7b", None, ROOT, "root/ann lee/llama-7b"),
        ("/llama-7b", None, ROOT, "/llama-7b"),
        ("corp\\\\alice/llama-7b", None, ROOT, "root/corp\\\\alice/llama-7b"),
        ("uid:1003/llama-7b", None, ROOT, "root/uid:1003/llama-7b"),
        ("alice/llama-7b", None, EXPORTER, "tachograph/alice/llama-7b"),
        (UUID, None, ALICE, f"alice/{UUID}"),
        (UUID, None, CONTAINER, f"uid:1003/{UUID}"),
        (UUID, None, ROOT, UUID),
        ("4711", SLURM, ALICE, "4711"),
        ("4700_12", SLURM, ALICE, "alice/4700_12"),
        ("4711", None, ALICE, "alice/4711"),
        ("4711", {"scheduler": "kubernetes"}, ALICE, "alice/4711"),
        ("4711", "slurm", ALICE, "alice/4711"),
        ("llama-7b-4711", SLURM, ALICE, "llama-7b-4711"),
        ("llama-7b-4700_12", SLURM, ALICE, "alice/llama-7b-4700_12"),
        ("4711-retry", SLURM, ALICE, "alice/4711-retry"),
        ("llama-7b-4712", SLURM, ALICE, "alice/llama-7b-4712"),
        ("alice/llama-4711", SLURM, MALLORY, "mallory/alice/llama-4711"),
        ("alice/llama-4711", SLURM, CONTAINER, "uid:1003/alice/llama-4711"),
        ("alice/x-12_3", SLURM, MALLORY, "mallory/alice/x-12_3"),
        ("4700_12", {"scheduler": "slurm", "job_id": ["4711"]}, ALICE, "alice/4700_12"),
        ("llama-7b", {"scheduler": "slurm", "job_id": "7b"}, ALICE, "alice/llama-7b"),
        ("llama-7b-", {"scheduler": "slurm", "job_id": ""}, ALICE, "alice/llama-7b-"),
        ("llama-7b", {"scheduler": "slurm"}, ALICE, "alice/llama-7b"),
        ("local-alice", None, ALICE, "alice/local-alice"),
    ],
)  # fmt: skip
def test_a_name_is_qualified_where_another_user_could_say_it(run: str, job: Any, uid: int, shown: str) -> None:
    """Every owner but root and the exporter's own user, and also those whose name could be taken for another's."""
    assert names().shown(Hello(v=1, run=run, rank=0, job=job), Peer(uid, IN_JOB)) == shown


@pytest.mark.parametrize(
    ("run", "job", "uid", "shown"),
    [
        ("ppo", None, ALICE, "alice/ppo/critic"),
        ("ppo", None, CONTAINER, "uid:1003/ppo/critic"),
        ("ppo", None, ROOT, "ppo/critic"),
        ("ppo", None, EXPORTER, "ppo/critic"),
        ("ppo-4711", SLURM, ALICE, "ppo-4711/critic"),
        ("4711", SLURM, ALICE, "4711/critic"),
        ("alice", None, ROOT, "root/alice/critic"),
        ("mallory", None, EXPORTER, "tachograph/mallory/critic"),
        ("uid:1003", None, ROOT, "root/uid:1003/critic"),
        ("svc-4711", SLURM, MALLORY, "mallory/svc-4711/critic"),
        ("alice/ppo", None, ROOT, "root/alice/ppo/critic"),
        ("alice", None, ALICE, "alice/alice/critic"),
    ],
)
def test_a_role_makes_no_name_of_another_user(run: str, job: Any, uid: int, shown: str) -> None:
    """`alice/critic` is alice's run `critic`, and no role of a run `alice` that somebody else says."""
    known: dict[int | str, str] = {**USERS, **{name: name for name in (*USERS.values(), "svc-4711")}}
    names = RunNames("auto", EXPORTER, known.get, lambda pid: JOBS.get(pid, frozenset()))
    hello = Hello(v=1, run=run, rank=0, job=job, role="critic")
    assert names.shown(hello, Peer(uid, IN_JOB)) == shown
    assert not names.is_role_awaited(hello, Peer(uid, IN_JOB), lambda _: False), "it is known by now"


@pytest.mark.parametrize(("policy", "shown"), [("never", "alice/critic"), ("always", "root/alice/critic")])
def test_a_site_decides_with_a_role_too(policy: str, shown: str) -> None:
    """Nothing is looked up then."""
    assert names(policy).shown(Hello(v=1, run="alice", rank=0, role="critic"), Peer(ROOT, OUTSIDE)) == shown


@pytest.mark.parametrize("pid", [IN_OTHER_JOB, OUTSIDE])
@pytest.mark.parametrize("run", ["4711", "llama-7b-4711", "4700_12"])
def test_only_the_kernel_says_who_is_in_a_slurm_job(run: str, pid: int) -> None:
    """Anybody can say another's job id, or take a number for a run's name for that job."""
    assert names().shown(Hello(v=1, run=run, rank=0, job=SLURM), Peer(MALLORY, pid)) == f"mallory/{run}"


@pytest.mark.parametrize(
    ("cgroup", "jobs"),
    [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", {"4711"}),
        ("0::/system.slice/slurmstepd.scope/job_4711", {"4711"}),
        ("5:memory:/slurm/uid_1001/job_4711/step_0\n4:cpuset:/slurm/uid_1001/job_4711/step_0\n1:x:/\n", {"4711"}),
        ("0::/system.slice/node1_slurmstepd.scope/job_4711/step_0", {"4711"}),
        ("3:cpu:/slurm_node1/uid_1001/job_4711", {"4711"}),
        ("0::/kubepods.slice/pod1/cri-containerd-77.scope/job_4711", set()),
        ("0::/docker/slurm/job_4711", set()),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/job_4712", {"4711"}),
        ("0::/user.slice/user-1001.slice/user@1001.service/job_4711\n", set()),
        ("0::/system.slice/job_4711x/job_x/myjob_4711\n", set()),
        ("0::/user.slice/user-1001.slice/user@1001.service/x\r0::/slurm/job_4711\n", set()),
        ("0::" + "/x" * 4096 + "/job_4711\n", set()),
        ("\xff\n", set()),
        ("", set()),
    ],
)
def test_a_job_is_read_from_the_cgroups(
    cgroup: str, jobs: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both versions of them; not from those that a user can make."""
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cgroup").write_bytes(cgroup.encode("latin-1"))
    monkeypatch.setattr(run_names, "PROC", tmp_path)
    assert slurm_jobs(77) == jobs
    assert slurm_jobs(78) == set()


def test_a_process_without_slurm_is_in_no_job() -> None:
    """Nor is one that the kernel does not name, since it is in another pid namespace."""
    assert slurm_jobs(os.getpid()) == slurm_jobs(0) == slurm_jobs(-1) == frozenset()


@pytest.mark.parametrize(
    ("policy", "uid", "run", "shown"),
    [
        ("never", ALICE, "llama-7b", "llama-7b"),
        ("always", ALICE, UUID, f"alice/{UUID}"),
        ("always", ROOT, "llama-7b", "root/llama-7b"),
        ("always", CONTAINER, "llama-7b", "uid:1003/llama-7b"),
    ],
)
def test_a_site_decides(policy: str, uid: int, run: str, shown: str) -> None:
    """Every name is qualified, or none."""
    assert names(policy).shown(Hello(v=1, run=run, rank=0), Peer(uid, OUTSIDE)) == shown


def test_two_users_of_one_name_have_a_run_each(two_gpus: Any) -> None:
    """Neither can hide, page or end the other's, from whichever hello on; the answer says the name."""
    table = RankTable(Limits(), Clock(), two_gpus, names())
    links = {ALICE: object(), MALLORY: object()}
    for uid, link in links.items():
        welcome = table.hello(link, Hello(v=1, run="llama-7b", rank=0, world_size=2), Peer(uid, uid))
        assert welcome.run == f"{USERS[uid]}/llama-7b"
    table.hello(links[ALICE], Hello(v=1, run="llama-7b", rank=0, world_size=2), Peer(ALICE, ALICE))  # reconnected
    with pytest.raises(FrameError, match="already speaks for rank 0 of run alice/llama-7b"):
        table.hello(links[ALICE], Hello(v=1, run="llama-7b", rank=1, world_size=2), Peer(ALICE, ALICE))
    shown = [
        one
        for one in ShownRanks(table).samples()
        if isinstance(one, Sample) and one.metric.name == "tachograph_rank_info"
    ]
    assert {one.labels[0] for one in shown} == {"alice/llama-7b", "mallory/llama-7b"}


@pytest.mark.parametrize("run", ["r" * 128, "r" * 120, "\N{GREEK SMALL LETTER OMEGA}" * 64])
@pytest.mark.parametrize("owner", ["a", "a" * 64])
def test_a_name_as_long_as_may_be_has_room_for_its_owner(run: str, owner: str, two_gpus: Any) -> None:
    """Also in the state file."""
    table = RankTable(Limits(), Clock(), two_gpus, RunNames("auto", EXPORTER, {ALICE: owner}.get))
    link = object()
    assert table.hello(link, Hello(v=1, run=run, rank=0), Peer(ALICE, 5)).run == f"{owner}/{run}"
    table.state(link, State(v=1, seq=1, time=1.0, step=1))
    assert len(f"{owner}/{run}".encode()) <= MAX_SHOWN_BYTES
    next_table = RankTable(Limits(), Clock(), two_gpus, names())
    next_table.restore(table.saved("boot"))
    assert [run.run for run in next_table.saved("boot").runs] == [f"{owner}/{run}"]


@pytest.mark.parametrize("owner", ["a" * 65, "alice/x", "uid:1002", "al\udcffice", "al\nice", ""])
@pytest.mark.parametrize("policy", ["auto", "always"])
def test_an_owner_whose_name_is_none_is_a_number(policy: str, owner: str) -> None:
    """A longer one would make a longer label, and one with a slash could be taken for another's run."""
    assert (
        RunNames(policy, EXPORTER, {ALICE: owner}.get).shown(Hello(v=1, run="r", rank=0), Peer(ALICE, 5))
        == "uid:1001/r"
    )


def test_the_flag() -> None:
    """Its words are checked with the others."""
    assert read_config(["--run.owner=Always"], {}).run_owner == "always"
    assert read_config([], {}).run_owner == "auto"
    with pytest.raises(ConfigError, match="auto, always, never"):
        read_config(["--run.owner=mine"], {})
