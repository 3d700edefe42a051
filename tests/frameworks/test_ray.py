"""Ray Train: workers that said they are done are finished, though Ray ends their processes with status 1."""

from __future__ import annotations

import pytest

from tests.frameworks.figures import LOOP
from tests.frameworks.training import Case, Trainings, compare, figures_of

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

SEEN = tuple(figure for figure in LOOP if figure != "batches")
CASES = {
    "three-lines": Case("ray_train.py", door="recorder", workers=2, figures=SEEN),
}


@pytest.mark.parametrize(("name", "rank", "figure"), figures_of(CASES))
def test_what_is_shown_is_what_the_program_counted(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """A2: a `close()` is an end that no exit status overrules; the steps are those of each worker's loop."""
    compare(trained(name), rank, figure)
