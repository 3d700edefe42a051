"""Frames: what is accepted, and under which reason and with which words everything else is refused."""

from __future__ import annotations

import json

import pytest

from tachograph.catalog.exporter import REJECT_REASONS
from tachograph.node.ranks.frames import Bye, FrameError, Hello, State, decode

HELLO = {"v": 1, "type": "hello", "run": "r", "rank": 0}
STATE = {"v": 1, "type": "state", "seq": 1, "time": 1.0}
BOX = {"v": 1, "type": "box", "id": 1, "part": 1, "parts": 2, "time": 1.0, "reason": "asked", "text": "{}"}


def line(frame: object) -> bytes:
    return json.dumps(frame).encode()


def test_documented_frames_are_accepted() -> None:
    """The three frames of the protocol decode to their types, with every field they carry."""
    hello = decode(
        b'{"v":1,"type":"hello","run":"llama-7b","rank":5,"local_rank":5,"world_size":8,"attempt":0,"pid":4242,'
        b'"uuid":"GPU-1","facts":{"precision":"bf16","global_batch":1024},"visible_devices":"0,1",'
        b'"granted_devices":"4,5","job":{"scheduler":"slurm","job_id":"4711"}}'
    )
    assert isinstance(hello, Hello)
    assert (hello.run, hello.rank, hello.pid, hello.facts["global_batch"]) == ("llama-7b", 5, 4242, 1024)
    assert (hello.visible_devices, hello.granted_devices, hello.job) == (
        "0,1", "4,5", {"scheduler": "slurm", "job_id": "4711"},
    )  # fmt: skip
    state = decode(line({**STATE, "step": 480, "phase": "backward", "metrics": {"loss": "NaN"}, "dropped": 2}))
    assert isinstance(state, State)
    assert (state.step, state.phase, state.metrics, state.dropped) == (480, "backward", {"loss": "NaN"}, 2)
    bye = decode(b'{"v":1,"type":"bye","outcome":"failed","category":"oom","message":"CUDA out of memory"}')
    assert isinstance(bye, Bye)
    assert (bye.outcome, bye.category) == ("failed", "oom")


@pytest.mark.parametrize("frame", [HELLO, STATE, BOX, {"v": 1, "type": "bye", "outcome": "finished"}])
def test_unknown_fields_are_ignored(frame: dict[str, object]) -> None:
    """A newer client may add fields without breaking an older exporter, whatever it puts into them."""
    for value in ("green", 7, None, [1], {"job": {"deep": [{}]}}):
        assert decode(line({**frame, "colour": value})) == decode(line(frame))


def test_an_older_client_is_understood() -> None:
    """All that came later is optional: the first hello ever sent still is one, and says nothing of the rest."""
    hello = decode(line(HELLO))
    assert isinstance(hello, Hello)
    assert (hello.visible_devices, hello.granted_devices, hello.job, hello.uuid) == (None, None, None, None)


def test_a_world_that_nobody_gave() -> None:
    """It has this rank and those before it: no rank is beyond it."""
    frame = decode(b'{"v":1,"type":"hello","run":"r","rank":5}')
    assert isinstance(frame, Hello)
    assert frame.world_size == 6


@pytest.mark.parametrize("value", [7, [1] * 9, {"a": {}}, "0," * 30000, "\x00", True])
def test_what_came_later_never_costs_the_hello(value: object) -> None:
    """A wrong value of an optional fact is the rank table's to drop and count."""
    hello = decode(line({**HELLO, "visible_devices": value, "granted_devices": value, "job": value}))
    assert isinstance(hello, Hello)


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"", "malformed", "JSON"),
        (b"hello", "malformed", "JSON"),
        (b'{"v":1,"type":"hello"', "malformed", "truncated"),
        (b"[1]", "malformed", "object"),
        (b"\xff\xfe", "malformed", "JSON"),
        (b'{"v":1,"type":"hello","run":"\xff","rank":0}', "malformed", "utf-8"),
        (b'{"v":1,"type":"hello","run":"\\ud800","rank":0}', "malformed", "JSON"),
        (b'{"v":1,"x":' + b"[" * 30000 + b"]" * 30000 + b"}", "malformed", "recursion"),
        (line({**HELLO, "rank": 9, "world_size": 8}), "invalid", "rank 9 is not in a world of 8: ranks count from 0"),
        (line({**HELLO, "v": 2}), "version", "v=2: this exporter speaks v=1"),
        (line({**HELLO, "v": "1"}), "version", "v='1'"),
        (line({"type": "hello"}), "version", "v=None"),
        (
            line({**HELLO, "type": "goodbye"}),
            "type",
            "'goodbye': expected hello, state, box, bye, unrecorded or supervisor",
        ),
        (line({"v": 1}), "type", "None"),
        (line({"v": 1, "type": "hello", "rank": 0}), "invalid", "run"),
        (line({**HELLO, "run": ""}), "invalid", "1 to 128 bytes"),
        (line({**HELLO, "run": "x" * 129}), "invalid", "1 to 128 bytes"),
        (line({**HELLO, "run": "訓" * 43}), "invalid", "1 to 128 bytes in UTF-8, got 43 characters"),
        (line({**HELLO, "run": "a\x1b[2Jb"}), "invalid", "printable"),
        (line({**HELLO, "run": "a\u202eb"}), "invalid", "printable"),
        (line({**HELLO, "uuid": "é" * 65}), "invalid", "uuid"),
        (line({**HELLO, "rank": -1}), "invalid", "rank"),
        (line({**HELLO, "rank": "0"}), "invalid", "rank"),
        (line({**HELLO, "rank": True}), "invalid", "rank"),
        (line({**STATE, "seq": 1.5}), "invalid", "seq"),
        (line({**STATE, "time": 1763690000123}), "invalid", "time"),
        (line({**STATE, "metrics": [1]}), "invalid", "metrics"),
        (line({**STATE, "events": [{"id": 1, "kind": "k", "time": 1}] * 65}), "invalid", "length <= 64"),
        (line({**BOX, "part": 2}), "invalid", "part 2 is not one of 2: parts count from 0"),
        (line({**BOX, "parts": 65}), "invalid", "parts"),
        (line({**BOX, "text": {}}), "invalid", "text"),
        (line({"v": 1, "type": "bye", "outcome": "perhaps"}), "invalid", "perhaps"),
    ],
)
def test_refusal_names_reason_and_fault(data: bytes, reason: str, words: str) -> None:
    """A frame that is not accepted is refused with a counted reason and a message that names the fault."""
    with pytest.raises(FrameError) as refusal:
        decode(data)
    assert refusal.value.reason == reason
    assert reason in REJECT_REASONS
    assert words.lower() in str(refusal.value).lower()  # how msgspec spells it differs between releases
    assert len(str(refusal.value)) < 300


def test_numbers_beyond_a_double_do_not_break_the_decoder() -> None:
    """Digits without end are refused or carried as they are; neither raises anything but FrameError."""
    decode(b'{"v":1,"type":"state","seq":1,"time":1,"metrics":{"loss":' + b"9" * 400 + b"}}")
    with pytest.raises(FrameError, match="range"):
        decode(b'{"v":1,"type":"state","seq":1,"time":1,"metrics":{"loss":' + b"9" * 5000 + b"}}")
