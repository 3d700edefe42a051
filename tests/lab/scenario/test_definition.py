"""A fleet: where its ranks are."""

from __future__ import annotations

import pytest

from tachograph_lab.scenario.definition import Fleet


@pytest.mark.parametrize(
    ("layout", "rank", "found"),
    [
        ({}, 13, {"dp": 13}),
        ({"pipeline": 4}, 13, {"pp": 1, "dp": 5}),
        ({"tensor_parallel": 8}, 19, {"tp": 3, "dp": 2}),
        ({"tensor_parallel": 2, "pipeline": 4}, 21, {"tp": 1, "dp": 2, "pp": 2}),
        ({"tensor_parallel": 8, "pipeline": 4}, 13, {"tp": 5, "pp": 1}),
    ],
)
def test_coordinates(layout: dict[str, int], rank: int, found: dict[str, int]) -> None:
    """Of 32 ranks, as Megatron lays them out: neighbours share a tensor; dimensions of one rank are left out."""
    fleet = Fleet(nodes=4, **layout)
    assert fleet.coordinates_of(rank) == found
    assert fleet.coordinates_of(rank).get("pp", 0) == fleet.stage_of(rank)
