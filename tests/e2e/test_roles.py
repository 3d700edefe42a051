"""Three roles of one run on two nodes, each with a rank 0, recorded by environment alone: who is stuck is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph import wire
from tachograph.auto.command import FOLDER
from tachograph_lab.demo.stack import Stack
from tachograph_lab.monitoring import START_SECONDS, get
from tachograph_lab.pager import Pager
from tachograph_lab.processes import Child, answers
from tests.e2e.job_pages import paged, the_page

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).with_name("roles_job.py")
WORLDS = {"actor": 2, "critic": 2, "reward": 1}
"""By role; rank 0 is on the first node, rank 1 on the second, and the only one of `reward` there too."""

NODES = ("node-a", "node-b")
STUCK = "stuck-critic-0"


class TwoNodes(Stack):
    """The shipped stack of two nodes, neither of which has a GPU."""

    parts = ("exporter", "second", "alertmanager", "prometheus")
    exporter_options = ("--no-gpu",)

    def socket_of(self, node: str) -> Path:
        """Return the path of a node's socket."""
        return self.socket if node == NODES[0] else self.scratch / "second.sock"

    def url_of(self, node: str) -> str:
        """Return the address of a node's exporter."""
        return self.url("exporter" if node == NODES[0] else "second")

    def _start_nodes(self) -> None:
        self.start_exporter()
        words = [sys.executable, "-m", "tachograph", "exporter", "--web.listen-address", self.address("second")]
        second = self.children.start("second", [*words, "--socket", str(self.socket_of(NODES[1])), "--no-gpu"])
        second.wait_until(lambda: answers(f"{self.url('second')}/-/ready"), START_SECONDS)
        self.aim("tachograph", dict(zip(NODES, map(self.address, ("exporter", "second")), strict=True)))


def node_of(role: str, rank: int) -> str:
    return NODES[1] if role == "reward" or rank else NODES[0]


@pytest.fixture(scope="module")
def stack(pager: Pager, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with TwoNodes(tmp_path_factory.mktemp("stack"), pager.url, gpus={}) as running:
        yield running


@pytest.fixture(scope="module")
def ranks(
    stack: TwoNodes, tmp_path_factory: pytest.TempPathFactory, wait_for: Callable[..., Any]
) -> tuple[Path, list[Child]]:
    """All ranks, once every role has made steps for a while, and the folder through which they wait for each other."""
    folder = tmp_path_factory.mktemp("job")
    started = []
    for role, world in WORLDS.items():
        for rank in range(world):
            environment = {
                "PYTHONPATH": os.fspath(FOLDER), "TACHOGRAPH_RUN": "ppo", "TACHOGRAPH_ROLE": role,
                wire.SOCKET_ENVIRONMENT: os.fspath(stack.socket_of(node_of(role, rank))),
                "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
            }  # fmt: skip
            words = [sys.executable, PROGRAM, role, str(rank), str(world), str(folder)]
            started.append(stack.children.start(f"{role}-{rank}", words, environment))

    def training() -> bool:
        assert all(child.running for child in started), [child.tail() for child in started]
        return bool(stack.query('count(run:step_interval_seconds:p50{run=~"ppo/.+"}) == 3'))

    wait_for(training, 120, "training")
    return folder, started


def judged(stack: TwoNodes, node: str) -> dict[str, Any]:
    """Return the runs of a node, as `/api/node` has them, by name."""
    return {each["run"]: each for each in json.loads(get(f"{stack.url_of(node)}/api/node"))["runs"]}


def ask(*words: str) -> tuple[int, str]:
    """Run a command of ours; return its status and output."""
    done = subprocess.run([sys.executable, "-m", "tachograph", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_each_role_is_a_run_on_its_nodes(stack: TwoNodes, ranks: object) -> None:
    """With its own world and ranks, none refused: two ranks 0 on one node, and another two on the other."""
    found = {
        node: {run: {one["rank"] for one in each["ranks"]} for run, each in judged(stack, node).items()}
        for node in NODES
    }
    assert found == {
        "node-a": {"ppo/actor": {0}, "ppo/critic": {0}},
        "node-b": {"ppo/actor": {1}, "ppo/critic": {1}, "ppo/reward": {0}},
    }
    worlds = {run: each["world_size"] for node in NODES for run, each in judged(stack, node).items()}
    assert worlds == {f"ppo/{role}": world for role, world in WORLDS.items()}
    assert {each["state"] for node in NODES for each in judged(stack, node).values()} == {"running"}


def test_the_stuck_rank_0_of_the_critic_is_named(
    stack: TwoNodes, ranks: tuple[Path, list[Child]], pager: Pager, wait_for: Callable[..., Any]
) -> None:
    """By the one page, by its node, by `top` and by `triage`, with Prometheus and without; the others wait for it."""
    since = time.time()
    (ranks[0] / STUCK).touch()
    page = the_page(pager, "RunHung", since)
    assert {name: page.labels.get(name) for name in ("run", "rank", "instance")} == {
        "run": "ppo/critic",
        "rank": "0",
        "instance": "node-a",
    }
    said = page.annotations["description"]
    assert re.search(r"1 of 2 ranks wait.*rank 0 \(node-a.*for \S+ in phase forward, at .*roles_job\.py:\d+", said), (
        said
    )
    assert [one.alert for one in paged(pager, since)] == ["RunHung"]
    exporters = [word for node in NODES for word in ("--exporter", stack.url_of(node))]
    status, text = ask("triage", "ppo/critic", "--prometheus", stack.url("prometheus"), *exporters)
    assert status == 3
    assert re.search(r"rank 0 \(node-a\), in phase forward, at roles_job\.py:\d+ forward", flat(text)), text
    status, text = ask("triage", "ppo/critic", "--prometheus", "http://127.0.0.1:9", *exporters)
    assert status == 3
    assert re.search(r"rank 0: stuck on the host: .*stands at roles_job\.py:\d+ forward", flat(text)), text
    status, text = ask("triage", "ppo/actor", "--prometheus", stack.url("prometheus"))
    assert "it waits for ppo/critic, which hangs" in text
    _, text = ask("top", "--once", "ppo/critic", "--prometheus", stack.url("prometheus"))
    assert re.search(r"RunHung +rank 0 node-a", text), text
    assert re.search(r"0 culprit +node-a", text), text
    _, text = ask("top", "--once", "--exporter", stack.url_of("node-a"))
    assert re.search(r"Run ppo/critic: no step .*rank 0 in forward.*roles_job\.py:\d+ forward", flat(text)), text
    states = {(node, run): each["state"] for node in NODES for run, each in judged(stack, node).items()}
    assert states.pop(("node-b", "ppo/critic")) == "hung", "there rank 1 waits for rank 0"
    assert {*states.values()} == {"overdue"}


def flat(text: str) -> str:
    """Return what a command wrapped in one line."""
    return re.sub(r"\s+", " ", text)
