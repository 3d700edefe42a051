"""A connection: whatever bytes come in, frames of others are exact and nothing raises."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tachograph.catalog.rank import PHASES
from tachograph.catalog.train import TRAIN_METRICS
from tachograph.node.exposition import OPENMETRICS, TEXT, render
from tachograph.node.ranks import shares
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.process_end import ProcessEnds
from tachograph.node.ranks.rank_connection import BURST, RankConnection
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.shown_ranks import ShownRanks
from tachograph.wire import MAX_FRAME_BYTES


class Pipe:
    """The transport's side of a connection, without a loop: keeps what is written."""

    def __init__(self) -> None:
        self.written, self.closing, self.aborted, self.paused, self.unread = bytearray(), False, False, 0, 0

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        self.paused += 1
        return False  # so that nothing is scheduled: there is no loop

    def answers(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.written.splitlines()]
        self.written.clear()
        return lines


@pytest.fixture(autouse=True)
def unlimited_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of CPU time are not the subject: no time passes here, and one garbage collection spends a share."""
    monkeypatch.setattr(shares, "WORK_BURST", 1e9)


class Wire:
    """One connection to a rank table, by hand."""

    def __init__(self, table: RankTable, clock: Any, sock: socket.socket) -> None:
        self.pipe = Pipe()
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.connection = RankConnection(table, clock, Peer(uid, pid), lambda _: None, ProcessEnds(Limits()))
        self.connection.connection_made(self.pipe)  # type: ignore[arg-type]

    def feed(self, data: bytes, chunk: int = 65536) -> None:
        for start in range(0, len(data), chunk):
            if self.pipe.closing:
                return
            part = data[start : start + chunk]
            self.connection.get_buffer(-1)[: len(part)] = part
            self.connection.buffer_updated(len(part))


def frame(**fields: object) -> bytes:
    return json.dumps({"v": 1, **fields}).encode() + b"\n"


HELLO = frame(type="hello", run="r", rank=0, pid=1)
STATE = frame(type="state", seq=1, time=1.0, step=5, metrics={"tokens_total": 7})
BOX = frame(type="box", id=1, part=0, parts=1, time=1.0, reason="asked", text='{"rank":0}')


@pytest.fixture(scope="module")
def sock() -> Iterator[socket.socket]:
    here, there = socket.socketpair()
    with here, there:
        yield here


@pytest.fixture
def table(hand: Any, two_gpus: Any) -> RankTable:
    return RankTable(Limits(), hand.clock, two_gpus)


@pytest.fixture
def wire(table: RankTable, hand: Any, sock: socket.socket) -> Wire:
    return Wire(table, lambda: hand.now, sock)


def refused(table: RankTable) -> dict[str, int]:
    return {reason: count for reason, count in table.rejected.items() if count}


def test_a_box_is_asked_for_and_taken(wire: Wire, table: RankTable) -> None:
    """The rank is asked by one line, which an earlier client takes for an answer; its box is kept as it comes."""
    wire.feed(BOX)
    assert "no rank" in wire.pipe.answers()[0]["error"]
    wire.feed(HELLO)
    wire.pipe.answers()
    assert table.capture("r", "asked for by alice") == 1
    assert wire.pipe.answers() == [{"ok": True, "capture": "asked for by alice"}]
    wire.feed(BOX)
    assert [box.text for box in table.boxes.of("r")] == [b'{"rank":0}']
    assert (table.frames, wire.pipe.answers()) == (2, [])


@pytest.mark.parametrize("chunk", [1, 7, 65536])
def test_frames_come_in_any_pieces(wire: Wire, table: RankTable, chunk: int, hand: Any) -> None:
    """However the bytes are cut, the frames are the same."""
    hand.turn(100.0)
    wire.connection._tokens = 1e9  # one byte at a time is a flood by itself
    wire.feed(HELLO + STATE, chunk)
    assert wire.pipe.answers() == [{"ok": True, "last_step": None}]
    assert table.frames == 2
    assert next(table.ranks()).step == 5


def test_a_bad_frame_costs_itself_alone(wire: Wire, table: RankTable) -> None:
    """After a refused frame and a readable answer to it, the same connection continues."""
    wire.feed(HELLO + b"{nonsense\n" + STATE)
    welcome, refusal = wire.pipe.answers()
    assert welcome["ok"] is True
    assert refusal["ok"] is False
    assert "JSON" in refusal["error"]
    assert refused(table) == {"malformed": 1}
    assert next(table.ranks()).step == 5


def test_a_state_without_hello_is_refused(wire: Wire, table: RankTable) -> None:
    """Who does not say who it is cannot report."""
    wire.feed(STATE + frame(type="bye", outcome="finished"))
    assert refused(table) == {"no_hello": 2}
    assert "say hello first" in wire.pipe.answers()[0]["error"]


@pytest.mark.parametrize("chunk", [1024, 65536])
@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 3 * MAX_FRAME_BYTES])
def test_an_oversized_frame_is_skipped_to_its_end(wire: Wire, table: RankTable, length: int, chunk: int) -> None:
    """It is counted once and answered, nothing of it is kept, and the next line is a frame again."""
    wire.feed(HELLO)
    wire.feed(b"x" * length + b"\n" + STATE, chunk)
    assert refused(table) == {"oversized": 1}
    assert "65536 bytes" in wire.pipe.answers()[1]["error"]
    assert next(table.ranks()).step == 5
    assert not wire.pipe.closing
    assert len(wire.connection._partial) == 0


def test_a_frame_of_just_the_limit_is_read(wire: Wire, table: RankTable) -> None:
    """64 KiB are still a frame."""
    padding = MAX_FRAME_BYTES - len(STATE) + 1
    line = STATE[:-1] + b" " * padding + b"\n"
    wire.feed(HELLO + line, 65536)
    assert len(line) == MAX_FRAME_BYTES + 1
    assert refused(table) == {}
    assert next(table.ranks()).step == 5


def test_a_burst_passes_and_a_flood_is_skipped(wire: Wire, table: RankTable, hand: Any) -> None:
    """A burst passes at once; beyond 10 a second they are counted unread and answered once, and reading pauses."""
    wire.feed(HELLO + STATE * (BURST - 1))
    assert refused(table) == {}
    wire.feed(STATE * 500)
    assert refused(table) == {"rate": 500}
    assert len(wire.pipe.answers()) == 2
    assert wire.pipe.paused
    hand.turn(1.0)
    wire.feed(STATE * 500)
    assert table.frames == BURST + 10


def test_a_flooding_rank_is_not_frozen(wire: Wire, table: RankTable, hand: Any) -> None:
    """A rank whose every frame is refused still speaks: frozen means silent."""
    wire.feed(HELLO)
    for _ in range(20):
        hand.turn(1.0, table.tick)
        wire.feed(b"x" * (MAX_FRAME_BYTES + 1) + b"\n")
    assert table.state_of(next(table.ranks())) == "running"


def test_a_sender_that_does_not_read_gets_no_more_answers(wire: Wire) -> None:
    """Answers to a sender that never reads are not piled up."""
    wire.pipe.unread = 10**6
    wire.feed(b"nonsense\n" * 5)
    assert not wire.pipe.written


def test_a_refused_hello_hangs_up(wire: Wire, table: RankTable, hand: Any, sock: socket.socket) -> None:
    """The answer says why, the connection is closed after it, and what follows is not read."""
    wire.feed(HELLO)
    second = Wire(table, lambda: hand.now, sock)
    second.feed(HELLO.replace(b'"pid": 1', b'"pid": 2') + STATE)
    (answer,) = second.pipe.answers()
    assert "is held by pid" in answer["error"]
    assert second.pipe.closing
    assert refused(table) == {"conflict": 1}


def test_a_superseded_connection_is_told_and_closed(
    wire: Wire, table: RankTable, hand: Any, sock: socket.socket
) -> None:
    """When the same process connects again, the older connection gets a reason and ends; the rank lives."""
    wire.feed(HELLO)
    Wire(table, lambda: hand.now, sock).feed(HELLO + STATE)
    assert "another connection" in wire.pipe.answers()[1]["error"]
    assert wire.pipe.closing
    wire.connection.connection_lost(None)
    assert table.state_of(next(table.ranks())) == "running"


def test_the_kernel_says_whose_gpu_it_is(wire: Wire, table: RankTable, two_gpus: Any, monkeypatch: Any) -> None:
    """The process found on a GPU is the one at the other end of the socket, whatever pid it gives itself."""
    monkeypatch.setattr(two_gpus, "gpu_of_pid", {os.getpid(): two_gpus.known[1]}.get)
    wire.feed(HELLO)
    assert next(table.ranks()).place[0] == "1"


@pytest.mark.parametrize("facts", [{"visible_devices": "," * 10**6}, {"job": {"job_id": "x" * 10**6}}])
def test_an_endless_fact_is_an_oversized_frame(wire: Wire, table: RankTable, facts: dict[str, object]) -> None:
    """A million commas never reach the decoder, and the next hello is accepted."""
    wire.feed(frame(type="hello", run="r", rank=0, **facts) + HELLO + STATE)
    assert refused(table) == {"oversized": 1}
    assert table.frames == 2


@pytest.mark.parametrize("devices", ["," * 32000, "0," * 16000, "\x00\x1b\n" * 9, "GPU-" * 255, 10**400])
def test_a_hostile_list_of_devices(wire: Wire, table: RankTable, hand: Any, devices: object) -> None:
    """Whatever fits in a frame is accepted or dropped, and the rank keeps running."""
    wire.feed(frame(type="hello", run="r", rank=0, visible_devices=devices, granted_devices=devices) + STATE)
    hand.turn(1.0, table.tick)
    assert table.state_of(next(table.ranks())) == "running"
    assert next(table.ranks()).place[0] == ""
    assert refused(table) == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["NaN", "+Inf", "-Inf", "loss", 10**400, -1, 2**53]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
words = (
    st.sampled_from([*PHASES, "all_reduce", "loss", "0", "", "\n", '"', "\\", "\u2028", "\x00", "x" * 65]) | st.text()
)
metrics = st.dictionaries(
    st.sampled_from(sorted(TRAIN_METRICS)) | words,
    json_values | st.dictionaries(words, json_values | st.floats(0, 1e9), max_size=4),
    max_size=6,
)
histograms = st.dictionaries(
    st.sampled_from(["step_seconds", "lunch_seconds"]),
    json_values
    | st.fixed_dictionaries(
        {"schema": st.sampled_from([3, 2, "3"]), "sum": json_values | st.floats(0, 100),
         "buckets": st.dictionaries(st.integers(-250, 250).map(str) | words, st.integers(0, 9) | json_values)},
    ),
)  # fmt: skip
event = st.fixed_dictionaries({"id": st.integers(0, 5), "kind": words, "time": st.floats(0, 2e9)})
fields = {
    "v": st.just(1) | json_values, "run": words, "rank": st.integers(0, 2) | json_values, "pid": st.integers(0, 2),
    "attempt": st.integers(0, 2), "uuid": words | st.none(), "facts": metrics,
    "visible_devices": st.sampled_from(["0", "1,0", "GPU-aaaa"]) | words | json_values, "granted_devices": words,
    "job": metrics | st.fixed_dictionaries({"job_id": words, "pod": json_values}) | json_values,
    "seq": st.integers(0, 9) | json_values,
    "time": st.floats(0, 2e9) | json_values, "step": st.integers(0, 2**53) | json_values, "phase": words | json_values,
    "phase_since": st.floats(0, 2e9) | st.none(), "metrics": metrics | json_values, "events": st.lists(event),
    "histograms": histograms, "dropped": st.integers(0, 9) | json_values,
    "outcome": st.sampled_from(["finished", "failed", "?"]), "category": words, "message": words | json_values,
}  # fmt: skip
usual = {
    "hello": {"v": 1, "run": "r", "rank": 0},
    "state": {"v": 1, "seq": 1, "time": 1.0},
    "bye": {"v": 1, "outcome": "finished"},
}
frames = st.sampled_from(sorted(usual)).flatmap(
    lambda kind: st.fixed_dictionaries({}, optional=fields).map(
        lambda given: json.dumps({**usual[kind], **given, "type": kind}).encode()
    )
)
lines = frames | st.binary(max_size=40) | st.just(HELLO[:-1]) | st.just(STATE[:-1]) | frames.map(lambda f: f[:-3])


@settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(talk=st.lists(lines, max_size=12), chunk=st.integers(1, 200))
def test_no_talk_breaks_the_listener_or_the_scrape(
    talk: list[bytes], chunk: int, hand: Any, two_gpus: Any, sock: socket.socket
) -> None:
    """Whatever is sent, nothing raises, a well-behaved rank stays exact, and the scrape can be read in both formats."""
    table = RankTable(Limits(), hand.clock, two_gpus)
    ticking = iter(range(10**9))

    def wire() -> Wire:
        return Wire(table, lambda: float(next(ticking)), sock)

    witness = wire()
    witness.feed(HELLO.replace(b'"r"', b'"witness"') + STATE)
    wire().feed(b"\n".join([*talk, b""]), chunk)
    hand.turn(5.0, table.tick)
    samples = list(ShownRanks(table).samples())
    list(parse_text(render(samples, TEXT).decode()))
    list(parse_openmetrics(render(samples, OPENMETRICS).decode()))
    tokens = [s for s in samples if s.metric.key == "tokens_total" and s.labels == ("witness", "0")]
    assert [sample.value for sample in tokens] == [7]  # type: ignore[union-attr]
