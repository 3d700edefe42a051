"""The soak: what it calls growth, and how counts are compared."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tachograph_lab.processes import Children

SECONDS = 600.0


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    return importlib.import_module("soak")


def result(
    soak: ModuleType, *, wrong: tuple[str, ...] = (), ended: bool = False, hangs_seen: int = 2, **rising: float
) -> Any:
    """A soak of ten minutes in which quantities rise by so much in all; scrapes get longer at the end."""
    usual = {"scrapes": 0.01, "resident": 60.0, "descriptors": 30.0, "threads": 8.0, "tasks": 5.0, "blocks": 3e5}
    looks = soak.Looks(
        **{
            kind: [
                (float(at), value + rising.get(kind, 0.0) * (at / SECONDS) ** (2 if kind == "scrapes" else 1))
                for at in range(0, int(SECONDS), 5)
            ]
            for kind, value in usual.items()
        }
    )
    ranks = {"wrong": list(wrong), "compared": 70, "deaths": 6}
    return soak.Soak(SECONDS / 60, "Load.", looks, [0.01, 0.2], 0, ranks, 3, 2, hangs_seen, 9, 4, ended)


def test_what_stays_as_it_is_has_no_fault(soak: ModuleType) -> None:
    """And the report says so."""
    calm = result(soak)
    assert calm.faults() == []
    assert "nothing grew, nothing is missing" in calm.lines()[-1]
    assert "70 counts of steps compared, all exact" in "\n".join(calm.lines())


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"resident": 8.0}, "memory grew by"),
        ({"descriptors": 20.0}, "descriptors more"),
        ({"tasks": 12.0}, "tasks more"),
        ({"threads": 12.0}, "threads more"),
        ({"blocks": 4e4}, "blocks of memory grew by 6 %"),
        ({"scrapes": 0.8}, "scrape p99"),
        ({"ended": True}, "the exporter ended"),
        ({"hangs_seen": 1}, "1 hangs of the driver were not shown"),
        ({"wrong": ("rank 3 made 10 steps, the exporter shows 9.0",)}, "rank 3 made 10 steps"),
    ],
)
def test_each_growth_is_one_fault(soak: ModuleType, over: dict[str, Any], words: str) -> None:
    """That alone."""
    (fault,) = result(soak, **over).faults()
    assert words in fault


def test_growth_is_told_by_the_minute(soak: ModuleType) -> None:
    """From the end of the warm-up on."""
    assert result(soak, resident=10.0).looks.slope("resident", SECONDS) == pytest.approx(1.0)


def test_a_count_is_compared_until_it_is_right_or_too_late(tmp_path: Path) -> None:
    """A state may be on its way; what is still another after that is wrong. A rank waits until it has been compared."""
    load = importlib.import_module("soak_load")
    shown = f'tachograph_train_steps_total{{run="{load.PAGE_NAME}",rank="%d"}} %d\n'
    with Children(tmp_path) as children:
        ranks = load.Ranks(children, tmp_path / "no.sock", tmp_path, seed=1)
        for rank in (3, 4):
            (tmp_path / f"count-{rank}").write_text(json.dumps(10), encoding="utf-8")
        ranks.turn(shown % (3, 9) + shown % (4, 10), 100.0)
        assert (ranks.compared, ranks.wrong) == (1, [])
        assert [file.name for file in tmp_path.glob("count-*")] == ["count-3"]
        ranks.turn("", 100.0 + load.APPLIED_SECONDS + 1)  # a scrape that was lost
        assert (ranks.compared, ranks.wrong) == (1, [])
        ranks.turn(shown % (3, 9), 100.0 + load.APPLIED_SECONDS + 1)
    assert (ranks.compared, ranks.wrong) == (2, ["rank 3 made 10 steps, the exporter shows 9.0"])


def test_a_moment_is_quiet_when_no_attack_has_just_ended(tmp_path: Path) -> None:
    """Attackers take a moment to leave."""
    load = importlib.import_module("soak_load")
    with Children(tmp_path) as children:
        attackers = load.Attackers(children, tmp_path / "no.sock", 1)
        attackers._attacks = [(100.0, 114.0)]
        assert [attackers.quiet(at) for at in (99.0, 100.0, 114.0, 116.0, 118.0)] == [True, False, False, False, True]
        attackers.turn(200.0)  # the next one begins; nobody serves, so it does nothing
        assert not attackers.quiet(1e9)
        attackers.turn(220.0)
        assert attackers.quiet(1e9)
        assert attackers.made == 2
