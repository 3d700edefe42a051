"""ultralytics: a loader with an `__iter__` of its own, an average that is evaluated, checkpoints written as bytes."""

from __future__ import annotations

import pytest

from tests.frameworks.figures import LOOP, false_claims
from tests.frameworks.training import Case, Trainings, compare, figures_of

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

SEEN = (*LOOP, "evaluation", "checkpoints", "checkpoint step")
ALONE = {"YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": "settings"}
CASES = {"yolo": Case("ultralytics_train.py", figures=SEEN, environment=ALONE)}


@pytest.mark.parametrize(("name", "rank", "figure"), figures_of(CASES))
def test_what_is_shown_is_what_the_program_counted(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """A6, A7, A11: batches, evaluations and one checkpoint for each epoch; the loss is the micro-batches' mean."""
    compare(trained(name), rank, figure)


@pytest.mark.parametrize("name", CASES)
def test_the_summary_claims_what_has_a_value(trained: Trainings, name: str) -> None:
    """The two lines at the end: what has a value was recorded so many times, what has none was not seen."""
    assert false_claims(trained(name)) == []
