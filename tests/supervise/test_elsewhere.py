"""How automation failed elsewhere, where no other test has it yet; docs/supervise.md has a table of all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tachograph.supervise.journal import Journal
from tachograph.supervise.memory import remember
from tachograph.supervise.run_seen import RunSeen
from tests.supervise.test_journal import WHOLE
from tests.supervise.test_nodes import Nodes, world_of
from tests.supervise.world import World, rank, run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def aborted(step: int) -> RunSeen:
    """A run of 8 nodes, each rank of which failed by the same line, with an Xid of the program's on its GPU."""
    ranks = [
        rank(
            number, node=f"n{number}", step=step, state="failed", end_reason="exception", ended_seconds=0.5,
            message="RuntimeError: CUDA error: device-side assert triggered (train.py:88)",
        )
        for number in range(8)
    ]  # fmt: skip
    return run(*ranks, state="failed", world_size=8)


def test_one_programs_abort_is_one_failure(folder: Path) -> None:
    """Elsewhere: 672 fatal events of one program's abort within three hours.

    All ranks say it, attempt after attempt: one restart, no node is left out, and the second time the run is stopped,
    as its program would do the same again.
    """
    nodes = [f"n{number}" for number in range(9)]
    world = World(folder, lambda attempt, _: aborted(100 + attempt), ends=[(1, 30.0)] * 9, last=20_000.0)
    world.launcher = plan = Nodes(world, allocated=nodes, needed=8)  # type: ignore[assignment]
    assert world.supervise() == 1
    assert world.decisions() == [("act", "failed", "restart"), ("act", "failed", "stop")]
    assert plan.used == [tuple(nodes[:8])] * 2
    assert plan.queued == []


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
@pytest.mark.parametrize("kind", sorted(WHOLE))
def test_no_later_event_gives_a_node_back(tmp_path: Path, kind: str, seconds: float) -> None:
    """Elsewhere: events out of order cancelled a fresh quarantine.

    Whatever is noted after a node was left out, with a time before or after that: it stays so until the run finishes.
    """
    now = [1_790_000_000.0]
    book = Journal(tmp_path, clock=lambda: now[0])
    restart: dict[str, Any] = {**WHOLE["intent"], "action": "exclude_node", "nodes": ["b"]}
    book.write("intent", **restart)
    now[0] += seconds
    book.write(kind, **WHOLE[kind])
    book.close()
    assert list(remember(book.entries).nodes.left_out) == ["b"]


def test_what_an_excluded_node_says_gives_it_not_back(folder: Path) -> None:
    """Its exporter answers late, of ranks that are healthy there, or have finished: the next attempt is without it."""
    world, nodes = world_of(folder, "b", "b", "c", allocated=["a", "b", "c", "d"])
    shown = world.look_at

    def look(attempt: int, seconds: float) -> Any:
        if attempt == 2 and seconds < 30.0:
            return run(rank(0, step=20, node="a"), rank(1, step=20, node="b", state="finished"))
        return shown(attempt, seconds)

    world.look_at = look
    assert world.supervise() == 0
    assert nodes.used == [("a", "b"), ("a", "b"), ("a", "c"), ("a", "c")]


def test_the_document_names_tests_that_are_there() -> None:
    """Each failure in its table has one."""
    text = (ROOT / "docs/supervise.md").read_text()
    table = text.partition("## How automation failed elsewhere")[2].partition("\n## ")[0]
    named = re.findall(r"`(test_\w+)`", table)
    files = Path(__file__).parent.glob("test_*.py")
    there = {found for path in files for found in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) >= 10
    assert set(named) <= there
