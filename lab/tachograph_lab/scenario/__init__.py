"""Scenarios: a fleet, its faults, and the notifications that people must receive; read from a file or generated."""

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
