"""The real stack, once per module, and one real PyTorch job in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tachograph_lab.binaries import BinariesUnavailable
from tachograph_lab.demo.launch import Job, launch
from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import Pager
from tests import waiting

RUN = "e2e"
PAUSE = 0.3
"""Seconds of each step in which a rank sleeps: ranks at full speed would take both cores from the other tests."""


def _wait_for(look: Callable[[], Any], seconds: float, what: str) -> Any:
    """Poll `look` and return its first true result; fail when there is none in time."""
    began = time.monotonic()
    while True:
        if found := look():
            return found
        if time.monotonic() > began + seconds:
            pytest.fail(f"no {what} within {seconds:.0f} s")
        waiting.pause(began, least=0.05, most=0.5)


@pytest.fixture(scope="session")
def wait_for() -> Callable[[Callable[[], Any], float, str], Any]:
    return _wait_for


@pytest.fixture(scope="module")
def stack(pager: Pager, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    try:
        with Stack(tmp_path_factory.mktemp("stack"), pager.url) as running:
            yield running
    except BinariesUnavailable as error:
        pytest.fail(str(error))


@pytest.fixture(scope="module")
def job(stack: Stack, request: pytest.FixtureRequest) -> Job:
    """As many ranks as the module says, which train and which Prometheus has seen for a while; the stack ends them."""
    ranks: int = request.module.RANKS
    started = launch(stack.children, RUN, ranks, stack.socket, "--pause", str(PAUSE))
    counted = f'count(tachograph_train_steps_total{{run="{RUN}"}} > 30) == {ranks}'
    trained = f'{counted} and on () run:step_interval_seconds:p50{{run="{RUN}"}}'

    def training() -> bool:
        assert started.running, started.tail()
        return bool(stack.query(trained))

    _wait_for(training, 200, f"training:\n{started.tail()}")
    return started
