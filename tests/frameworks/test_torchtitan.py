"""torchtitan: an optimizer that steps others, a loss in chunks, a stateful loader, distributed checkpoints."""

from __future__ import annotations

import pytest

from tests.frameworks.figures import LOOP, false_claims
from tests.frameworks.training import Case, Trainings, compare, figures_of

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

TIMED = tuple(figure for figure in LOOP if figure != "forward")  # of which much is between the model and its loss
SEEN = (*TIMED, "gradient norm", "evaluation", "checkpoints", "checkpoint step")
CASES = {
    "one-rank": Case("torchtitan_train.py", ranks=1, figures=SEEN),
    "fsdp2": Case("torchtitan_train.py", ranks=2, figures=SEEN),
}


@pytest.mark.parametrize(("name", "rank", "figure"), figures_of(CASES))
def test_what_is_shown_is_what_the_program_counted(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """A3, A7: the loss is what backward was called on last, once; batches are those of a loader of its own kind."""
    compare(trained(name), rank, figure)


@pytest.mark.parametrize("name", CASES)
def test_the_summary_claims_what_has_a_value(trained: Trainings, name: str) -> None:
    """The two lines at the end: what has a value was recorded so many times, what has none was not seen."""
    assert false_claims(trained(name)) == []
