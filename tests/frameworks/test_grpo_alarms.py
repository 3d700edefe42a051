"""TRL's GRPO on the shipped stack, two ranks: long generations page nobody, a reward that blocks does, with its line.

Generation takes from a second to four minutes; a reward that blocks is paged after five. At the same time, the two take
ten minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

from tests.frameworks.alarms import FAULTY_RANK, AlarmStack, Fault, Job, Played
from tests.frameworks.training import Case

pytestmark = [pytest.mark.frameworks, pytest.mark.e2e, pytest.mark.timeout(1500)]

LENGTHS = "1,20,2,60,5,1,90,3,240,1,10,1"
ITERATIONS = len(LENGTHS.split(","))
OFFLINE = {"HF_HUB_OFFLINE": "1"}
LIMIT_SECONDS = 300.0
"""Rewards that take less may take so long."""
BLOCKED = Fault("stuck", "reward", "RunHung", LIMIT_SECONDS + 60)
JOBS = {
    "healthy": Job(
        Case("grpo_example.py", f"--steps {4 * ITERATIONS}", ranks=2, environment={**OFFLINE, "GENERATES": LENGTHS}),
        past=30.0,
    ),
    "blocked": Job(Case("grpo_example.py", "--steps 40000", ranks=2, environment=OFFLINE), BLOCKED),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Played]]:
    """Both trainings, at the same time."""
    with AlarmStack(tmp_path_factory.mktemp("stack")) as stack:
        yield {each.name: each for each in stack.play(JOBS, len(JOBS))}


def test_generations_of_a_second_to_minutes_page_nobody(played: Mapping[str, Played]) -> None:
    """Nor is there a ticket."""
    one = played["healthy"]
    assert one.child.status == 0, one.child.tail(15)
    assert one.alarms() == []
    assert one.ranks == {"0", "1"}


def test_a_reward_that_blocks_is_paged_with_its_line(played: Mapping[str, Played]) -> None:
    """After its limit and soon after, and nothing else is."""
    one = played["blocked"]
    assert one.onset is not None, one.child.tail(15)
    (alarm,) = one.alarms()
    assert (alarm.alert, alarm.rank, alarm.phase) == ("RunHung", FAULTY_RANK, "reward")
    assert re.search(r"at injected\.py:\d+ strike", alarm.text), alarm.text
    assert LIMIT_SECONDS <= alarm.first - one.onset <= BLOCKED.seconds
    print(f"{alarm} after {alarm.first - one.onset:.0f} s")
