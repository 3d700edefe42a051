"""Delays between attempts."""

from __future__ import annotations

from tachograph.processes.backoff import Backoff


def test_delays_double_up_to_a_limit_and_start_over() -> None:
    """1, 2, 4, then the limit, for ever; after a reset 1 again."""
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0
