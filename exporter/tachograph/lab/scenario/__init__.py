"""Scenarios: a fleet, what goes wrong on it, and what a person must receive; as read from a file or made at random."""

from tachograph.lab.scenario.story import (
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
    load,
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
