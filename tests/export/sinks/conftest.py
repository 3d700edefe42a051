"""Fixtures for the tests of sinks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.core import notice as notices

DEADLINE = 90.0


@pytest.fixture(autouse=True)
def _said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said before."""
    monkeypatch.setattr(notices, "_logged", set())


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Return the first true value of a condition, or fail at the deadline."""

    def wait(condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.01)
        return pytest.fail(f"not within {DEADLINE:g} s")

    return wait
