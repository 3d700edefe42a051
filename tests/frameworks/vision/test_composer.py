"""Composer: micro-batches run in the closure of the optimizer's step, one loader batch to each step."""

from __future__ import annotations

import pytest

from tests.frameworks.figures import LOOP, false_claims
from tests.frameworks.training import Case, Trainings, compare, figures_of

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

SEEN = (*LOOP, "data", "evaluation", "checkpoints", "checkpoint step")
CASES = {
    "micro-batches": Case("composer_fit.py", figures=SEEN),
    "one-micro-batch": Case("composer_fit.py", "--micro_batch 8", figures=SEEN),
}


@pytest.mark.parametrize(("name", "rank", "figure"), figures_of(CASES))
def test_what_is_shown_is_what_the_program_counted(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """A4: time of the closure is forward's and backward's, not the optimizer's."""
    compare(trained(name), rank, figure)


@pytest.mark.parametrize("name", CASES)
def test_the_summary_claims_what_has_a_value(trained: Trainings, name: str) -> None:
    """The two lines at the end: what has a value was recorded so many times, what has none was not seen."""
    assert false_claims(trained(name)) == []
