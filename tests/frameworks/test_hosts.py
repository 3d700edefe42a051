"""Processes that outlive a training, or end it in their own way: the training's own end is what is shown."""

from __future__ import annotations

import pytest

from tests.frameworks.figures import LOOP
from tests.frameworks.training import Case, Trainings, compare, figures_of

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

SEEN = tuple(figure for figure in LOOP if figure != "batches")
CASES = {
    "ray": Case("ray_train.py", workers=2, door="recorder", figures=SEEN),
    "dask": Case("dask_train.py", door="recorder", figures=SEEN),
    "notebook": Case("notebook_train.py", door="recorder", figures=SEEN),
    "notebook-raises": Case("notebook_train.py", "--fails_at 30", door="recorder", figures=("failed", "steps", "step")),
}


@pytest.mark.parametrize(("name", "rank", "figure"), figures_of(CASES))
def test_what_is_shown_is_what_the_program_counted(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """A2, A12: after a `close()` no exit status makes a failure; a cell that raised in a step has not finished it."""
    compare(trained(name), rank, figure)
