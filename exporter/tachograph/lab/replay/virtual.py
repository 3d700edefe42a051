"""A scenario replayed in virtual time: simulated, scraped, judged by the shipped rules and routed, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tachograph.lab.checkout import root
from tachograph.lab.replay import alertmanager_config
from tachograph.lab.replay.alertmanager import Model
from tachograph.lab.replay.evaluation import EvaluationError, evaluate
from tachograph.lab.replay.firing import Firing
from tachograph.lab.replay.recording import Recording, record
from tachograph.lab.replay.shipped import ShippedRules, shipped
from tachograph.lab.replay.verdict import Received, Verdict, judge
from tachograph.lab.scenario import Scenario

EPOCH = 1_767_607_200.0
"""What Alertmanager's time intervals take for second 0: Monday 2026-01-05, 10:00 UTC, in working hours."""


@dataclass(frozen=True)
class Replay:
    """A scenario's replay: what fired, told or not, what was received, and the verdict."""

    firings: tuple[Firing, ...]
    received: tuple[Received, ...]
    verdict: Verdict


EVALUATION_SECONDS, FINE_SECONDS, COARSE_SECONDS = 5.0, 2.5, 15.0
"""Between two evaluations: in general, where something must be told soon of a small fleet, and in a long story."""

SOON_SECONDS, SMALL_RANKS = 15.0, 256
"""What must be told within this time and a step, and the fleet up to which it is looked for with the finer rhythm."""

LONG_SECONDS = 3 * 3600.0
"""A story from here on tells of hours; Prometheus, too, evaluates most groups no more often than every 15 s."""


def replay(scenario: Scenario, suite: str = "bookworm", scrape_seconds: float = 5.0) -> Verdict:
    """Return the verdict on a scenario; the same scenario always has the same. Raises BinariesUnavailable."""
    return run(scenario, suite, scrape_seconds).verdict


def run(scenario: Scenario, suite: str = "bookworm", scrape_seconds: float = 5.0) -> Replay:
    """Replay a scenario and return all that happened; a rule that fails is an error of the verdict.

    Times are judged as they are expected: fast groups, which Prometheus evaluates every 2 s, are evaluated every 2.5 s
    where that decides, in small fleets with something to be told soon.
    """
    rules = shipped()
    return judged(scenario, record(scenario, rules.words, scrape_seconds), rules, rhythm(scenario), suite)


def rhythm(scenario: Scenario) -> float:
    """Return the seconds between two evaluations of a scenario's replay."""
    if scenario.lasts >= LONG_SECONDS:
        return COARSE_SECONDS
    soon = any(expected.within <= SOON_SECONDS + scenario.step.seconds for expected in scenario.expect)
    return FINE_SECONDS if soon and scenario.fleet.ranks <= SMALL_RANKS else EVALUATION_SECONDS


def judged(
    scenario: Scenario, recording: Recording, rules: ShippedRules, evaluation_seconds: float, suite: str
) -> Replay:
    """Evaluate, route and judge a recording."""
    try:
        firings = evaluate(recording, rules, evaluation_seconds, suite)
    except EvaluationError as error:
        return failed(scenario, error)
    return received(scenario, firings, recording.seconds)


def received(scenario: Scenario, firings: Sequence[Firing], seconds: float) -> Replay:
    """Route what fired in the first `seconds` and judge what is received."""
    configuration = alertmanager_config.read(root() / "alertmanager/alertmanager.yml")
    told = Model(configuration, EPOCH).notifications(firings, seconds)
    return Replay(tuple(firings), tuple(told), judge(scenario, told))


def failed(scenario: Scenario, error: EvaluationError) -> Replay:
    """Return the replay of rules that could not be evaluated."""
    return Replay((), (), judge(scenario, (), error.lines))
