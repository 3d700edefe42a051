"""Shared by the tests of what an exporter serves of boxes: a rank that sends one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.collect.pretender import pretender

__all__ = ["pretender"]

PART = 30_000


def entry(number: int, done: bool) -> dict[str, object]:
    """Return one operation of a recorder."""
    return {
        "process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_790_000_000_000_000_000 + number, "state": "completed" if done else "started",
        "retired": done, "input_sizes": [[4]], "output_sizes": [[4]], "pg_id": 0,
    }  # fmt: skip


def box(rank: int, calls: int = 4, where: str = "", **over: object) -> dict[str, object]:
    """Return the box of a rank of four that has called so many collectives; the fourth is done nowhere."""
    entries = [entry(number, number < 4) for number in range(1, calls + 1)]
    place = where or ("/home/u/data.py:88 load_shard" if calls < 4 else "/home/u/train.py:140 backward")
    return {
        "rank": rank, "world_size": 4, "attempt": 0, "groups": {"0": {"ranks": [0, 1, 2, 3]}}, "where": place,
        "recorders": {"nccl": {"version": "2.9", "entries": entries}}, "log": ["a line"], "environment": {"A": "b"},
        "failure": {"category": "oom", "message": "CUDA out of memory", "lines": ["a.py:1 f"]},
        **over,
    }  # fmt: skip


def send_box(speaker: Any, text: str, reason: str = "no step for 41 s") -> None:
    """Send a box in parts, as a rank does."""
    parts = [text[start : start + PART] for start in range(0, len(text), PART)]
    for number, part in enumerate(parts):
        speaker.send(type="box", id=1, part=number, parts=len(parts), time=time.time(), reason=reason, text=part)


@pytest.fixture
def ranks_at() -> Callable[..., list[Any]]:
    """Connect ranks of a run to an exporter, each with its box: `ranks_at(exporter, run, {0: 4, 1: 3})`, with calls."""

    def connect(exporter: Any, run: str, calls: dict[int, int]) -> list[Any]:
        made = []
        for rank, count in calls.items():
            speaker = exporter.speaker(run=run.removeprefix("root/"), rank=rank, world_size=4)
            assert speaker.hello()["ok"]
            send_box(speaker, json.dumps(box(rank, count)))
            made.append(speaker)
        return made

    return connect
