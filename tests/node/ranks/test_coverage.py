"""Whose processes use GPUs and are not recorded, by the driver's list and the kernel's users: claims do not count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tachograph.auto.command import FOLDER
from tachograph.catalog import index as catalog
from tachograph.node.api.answer import NodeAnswer
from tachograph.node.ranks import gpu_owners
from tachograph.node.ranks.coverage import PATIENCE_SECONDS
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.run_names import RunNames
from tachograph.node.ranks.shown_ranks import ShownRanks
from tachograph.node.samples import GpuIdentity
from tests.client.conftest import wait_until
from tests.node.conftest import Table, TwoGpus

ALICE, BOB = 1001, 1002
NAMES = {ALICE: "alice", BOB: "bob"}
USERS = {10: ALICE, 20: BOB, 21: BOB, 22: BOB, 30: 0}
GPUS = tuple(GpuIdentity(str(number), f"GPU-{number}", "NVIDIA H100 80GB HBM3") for number in range(8))


class Driver(TwoGpus):
    """Eight GPUs, and the processes that a test puts on them."""

    def __init__(self) -> None:
        super().__init__(GPUS)
        self.listed: dict[str, tuple[int, ...]] = {}

    def put(self, **pids: tuple[int, ...]) -> None:
        """List these pids, by `gpu0` and so on; the other GPUs have none and are not listed, as by the worker."""
        self.listed = {gpu.uuid: pids[f"gpu{gpu.index}"] for gpu in GPUS if f"gpu{gpu.index}" in pids}

    def processes(self) -> dict[str, tuple[int, ...]]:
        return self.listed

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        return next((gpu for gpu in GPUS if pid in self.listed.get(gpu.uuid, ())), None)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def table(driver: Driver, hand: Any, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(gpu_owners.GpuOwners.__init__, "__defaults__", (USERS.get,))
    return Table(Limits(), hand.clock, driver, RunNames(own_uid=999, user=NAMES.get))


def after(hand: Any, table: Table, seconds: float) -> float | None:
    """Turn the clock on, in ticks; return how many GPUs are not recorded."""
    table.tick()
    hand.turn(seconds)
    table.tick()
    found = [one.value for one in ShownRanks(table).on_gpus() if one.metric is catalog.NODE_UNRECORDED_GPUS]
    assert len(found) <= 1
    return found[0] if found else None


def said(table: Table, hand: Any) -> list[str]:
    """Return what the status page and `top` say of it, once the users' names are looked up."""
    wait_until(lambda: not any(table._names.is_awaited(uid, lambda _: True) for uid in (*NAMES, os.geteuid())))
    judged = NodeAnswer("n", table, GPUS, None, hand.clock)
    problems = [each for each in json.loads(judged.as_json())["problems"] if each["kind"] == "Coverage"]
    assert not any(each["urgent"] for each in problems)
    return [each["text"] for each in problems]


def test_processes_without_a_recorder_are_named_by_their_user(driver: Driver, table: Table, hand: Any) -> None:
    """With their GPUs; those that have a rank, and those that nobody uses, are not among them."""
    driver.put(gpu0=(10,), gpu2=(20,), gpu5=(21,), gpu6=(21, 22), gpu7=(30,))
    table.greet("alice", Peer(ALICE, 10), uuid="GPU-0")
    assert after(hand, table, PATIENCE_SECONDS) == 4
    assert said(table, hand) == [
        "3 processes of bob use GPUs 2, 5, 6 and record nothing.",
        "1 process of root uses GPU 7 and records nothing.",
    ]


def test_a_process_has_time_to_begin(driver: Driver, table: Table, hand: Any) -> None:
    """Ten minutes of loading and compiling; one that ends and another that begins are two."""
    driver.put(gpu2=(20,))
    assert after(hand, table, PATIENCE_SECONDS - 1) == 0
    driver.put(gpu2=(21,))
    assert after(hand, table, PATIENCE_SECONDS - 1) == 0
    assert after(hand, table, 1) == 1


def test_it_is_over_once_the_user_records_or_ends(driver: Driver, table: Table, hand: Any) -> None:
    """A rank of another process of that user, as under a launcher, counts; one that has ended does not."""
    driver.put(gpu2=(20,))
    assert after(hand, table, PATIENCE_SECONDS) == 1
    table.greet("bob", Peer(BOB, 22), uuid="GPU-2")
    assert after(hand, table, 1) == 0
    table.lost("bob")
    assert after(hand, table, 1) == 1
    driver.put(gpu3=(30,))
    assert after(hand, table, 1) == 0
    assert said(table, hand) == []


def test_a_claim_hides_nobody(driver: Driver, table: Table, hand: Any) -> None:
    """A rank of another user that says it is on the GPU does not make it recorded."""
    driver.put(gpu2=(20,))
    table.greet("mallory", Peer(ALICE, 77), uuid="GPU-2")
    assert after(hand, table, PATIENCE_SECONDS) == 1


def test_what_is_not_known_is_not_said(driver: Driver, table: Table, hand: Any) -> None:
    """While the driver lists no process there is no number; of a process that is not visible no user is named."""
    assert after(hand, table, PATIENCE_SECONDS) is None
    driver.put(gpu3=(99,))
    assert after(hand, table, PATIENCE_SECONDS) == 1
    assert said(table, hand) == ["1 process uses GPU 3 and records nothing."]


HOOKED = "import sys; print(any(type(each).__name__ == 'TorchHook' for each in sys.meta_path), flush=True); input()"


@pytest.mark.parametrize(("flag", "is_hooked"), [("-S", False), ("-I", False), ("-E", False), ("-q", True)])
def test_a_python_that_ignores_the_folder_of_auto_is_counted(
    flag: str, is_hooked: bool, driver: Driver, hand: Any
) -> None:
    """Isolated, as frozen programs are, or without site: nothing of ours is in it, and its GPU is not recorded."""
    environment = {**os.environ, "PYTHONPATH": os.fspath(FOLDER)}
    words = [sys._base_executable, flag, "-c", HOOKED]  # type: ignore[attr-defined]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin
        assert program.stdout
        assert program.stdout.readline() == f"{is_hooked}\n"
        driver.put(gpu2=(program.pid,))
        table = Table(Limits(), hand.clock, driver, RunNames(own_uid=999, user={os.geteuid(): "bob"}.get))
        assert after(hand, table, PATIENCE_SECONDS) == 1
        (text,) = said(table, hand)
        assert text.endswith(" uses GPU 2 and records nothing.")
        program.stdin.write("\n")
    assert program.returncode == 0
