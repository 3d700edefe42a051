"""Many scenarios replayed in virtual time on several processes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import TYPE_CHECKING, NamedTuple

from tachograph.lab import binaries
from tachograph.lab.scenario import Scenario

if TYPE_CHECKING:
    from tachograph.lab.replay.verdict import Verdict


class Outcome(NamedTuple):
    """A scenario, what its replay came to, and the seconds that took."""

    scenario: Scenario
    verdict: Verdict
    seconds: float


def replay_all(scenarios: Sequence[Scenario], jobs: int, suite: str) -> Iterator[Outcome]:
    """Yield the outcome of each scenario in the order given, `jobs` of them at a time."""
    binaries.ensure(suite)  # once, before replays side by side would all fetch it
    if jobs == 1:
        for scenario in scenarios:
            yield _play(scenario, suite)
        return
    with workers(jobs) as pool:
        futures = [pool.submit(_play, scenario, suite) for scenario in scenarios]
        for future in futures:
            yield future.result()


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Have replays side by side, each in a process of its own; what ends this ends them and removes their folders."""
    with (
        tempfile.TemporaryDirectory(prefix="tachograph-") as folder,
        # spawn: each replay has child processes of its own, and none of ours
        ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_work_in, initargs=(folder,)) as pool,
    ):
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


def _work_in(folder: str) -> None:
    """Have all that this process puts under /tmp put into a folder of the one that waits for it."""
    tempfile.tempdir = folder


def _play(scenario: Scenario, suite: str) -> Outcome:
    from tachograph.lab.replay.virtual import replay

    began = time.monotonic()
    return Outcome(scenario, replay(scenario, suite), time.monotonic() - began)
