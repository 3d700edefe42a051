"""What each way in gives of the metrics that alerts use is what the table of docs/pages.md is made from."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.index import COUNTER, HISTOGRAM, RANK
from tachograph.catalog.rank import ROWS
from tools.pages.ways_in import SOURCES, WAYS

SCRIPT = Path(__file__).with_name("ways_in_script.py")
COMMANDS = {"loop": (), "run": ("-m", "tachograph", "run", "--name", "run"), "huggingface": (), "lightning": ()}
"""Way in -> what stands before the script; that of Hugging Face trains with its callback alone, too."""

BY_KEY = {row.key: row for row in ROWS if row.key}

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def trained(forked: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Two ranks of each, in their second attempt, with a tier that is misspelt."""
    environment = {"TACHOGRAPH_ATTEMPT": "1", "TACHOGRAPH_TIER": "herro"}
    found = []
    for way, command in COMMANDS.items():
        done = forked(*command, SCRIPT, way, tmp_path_factory.mktemp(way), ranks=2, **environment)
        assert done.status == 0, done.errors
        found.append(done)
    return found


def shown(trained: list[Any], way: str) -> Set[tuple[str, str]]:
    """Return each key that a way in gives with each value of its own label: gauges, and counters that counted."""
    found = set()
    for done in trained:
        for key, row in BY_KEY.items():
            name = f"{key}_count" if row.kind == HISTOGRAM else key
            for labels, value in done.having(name, run=way).items():
                if row.kind not in (COUNTER, HISTOGRAM) or value > 0:
                    own = dict(labels).get(row.labels[-1], "")
                    found |= {(key, ""), (key, "" if row.labels[-1] in RANK else own)}
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_way_in_gives_what_is_declared(trained: list[Any], way: str) -> None:
    """Of all that some way in gives, exactly what the table says: no more, no less."""
    ways = {
        (key, value): source.ways
        for source in SOURCES
        for key, values in source.given.items()
        for value in values or {""}
    }
    found = shown(trained, way)
    assert {each for each in ways if each in found} == {each for each in ways if way in ways[each]}
