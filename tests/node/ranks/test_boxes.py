"""The boxes of ranks: put together from their parts, the last one of each rank, bounded for each user and in all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tachograph.node.ranks.boxes import BOXES_HZ, KEPT_SECONDS, LEAST_BYTES, MOST_TEXTS, NODE_BYTES, USER_BOXES, Boxes
from tachograph.node.ranks.frames import BoxPart, Bye, FrameError, Hello, Peer
from tachograph.wire import MAX_BOX_BYTES

ALICE, BOB = 1000, 1001


class Link:
    """A connection that can be asked for a box."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask_for_box(self, reason: str) -> None:
        self.asked.append(reason)


def box_of(text: str, number: int = 1, parts: int = 1, reason: str = "no step for 41 s") -> list[BoxPart]:
    length = -(-len(text) // parts)
    pieces = [text[start : start + length] for start in range(0, len(text), length)]
    return [BoxPart(1, number, part, parts, 100.0 + number, reason, each) for part, each in enumerate(pieces)]


def send(
    boxes: Boxes, text: str, *, uid: int = ALICE, number: int = 1, parts: int = 1, reason: str = "no step", **who: Any
) -> None:
    for part in box_of(text, number, parts, reason):
        boxes.add(uid, Hello(**{"v": 1, "run": "r", "rank": 0, **who}), part)


def large(size: int, mark: str = "x") -> str:
    return json.dumps({"stacks": mark * (size - 14)})


def test_a_box_is_put_together_from_its_parts() -> None:
    """It is there with its last part, byte for byte, and replaces the box before it."""
    boxes, text = Boxes(), json.dumps({"rank": 3, "where": "data.py:88 load_shard", "log": "ünïcode " * 60})
    *first, last = box_of(text, parts=7)
    hello = Hello(v=1, run="r", rank=3)
    for part in first:
        boxes.add(ALICE, hello, part)
    assert boxes.of("r") == []
    boxes.add(ALICE, hello, last)
    (box,) = boxes.of("r")
    assert (box.run, box.attempt, box.rank, box.time, box.reason) == ("r", "0", 3, 101.0, "no step for 41 s")
    assert box.text == text.encode()
    send(boxes, "{}", rank=3, number=2)
    assert [(box.time, box.text) for box in boxes.of("r")] == [(102.0, b"{}")]


def test_a_box_of_another_client_is_redacted() -> None:
    """What a program wrote is redacted as it comes, also in variables by their names; all else stays as it is."""
    variables = {"NCCL_AUTH": "hunter2", "NCCL_DEBUG": "INFO", "RANKS": ["hf_hunter2hunter2"]}
    lines = ["/data/sk_live_hunter2hunter2/x.py:1 f"]
    box = {
        "where": "data.py:88 token",
        "failure": {"category": "data", "message": "bad token=hunter2", "lines": lines},
        "environment": {"python": "3.12", "variables": variables},
        "log": ["-----BEGIN PRIVATE KEY-----", "hunter2", "-----END PRIVATE KEY-----", "epoch 3 done"],
    }
    boxes = Boxes()
    send(boxes, json.dumps(box))
    text = boxes.of("r")[0].text.decode()
    assert "hunter2" not in text
    shown = json.loads(text)
    assert shown["where"] == box["where"]
    assert shown["environment"]["variables"]["NCCL_DEBUG"] == "INFO"
    assert shown["failure"]["message"] == "bad token=[redacted]"
    assert shown["log"][-1] == "epoch 3 done"


def test_a_box_with_endless_texts_costs_little() -> None:
    """No more texts are looked at than our client sends, whatever the box holds."""
    boxes = Boxes()
    send(
        boxes, json.dumps({"log": ["token=x"] * 10_000, "failure": {str(n): "token=x" for n in range(10_000)}}), parts=8
    )
    shown = json.loads(boxes.of("r")[0].text)
    assert len(shown["log"]) == len(shown["failure"]) == MOST_TEXTS


def test_what_does_not_follow_is_refused() -> None:
    """A part too many, too early, or of another box is refused, and so is what is not JSON; the last box stays."""
    boxes, hello = Boxes(), Hello(v=1, run="r", rank=0)
    send(boxes, '{"whole":1}')
    first, second, third = box_of('{"a":1,"b":2}', number=2, parts=3)
    for wrong in (
        [second], [first, third], [first, first, third], [first, BoxPart(1, 3, 1, 3, 1.0, "", "")],
        [first, BoxPart(1, 2, 1, 2, 1.0, "", "")], box_of("[1]"), box_of('{"a":'), box_of('{"a":1} x'),
        box_of(large(MAX_BOX_BYTES + 1), parts=20),
    ):  # fmt: skip
        *fine, bad = wrong
        for part in fine:
            boxes.add(ALICE, hello, part)
        with pytest.raises(FrameError, match="box: "):
            boxes.add(ALICE, hello, bad)
        assert [box.text for box in boxes.of("r")] == [b'{"whole":1}']
    send(boxes, large(MAX_BOX_BYTES), parts=20)
    assert len(boxes.of("r")[0].text) == MAX_BOX_BYTES


def test_the_newest_attempt_that_left_boxes_counts() -> None:
    """Boxes of an earlier attempt are shown until one of the next comes; ranks come in order."""
    boxes = Boxes()
    for rank in (10, 9, 2):
        send(boxes, "{}", rank=rank, attempt=9)
    assert [(box.attempt, box.rank) for box in boxes.of("r")] == [("9", 2), ("9", 9), ("9", 10)]
    send(boxes, "{}", rank=9, attempt=10)
    assert [(box.attempt, box.rank) for box in boxes.of("r")] == [("10", 9)]
    assert boxes.runs() == ["r"]


@pytest.mark.parametrize("asked", ["asked for", "asked for by carol", "SIGUSR2"])
def test_what_was_asked_for_takes_nothing_from_what_was_left(asked: str) -> None:
    """A rank has the last box of each kind; a requested one never makes another's, or its own, evidence give way."""
    boxes = Boxes(user_bytes=4 * LEAST_BYTES, node_bytes=99 * LEAST_BYTES)
    send(boxes, '{"left":1}')
    for number in range(9):
        send(boxes, f'{{"asked":{number}}}', reason=asked)
    assert [box.text for box in boxes.of("r")] == [b'{"left":1}', b'{"asked":8}']
    send(boxes, '{"left":2}')
    assert [box.text for box in boxes.of("r")] == [b'{"left":2}', b'{"asked":8}']
    for rank in (1, 2, 3):
        send(boxes, "{}", rank=rank)
    assert [(box.rank, box.is_requested) for box in boxes.of("r")] == [(rank, False) for rank in range(4)]
    send(boxes, "{}", rank=1, reason=asked)
    assert [(box.rank, box.is_requested) for box in boxes.of("r")] == [(rank, False) for rank in range(4)]
    assert boxes.dropped == {"box": 2}


def test_what_an_attempt_left_is_there_until_the_next_leaves_some() -> None:
    """A box that was requested of a new attempt does not hide how the last one ended."""
    boxes = Boxes()
    send(boxes, '{"left":0}', attempt=0)
    send(boxes, '{"asked":0}', attempt=0, reason="asked for")
    send(boxes, '{"asked":1}', attempt=1, reason="asked for")
    assert [(box.attempt, box.is_requested) for box in boxes.of("r")] == [("0", False), ("1", True)]
    send(boxes, '{"left":1}', attempt=1)
    assert [(box.attempt, box.is_requested) for box in boxes.of("r")] == [("1", False), ("1", True)]


@pytest.mark.parametrize("others", [8, 40])
def test_users_with_more_take_nothing_from_one_with_less(others: int) -> None:
    """Eight large boxes of one user stay, whatever uids with as many and more send; each of those has its share."""
    boxes = Boxes()
    mine = 8 if others == 8 else 2
    for rank in range(mine):
        send(boxes, large(500_000), parts=20, run="alice", rank=rank)
    for uid in range(165600, 165600 + others):
        for rank in range(16):
            send(boxes, large(500_000), parts=20, uid=uid, run=f"b{uid}", rank=rank)
            if rank % 5 == 0:
                send(boxes, "{}", uid=uid, run=f"b{uid}", rank=99, reason="asked for")
    assert len(boxes.of("alice")) == mine
    assert sum(len(boxes.of(f"b{uid}")) > 0 for uid in range(165600, 165600 + others)) == others
    assert boxes._held.total() <= NODE_BYTES
    assert boxes._held.total() == sum(each.size for each in boxes._whole.values())


def test_boxes_of_runs_that_are_gone_give_way_first() -> None:
    """Also those of a user who has few: whoever leaves many behind takes no room from runs that are here."""
    here = {"r"}
    boxes = Boxes(user_bytes=99 * LEAST_BYTES, node_bytes=5 * LEAST_BYTES, is_known=here.__contains__)
    send(boxes, "{}", uid=BOB, run="gone")
    for rank in range(5):
        send(boxes, "{}", rank=rank)
    assert boxes.runs() == ["r"]
    assert len(boxes.of("r")) == 5


def test_a_day_later_a_box_is_gone(hand: Any) -> None:
    """The memory of boxes is bounded by their age, too; what is replaced counts from then on."""
    boxes = Boxes(clock=lambda: hand.now)
    send(boxes, "{}", rank=0)
    send(boxes, "{}", rank=1)
    hand.turn(KEPT_SECONDS / 2)
    send(boxes, "{}", rank=0)
    hand.turn(KEPT_SECONDS / 2 + 1)
    boxes.drop_old()
    assert [box.rank for box in boxes.of("r")] == [0]
    hand.turn(KEPT_SECONDS)
    boxes.drop_old()
    assert (boxes.runs(), boxes._held.total(), boxes.dropped) == ([], 0, {"box": 2})


def test_boxes_that_are_dropped_are_counted(table: Any, hand: Any) -> None:
    """On /metrics, beside the series that are."""
    table.greet(link := Link())
    for part in box_of("{}"):
        table.box(link, part)
    assert table.shown()["exporter_series_dropped_total", "box"] == 0
    hand.turn(KEPT_SECONDS + 1)
    table.tick()
    assert table.shown()["exporter_series_dropped_total", "box"] == 1


def test_a_user_s_oldest_boxes_give_way() -> None:
    """Beyond a user's bytes the oldest box goes, however small the boxes are, and nobody else's."""
    boxes = Boxes(user_bytes=4 * LEAST_BYTES, node_bytes=99 * LEAST_BYTES)
    send(boxes, "{}", uid=BOB, run="bob's")
    for rank in range(4):
        send(boxes, "{}", rank=rank)
    send(boxes, large(LEAST_BYTES), rank=0)  # now the newest
    send(boxes, large(LEAST_BYTES + 1), rank=4)
    assert [box.rank for box in boxes.of("r")] == [0, 3, 4]
    boxes.add(ALICE, Hello(v=1, run="r", rank=5), box_of(large(2 * LEAST_BYTES), parts=2)[0])
    assert [box.rank for box in boxes.of("r")] == [0, 4]
    assert boxes.runs() == ["bob's", "r"]


def test_the_user_with_most_gives_way_on_a_full_node() -> None:
    """Beyond the node's bytes the user who has most loses the oldest box; one who has few keeps them."""
    boxes = Boxes(user_bytes=4 * LEAST_BYTES, node_bytes=5 * LEAST_BYTES)
    for rank in range(4):
        send(boxes, "{}", rank=rank)
    for rank in range(2):
        send(boxes, "{}", uid=BOB, run="b", rank=rank)
    assert [box.rank for box in boxes.of("r")] == [1, 2, 3]
    assert [box.rank for box in boxes.of("b")] == [0, 1]


def test_who_wants_more_than_a_share_of_boxes_is_counted() -> None:
    """Whoever's boxes give way for want of room; nobody for boxes that became too old or were replaced."""
    over: list[tuple[int, str]] = []
    boxes = Boxes(user_bytes=3 * LEAST_BYTES, node_bytes=4 * LEAST_BYTES, exceeded=lambda *who: over.append(who))
    for rank in (0, 0, 1, 2):
        send(boxes, "{}", rank=rank)
    assert over == []
    send(boxes, "{}", rank=3)
    assert over == [(ALICE, "boxes")]
    for rank in range(2):
        send(boxes, "{}", uid=BOB, run="b", rank=rank)
    assert over == [(ALICE, "boxes")] * 2


def test_unfinished_boxes_count_and_are_bounded() -> None:
    """Boxes that are begun and never ended take no more than the user's share."""
    boxes = Boxes(user_bytes=4 * LEAST_BYTES, node_bytes=5 * LEAST_BYTES)
    for rank in range(9):
        boxes.add(ALICE, Hello(v=1, run="r", rank=rank), box_of(large(2 * LEAST_BYTES), parts=2)[0])
    assert len(boxes._unfinished) == 4
    send(boxes, "{}")
    assert (len(boxes.of("r")), len(boxes._unfinished)) == (1, 3)


def test_a_rank_s_box_outlives_it(table: Any, hand: Any) -> None:
    """After the rank is forgotten its box is there still, until the run's name is another user's."""
    table.greet(link := Link())
    for part in box_of('{"a":1}'):
        table.box(link, part)
    table.bye(link, Bye(v=1, outcome="failed"))
    hand.turn(1000.0, table.tick)
    assert not list(table.ranks())
    assert [box.text for box in table.boxes.of("r")] == [b'{"a":1}']
    table.greet(Link())
    assert table.boxes.of("r")
    hand.turn(1.0)
    table.greet(Link(), run="other")
    assert table.boxes.runs() == ["r"]


def test_the_box_of_a_failure_comes_after_the_bye(table: Any) -> None:
    """Over the same connection, until that ends, speaks for another rank, or the run is another user's."""
    table.greet(link := Link())
    table.bye(link, Bye(v=1, outcome="failed"))
    for part in box_of('{"a":1}', parts=2):
        table.box(link, part)
    assert [box.text for box in table.boxes.of("r")] == [b'{"a":1}']
    table.greet(link, run="second")
    for part in box_of('{"b":1}'):
        table.box(link, part)
    assert table.boxes.runs() == ["r", "second"]
    table.bye(link, Bye(v=1, outcome="failed"))
    table.lost(link)
    with pytest.raises(FrameError, match="no rank"):
        table.box(link, box_of("{}")[0])
    assert table._said_bye == {}


def test_a_late_box_of_a_run_that_is_another_user_s_is_refused(table: Any, hand: Any) -> None:
    """Its name was taken while the connection of the former owner was still open."""
    table.greet(link := Link())
    table.bye(link, Bye(v=1, outcome="failed"))
    hand.turn(1000.0, table.tick)
    with pytest.raises(FrameError, match="not yours"):
        table.box(link, box_of("{}")[0])
    table.greet(Link(), peer=Peer(BOB, 77))
    with pytest.raises(FrameError, match="not yours"):
        table.box(link, box_of("{}")[0])


def test_boxes_do_not_pass_to_another_user_with_the_name(table: Any, hand: Any) -> None:
    """Who takes a run's name that nobody has any more does not get the boxes of its former owner."""
    table.greet(link := Link())
    for part in box_of('{"a":1}'):
        table.box(link, part)
    table.bye(link, Bye(v=1, outcome="finished"))
    hand.turn(1000.0, table.tick)
    table.greet(Link(), peer=Peer(BOB, 77))
    assert table.boxes.of("r") == []


def test_a_box_needs_a_hello(table: Any) -> None:
    """A connection that speaks for no rank has no box."""
    with pytest.raises(FrameError, match="no rank"):
        table.box(Link(), box_of("{}")[0])


def test_capture_asks_every_connected_rank_once_in_ten_seconds(table: Any, hand: Any) -> None:
    """All ranks of the run that are connected are asked, no others, and again only after 10 s."""
    links, other = [Link() for _ in range(4)], Link()
    for rank, link in enumerate(links):
        table.greet(link, rank=rank, pid=10 + rank, world_size=4)
    table.greet(other, run="other")
    table.greet(object(), run="by replay")
    table.bye(links[3], Bye(v=1, outcome="finished"))
    assert table.capture("r", "asked by\x1b[2J alice" + "x" * 500) == 3
    hand.turn(9.9)
    assert table.capture("r", "again") == 3, "those that were asked before"
    assert table.shares.over == {("1000", "captures"): 1}
    assert [len(link.asked) for link in (*links, other)] == [1, 1, 1, 0, 0]
    assert links[0].asked[0].startswith("asked by?[2J alicexxx")
    assert len(links[0].asked[0]) == 128
    hand.turn(0.1)
    assert table.capture("r", "again") == 3
    assert links[0].asked[1:] == ["again"]
    assert table.capture("by replay", "x") == table.capture("nobody's", "x") == 0


def test_boxes_that_come_too_fast_are_not_looked_at(hand: Any) -> None:
    """One user's flood is dropped unread and counted, costs another nothing, and is over when it stops."""
    over: list[tuple[int, str]] = []
    boxes = Boxes(clock=lambda: hand.now, exceeded=lambda *who: over.append(who))
    for number in range(USER_BOXES + 5):
        send(boxes, json.dumps({"number": number}), number=number)
    assert over == [(ALICE, "boxes")] * 5
    assert boxes.dropped["box"] == 5
    (last,) = boxes.of("r")
    assert json.loads(last.text) == {"number": USER_BOXES - 1}
    send(boxes, "not JSON")  # nothing of it was read, so nothing is wrong with it
    send(boxes, "{}", uid=BOB, run="bob's")
    assert len(boxes.of("bob's")) == 1
    hand.turn(1 / BOXES_HZ)
    send(boxes, json.dumps({"number": "later"}))
    (last,) = boxes.of("r")
    assert json.loads(last.text) == {"number": "later"}
