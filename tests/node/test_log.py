"""Log lines: one line each, whatever text they carry."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tachograph.node import log


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    log.set_up("info", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_fields_follow_the_message(output: io.StringIO) -> None:
    """Time, level and message come first, then the fields; plain text is bare and the rest is quoted."""
    logging.getLogger("t").info("rank speaks", extra={"run": "llama 7b", "rank": 5, "uuid": ""})
    logging.getLogger("t").debug("too fine")
    (line,) = output.getvalue().splitlines()
    assert line.partition(" ")[0].startswith("time=2")
    assert line.partition(" ")[2] == 'level=info msg="rank speaks" run="llama 7b" rank=5 uuid=""'


@pytest.mark.parametrize("text", ["a\nlevel=error b", "\x1b[31mred", 'say "no"', "back\\slash", "\u2028", "x=y", "é"])
def test_no_text_leaves_its_quotes(output: io.StringIO, text: str) -> None:
    """Line breaks, escape sequences and quotes in what a rank chose cannot make another field or line."""
    logging.getLogger("t").warning("odd", extra={"run": text})
    written = output.getvalue()
    assert written.count("\n") == 1
    assert "\x1b" not in written
    value = written.rstrip("\n").partition("run=")[2]
    assert value[0] == value[-1] == '"'
    assert '"' not in value[1:-1].replace("\\\\", "").replace('\\"', "")


def test_a_traceback_is_one_line(output: io.StringIO) -> None:
    """An exception is a field of its line."""
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("t").exception("failed")
    (line,) = output.getvalue().splitlines()
    assert "ValueError: broken" in line


def test_a_flood_of_one_message_is_left_out(hand: Any) -> None:
    """64 lines of a message pass, then one a minute that says how many were left out; other messages are not held."""
    throttle = log.LogThrottle(lambda: hand.now)

    def passes(text: str) -> tuple[bool, object]:
        record = logging.makeLogRecord({"msg": text})
        return throttle.filter(record), getattr(record, "left_out", None)

    assert [passes("rank died")[0] for _ in range(1000)].count(True) == log.BURST
    assert passes("serving") == (True, None)
    hand.turn(log.REFILL_SECONDS)
    assert passes("rank died") == (True, 1000 - log.BURST)
    assert passes("rank died") == (False, None)
    for each in range(10_000):  # texts that are never the same twice do not pile up
        passes(f"text {each}")
    assert len(throttle._messages) <= log.MAX_MESSAGES


def test_nobodys_lines_are_lost_in_those_of_another_user(hand: Any) -> None:
    """Each user has the lines of a message; however many uids one person has, they are those of four users together."""
    throttle = log.LogThrottle(lambda: hand.now)

    def passed(uid: int, times: int = 1) -> int:
        records = [logging.makeLogRecord({"msg": "rank died", "uid": uid}) for _ in range(times)]
        return [throttle.filter(record) for record in records].count(True)

    assert passed(666, 1000) == log.BURST
    assert passed(1000) == 1
    assert sum(passed(2000 + number) for number in range(10_000)) == (log.USERS - 1) * log.BURST - 1
    assert len(throttle._users) <= log.MAX_MESSAGES
    hand.turn(log.REFILL_SECONDS)
    late = logging.makeLogRecord({"msg": "rank died", "uid": 1000})
    assert throttle.filter(late)
    assert late.left_out > 0  # type: ignore[attr-defined]
