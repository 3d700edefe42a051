"""Replays many scenarios in virtual time: small ones together, on several processes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import NamedTuple

from tachograph.processes.die_with_parent import die_with_parent
from tachograph_lab import binaries
from tachograph_lab.replay.verdict import ReplayVerdict
from tachograph_lab.scenario import Scenario


class Outcome(NamedTuple):
    """A scenario, the verdict of its replay, and its share of the seconds that its pack took."""

    scenario: Scenario
    verdict: ReplayVerdict
    seconds: float


def replay_all(scenarios: Sequence[Scenario], jobs: int, suite: str) -> Iterator[Outcome]:
    """Yield the outcome of each scenario, pack by pack, `jobs` packs at a time."""
    binaries.find(suite)  # before any replay begins
    from tachograph_lab.replay.virtual import packs

    parts = packs(scenarios)
    if jobs == 1:
        for pack in parts:
            yield from _play(pack, suite)
        return
    with workers(jobs) as pool:
        for future in as_completed([pool.submit(_play, pack, suite) for pack in parts]):
            yield from future.result()


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """A pool of processes for replays; leaving the context stops them and removes their folders."""
    with (
        tempfile.TemporaryDirectory(prefix="tachograph-") as folder,
        # spawn: each replay has child processes of its own and must not inherit ours
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
    """Redirect this process's temporary files to a folder of its parent, and end with it, be it killed."""
    die_with_parent()
    tempfile.tempdir = folder


def _play(pack: Sequence[Scenario], suite: str) -> list[Outcome]:
    from tachograph_lab.replay.virtual import replay

    began = time.monotonic()
    verdicts = replay(pack, suite)
    share = (time.monotonic() - began) / len(pack)
    return [Outcome(scenario, verdict, share) for scenario, verdict in zip(pack, verdicts, strict=True)]
