"""Logs of runs of 16 ranks, made up from single lines: the root on one rank, and what the others print before it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

RANKS = 16
START = datetime(2026, 11, 26, 3, 0, tzinfo=timezone.utc)
TEXTS: list[dict[str, str]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "signatures" / "failure_texts.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]

Writer = Callable[[int, datetime, str], str]


def _torchrun(rank: int, at: datetime, text: str) -> str:
    return f"[rank{rank}]:[E{at:%m%d %H:%M:%S.%f} train.cpp:563] {text}"


def _slurm(rank: int, at: datetime, text: str) -> str:
    return f"{rank:2}: {at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03} {text}"


def _kubernetes(rank: int, at: datetime, text: str) -> str:
    return f"[pod/worker-{rank // 8}/trainer] {at:%Y-%m-%dT%H:%M:%S.%f}Z [rank{rank}]: {text}"


def _plain(rank: int, _at: datetime, text: str) -> str:
    return f"[rank{rank}]: {text}"


WRITERS: Sequence[Writer] = (_torchrun, _slurm, _kubernetes, _plain)


def composed(seed: int) -> tuple[str, Mapping[str, str], int]:
    """Return a log, its root and the root's rank; cascades of the others stand first and have earlier times."""
    chance = random.Random(seed)
    writer = WRITERS[seed % len(WRITERS)]
    root = chance.choice([one for one in TEXTS if one["role"] == "root"])
    cascades = chance.sample([one["text"] for one in TEXTS if one["role"] == "cascade"], 4)
    advice = [one["text"] for one in TEXTS if one["role"] == "advice"]
    culprit = chance.randrange(RANKS)
    at, lines = START, []
    for step in range(20):
        at += timedelta(milliseconds=300)
        lines += [
            writer(
                rank, at, f"step {step} loss {chance.uniform(2, 3):.4f} grad norm {chance.random():.3f} error rate 0.1"
            )
            for rank in range(RANKS)
        ]
    others = [rank for rank in range(RANKS) if rank != culprit]
    chance.shuffle(others)
    for rank in others:
        at += timedelta(milliseconds=chance.randrange(50))
        lines.append(writer(rank, at, chance.choice(cascades)))
        lines.append(writer(rank, at, chance.choice(advice)))
    at += timedelta(seconds=2)
    lines.append(writer(culprit, at, "Traceback (most recent call last):"))
    lines.append(writer(culprit, at, '  File "/home/user/train.py", line 88, in train_step'))
    lines.append(writer(culprit, at, "    loss.backward()"))
    lines.append(writer(culprit, at, root["text"]))
    for rank in range(RANKS):
        lines.append(writer(rank, at, chance.choice(cascades)))
    return "\n".join(lines) + "\n", root, culprit
