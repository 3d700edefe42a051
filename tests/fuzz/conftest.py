"""How long to fuzz: a few seconds, always the same, or `TACHOGRAPH_FUZZ_SECONDS`, each time anew (`make fuzz`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

SECONDS = float(os.environ.get("TACHOGRAPH_FUZZ_SECONDS", "0"))
ROUND = 1000
"""Examples of a round of the long run: hypothesis begins each with what is simple."""


@pytest.fixture
def fuzz() -> Callable[..., None]:
    """Check what a strategy makes: `examples` of it, or `share` of the time given."""

    def run(check: Callable[[Any], None], made: SearchStrategy[Any], *, examples: int, share: float) -> None:
        chosen = settings(
            max_examples=ROUND if SECONDS else examples,
            derandomize=not SECONDS,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        end = time.monotonic() + SECONDS * share

        # Once over, the rest of a round passes without being looked at.
        def each(one: Any) -> None:
            if not SECONDS or time.monotonic() < end:
                check(one)

        while True:
            chosen(given(made)(each))()
            if time.monotonic() >= end:
                return

    return run
