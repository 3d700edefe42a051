"""A real recorder and a real exporter, over two lives of a rank: what was lost between them, what was done twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.client.recorder import Recorder

STEP_SECONDS = 0.05


@pytest.fixture(scope="module")
def exporter(exporter_at: Callable[..., Any]) -> Any:
    return exporter_at("--no-gpu")


@contextmanager
def life(exporter: Any, run: str, rank: int, attempt: int) -> Iterator[Recorder]:
    """One process of a rank, as the exporter sees it: it says hello, trains and says goodbye."""
    who = {"run": run, "rank": rank, "attempt": attempt, "local_rank": rank, "world_size": 2}
    recorder = Recorder(socket=exporter.socket, **who)
    try:
        exporter.eventually(
            lambda: exporter.scrape().value("rank_info", gpu="", uuid="", owner=os.getuid(), **who) == 1
        )
        yield recorder
    finally:
        recorder.close()


def train(recorder: Recorder, first: int, steps: int) -> None:
    for number in range(first, first + steps):
        with recorder.step(number), recorder.phase("forward"):
            time.sleep(STEP_SECONDS)


def seconds(exporter: Any, run: str) -> dict[str, float]:
    """Productive and lost seconds of a run, as scraped."""
    scrape = exporter.scrape()
    lost = {cause: scrape.value("train_lost_seconds_total", run=run, cause=cause) for cause in catalog.LOST_CAUSES}
    return {"productive": scrape.value("train_productive_seconds_total", run=run), **lost}


def test_a_second_life_counts_its_restart_and_its_rework(exporter: Any) -> None:
    """Steps that the first attempt had done are rework, the time between both is restart, and the sums continue."""
    begins = time.monotonic()
    with life(exporter, "twice", 0, 0) as recorder:
        train(recorder, 0, 10)
        ends = time.monotonic()
    exporter.eventually(lambda: exporter.scrape().value("rank_state", run="twice", rank=0, state="finished") == 1)
    exporter.eventually(lambda: (seconds(exporter, "twice")["productive"] or 0) >= 10 * STEP_SECONDS)
    ended = time.monotonic()
    first = seconds(exporter, "twice")
    assert 10 * STEP_SECONDS <= first["productive"] <= ended - begins
    assert (first["rework"], first["restart"]) == (0, 0)
    begins_again = time.monotonic()
    with life(exporter, "twice", 0, 1) as recorder:
        began_again = time.monotonic()
        exporter.eventually(lambda: recorder.last_step == 10)
        train(recorder, 6, 8)
        trained = time.monotonic() - began_again
    exporter.eventually(lambda: exporter.scrape().value("train_step", run="twice", rank=0) == 14)
    exporter.eventually(lambda: seconds(exporter, "twice")["productive"] >= first["productive"] + 4 * STEP_SECONDS)
    both = seconds(exporter, "twice")
    assert 4 * STEP_SECONDS <= both["rework"] <= trained - 3 * STEP_SECONDS  # a step's worth of time between steps
    assert 4 * STEP_SECONDS <= both["productive"] - first["productive"] <= trained - 3 * STEP_SECONDS
    assert begins_again - ended <= both["restart"] <= began_again - ends
    assert exporter.scrape().value("run_restarts", run="twice", attempt=1) == 1
    assert exporter.scrape().value("run_attempt", run="twice") is None


def test_the_newest_attempt_is_that_of_the_living(exporter: Any) -> None:
    """A rank of a later attempt that has ended does not count: those left over from the one before are on their own."""
    with life(exporter, "kept", 0, 1):
        with life(exporter, "kept", 1, 2):
            exporter.eventually(lambda: exporter.scrape().value("run_attempt", run="kept") == 2)
        exporter.eventually(lambda: exporter.scrape().value("run_attempt", run="kept") == 1)
        assert exporter.scrape().value("run_restarts", run="kept", attempt=2) is not None


def test_ranks_of_a_run_share_a_sum(exporter: Any) -> None:
    """Two ranks, one series; nothing of either was dropped on the way."""
    with life(exporter, "pair", 0, 0) as one, life(exporter, "pair", 1, 0) as two:
        began = time.monotonic()
        for _ in range(5):
            with one.step(), two.step(), one.phase("forward"), two.phase("forward"):
                time.sleep(STEP_SECONDS)
    trained = time.monotonic() - began
    exporter.eventually(lambda: exporter.scrape().value("rank_state", run="pair", rank=0, state="finished") == 1)
    exporter.eventually(lambda: (seconds(exporter, "pair")["productive"] or 0) >= 10 * STEP_SECONDS)
    assert 10 * STEP_SECONDS <= seconds(exporter, "pair")["productive"] <= 2 * trained
    scrape = exporter.scrape()
    assert sum(scrape.value("exporter_series_dropped_total", reason=reason) for reason in catalog.DROP_REASONS) == 0


def test_a_client_of_before(exporter: Any) -> None:
    """A rank that knows nothing of the new keys and answers works as it did; what it does not say is absent."""
    rank = exporter.speaker("old")
    assert rank.hello() == {"ok": True, "last_step": None}
    rank.state({"loss": 2.0, "phase_seconds_total": {"forward": 1.0}, "checkpoint_seconds_total": 1.0})
    exporter.eventually(lambda: exporter.scrape().value("train_loss", run="old", rank=0) == 2.0)
    scrape = exporter.scrape()
    assert scrape.value("train_productive_seconds_total", run="old") is None
    assert scrape.value("run_restarts", run="old", attempt=0) == 0
