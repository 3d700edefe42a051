"""The names that runs are shown by: whose run it is, no other user can say."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.clock import Clock
from tachograph.node.config import read_config
from tachograph.node.config_file import ConfigError
from tachograph.node.ranks.frames import FrameError, Hello, Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.run_names import MAX_USERS, RunNames, user_name
from tachograph.node.samples import Sample

ALICE, MALLORY, CONTAINER, EXPORTER, ROOT = 1001, 1002, 1003, 990, 0
USERS = {ALICE: "alice", MALLORY: "mallory", EXPORTER: "tachograph", ROOT: "root"}
UUID = "0f8c1f0e-5b1c-4a64-9a5e-3c4f8a1b2d3e"
SLURM = {"scheduler": "slurm", "job_id": "4711"}


def names(policy: str = "auto") -> RunNames:
    return RunNames(policy, EXPORTER, USERS.get)


@pytest.mark.parametrize(
    ("run", "job", "uid", "shown"),
    [
        ("llama-7b", None, ALICE, "alice/llama-7b"),
        ("llama-7b", None, MALLORY, "mallory/llama-7b"),
        ("llama-7b", None, EXPORTER, "llama-7b"),
        ("llama-7b", None, ROOT, "llama-7b"),
        ("llama-7b", None, CONTAINER, "llama-7b"),
        ("alice/llama-7b", None, MALLORY, "mallory/alice/llama-7b"),
        ("alice/llama-7b", None, CONTAINER, "1003/alice/llama-7b"),
        ("alice/llama-7b", None, ROOT, "alice/llama-7b"),
        (UUID, None, ALICE, UUID),
        (UUID.replace("-", ""), None, ALICE, UUID.replace("-", "")),
        (UUID + "0", None, ALICE, f"alice/{UUID}0"),
        ("4711", SLURM, ALICE, "4711"),
        ("4700_12", SLURM, ALICE, "4700_12"),
        ("4711", None, ALICE, "alice/4711"),
        ("4711", {"scheduler": "kubernetes"}, ALICE, "alice/4711"),
        ("4711", "slurm", ALICE, "alice/4711"),
        ("llama-7b-4711", SLURM, ALICE, "llama-7b-4711"),
        ("llama-7b-4700_12", SLURM, ALICE, "llama-7b-4700_12"),
        ("4711-retry", SLURM, ALICE, "alice/4711-retry"),
        ("llama-7b-4712", SLURM, ALICE, "alice/llama-7b-4712"),
        ("llama-7b", {"scheduler": "slurm"}, ALICE, "alice/llama-7b"),
        ("local-alice", None, ALICE, "alice/local-alice"),
    ],
)  # fmt: skip
def test_a_name_is_qualified_where_another_user_could_say_it(run: str, job: Any, uid: int, shown: str) -> None:
    """Not where there is no name to qualify it by, where the owner may do all things anyway, or where it is an id."""
    assert names().shown(Hello(v=1, run=run, rank=0, job=job), uid) == shown


@pytest.mark.parametrize(
    ("policy", "uid", "run", "shown"),
    [
        ("never", ALICE, "llama-7b", "llama-7b"),
        ("always", ALICE, UUID, f"alice/{UUID}"),
        ("always", ROOT, "llama-7b", "root/llama-7b"),
        ("always", CONTAINER, "llama-7b", "1003/llama-7b"),
    ],
)
def test_a_site_decides(policy: str, uid: int, run: str, shown: str) -> None:
    """Every name is qualified, or none."""
    assert names(policy).shown(Hello(v=1, run=run, rank=0), uid) == shown


def test_a_user_is_looked_up_once() -> None:
    """A name service may be slow, and a sender has many connections; what is kept is bounded."""
    asked: list[int] = []
    kept = RunNames("auto", EXPORTER, lambda uid: asked.append(uid) or f"u{uid}")  # type: ignore[func-returns-value]
    hello = Hello(v=1, run="r", rank=0)
    assert [kept.shown(hello, ALICE) for _ in range(3)] == ["u1001/r"] * 3
    assert asked == [ALICE]
    for uid in range(2000, 2000 + 2 * MAX_USERS):
        kept.shown(hello, uid)
    assert len(kept._users) <= MAX_USERS


def test_the_machine_knows_its_users() -> None:
    """Root has a name everywhere; a uid that nobody has is none."""
    assert user_name(0) == "root"
    assert user_name(2**31 - 7) is None
    assert user_name(2**40) is None


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
    shown = [one for one in table.samples() if isinstance(one, Sample) and one.metric.name == "tachograph_rank_info"]
    assert {one.labels[0] for one in shown} == {"alice/llama-7b", "mallory/llama-7b"}


def test_the_flag() -> None:
    """Its words are checked with the others."""
    assert read_config(["--run.owner=Always"], {}).run_owner == "always"
    assert read_config([], {}).run_owner == "auto"
    with pytest.raises(ConfigError, match="auto, always, never"):
        read_config(["--run.owner=mine"], {})
