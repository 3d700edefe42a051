"""Boxes of ours: what they say beside the recorders, and where there is no recorder at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tachograph.blackbox.folder import read_boxes
from tachograph.blackbox.served import ServedRank
from tachograph.blackbox.verdict import analyze, judge

NOW = 1_790_000_000.0
LOADER, WAITS = "data.py:88 load_shard", "train.py:140 backward"


def box(rank: int, reason: str = "no step for 41 s", **over: Any) -> tuple[str, bytes]:
    whole = {
        "box": 1, "run": "llama-7b", "rank": rank, "world_size": 4, "attempt": 0, "reason": reason,
        "phase": "backward", "time": NOW, "phase_since": NOW - over.pop("stood", 41.0), "where": WAITS, "groups": {},
        "recorders": {}, **over,
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


PAIRS = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3]}


def alone(rank: int, line: str, world: int, pair: int | None, reason: str = "no step for 12 s", **over: Any) -> Any:
    """A box with the counts of calls alone, as of gloo up to PyTorch 2.8: a world of four and pairs, or no pairs."""
    counted = {"0": world, "1": pair, "2": pair}
    groups = {
        name: {"ranks": members, "backends": "cpu:gloo", "enqueued": counted[name]}
        for name, members in PAIRS.items()
        if rank in members and counted[name] is not None
    }
    return box(rank, reason, where=line, groups=groups, stood=over.pop("stood", 12.0), **over)


IN_WORLD, IN_PAIR, IN_CAST = (
    f"train.py:{number} step, in distributed_c10d.py:3034 {name}"
    for number, name in ((50, "all_reduce"), (30, "all_reduce"), (60, "broadcast"))
)
SKIPPED = "skipped_collective"
COUNTED = "By the ranks' own counts of calls: no recorder of the group holds an operation"


@pytest.mark.parametrize(
    ("boxes", "rank", "kind", "line"),
    [
        # stuck in its loader, before its pair's
        ([(IN_WORLD, 17, 9), (IN_WORLD, 17, 9), (LOADER, 16, 8), (IN_PAIR, 16, 9)], 2, "host_stuck", LOADER),
        # skipped its pair's
        (
            [(IN_WORLD, 17, 9), (IN_WORLD, 17, 9), (IN_WORLD, 17, 8), (IN_PAIR, 16, 9)],
            2,
            SKIPPED,
            IN_PAIR,
        ),
        # skipped one of the world's: as many calls as all others, of which one is another
        ([(IN_WORLD, 17, 9), (IN_WORLD, 17, 9), (IN_CAST, 17, 9), (IN_WORLD, 17, 9)], 2, "type_mismatch", IN_CAST),
        # left, died or cannot speak
        ([(IN_WORLD, 17, 9), (IN_WORLD, 17, 9), None, (IN_WORLD, 17, 9)], 2, "no_dump", None),
    ],
)
def test_counts_of_calls_alone(boxes: list[Any], rank: int, kind: str, line: str | None) -> None:
    """Where PyTorch records nothing of gloo, the boxes' numbers of calls and lines name the rank, and it is said so."""
    verdict = verdict_of(*(alone(number, *one) for number, one in enumerate(boxes) if one))
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.kind, culprit.line) == (rank, kind, line)
    assert (COUNTED in verdict.notes) == (kind != "type_mismatch")
    assert "no recorder" in (culprit.reason + str(verdict.notes))


@pytest.mark.parametrize(("idle", "named"), [(2.0, []), (14.0, [2])])
def test_counts_of_a_run_that_goes_on(idle: float, named: list[int]) -> None:
    """Boxes on request of a run whose steps take a second: they are of different moments, unless a step is overdue."""
    steps = [{"number": number, "seconds": 1.0} for number in range(20)]
    more = {
        "reason": "asked for by alice",
        "stood": idle,
        "progress_time": NOW - idle,
        "steps": steps,
    }
    given = [(IN_WORLD, 17, 9), (IN_WORLD, 17, 9), (LOADER, 16, 8), (IN_PAIR, 16, 9)]
    verdict = verdict_of(*(alone(rank, *one, **more) for rank, one in enumerate(given)))
    assert [one.rank for one in verdict.culprits] == named


def test_counts_of_a_group_that_nobody_waits_in() -> None:
    """All have made as many calls of each group: nothing is said of groups, and most of a run is not named."""
    verdict = verdict_of(*(alone(rank, IN_WORLD, 17, 9) for rank in range(4)))
    assert (verdict.state, verdict.culprits, verdict.blocked_first) == ("stuck", [], None)


@pytest.mark.parametrize("innermost", [", in distributed_c10d.py:2500 recv", ""])
def test_stages_that_wait_for_messages(innermost: str) -> None:
    """Each stage of a pipeline waits at a line of its own: that one stands elsewhere than most says nothing."""
    lines = [f"train.py:{number} step{innermost}" for number in (61, 60, 60, 60)]
    verdict = verdict_of(*(alone(rank, line, 17, 9) for rank, line in enumerate(lines)))
    assert verdict.culprits == []


def test_what_its_exporter_knows_of_a_rank_without_a_box() -> None:
    """State, step, phase and line stand in the reason, and the line is the culprit's."""
    rank = ServedRank(2, "hung", 8, "checkpoint", 41.0, "1", {}, "save.py:12 write")
    boxes = [alone(number, IN_WORLD, 17, 9) for number in (0, 1, 3)]
    verdict = judge(read_boxes(boxes, 3), "boxes", 4, {2: rank.known})
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.kind, culprit.line) == (2, "no_dump", "save.py:12 write")
    assert culprit.reason.endswith("by its exporter hung, step 8, at save.py:12 write, in phase checkpoint for 41 s")


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
    verdict = verdict_of(box(0, "asked for", world_size=1, stood=seconds))
    assert (verdict.state, len(verdict.culprits)) == (state, state == "stuck")


def test_who_failed_by_itself() -> None:
    """Of ranks that failed, those whose communication failed have others to thank for it."""
    verdict = verdict_of(
        *(box(rank, "failed: collective") for rank in (0, 1, 3)), box(2, "failed: data", phase="data", where=LOADER)
    )
    (culprit,) = verdict.culprits
    assert (culprit.rank, culprit.kind, culprit.line) == (2, "failed", LOADER)


def test_a_rank_that_raised_and_has_not_ended() -> None:
    """Its exception stands in the reason, as its line does; one that is of a collective is no reason."""
    failure = {"category": "exception", "message": "ValueError: bad batch", "lines": [LOADER]}
    held = {"groups": counts(8, 8), "where": LOADER, "failure": failure}
    verdict = verdict_of(*(box(rank, groups=counts(9, 8)) for rank in (0, 1, 3)), box(2, **held))
    (culprit,) = verdict.culprits
    assert culprit.line == LOADER
    assert culprit.reason.endswith(
        "it stands at data.py:88 load_shard, in phase backward for 41 s; it raised ValueError: bad batch"
    )


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
        "phase_since",
        "time",
        "progress_time",
        "steps",
        "failure",
        "recorders",
        "run",
        "world_size",
        "attempt",
    ):
        for value in (None, [], {}, "x", -1, 1e308, True, {"0": None}, {"0": {"enqueued": "x"}}, [[]] * 9):
            whole = {**json.loads(box(0)[1]), key: value}
            verdict_of(("0/rank-0.json", json.dumps(whole).encode()), box(1))
