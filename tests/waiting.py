"""Waiting for what a test expects: until it is there, with pauses that leave the processor to what it waits for."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

DEADLINE = 120.0
"""Seconds after which a test fails: what comes at all is there long before, on a machine that is ten times slower."""


def pause(since: float, least: float = 0.01, most: float = 0.1) -> None:
    """Sleep before the next look: a tenth of the seconds since `since`, of the monotonic clock, within bounds."""
    time.sleep(min(most, max(least, (time.monotonic() - since) / 10)))


def until(condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Return the first true value of `condition`; fail if there is none within `seconds`."""
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() < began + seconds, f"did not come true within {seconds:g} s"
        pause(began)
    return found


async def meanwhile(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Let the event loop go on until `condition` is true; fail if it is not within `seconds`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, f"did not come true within {seconds:g} s"
        await asyncio.sleep(0.01)
