"""Boxes of ours: what they say beside the recorders, and where there is no recorder at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tachograph.blackbox.folder import read_boxes
from tachograph.blackbox.verdict import analyze, judge

LOADER, WAITS = "data.py:88 load_shard", "train.py:140 backward"


def box(rank: int, reason: str = "no step for 41 s", **over: Any) -> tuple[str, bytes]:
    whole = {
        "box": 1, "run": "llama-7b", "rank": rank, "world_size": 4, "attempt": 0, "reason": reason,
        "phase": "backward", "phase_seconds": 41.0, "where": WAITS, "groups": {}, "recorders": {}, **over,
    }  # fmt: skip
    return f"0/rank-{rank}.json", json.dumps(whole).encode()


def counts(enqueued: int, completed: int) -> dict[str, Any]:
    return {"0": {"ranks": [0, 1, 2, 3], "enqueued": enqueued, "completed": completed}}


def verdict_of(*boxes: tuple[str, bytes]) -> Any:
    return judge(read_boxes(boxes, len(boxes)), "boxes")


def test_counts_without_a_recorder() -> None:
    """Where PyTorch has no recorder, the box's own counts say who never called what the others wait in."""
    verdict = verdict_of(
        *(box(rank, groups=counts(9, 8)) for rank in (0, 1, 3)),
        box(2, groups=counts(8, 8), where=LOADER, phase="data"),
    )
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.kind, culprit.line) == (2, "host_stuck", LOADER)
    assert verdict.run == "llama-7b"


def test_a_run_of_one_process() -> None:
    """Without any collective the rank that goes no further is named, with its phase and line."""
    verdict = verdict_of(
        box(0, world_size=1, phase="checkpoint", where="save.py:12 write", reason="in checkpoint for 301 s")
    )
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.line, verdict.state) == (0, "save.py:12 write", "stuck")
    assert culprit.reason == "in checkpoint for 301 s, and waits in no collective on record; in phase checkpoint"


@pytest.mark.parametrize(("seconds", "state"), [(3.0, "moving"), (301.0, "stuck")])
def test_a_rank_that_was_asked(seconds: float, state: str) -> None:
    """Being asked is no sign of a standstill, a phase of minutes is."""
    verdict = verdict_of(box(0, "asked for", world_size=1, phase_seconds=seconds))
    assert (verdict.state, len(verdict.culprits)) == (state, state == "stuck")


def test_who_failed_by_itself() -> None:
    """Of ranks that failed, those whose communication failed have others to thank for it."""
    verdict = verdict_of(
        *(box(rank, "failed: collective") for rank in (0, 1, 3)), box(2, "failed: data", phase="data", where=LOADER)
    )
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.kind, culprit.line) == (2, "failed", LOADER)


def test_nobody_where_all_stand_still() -> None:
    """Without a word on collectives, a run that stands still as a whole names nobody."""
    verdict = verdict_of(*(box(rank) for rank in range(4)))
    assert (verdict.state, verdict.culprits) == ("stuck", [])
    assert verdict.undecided[0].what == "ranks 0-3 went no further"


def test_a_call_skipped_by_one_of_two() -> None:
    """With one against one, what came in earlier rounds says which of them left its course."""

    def entries(last: int) -> dict[str, Any]:
        sizes = [*[4160, 4] * 20, last]
        ring = [
            {"process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": "gloo:all_reduce",
             "state": "scheduled", "retired": True, "input_sizes": [[size]], "output_sizes": [[size]],
             "time_created_ns": 1_790_000_000_000_000_000 + number}
            for number, size in enumerate([*sizes[:-1], 4160, last], 1)
        ]  # fmt: skip
        return {"gloo": {"version": "2.10", "entries": ring}}

    skips, stays = "train.py:18 backward", "train.py:22 all_reduce"
    verdict = verdict_of(
        box(1, "failed: collective", recorders=entries(4160), where=skips),
        box(3, "failed: collective", recorders=entries(4), where=stays),
    )
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.kind, culprit.line) == (1, "skipped_collective", stays)


def test_earlier_boxes_of_a_rank_are_no_evidence(tmp_path: Path) -> None:
    """The files that a rank's newest box has replaced are not read: they are of another moment."""
    for rank in (0, 1, 3):
        (tmp_path / f"rank-{rank}.json").write_bytes(box(rank, groups=counts(9, 8))[1])
    (tmp_path / "rank-2.json").write_bytes(box(2, groups=counts(8, 8), where=LOADER)[1])
    (tmp_path / "rank-2.1.json").write_bytes(box(2, groups=counts(9, 8))[1])
    assert [one.rank for one in analyze(tmp_path).culprits] == [2]


def test_strange_values() -> None:
    """Whatever stands in a box of ours, it raises nothing, and the others are read."""
    for key in (
        "rank",
        "groups",
        "where",
        "reason",
        "phase",
        "phase_seconds",
        "recorders",
        "run",
        "world_size",
        "attempt",
    ):
        for value in (None, [], {}, "x", -1, 1e308, True, {"0": None}, {"0": {"enqueued": "x"}}, [[]] * 9):
            whole = {**json.loads(box(0)[1]), key: value}
            verdict_of(("0/rank-0.json", json.dumps(whole).encode()), box(1))
