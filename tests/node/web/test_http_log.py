"""Errors of clients are logged once per cause and minute."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import ClientConnectionResetError
from aiohttp.http_exceptions import BadHttpMessage

from tachograph.node.log import REFILL_SECONDS, OncePerMinute
from tachograph.node.web.http_log import HttpErrors, quiet_loop


@pytest.fixture
def lines(hand: Any) -> OncePerMinute:
    return OncePerMinute(logging.getLogger("tachograph.test"), lambda: hand.now)


def test_once_per_cause_and_minute(lines: OncePerMinute, hand: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The first of a cause is logged; after a minute the next one says how many there were meanwhile."""
    for _ in range(100):
        lines.warning("a", peer="10.0.0.1")
    lines.warning("b")
    assert [record.message for record in caplog.records] == ["a", "b"]
    hand.turn(REFILL_SECONDS)
    lines.warning("a")
    assert caplog.records[-1].not_logged == 99
    lines.warning("a")
    assert len(caplog.records) == 3


def test_many_causes(lines: OncePerMinute, hand: Any) -> None:
    """However many causes there are, few are remembered."""
    for number in range(10_000):
        hand.turn(0.001)
        lines.warning(f"cause {number}")
    assert len(lines._causes) <= 64


def test_a_client_that_leaves_is_no_bug(lines: OncePerMinute, caplog: pytest.LogCaptureFixture) -> None:
    """One line without a traceback, as for a request that makes no sense; a bug has one."""
    log = HttpErrors(lines)
    for error in (ClientConnectionResetError("Cannot write to closing transport"), BadHttpMessage("x"), KeyError("y")):
        log.exception("Error handling request from %s", "10.0.0.1", exc_info=error)
    mine = [record for record in caplog.records if record.name == "tachograph.test"]
    assert [record.exc_info is not None for record in mine] == [False, False, True]
    assert mine[0].message == "HTTP client gone before its answer"


def test_errors_of_the_loop(lines: OncePerMinute, caplog: pytest.LogCaptureFixture) -> None:
    """An exception that no task caught is one line; only a bug has its traceback, once."""

    async def fail() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(quiet_loop(lines))
        for number in range(5):
            loop.call_exception_handler({"message": "accept", "exception": OSError(24, "Too many open files")})
            loop.call_exception_handler(
                {"message": f"Exception in callback lost(<at {number}>)", "exception": KeyError()}
            )
            loop.call_exception_handler({"message": f"Task <at {number}> was destroyed"})

    asyncio.run(fail())
    mine = [record for record in caplog.records if record.name == "tachograph.test"]
    assert [record.message for record in mine] == [
        "accept: Too many open files", "Exception in callback lost: KeyError", "Task",
    ]  # fmt: skip
    assert [record.exc_info is not None for record in mine] == [False, True, False]
