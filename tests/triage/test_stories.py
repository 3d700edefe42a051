"""Every story at its worst moment, simulated, scraped and judged by the shipped rules, is classified as it says."""

from __future__ import annotations

import pytest

from tachograph.triage.conclusion import conclude
from tachograph.triage.facts import gather
from tachograph.triage.findings import Triage
from tachograph_lab.replay.moment import answers
from tachograph_lab.scenario import INCIDENTS
from tests.triage.stories import SEVERITIES, STORIES, expectation, scenario, worst_moment

pytestmark = pytest.mark.prometheus


def triage(number: str) -> Triage:
    """Return what triage says of a story at its worst moment."""
    story, at = scenario(number), worst_moment(number)
    run = STORIES[number].run or story.fleet.run
    asked: list[str] = []
    gather(run, at, lambda query: asked.append(query) or [])
    found = answers(story, at, asked)
    return conclude(gather(run, at, lambda query: found[query]))


def check(number: str) -> None:
    """Compare severity, category, failure mode and who is named with what the story says."""
    expected, first = STORIES[number], expectation(scenario(number))
    finding = triage(number).finding
    severity = SEVERITIES[first.receiver] if first else expected.severity
    assert (finding.severity, finding.category, finding.mode) == (severity, expected.category, expected.mode)
    labels = dict(first.labels) if first and not expected.at else {}
    if "rank" in labels:
        assert finding.ranks == (labels["rank"],)
    if "instance" in labels:
        assert labels["instance"] in finding.nodes


def test_every_story_has_a_row() -> None:
    """A story without a row would not be asked for."""
    assert {path.name.partition("-")[0] for path in INCIDENTS.glob("*.yaml")} == STORIES.keys()


def test_a_story() -> None:
    """All fail alike, for the network between them: a small story, each time."""
    check("50a")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [number for number in STORIES if number != "50a"])
def test_every_story(number: str) -> None:
    """Hours of one core for all of them: `pytest -m slow tests/triage`."""
    check(number)
