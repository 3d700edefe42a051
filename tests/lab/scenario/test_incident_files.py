"""The shipped incidents: there are all twenty, each readable and complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph_lab.scenario import INCIDENTS, load

FILES = sorted(INCIDENTS.glob("*.yaml"))
LIVE = {1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 15, 19, 20}


def test_all_twenty_are_there() -> None:
    """Every incident has a file, and those replayed in real time have a `live` section."""
    scenarios = [load(path) for path in FILES]
    assert {scenario.incident for scenario in scenarios} == set(range(1, 21))
    assert {scenario.incident for scenario in scenarios if scenario.live} == LIVE
    assert len({scenario.seed for scenario in scenarios}) == len(scenarios)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_incident_is_sound(path: Path) -> None:
    """Its number begins its name, and each tolerated alert has its reason in a comment above."""
    scenario = load(path)
    assert path.name.partition("-")[0].rstrip("abcde") == f"{scenario.incident:02d}"
    assert len(scenario.may) <= 1
    if scenario.may:
        assert path.read_text().partition("\nmay:\n")[2].lstrip().startswith("# ")


def test_hour_40_is_large_enough_live() -> None:
    """256 ranks or more hang in real time."""
    (path,) = INCIDENTS.glob("02-*.yaml")
    scenario = load(path)
    assert scenario.fleet.ranks == 1024
    assert scenario.for_live().fleet.ranks >= 256
