"""Bytes over the bus, against the formulas of nccl-tests' PERFORMANCE.md written out."""

from __future__ import annotations

import pytest

from tachograph.catalog.rank import OPERATIONS
from tachograph.client.torch.bus_factor import bus_factor


@pytest.mark.parametrize("ranks", [2, 3, 8, 1024])
def test_factors_are_those_of_nccl_tests(ranks: int) -> None:
    """There S is the whole buffer and the factor (n-1)/n; a rank's input of an all_gather is an n-th of S."""
    n = ranks
    whole = 1024.0 * n
    share = (n - 1) / n
    expected = {
        "all_reduce": (whole, whole * 2 * share),
        "all_gather": (whole / n, whole * share),
        "reduce_scatter": (whole, whole * share),
        "all_to_all": (whole, whole * share),
        "broadcast": (whole, whole),
        "send_recv": (whole, whole),
        "barrier": (0.0, 0.0),
    }
    for operation, (given, moved) in expected.items():
        factor = bus_factor(operation, ranks)
        assert factor is not None
        assert given * factor == pytest.approx(moved), operation
    assert bus_factor("other", ranks) is None
    assert {*expected, "other"} == set(OPERATIONS)


def test_a_world_of_one_moves_nothing_and_no_world_is_not_known() -> None:
    """0 is not the same as absent."""
    assert {bus_factor(operation, 1) for operation in OPERATIONS if operation != "other"} == {0.0}
    assert bus_factor("all_reduce", 0) is None
