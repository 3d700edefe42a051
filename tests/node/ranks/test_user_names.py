"""The names of users: looked up off the loop, with a limit, and kept while a user has ranks."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.clock import Clock
from tachograph.node.ranks import user_names
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.process_end import ProcessEnds
from tachograph.node.ranks.rank_connection import RankConnection
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.run_names import RunNames
from tachograph.node.ranks.user_names import MAX_LOOKUPS, MAX_USERS, UserNames, user_name

ALICE, BOB = 1001, 1002


def idle(_: int | str) -> bool:
    return False


def busy(_: int | str) -> bool:
    return True


class Service:
    """A name service that answers, or hangs until it is let go."""

    def __init__(self) -> None:
        self.names: dict[int | str, str | None] = {ALICE: "alice", BOB: "bob"}
        self.hanging: set[int | str] = set()
        self.asked: list[int | str] = []
        self.go = threading.Event()

    def __call__(self, uid: int | str) -> str | None:
        self.asked.append(uid)
        if uid in self.hanging:
            assert self.go.wait(60)
        return self.names.get(uid)


@pytest.fixture
def service() -> Iterator[Service]:
    one = Service()
    yield one
    one.go.set()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Turns the clock that lookups are timed by."""
    now = [1000.0]
    monkeypatch.setattr(user_names.time, "monotonic", lambda: now[0])

    def turn(seconds: float) -> None:
        now[0] += seconds

    return turn


def test_whether_a_name_is_a_users(service: Service, later: Callable[[float], None]) -> None:
    """Where no name service answers it may be one; what was found stands while a run of that name has ranks."""
    service.names["alice"] = "alice"
    names = UserNames(service)
    assert [names.may_be(name, idle) for name in ("alice", "ppo")] == [True, False]
    assert not names.is_awaited("ppo", idle)
    service.names["ppo"] = "ppo"
    later(user_names.RETRY_SECONDS + 1)
    assert not names.may_be("ppo", busy)
    assert names.may_be("ppo", idle)
    service.hanging.add("grpo")
    assert names.is_awaited("grpo", idle)
    later(user_names.PATIENCE_SECONDS + 1)
    assert names.may_be("grpo", idle)


def test_a_name_of_the_machine_is_found() -> None:
    """By uid and by name."""
    assert user_name(0) == user_name("root") == "root"
    assert user_name("no such user") is None
    assert user_name("\udcff") is None


def test_a_user_is_looked_up_once(service: Service) -> None:
    """A sender has many connections; what is kept is bounded, and those with ranks are kept longest."""
    names = UserNames(service)
    assert [names.shown(ALICE, idle) for _ in range(3)] == ["alice"] * 3
    assert service.asked == [ALICE]
    for uid in range(2000, 2000 + MAX_USERS):
        assert names.shown(uid, lambda one: one == ALICE) == f"uid:{uid}"
    assert len(names._users) <= MAX_USERS
    assert names.shown(ALICE, idle) == "alice"
    assert service.asked.count(ALICE) == 1


def test_the_machine_knows_its_users() -> None:
    """Root has a name everywhere; a uid that nobody has is none."""
    assert user_name(0) == "root"
    assert user_name(2**31 - 7) is None
    assert user_name(2**40) is None


def test_a_name_service_that_hangs_keeps_nobody_waiting(service: Service, later: Callable[[float], None]) -> None:
    """Its user is awaited for a second and shown by the uid from then on; others are answered meanwhile."""
    names = UserNames(service)
    service.hanging = {ALICE}
    assert names.is_awaited(ALICE, idle)
    assert names.shown(BOB, idle) == "bob"
    later(0.9)
    assert names.is_awaited(ALICE, idle)
    later(0.2)
    assert not names.is_awaited(ALICE, idle)
    assert names.shown(ALICE, idle) == "uid:1001"


def test_a_run_keeps_its_name(service: Service, later: Callable[[float], None]) -> None:
    """An answer that comes too late counts once the user has no ranks, and so does a user added since."""
    names = UserNames(service)
    service.hanging, service.names[BOB] = {ALICE}, None
    names.is_awaited(ALICE, idle)
    later(2)
    assert [names.shown(uid, idle) for uid in (ALICE, BOB)] == ["uid:1001", "uid:1002"]
    service.go.set()
    service.names[BOB] = "bob"
    later(297)
    assert [names.shown(uid, idle) for uid in (ALICE, BOB)] == ["uid:1001", "uid:1002"]
    later(5)
    assert [names.shown(uid, busy) for uid in (ALICE, BOB)] == ["uid:1001", "uid:1002"]
    assert [names.shown(uid, idle) for uid in (ALICE, BOB)] == ["alice", "bob"]
    service.names[ALICE] = "eve"
    later(1e6)
    assert names.shown(ALICE, idle) == "alice"


def test_lookups_that_hang_are_few(service: Service, later: Callable[[float], None]) -> None:
    """Whoever has many uids cannot make more threads; when they end, others are looked up again."""
    names = UserNames(service)
    service.hanging = set(range(2000, 2100))
    for uid in service.hanging:
        names.is_awaited(uid, idle)
    assert len(service.asked) == MAX_LOOKUPS
    assert names.is_awaited(ALICE, idle)
    service.go.set()
    for thread in names._lookups:
        thread.join(60)
    assert names.shown(ALICE, idle) == "alice"


def test_lookups_refused_are_counted_by_user(service: Service, two_gpus: Any) -> None:
    """Once a tick for each whose name is not looked up."""
    table = RankTable(Limits(), Clock(), two_gpus, RunNames("auto", 990, service))
    service.hanging = set(range(2000, 2000 + MAX_LOOKUPS))
    for uid in (*service.hanging, ALICE, ALICE):
        table.is_owner_awaited(uid)
    for _ in range(2):
        table.tick()
    service.go.set()
    assert table.shares.over == {(str(ALICE), "owner_lookups"): 1}


@pytest.mark.parametrize("case", [(ALICE, {}, ALICE, "uid:1001/r"), (0, {"role": "critic"}, "r", "root/r/critic")])
def test_a_hello_waits_for_the_name_of_a_user_and_for_no_other(
    case: tuple[int, dict[str, object], int | str, str],
    service: Service,
    two_gpus: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first hello is held back, with all that follows it; another user's is answered meanwhile.

    With a role it may depend on whether the name of its run is a user's, too.
    """
    uid, more, asked, shown = case
    service.hanging = {asked}
    monkeypatch.setattr(user_names, "PATIENCE_SECONDS", 1e9)
    table = RankTable(Limits(), Clock(), two_gpus, RunNames("auto", 990, service))

    async def said(
        closing: AsyncExitStack, uid: int, *frames: dict[str, object]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path, ends = str(tmp_path / str(uid)), ProcessEnds(Limits())
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: RankConnection(table, time.monotonic, Peer(uid, 5), lambda _: None, ends), path
        )
        closing.callback(server.close)
        reader, writer = await asyncio.open_unix_connection(path)
        closing.push_async_callback(writer.wait_closed)
        closing.callback(writer.close)
        writer.writelines(json.dumps({"v": 1, **frame}).encode() + b"\n" for frame in frames)
        return reader, writer

    async def play() -> None:
        hello: dict[str, object] = {"type": "hello", "run": "r", "rank": 0}
        async with AsyncExitStack() as closing:
            state = {"type": "state", "seq": 1, "time": 1.0, "step": 7}
            held, writer = await said(closing, uid, {**hello, **more}, state)
            reader, _ = await said(closing, BOB, hello)
            assert json.loads(await asyncio.wait_for(reader.readline(), 60))["run"] == "bob/r"
            assert [rank.key for rank in table.ranks()] == [("bob/r", "0")]
            monkeypatch.setattr(user_names, "PATIENCE_SECONDS", 0.0)
            assert json.loads(await asyncio.wait_for(held.readline(), 60))["run"] == shown
            writer.write(b"nonsense\n")
            assert not json.loads(await asyncio.wait_for(held.readline(), 60))["ok"]
            assert [(rank.key[0], rank.step) for rank in table.ranks()] == [("bob/r", None), (shown, 7)]

    asyncio.run(play())
