"""Shares: what one user of the node takes is never at the cost of another."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.ranks.claims import Claims
from tachograph.node.ranks.frames import Bye, FrameError, Peer
from tachograph.node.ranks.shares import MOST_USERS, QUIET_SECONDS, WORK_BURST, WORK_RATE, Shares
from tachograph.node.recent_peak import HALF_SECONDS, RecentPeak
from tachograph.wire import MAX_NAME_BYTES

ME, RUDE = Peer(1000, 1), Peer(666, 2)


def test_another_users_dead_rank_is_not_evicted(table_of: Any, two_gpus: Any) -> None:
    """A user with more ranks than his share loses his own: first those that finished, then those longest dead."""
    table = table_of(two_gpus, ranks=4)
    table.greet(victim := object(), ME, run="mine")
    table.lost(victim)
    links = [object() for _ in range(4)]
    for rank, link in enumerate(links):
        table.greet(link, RUDE, run="rude", rank=rank)
    table.lost(links[0])
    table.bye(links[1], Bye(v=1, outcome="finished"))
    for rank in (10, 11):
        table.greet(object(), RUDE, run="rude", rank=rank)
        known = [each.hello.rank for each in table.ranks() if each.key[0] == "rude"]
        assert known == ([0, 2, 3, 10] if rank == 10 else [2, 3, 10, 11])
    with pytest.raises(FrameError, match=r"you already have 4 live ranks on this node \(limits.ranks\)"):
        table.greet(object(), RUDE, run="rude", rank=12)
    assert table.states("mine") == ["dead"]
    assert table.greet(object(), Peer(1001, 3), run="third").last_step is None


def test_the_node_has_room_for_four_greedy_users(table_of: Any, two_gpus: Any) -> None:
    """Beyond four times the limit of one user, new ranks are refused, and no present one is forgotten."""
    table = table_of(two_gpus, ranks=2)
    for uid in range(4):
        for rank in range(2):
            table.greet(object(), Peer(uid, 1), run=f"run {uid}", rank=rank)
    with pytest.raises(FrameError, match="this node already has 8 ranks"):
        table.greet(object(), Peer(9, 1), run="late")
    assert len(list(table.ranks())) == 8


def test_what_a_user_left_behind_is_not_crowded_out(table: Any, hand: Any) -> None:
    """A rank that returns after hours receives its last step, whatever other users sent meanwhile."""
    table.greet(link := object(), ME, run="mine")
    table.tell(link, step=480)
    table.lost(link)
    hand.turn(901.0, table.tick)
    for number in range(2000):
        table.greet(rude := object(), RUDE, run=f"{number}")
        table.lost(rude)
    assert table.greet(object(), ME, run="mine", pid=77).last_step == 480


@pytest.mark.parametrize(
    "facts", [{"precision": 10**400}, {"precision": -(10**4000)}, {"peak_flops": 10**400}, {"tier": 1e308}]
)
def test_a_hello_makes_no_immortal_rank(table: Any, hand: Any, facts: dict[str, Any]) -> None:
    """A fact that no double holds is left out and counted; the rank dies and is forgotten as any other."""
    link = object()
    table.greet(link, RUDE, run="e")
    table.greet(link, RUDE, run="e", facts=facts)
    assert table.dropped["wrong_type"] == 1
    table.lost(link)
    assert table.states("e") == ["dead"]
    hand.turn(901.0, table.tick)
    assert list(table.ranks()) == []
    assert table.greet(object(), ME, run="e").last_step is None


def test_a_hello_that_fails_changes_nothing(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong while a hello is read, the name stays free, and a rank that is known speaks on."""
    table.greet(link := object(), ME, run="mine")

    def broken(*_: object) -> str:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patched:
        patched.setattr(Claims, "fact", broken)
        for at in (link, object()):
            with pytest.raises(RuntimeError):
                table.greet(at, ME, run="mine", attempt=1, facts={"precision": "fp8"})
        with pytest.raises(RuntimeError):
            table.greet(object(), RUDE, run="other")
    table.tell(link, step=7)
    assert table.shown()["train_step", "mine", "0"] == 7
    assert table.greet(object(), ME, run="other").last_step is None


def test_names_are_limited_in_bytes(table: Any) -> None:
    """Prometheus counts bytes: no label value that a rank chose is longer than the longest name, in any script."""
    table.greet(link := object(), ME, run="訓" * 42, facts={"precision": "訓" * 22, "framework": "é" * 32})
    groups = {"é" * 32: 1, "訓" * 22: 1, "a\x1bb": 1, "": 1}
    table.tell(link, metrics={"collective_enqueued": groups})
    texts = [text for labels in table.shown() for text in labels]
    assert max(len(text.encode()) for text in texts) <= MAX_NAME_BYTES
    assert {text for text in texts if text.startswith("é")} == {"é" * 32}
    assert table.dropped["bad_label"] == 3
    assert table.dropped["wrong_type"] == 1


def test_a_wide_frame_is_not_looked_at_whole(table: Any) -> None:
    """Of a family with too many values, and of a frame with too many families, no more is read than could be shown."""

    class Counting(dict[str, object]):
        read = 0

        def items(self) -> Any:
            for item in super().items():
                Counting.read += 1
                yield item

    table.greet(link := object(), ME)
    wide = Counting({f"layers.{i}": 1.0 for i in range(6300)})
    table.tell(link, metrics={"layer_grad_norm": wide, "collective_enqueued": {"0": 7}})
    assert Counting.read <= 257
    assert table.shown()["train_collective_enqueued", "r", "0", "0"] == 7
    assert table.dropped["label_limit"] == 6300 - 128
    table.tell(link, 2, metrics=Counting({f"k{i}": 1.0 for i in range(6300)}))
    assert Counting.read <= 257 + 513
    assert table.dropped["unknown_metric"] == 6300


def test_work_is_shared_among_users(hand: Any) -> None:
    """Who used up his share waits for the whole to fill again, and no longer than for the share; others do not."""
    shares = Shares(lambda: hand.now)
    rude, mine = shares.of(666), shares.of(1000)
    shares.connect(666)
    shares.connect(1000)
    assert rude.wait_seconds() == 0.0
    rude.spend(WORK_BURST + 0.25)
    assert rude.wait_seconds() == pytest.approx(0.25 / WORK_RATE)
    assert mine.wait_seconds() == 0.0
    mine.spend(WORK_BURST / 2)
    assert mine.wait_seconds() == 0.0
    hand.turn(0.5)
    shares.tick()
    assert shares.throttled_seconds == 0.5
    hand.turn(rude.wait_seconds() + 0.01)
    assert rude.wait_seconds() == 0.0
    shares.disconnect(666)
    assert shares.users == 1


def test_who_sends_nothing_takes_nothing(hand: Any) -> None:
    """One person can have many uids: those that are connected, and idle, leave their parts to the others."""
    shares = Shares(lambda: hand.now)
    for uid in range(2000, 2400):
        shares.connect(uid)
    shares.connect(1000)
    mine = shares.of(1000)
    for _ in range(200):
        hand.turn(0.05, shares.tick)
        mine.spend(0.045 * WORK_RATE)
        assert mine.wait_seconds() == 0.0
    assert not shares.over
    mine.spend(WORK_BURST + WORK_RATE)
    assert mine.wait_seconds() == pytest.approx(1.0, abs=0.1)


def test_who_exceeds_a_share_is_counted_and_logged_once(hand: Any, caplog: pytest.LogCaptureFixture) -> None:
    """By user and resource, with a line when it begins, also after a quiet time; users beyond a number are one."""
    shares = Shares(lambda: hand.now)
    for _ in range(300):
        shares.exceeded(666, "names")
        shares.exceeded(666, "frames", 3)
        hand.turn(10.0)
    assert shares.over == {("666", "names"): 300, ("666", "frames"): 900}
    assert [(each.uid, each.resource) for each in caplog.records] == [("666", "names"), ("666", "frames")]  # type: ignore[attr-defined]
    hand.turn(QUIET_SECONDS)
    shares.exceeded(666, "names")
    assert len(caplog.records) == 3
    for uid in range(2 * MOST_USERS):
        shares.exceeded(uid, "series")
    assert len({user for user, _ in shares.over}) == MOST_USERS + 1
    assert shares.over["other", "series"] == MOST_USERS + 1
    shares.exceeded(666, "ranks")
    assert shares.over["666", "ranks"] == 1
    shown = {sample.labels: sample.value for sample in shares.samples() if sample.metric is catalog.USER_OVER_SHARE}
    assert shown == shares.over
    assert all(resource in catalog.SHARED for _, resource in shown)


def test_each_limit_counts_for_its_user(table_of: Any, two_gpus: Any, hand: Any) -> None:
    """Ranks, series and CPU time that a user wanted beyond a share; the other user has nothing to answer for."""
    table = table_of(two_gpus, ranks=2, series=200)
    table.greet(mine := object(), ME, run="mine")
    for rank in range(2):
        table.greet(link := object(), RUDE, run="rude", rank=rank)
        table.tell(link, metrics={"layer_grad_norm": {f"{i}": 1.0 for i in range(120)}})
    with pytest.raises(FrameError, match="live ranks"):
        table.greet(object(), RUDE, run="rude", rank=3)
    table.shares.of(RUDE.uid).spend(1.0)
    hand.turn(1.0)
    table.shares.tick()
    table.tell(mine, metrics={"loss": 1.0})
    assert {who for who, _ in table.shares.over} == {"666"}
    assert {resource for _, resource in table.shares.over} == {"ranks", "series", "cpu"}


def test_a_rank_that_is_wide_by_itself_is_within_its_users_share(table: Any) -> None:
    """The limits on one rank drop what a large model has too much of: that is no ticket about its user."""
    table.greet(link := object(), ME)
    wide = {f"{i}": 1.0 for i in range(900)}
    table.tell(link, metrics={"layer_grad_norm": wide, "layer_grad_ratio": wide, "collective_enqueued": wide})
    assert table.dropped["label_limit"] > 0
    assert not table.shares.over


def test_series_are_limited_for_each_user(table_of: Any, two_gpus: Any, hand: Any) -> None:
    """All ranks of a user together have no more series than fit on the page; a removed rank makes room."""
    table = table_of(two_gpus, series=1000)
    wide = {"layer_grad_norm": {f"{i}": 1.0 for i in range(32)}, "layer_grad_ratio": {f"{i}": 1.0 for i in range(32)}}
    for rank in range(20):
        table.greet(link := (rank,), RUDE, run="rude", rank=rank)
        table.tell(link, metrics=wide)
    held = [rank.series.size for rank in table.ranks()]
    assert 900 < sum(held) <= 1000 + 20 * 12  # each rank has a dozen from the start
    assert table.dropped["series_limit"] > 0
    table.greet(mine := object(), ME)
    table.tell(mine, metrics=wide)
    assert next(rank.series.size for rank in table.ranks() if rank.peer == ME) == held[0]
    for rank in range(20):
        table.lost((rank,))
    hand.turn(901.0, table.tick)
    table.greet(link := object(), RUDE, run="rude")
    table.tell(link, metrics=wide)
    assert next(rank.series.size for rank in table.ranks() if rank.peer == RUDE) == held[0]
    assert table.shares.of(RUDE.uid).series == held[0]


def test_a_peak_is_seen_for_a_minute_at_least(hand: Any) -> None:
    """A peak stays while a scrape a minute could miss it, and goes within two."""
    peak = RecentPeak(lambda: hand.now)
    hand.turn(HALF_SECONDS - 1)
    peak.note(3.0)
    peak.note(1.0)
    hand.turn(HALF_SECONDS)
    assert peak.read() == 3.0
    peak.note(0.5)
    assert peak.read() == 3.0
    hand.turn(HALF_SECONDS)
    assert peak.read() == 0.5
    hand.turn(2 * HALF_SECONDS)
    assert peak.read() == 0.0


def test_who_waits_is_served_in_turn() -> None:
    """Ten connections over one share: what is left serves one, the first first; no other wakes."""
    now, served = 0.0, list[int]()
    share = Shares(lambda: now).of(1)
    unit = WORK_BURST + 0.001

    def go_on(number: int) -> None:
        served.append(number)
        share.spend(unit)
        if number < 5:
            share.in_turn(functools.partial(go_on, number + 100))

    async def body() -> None:
        nonlocal now
        share.spend(unit)
        for number in range(10):
            share.in_turn(functools.partial(go_on, number))
        for expected in range(1, 16):
            now += unit / WORK_RATE
            async with asyncio.timeout(60):
                while len(served) < expected:
                    await asyncio.sleep(0.001)

    asyncio.run(body())
    assert served == [*range(10), *range(100, 105)]
