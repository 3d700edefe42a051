"""Who can do what to whom: a cell of the table in docs/security.md is a test here, and there is no other cell."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.clock import Clock
from tachograph.node.histograms import HistogramSample
from tachograph.node.process_status import process_status
from tachograph.node.ranks import gpu_owners
from tachograph.node.ranks.frames import BoxPart, Bye, FrameError, Hello, Peer, State, Supervision
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.run_names import RunNames
from tachograph.node.ranks.shown_ranks import ShownRanks
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample

PAGE = Path(__file__).parents[2] / "docs/security.md"
USERS = {0: "root", 1001: "alice", 1002: "mallory", 990: "tachograph"}
KNOWN: Mapping[int | str, str] = {**USERS, **{name: name for name in USERS.values()}}
"""What the machine's name service knows, asked by uid or by name."""
ALICE, MALLORY, EXPORTER, NAMELESS, OTHER_NAMELESS, ROOT = 1001, 1002, 990, 165600, 231136, 0
GPU, OTHER_GPU = (GpuIdentity(str(i), f"GPU-{i}", "NVIDIA H100 80GB HBM3") for i in range(2))


@dataclass
class Node:
    """A node with two GPUs, and the processes that its driver lists there: GPU index to pids."""

    clock: Clock
    listed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    links: dict[tuple[int, int], object] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = RankTable(Limits(), self.clock, self, RunNames("auto", EXPORTER, KNOWN.get, lambda _: frozenset()))

    def snapshot(self) -> GpuSnapshot | None:
        return None

    def gpus(self) -> tuple[GpuIdentity, ...]:
        return GPU, OTHER_GPU

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        on = [index for index, pids in self.listed.items() if pid in pids]
        return (GPU, OTHER_GPU)[on[0]] if len(on) == 1 else None

    def processes(self) -> dict[str, tuple[int, ...]]:
        return {f"GPU-{index}": pids for index, pids in self.listed.items()}

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        return None

    def again(self) -> Node:
        """Return a node like it without ranks."""
        return Node(self.clock, self.listed)

    def rank(self, uid: int, pid: int, run: str = "llama", rank: int = 0, **said: Any) -> str:
        """Say hello and a state as a process of a user; return the run's name as shown, empty if refused."""
        metrics = said.pop("metrics", {})
        notices = said.pop("notices", None)
        self.links[uid, pid] = link = object()
        try:
            name: str = self.table.hello(
                link, Hello(v=1, run=run, rank=rank, world_size=4, pid=pid, **said), Peer(uid, pid)
            ).run
        except FrameError as error:
            self.refused.append(error.reason)
            return ""
        self.table.state(link, State(v=1, seq=1, time=1.0, step=5, metrics=metrics, notices=notices))
        self.table.tick()
        return name

    def of_run(self, run: str) -> set[tuple[object, ...]]:
        """Everything that is shown of a run, and its boxes."""
        return {
            *(one for one in map(shown, ShownRanks(self.table).samples()) if run in one),
            *((rank, box.reason) for rank, box in ((each.rank, each) for each in self.table.boxes.of(run))),
        }

    def on_gpu(self) -> set[tuple[object, ...]]:
        """What the alerts of GPU 0 name."""
        return {shown(one) for one in ShownRanks(self.table).on_gpus() if GPU.uuid in one.labels}


def shown(sample: Sample | HistogramSample) -> tuple[object, ...]:
    return sample.metric.name, *sample.labels, getattr(sample, "value", None)


@pytest.fixture
def node(hand: Any, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node on which alice's process 50, without a recorder, is visible, and pid 60 of mallory."""
    users = {50: ALICE, 60: MALLORY, **dict.fromkeys(range(100, 110), ALICE), **dict.fromkeys(range(200, 210), MALLORY)}
    monkeypatch.setattr(gpu_owners.GpuOwners.__init__, "__defaults__", (users.get,))
    return Node(hand.clock)


SENDERS = {MALLORY: "mallory/", NAMELESS: "uid:165600/"}
VICTIMS = {ALICE: "alice/llama", ROOT: "llama", OTHER_NAMELESS: "uid:231136/llama", EXPORTER: "llama"}


def named(node: Node, uid: int, run: str, rank: int) -> None:
    """Say the name of the run: take part in it, a rank of it included, fail and end."""
    for pid, name in enumerate(dict.fromkeys((run, run.rpartition("/")[2])), 200):
        if node.rank(uid, pid, name, rank, attempt=7):
            node.table.bye(
                node.links[uid, pid], Bye(v=1, outcome="failed", category="oom", message="http://evil.example")
            )


def saying(**what: Any) -> Callable[[Node, int, str, int], None]:
    """Say something in a run of its own that has no special name."""

    def say(node: Node, uid: int, run: str, rank: int) -> None:
        node.rank(uid, 203, run, rank, **what)

    return say


def boxed(node: Node, uid: int, run: str, rank: int) -> None:
    """Send a box."""
    if node.rank(uid, 203, run, rank):
        part = BoxPart(v=1, id=1, part=0, parts=1, time=1.0, reason="asked", text='{"rank":3}')
        node.table.box(node.links[uid, 203], part)


def supervised(node: Node, uid: int, run: str, rank: int) -> None:
    """Speak as the supervisor of the run."""
    node.table.supervised(Supervision(v=1, run=run, mode="failed", blind_seconds=900.0), Peer(uid, 203))


Say = Callable[[Node, int, str, int], None]
OWN = "yes no no no no no"
ROWS: Mapping[str, tuple[Say, str]] = {
    "run, rank, attempt, bye": (named, "yes yes no no no no"),
    "tier": (saying(facts={"tier": "hero"}), OWN),
    "thresholds": (saying(metrics={"threshold": {"hang_seconds": 86400.0}}), OWN),
    "GPU: `uuid`, visible devices, local rank": (saying(uuid=GPU.uuid, visible_devices="0"), "yes no no no no beside"),
    "job, facts, coordinates": (saying(job={"scheduler": "slurm", "job_id": "7"}, coordinates={"tp": 3}), OWN),
    "metrics, notices, last words": (saying(metrics={"loss": 9.0}, notices=["http://evil.example"]), OWN),
    "box": (boxed, OWN),
    "supervisor": (supervised, OWN),
}
COLUMNS = (
    "the sender's run", "another run of the user", "another user's run", "… on another node",
    "another user's GPU", "a GPU of which the driver lists nobody",
)  # fmt: skip


CELLS = [
    pytest.param(what, column, answer, id=f"{what} / {column}")
    for what, (_, answers) in ROWS.items()
    for column, answer in zip(COLUMNS, answers.split(), strict=True)
]


def test_the_page_has_this_table() -> None:
    """docs/security.md has a row for each of these, and the same answers."""
    lines = [f"| what a sender says | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    lines += [f"| {what} | {' | '.join(answers.split())} |" for what, (_, answers) in ROWS.items()]
    assert "\n".join(lines) + "\n\n" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("what", "column", "answer"), CELLS)
@pytest.mark.parametrize("sender", SENDERS)
def test_a_cell(what: str, column: str, answer: str, sender: int, node: Node) -> None:
    """What is shown of whom it concerns changes by what is said, or does not."""
    say, prefix = ROWS[what][0], SENDERS[sender]
    if column == "the sender's run":
        quiet = node.again()
        quiet.rank(sender, 203, "mine", 3)
        say(node, sender, "mine", 3)
        assert (node.of_run(f"{prefix}mine") != quiet.of_run(f"{prefix}mine")) == (answer == "yes")
    elif column == "another run of the user":
        node.rank(sender, 201, "other", 0)
        name = "other" if say is named else "mine"
        assert changed(lambda: node.of_run(f"{prefix}other"), lambda: say(node, sender, name, 3)) == (answer == "yes")
    elif column == "another user's run":
        assert answer == "no"
        for victim, run in VICTIMS.items():
            here = node.again()
            here.rank(victim, 100, "llama", 0)
            for rank in (0, 3):
                say(here, sender, run, rank)
            assert not here.refused, "their own run has another name"
            untouched = node.again()
            untouched.rank(victim, 100, "llama", 0)
            assert here.of_run(run) == untouched.of_run(run), run
    elif column == "… on another node":
        assert answer == "no"
        for run in VICTIMS.values():
            say(node, sender, run, 3)
            assert not node.of_run(run), run
    elif column == "another user's GPU":
        assert answer == "no"
        node.listed = {0: (100,)}
        node.rank(ALICE, 100, "llama", 0)
        assert {row[1] for row in node.on_gpu()} == {"alice/llama"}
        assert not changed(node.on_gpu, lambda: say(node, sender, "alice/llama", 0))
    else:
        node.rank(ALICE, 0, "llama", 0, uuid=GPU.uuid)
        before = node.on_gpu()
        say(node, sender, "mine", 0)
        assert before <= node.on_gpu(), "alice's run is named as without"
        assert (before < node.on_gpu()) == (answer == "beside")


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize(
    ("victim", "said", "run"),
    [
        (ALICE, {"run": "llama", "role": "critic"}, "alice/llama/critic"),
        (ROOT, {"run": "llama", "role": "critic"}, "llama/critic"),
        (OTHER_NAMELESS, {"run": "llama", "role": "critic"}, "uid:231136/llama/critic"),
        (ALICE, {"run": "llama"}, "alice/llama"),
    ],
)
def test_a_role_of_another_users_run_is_out_of_reach(
    victim: int, said: dict[str, str], run: str, sender: int, node: Node
) -> None:
    """Whichever way the same name is said, with a role or in one piece: the sender has a run of its own."""
    node.rank(victim, 100, rank=0, **said)
    before = node.of_run(run)
    ways = {
        ("llama", "critic"),
        ("alice", "llama"),
        ("alice/llama", "critic"),
        ("alice", "critic"),
        tuple(run.rsplit("/", 1)),
    }
    for pid, (name, role) in enumerate(sorted(ways), 200):
        for rank in (0, 3):
            shown = node.rank(sender, pid, name, rank, role=role, attempt=7, facts={"tier": "dev"})
            assert shown.startswith(SENDERS[sender])
    assert not node.refused
    assert node.of_run(run) == before


def test_root_in_a_container_says_no_role_that_is_a_users_run(node: Node) -> None:
    """Root's names need no owner, but for those that another user has."""
    node.rank(ALICE, 100, "llama", 0)
    before = node.of_run("alice/llama")
    assert node.rank(ROOT, 200, "alice", 3, role="llama") == "root/alice/llama"
    assert node.rank(ROOT, 201, "ppo", 3, role="llama") == "ppo/llama"
    assert node.of_run("alice/llama") == before


def test_roles_of_one_run_on_a_gpu_are_one_owner(node: Node) -> None:
    """A fault of the GPU pages once for the run, also where root is a user for each of its runs."""
    for uid, run in ((ALICE, "alice/ppo"), (ROOT, "ppo")):
        here = node.again()
        here.rank(uid, 100, "ppo", 0, role="actor", uuid=GPU.uuid)
        here.rank(uid, 101, "ppo", 0, role="critic", uuid=GPU.uuid)
        assert {row[1] for row in here.on_gpu()} == {f"{run}/actor"}


def test_a_gpu_is_shared_by_those_that_its_alerts_name(node: Node) -> None:
    """Each of them is said to share it; while there is one, nobody."""

    def names(metric: str) -> set[object]:
        return {row[1] for row in node.on_gpu() if row[0] == metric}

    node.rank(ALICE, 0, "llama", 0, uuid=GPU.uuid)
    assert names("tachograph_rank_on_gpu") == {"alice/llama"}
    assert not names("tachograph_rank_shares_gpu_info")
    claim(node, tier="")
    both = names("tachograph_rank_on_gpu")
    assert len(both) == 2
    assert names("tachograph_rank_shares_gpu_info") == both


def changed(look: Callable[[], set[tuple[object, ...]]], act: Callable[[], None]) -> bool:
    before = look()
    act()
    return look() != before


def claim(node: Node, uid: int = MALLORY, pid: int = 203, tier: str = "dev", run: str = "mine") -> None:
    """Say that a rank is on GPU 0."""
    node.rank(uid, pid, run, uuid=GPU.uuid, facts={"tier": tier})


def runs_on_gpu(node: Node) -> set[object]:
    node.table.tick()
    return {row[1] for row in node.on_gpu()}


def test_a_claim_against_the_drivers_list_names_nobody(node: Node) -> None:
    """Also where the process that is listed has no recorder, and once the GPU is lost, of which nothing is listed."""
    node.listed = {0: (50,)}
    for tier in ("dev", "standard", "hero"):
        claim(node, tier=tier)
        assert runs_on_gpu(node) == set()
    node.listed = {}
    assert runs_on_gpu(node) == set()
    claim(node, pid=50)
    assert runs_on_gpu(node) == set(), "the pid of a process that is gone is another's by now"
    node.listed = {0: (203,)}
    assert runs_on_gpu(node) == {"mallory/mine"}


def test_another_process_of_its_user_confirms_a_claim_but_not_of_root(node: Node) -> None:
    """The process that computes need not be the one that speaks. Who else runs as root, nobody knows."""
    node.listed = {0: (60,)}
    claim(node)
    assert runs_on_gpu(node) == {"mallory/mine"}
    node.listed = {0: (50,)}
    claim(node, ROOT, 300, "standard")
    assert runs_on_gpu(node) == set()


def test_each_user_on_a_gpu_is_named(node: Node) -> None:
    """As the driver says, or as they say themselves where it does not; root is a user for each of its runs."""
    node.listed = {0: (100, 203)}
    node.rank(ALICE, 100, "llama")
    claim(node, tier="standard")
    claim(node, EXPORTER, 301, "hero")
    assert runs_on_gpu(node) == {"alice/llama", "mallory/mine"}
    unknown = Node(node.clock)
    claim(unknown, ALICE, 0, "hero", "llama")
    claim(unknown, MALLORY, 0, "standard")
    claim(unknown, ROOT, 0, "standard", "one")
    claim(unknown, ROOT, -1, "standard", "two")
    assert runs_on_gpu(unknown) == {"alice/llama", "mallory/mine", "one", "two"}


@pytest.mark.parametrize("tier", ["dev", "standard"])
def test_a_dev_run_is_named_only_if_the_driver_lists_its_user_alone(tier: str, node: Node) -> None:
    """A fault of hardware that others may use, too, pages: without a name, or by the name of another run."""
    named = {"mallory/mine"}
    claim(node, tier=tier)
    assert runs_on_gpu(node) == (named if tier == "standard" else set()), "nothing is listed"
    for pids, alone in (((203,), True), ((203, 60), True), ((203, 50), False), ((203, 999), True)):
        node.listed = {0: pids}
        assert runs_on_gpu(node) == (named if alone or tier == "standard" else set()), pids
    node.listed = {0: (203, 100)}
    node.rank(ALICE, 100, "llama")
    assert runs_on_gpu(node) == {"alice/llama"} | (named if tier == "standard" else set())


def test_a_rank_that_died_is_named_beside_one_that_lives(node: Node, hand: Any) -> None:
    """For a minute: the fault may have killed it. Who finished has left the GPU."""
    node.listed = {0: (100, 203)}
    node.rank(ALICE, 100, "llama")
    claim(node)
    node.table.lost(node.links[ALICE, 100])
    node.listed = {0: (203,)}
    assert runs_on_gpu(node) == {"alice/llama"}
    hand.turn(gpu_owners.FAULT_SECONDS + 1)
    assert runs_on_gpu(node) == {"mallory/mine"}
    finished = node.again()
    finished.listed = {0: (100, 203)}
    finished.rank(ALICE, 100, "llama")
    claim(finished)
    finished.table.bye(finished.links[ALICE, 100], Bye(v=1, outcome="finished"))
    finished.listed = {0: (203,)}
    assert runs_on_gpu(finished) == {"mallory/mine"}


def test_the_user_of_a_process_is_what_the_kernel_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The effective uid, as of a connection; nobody for a process that is not there."""
    assert gpu_owners.uid_of(os.getpid()) == os.geteuid()
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name:\tUid: 5 5 5 5\nUmask:\t0022\nUid:\t1001\t1002\t1003\t1004\nGid:\t0\n")
    monkeypatch.setattr(gpu_owners, "process_status", partial(process_status, proc=tmp_path))
    assert gpu_owners.uid_of(7) == 1002
    assert gpu_owners.uid_of(8) is None
