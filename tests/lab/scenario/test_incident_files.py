"""The shipped incidents: all are there, each readable and complete."""

from __future__ import annotations

from pathlib import Path

from tachograph_lab.scenario import INCIDENTS, load
from tests.every import every

FILES = sorted(INCIDENTS.glob("*.yaml"))
LIVE = {1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 15, 19, 20, 22, 24, 25, 27, 28, 31, 33, 65}


def number(path: Path) -> str:
    """Return the number at the beginning of a file's name: `15b`."""
    return path.name.partition("-")[0]


def test_all_are_there() -> None:
    """Every incident has a file, and those replayed in real time have a `live` section."""
    assert {int(number(path).rstrip("abcde")) for path in FILES} == {*range(1, 72), *range(73, 78)}
    scenarios = [load(path) for path in FILES]
    assert {scenario.incident for scenario in scenarios if scenario.live} == LIVE
    assert len({scenario.seed for scenario in scenarios}) == len(scenarios)


@every("path", FILES)
def test_an_incident_is_sound(path: Path) -> None:
    """Its number begins its name, and each tolerated alert has its reason in a comment above."""
    scenario = load(path)
    assert number(path).rstrip("abcde") == f"{scenario.incident:02d}"
    for variant in filter(None, (scenario, scenario.live)):
        assert len(variant.may) <= 1
    if scenario.may:
        assert path.read_text().partition("\nmay:\n")[2].lstrip().startswith("# ")


def test_hour_40_is_large_enough_live() -> None:
    """256 ranks or more hang in real time."""
    (path,) = INCIDENTS.glob("02-*.yaml")
    scenario = load(path)
    assert scenario.fleet.ranks == 1024
    assert scenario.for_live().fleet.ranks >= 256
