"""Batches by step, of loops that read their loader ahead and of those that do not."""

from __future__ import annotations

import pytest

from tachograph.attach.batch_count import BatchCount


@pytest.mark.parametrize(
    ("came", "used"),
    [
        ([1, 1, 1], [1, 1, 1]),
        ([4, 4, 2, 4], [4, 4, 2, 4]),  # the end of an epoch
        ([3, 2, 2, 1, 3, 2, 1], [3, 1, 2, 2, 2, 2, 2]),  # one ahead, two epochs
        ([2, 1, 1, 0, 2, 1, 0], [2, 0, 1, 1, 1, 1, 1]),
        ([5, 4, 4], [5, 3, 4]),  # the last one is not trained on
        ([2, 3, 4], [2, 3, 4]),
        ([0, 0], [0, 0]),  # no loader
    ],
)
def test_batches_are_those_that_were_trained_on(came: list[int], used: list[int]) -> None:
    """What was fetched ahead is counted with the step that uses it, or never."""
    count = BatchCount()
    found = []
    for number in came:
        count.since_step += number
        found.append(count.step_completed())
    assert found == used
