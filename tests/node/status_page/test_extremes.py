"""The status page under extreme frames: every section is rendered, and one that fails affects no other."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tachograph.catalog import index as catalog
from tachograph.node.api.answer import NodeAnswer
from tachograph.node.ranks.frames import Bye, FrameError, Hello, decode
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank import Peer
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample
from tachograph.node.status_page.page import Sections, status_page
from tests.schemas import conforms

FAILED = "could not be drawn"
HOSTILE = "\x1b[2J\x07\r\n\x9b31m\u202e\u2066\u200b\u200d\u05d0\u0627<b>&\"'"
NUMBERS = [1e308, -1e308, 1.7e308, 5e-324, 2**53, 2**53 + 2, 0, -0.0, 1, 3.5, "NaN", "Inf", "+Inf", "-Inf", -1]
number = st.sampled_from(NUMBERS) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63)
name = st.sampled_from(["", HOSTILE, HOSTILE * 8, "訓" * 128, "a"]) | st.text(max_size=128)


def family(row: catalog.Metric) -> st.SearchStrategy[Any]:
    if row.own_label is None:
        return number
    return st.dictionaries(st.sampled_from([*row.values, "0", "1"]) | name, number, max_size=4)


STALLED = 1_763_690_000.0
metrics = st.fixed_dictionaries({}, optional={key: family(row) for key, row in catalog.TRAIN_METRICS.items()})
instant = st.sampled_from([0, STALLED, STALLED + 100, 2**36]) | st.floats(0, 2**36)
state = st.fixed_dictionaries({"v": st.just(1), "type": st.just("state"), "seq": st.integers(0, 2**53), "time": instant,
    "metrics": metrics}, optional={"step": st.sampled_from([0, 2**53]), "phase_since": instant,
    "phase": st.sampled_from(catalog.PHASES) | name, "progress_time": instant,
    "events": st.lists(st.fixed_dictionaries({"id": st.integers(0, 2**53), "kind": name, "time": instant,
        "step": st.sampled_from([0, 2**53])}), max_size=3)})  # fmt: skip
bye = st.fixed_dictionaries({"v": st.just(1), "type": st.just("bye"), "outcome": st.sampled_from(["failed", "finished"])
    }, optional={"category": name, "message": name})  # fmt: skip
said = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 90), state | bye | st.just("lost")), max_size=8)


def drawn(table: RankTable, hand: Any, *shown: Any, sections: Sections | None = None) -> str:
    gpus, snapshot = shown or ((), None)
    judged = NodeAnswer("node-27", table, gpus, snapshot, hand.clock)
    html = status_page(judged, table, {}, sections or Sections(hand.clock))
    if FAILED not in html:
        conforms("api-node", judged.as_json())
    return html


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=60
)
@given(run=name, said=said)
def test_whatever_ranks_say_every_part_is_drawn(run: str, said: Any, two_gpus: Any, hand: Any) -> None:
    """No number, name or order of frames costs a part of the page, or its size, or sends a control character."""
    table = RankTable(Limits(), hand.clock, two_gpus)
    for rank in range(4):
        with contextlib.suppress(FrameError):
            hello = decode(json.dumps({"v": 1, "type": "hello", "run": run, "rank": rank, "world_size": 4}).encode())
            table.hello(rank, hello, Peer(0, 1 + rank))
    for rank, seconds, frame in said:
        if frame == "lost":
            table.lost(rank)
        else:
            with contextlib.suppress(FrameError):  # refused as the listener refuses it
                content = decode(json.dumps(frame).encode())
                (table.bye if isinstance(content, Bye) else table.state)(rank, content)
        hand.turn(seconds)
    html = drawn(table, hand)
    assert FAILED not in html
    assert len(html.encode()) < 100_000
    assert not [each for each in html if unicodedata.category(each) in ("Cc", "Cf") and each != "\n"]


GPU = GpuIdentity("0", HOSTILE, HOSTILE)
NUMBERS_READ = [float(each) for each in NUMBERS]
reading = st.builds(
    lambda row, label, value: Sample(row, (GPU.index, GPU.uuid, *[label] * (len(row.labels) - 2)), value),
    st.sampled_from([row for row in catalog.METRICS if row.labels[:2] == ("gpu", "uuid")]),
    st.sampled_from(["gpu", "memory", "uncorrected", "volatile", "hw_thermal_slowdown", "none", HOSTILE, ""]),
    st.sampled_from(NUMBERS_READ) | st.floats(),
)
ecc = [Sample(catalog.GPU_ECC_ERRORS, ("0", GPU.uuid, "uncorrected", "volatile"), value) for value in NUMBERS_READ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(read=st.lists(reading | st.sampled_from(ecc), max_size=12), reason=name)
def test_whatever_a_driver_says_every_part_is_drawn(read: Any, reason: str, two_gpus: Any, hand: Any) -> None:
    """Nor does any reading, whatever the GPU is called."""
    table = RankTable(Limits(), hand.clock, two_gpus)
    html = drawn(table, hand, [GPU], GpuSnapshot(tuple(read), 0.01, hand.now - 1e18, not reason, reason))
    assert FAILED not in html
    assert len(html.encode()) < 100_000
    assert not [each for each in html if unicodedata.category(each) in ("Cc", "Cf") and each != "\n"]


def train(table: RankTable, hand: Any, entered: float) -> None:
    """Let three ranks stand still for a minute and a half; the first is as far behind as it can be."""
    wall = hand.clock.wall()
    for rank in range(3):
        table.hello(rank, Hello(v=1, run="r", rank=rank, world_size=3), Peer(0, 1 + rank))
        frame = {"v": 1, "type": "state", "seq": 1, "time": wall, "progress_time": wall, "phase": "collective",
                 "metrics": {"steps_total": 100, "phase_seconds_total": {"backward": 50.0},
                             "collective_enqueued": {"0": entered if rank else -entered}}}  # fmt: skip
        table.state(rank, decode(json.dumps(frame).encode()))
    hand.turn(90.0)
    for rank in range(3):
        table.heard(rank)


@pytest.mark.parametrize("entered", [1e308, 1.7e308, 2.0**54])
def test_a_sequence_number_that_nobody_counted_names_nobody(two_gpus: Any, hand: Any, entered: float) -> None:
    """Collectives beyond what a float can count are no evidence: the stall is reported, without a culprit."""
    table = RankTable(Limits(), hand.clock, two_gpus)
    train(table, hand, entered)
    html = drawn(table, hand)
    assert FAILED not in html
    assert "Run r: no step for 90 s, usually 500 ms; no rank here stands out, all are in" in re.sub(
        r"</?bdi>", "", html
    )


BROKEN = GpuIdentity("0", "GPU-0", None)  # type: ignore[arg-type]  # what no driver says, for lack of a known fault


def test_a_part_that_fails_costs_itself(two_gpus: Any, hand: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The other sections are shown, the failed one says so, and the log has one line a minute."""
    table = RankTable(Limits(), hand.clock, two_gpus)
    train(table, hand, 7)
    sections = Sections(hand.clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(24):
            html = drawn(table, hand, [BROKEN], None, sections=sections)
            assert html.count(FAILED) == 1
            assert "3 of 3 ranks here" in html
            assert "Latest events" in html
            hand.turn(5.0)
    assert [(one.message.rpartition(": ")[2], bool(one.exc_info)) for one in caplog.records] == [("gpus", True)] * 2


def test_a_part_that_fails_costs_no_verdict(two_gpus: Any, hand: Any) -> None:
    """Where what is wrong cannot be told, the page says that, and still has ranks and a title."""
    table = RankTable(Limits(), hand.clock, two_gpus)
    train(table, hand, 7)
    gpu = GpuIdentity("0", "GPU-0", "H100")
    broken = (Sample(catalog.GPU_RECOVERY_ACTION, ("0", "GPU-0", None), 1),)  # type: ignore[arg-type]
    html = drawn(table, hand, [gpu], GpuSnapshot(broken, 0.01, hand.now, True, ""))
    assert "<title>node-27</title>" in html
    assert html.count(FAILED) == 2
    assert "3 of 3 ranks here" in html
