"""Scenarios: a fleet, what goes wrong on it, and what a person must receive; as read from a file or made at random."""

from tachograph_lab.scenario.definition import (
    INCIDENTS,
    Expected,
    Fleet,
    Learning,
    Loss,
    Pause,
    Scenario,
    ScenarioError,
    StepTimes,
    Tolerated,
    Work,
)
from tachograph_lab.scenario.scenario_file import load

__all__ = [
    "INCIDENTS",
    "Expected",
    "Fleet",
    "Learning",
    "Loss",
    "Pause",
    "Scenario",
    "ScenarioError",
    "StepTimes",
    "Tolerated",
    "Work",
    "load",
]
