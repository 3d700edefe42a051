"""DeepSpeed: ZeRO of each stage steps its base optimizer once for each group or sub-group, and a step stays a step."""

from __future__ import annotations

import pytest

from tests.frameworks.figures import LOOP, false_claims
from tests.frameworks.training import Case, Trainings, compare, figures_of

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

SEEN = (*LOOP, "evaluation", "checkpoints", "checkpoint step")
CASES = {
    "zero1-two-groups": Case("deepspeed_zero.py", "--stage 1 --groups 2", ranks=2, figures=SEEN),
    "zero2": Case("deepspeed_zero.py", "--stage 2", ranks=2, figures=SEEN),
    "zero3-sub-groups": Case("deepspeed_zero.py", "--stage 3 --sub_group_size 5000", ranks=2, figures=SEEN),
    "zero0-two-groups": Case("deepspeed_zero.py", "--stage 0 --groups 2", ranks=1, figures=SEEN),
    "zero1-bf16": Case("deepspeed_zero.py", "--stage 1 --groups 2 --bf16 --steps 30", ranks=2, figures=SEEN),
    "its-own-launcher": Case(
        "deepspeed_zero.py", "--steps 30", deepspeed_starts=2, figures=SEEN, environment={"DS_ACCELERATOR": "cpu"}
    ),
    "three-lines": Case(
        "deepspeed_zero.py", "--stage 1 --groups 2", ranks=2, door="recorder",
        figures=("end", "steps", "step", "step time", "loss", "batches", "forward"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "rank", "figure"), figures_of(CASES))
def test_what_is_shown_is_what_the_program_counted(trained: Trainings, name: str, rank: int, figure: str) -> None:
    """A1: steps are the engine's, each as long as it is, and so are the checkpoint's step, loss and rate."""
    compare(trained(name), rank, figure)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.door == "run"])
def test_the_summary_claims_what_has_a_value(trained: Trainings, name: str) -> None:
    """The two lines at the end: what has a value was recorded so many times, what has none was not seen."""
    assert false_claims(trained(name)) == []
