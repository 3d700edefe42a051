"""Analyses: one at a time in a process of its own, bounded, and shared by all who ask."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tachograph.blackbox.served import ServedBox, ServedRun
from tachograph.node.evidence import analyses
from tachograph.node.evidence.analyses import MOST_WAITING, Analyses, AnalysisError, BusyError
from tachograph.node.evidence.request import Request

SKIPPED = 5


def box(rank: int, calls: int) -> bytes:
    """Return the box of a rank that has called so many collectives, the last of them not done."""
    entries = [
        {
            "process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_790_000_000_000_000_000 + number, "state": "completed" if number < 4 else "started",
            "retired": number < 4, "input_sizes": [[4]], "output_sizes": [[4]], "pg_id": 0,
        }
        for number in range(1, calls + 1)
    ]  # fmt: skip
    groups = {"0": {"ranks": [0, 1, 2, 3]}}
    where = "data.py:88 load_shard" if calls < 4 else "train.py:140 backward"
    whole = {"rank": rank, "world_size": 4, "attempt": 0, "groups": groups, "where": where,
             "recorders": {"nccl": {"version": "2.9", "entries": entries}}}  # fmt: skip
    return json.dumps(whole).encode()


def request(texts: Sequence[bytes], run: str = "llama-7b") -> Callable[[], tuple[Request, Sequence[bytes]]]:
    boxes = tuple(ServedBox(0, rank, 100.0, "no step", len(text)) for rank, text in enumerate(texts))
    return lambda: (Request(ServedRun(run, "node-27", 100.0, 4, boxes, ())), texts)


STUCK = [box(0, 4), box(1, 3), box(2, 4), box(3, 4)]


def run(use: Callable[[Analyses], Awaitable[Any]], *program: str, **settings: Any) -> Any:
    async def whole() -> Any:
        loop = asyncio.get_running_loop()
        command = [sys.executable, "-c", *program] if program else None
        made = Analyses(loop.time, lambda: 200.0, command, **settings)
        try:
            return await use(made)
        finally:
            await made.close()

    return asyncio.run(whole())


def test_the_verdict() -> None:
    """The rank that never called the collective is named, with the line at which it stands."""
    found = run(lambda made: made.of("llama-7b", request(STUCK), 30.0))
    (culprit,) = found.verdict.culprits
    assert (culprit.rank, culprit.line) == (1, "data.py:88 load_shard")
    assert found.where[0] == "train.py:140 backward"
    assert (found.boxes[1].reason, found.trouble, found.time) == ("no step", "", 200.0)


@pytest.mark.parametrize(
    "hostile",
    [
        b"[" * 400_000,
        b'{"entries": ' + b"[" * 400_000,
        b'{"recorders": {"nccl": {"entries": [' + b"{}," * 170_000 + b"{}]}}}",
        b'{"rank": 99999999999999999999, "world_size": -1, "groups": [1], "where": {"a": 1}}',
        b'{"groups": {"' + b"x" * 400_000 + b'": {"ranks": [0, 1, 2, 3]}}}',
        b"\x80\x02cos\nsystem\n(S'touch /tmp/x'\ntR.",
        b"null",
        b"",
    ],
    ids=range(8),
)
def test_a_hostile_box(hostile: bytes) -> None:
    """Whatever a rank sends as its box, the others' say what they say."""
    found = run(lambda made: made.of("llama-7b", request([*STUCK[:3], hostile]), 30.0))
    assert 1 in [one.rank for one in found.verdict.culprits]


def test_one_that_does_not_end_is_ended() -> None:
    """A process that hangs is killed, and the reason is in words."""
    with pytest.raises(AnalysisError, match=r"longer than 0\.2 s"):
        run(lambda made: made.of("r", request([]), 30.0), "import time; time.sleep(60)", longest=0.2)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was ended"),
        ("raise MemoryError", "it failed"),
        ("print('[')", "unreadable"),
        ("import sys; sys.stdout.write('x' * (1 << 26))", "too large"),
    ],
)
def test_one_that_fails(program: str, said: str) -> None:
    """A process that fails costs its own result, with a reason."""
    with pytest.raises(AnalysisError, match=said):
        run(lambda made: made.of("r", request([]), 30.0), program)


def test_it_is_shared_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who ask share one process, and who asks a moment later gets the same; after that it is made anew."""
    asked = 0

    def counted() -> tuple[Request, Sequence[bytes]]:
        nonlocal asked
        asked += 1
        return request(STUCK)()

    async def use(made: Analyses) -> None:
        first, second = await asyncio.gather(*(made.of("llama-7b", counted, 30.0) for _ in range(2)))
        assert first is second
        assert await made.of("llama-7b", counted, 30.0) is first
        assert asked == 1
        monkeypatch.setattr(analyses, "KEPT_SECONDS", -1.0)
        assert await made.of("llama-7b", counted, 30.0) is not first
        assert asked == 2

    run(use)


def test_who_cannot_wait_is_told_so() -> None:
    """After the patience of the asker there is no result yet; the work goes on."""

    async def use(made: Analyses) -> None:
        assert await made.of("llama-7b", request(STUCK), 0.0) is None
        assert (await made.of("llama-7b", request(STUCK), 30.0)).verdict.culprits

    run(use)


def test_a_storm_of_runs_is_refused() -> None:
    """Only so many runs wait; the next is refused at once, and so costs nothing."""

    async def use(made: Analyses) -> None:
        for number in range(MOST_WAITING):
            await made.of(f"run-{number}", request([]), 0.0)
        with pytest.raises(BusyError):
            await made.of("one-more", request([]), 0.0)

    run(use, "import time; time.sleep(60)")
