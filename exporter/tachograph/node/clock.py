"""The two clocks of the sidecar, passed in so that a test can turn them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """`monotonic` measures durations and silence; `wall` stamps what people and other machines read."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
