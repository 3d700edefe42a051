"""`Recorder.resume`: the plan of an attempt, from whatever the environment has."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.client.hello.plan import Plan, plan_of
from tachograph.client.recorder import Recorder

PLAN = {"TACHOGRAPH_PLAN_ATTEMPT": "2", "TACHOGRAPH_PLAN_REASON": "hung", "TACHOGRAPH_PLAN_STEP": "40"}

SKIP = {
    "TACHOGRAPH_PLAN_SKIP": "45:55,70:71", "TACHOGRAPH_PLAN_RATE": "0.5", "TACHOGRAPH_PLAN_CLIPPING": "0.25",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Plan()),
        (PLAN, Plan(2, "hung", 40)),
        (PLAN | {"TACHOGRAPH_PLAN_STEP": ""}, Plan(2, "hung", None)),
        (PLAN | {"TACHOGRAPH_PLAN_ATTEMPT": "0", "TACHOGRAPH_PLAN_STEP": ""}, Plan(0, "hung", None)),
        (PLAN | {"TACHOGRAPH_PLAN_STEP": "-1"}, Plan(2, "hung", None)),
        (PLAN | {"TACHOGRAPH_PLAN_STEP": "1e3"}, Plan(2, "hung", None)),
        (PLAN | {"TACHOGRAPH_PLAN_ATTEMPT": "x"}, Plan(0, "hung", 40)),
        ({"TACHOGRAPH_PLAN_STEP": "40"}, Plan()),
        (PLAN | {"TORCHELASTIC_RESTART_COUNT": "0"}, Plan(2, "hung", 40)),
        (PLAN | {"TORCHELASTIC_RESTART_COUNT": "1"}, Plan(2, "hung", None)),
        (PLAN | {"TACHOGRAPH_PLAN_CHECKPOINT": "/c/40"}, Plan(2, "hung", 40, "/c/40")),
        (PLAN | SKIP, Plan(2, "hung", 40, skip=((45, 55), (70, 71)), rate=0.5, clipping=0.25)),
        (PLAN | SKIP | {"TORCHELASTIC_RESTART_COUNT": "1"}, Plan(2, "hung", None, "", ((45, 55), (70, 71)), 0.5, 0.25)),
        (PLAN | {"TACHOGRAPH_PLAN_SKIP": "5,9:3,x:7,-1:4,8:9,:"}, Plan(2, "hung", 40, skip=((8, 9),))),
        (PLAN | {"TACHOGRAPH_PLAN_RATE": "2", "TACHOGRAPH_PLAN_CLIPPING": "nan"}, Plan(2, "hung", 40)),
    ],
)
def test_a_plan_is_read(environment: dict[str, str], expected: Plan) -> None:
    """What is missing or nonsense is left out; a step to go back to is for the first start of an attempt alone."""
    assert plan_of(environment) == expected


def test_which_steps_are_left_out() -> None:
    """Those from the beginning of a range up to its end, which is none of them."""
    plan = Plan(1, skip=((45, 55), (70, 71)))
    assert [step for step in range(100) if plan.skips(step)] == [*range(45, 55), 70]


def test_a_plan_is_true_from_the_second_attempt_on() -> None:
    """So that `if plan := recorder.resume():` asks whether anything happened."""
    assert not Plan()
    assert not Plan(0, "", None)
    assert Plan(1, "dead", None)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_recorder_returns_it(enabled: bool, exporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is switched off: the supervisor is there all the same."""
    recorder = Recorder(socket=exporter.path, run="planned", enabled=enabled)
    assert recorder.resume() == Plan()
    for name, text in PLAN.items():
        monkeypatch.setenv(name, text)
    assert recorder.resume() == Plan(2, "hung", 40)
    recorder.close()
