"""Fixtures for the tests of sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.core import notice as notices
from tests import waiting

DEADLINE = 90.0


@pytest.fixture(autouse=True)
def _said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said before."""
    monkeypatch.setattr(notices, "_logged", set())


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Return the first true value of a condition, or fail at the deadline."""
    return lambda condition: waiting.until(condition, DEADLINE)
