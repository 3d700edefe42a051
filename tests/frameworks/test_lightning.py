"""Lightning: the model runs in the closure of the optimizer's step, and checkpoints are written through memory."""

from __future__ import annotations

import pytest

from tests.frameworks.figures import LOOP, false_claims
from tests.frameworks.training import Case, Trainings, compare, figures_of, missing_of, shown

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

SEEN = (*LOOP, "data", "optimizer", "evaluation")
CLIPPED = (*SEEN, "gradient norm")
SAVED = ("checkpoints", "checkpoint step")
GAN = (*LOOP, "data", "evaluation")
CASES = {
    "run": Case("lightning_fit.py", figures=CLIPPED, first=SAVED),
    "run-ddp": Case("lightning_fit.py", "--accumulate 2", ranks=2, figures=CLIPPED, first=SAVED),
    "callback": Case("lightning_fit.py", door="callback", figures=SEEN, first=SAVED),
    "callback-ddp": Case("lightning_fit.py", "--accumulate 2", ranks=2, door="callback", figures=SEEN, first=SAVED),
    "fabric": Case("fabric_loop.py", figures=(*LOOP, "gradient norm", *SAVED)),
    "run-gan": Case("lightning_fit.py", "--gan", figures=GAN, first=SAVED),
    "callback-gan": Case(
        "lightning_fit.py", "--gan", door="callback", missing=("loss",), first=SAVED,
        figures=tuple(each for each in GAN if each != "loss"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "rank", "figure"), figures_of(CASES))
def test_what_is_shown_is_what_the_program_counted(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """A4, A6, A9: time of the closure is forward's; checkpoints count once, at the step that the loop has reached."""
    compare(trained(name), rank, figure)


@pytest.mark.parametrize(("name", "rank", "figure"), missing_of(CASES))
def test_what_cannot_be_known_has_no_value(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """A module that optimizes by hand hands no loss over."""
    assert shown(trained(name), rank, figure) is None


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.door == "run"])
def test_the_summary_claims_what_has_a_value(trained: Trainings, name: str) -> None:
    """The two lines at the end: what has a value was recorded so many times, what has none was not seen."""
    assert false_claims(trained(name)) == []
