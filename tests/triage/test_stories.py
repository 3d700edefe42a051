"""Every story at its worst moment, simulated, scraped and judged by the shipped rules, is classified as it says."""

from __future__ import annotations

import pytest

from tachograph.triage.conclusion import conclude
from tachograph.triage.facts import gather
from tachograph.triage.findings import Triage
from tachograph_lab.commands.healthy import day
from tachograph_lab.replay.moment import answers, answers_at
from tachograph_lab.scenario import INCIDENTS, Fleet, Scenario
from tachograph_lab.scenario.faults import BatchChange, Finish, Kill, PlannedRestart
from tests.triage.stories import SEVERITIES, STORIES, expectation, scenario, worst_moment

pytestmark = pytest.mark.prometheus

HEALTHY_SECONDS = 7800.0
EVENTS = (PlannedRestart, BatchChange, Finish)


def triage(story: Scenario, at: float, run: str = "") -> Triage:
    """Return what triage says of a story at a second of it."""
    run = run or story.fleet.run
    asked: list[str] = []
    gather(run, at, lambda query: asked.append(query) or [])
    found = answers(story, at, asked)
    return conclude(gather(run, at, lambda query: found[query]))


def check(number: str) -> None:
    """Compare severity, category, failure mode and who is named with what the story says."""
    expected, first = STORIES[number], expectation(scenario(number))
    finding = triage(scenario(number), worst_moment(number), expected.run).finding
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
    """A rank is killed in a run on two nodes: a small story, each time."""
    fleet = Fleet(run="small", nodes=2, gpus_per_node=2)
    story = Scenario(title="Small", story="Small.", lasts=90, fleet=fleet, faults=(Kill(at=61, rank=3),))
    found = triage(story, 80)
    assert found.finding.words == "a rank was killed or crashed: rank 3 (node-1, GPU 1) (died)"
    assert (found.finding.severity, found.finding.category, found.finding.mode) == ("page", "software", "rank_died")
    assert found.lost_share == 1.0
    assert [one.name for one in found.answers if one.answer == "no"] == ["alive"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_healthy_day(seed: int) -> None:
    """Every five minutes and in saves, an evaluation, a restart, after a change of the batch and the end: nothing."""
    story = day(8, seed, HEALTHY_SECONDS)
    restart, change, end = (next(one.at for one in story.faults if isinstance(one, kind)) for kind in EVENTS)
    special = (1820.0, 1855.0, restart + 10, restart + 100, change + 30, change + 200, end + 20, end + 500)
    moments = sorted({*special, *(300.0 * number for number in range(1, int(HEALTHY_SECONDS / 300)))})
    asked: list[str] = []
    gather("healthy", 0.0, lambda query: asked.append(query) or [])
    found = answers_at(story, moments, asked)
    findings = {at: conclude(gather("healthy", at, lambda query, at=at: found[at][query])).finding for at in moments}
    assert {at: finding for at, finding in findings.items() if finding.wrong} == {}
    assert {finding.category for finding in findings.values()} <= {"none", "preemption"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", STORIES)
def test_every_story(number: str) -> None:
    """Hours of one core for all of them: `pytest -m slow tests/triage`."""
    check(number)
