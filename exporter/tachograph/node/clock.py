"""The two clocks of the exporter, passed in so that tests can set them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """`monotonic` measures durations; `wall` gives the timestamps that people and other machines read."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
