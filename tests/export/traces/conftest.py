"""Steps as the Recorder's sender hands them on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import pytest

from tachograph.catalog.rank import PHASES
from tachograph.client.core import notice as notices
from tachograph.client.core.steps import StepRecord
from tachograph.client.hello.identity import Identity
from tachograph.export.traces import Traces

WHO = Identity("llama", 5, 5, 8, 1, 0)


@pytest.fixture(autouse=True)
def _said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said before."""
    monkeypatch.setattr(notices, "_logged", set())


@pytest.fixture
def train() -> Callable[..., None]:
    """Make steps of two nested phases and one that follows, and have the traces look at each."""

    def steps(traces: Traces, numbers: range, wait: float = 0.25) -> None:
        ring = {name: traces.phase(nullcontext(), name) for name in ("forward", "collective", "backward")}
        for number in numbers:
            began = perf_counter()
            with ring["forward"], ring["collective"]:
                pass
            with ring["backward"]:
                pass
            record: Any = StepRecord(number, began, perf_counter(), None, (0.0,) * len(PHASES), wait * (number + 1))
            traces.observe(record)

    return steps
