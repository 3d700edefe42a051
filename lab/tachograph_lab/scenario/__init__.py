"""Scenarios: a fleet, what goes wrong on it, and what a person must receive; as read from a file or made at random."""

from tachograph_lab.scenario.file import load
from tachograph_lab.scenario.story import (
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
