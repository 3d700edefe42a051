"""A failure is logged once for each reason, and its end once it is steady; nothing accumulates."""

from __future__ import annotations

from tachograph.node.gpu.failure_log import REASON_LIMIT, STEADY_SECONDS, FailureLog


def test_each_reason_is_told_once_until_the_subject_is_well_for_a_minute() -> None:
    """Failing every other second for an hour is one line; a minute without a failure ends it and starts over."""
    log = FailureLog()
    assert log.fails("power", "broken")
    for now in range(3600):
        told = log.well("power", now) if now % 2 else log.fails("power", "broken")
        assert not told
    assert log.fails("power", "another reason")
    assert not log.well("power", 3600)
    assert not log.well("power", 3600 + STEADY_SECONDS - 1)
    assert log.well("power", 3600 + STEADY_SECONDS)
    assert not log.well("power", 3601 + STEADY_SECONDS), "its end is logged once"
    assert log.subjects == ()
    assert log.fails("power", "broken")


def test_a_time_of_which_nothing_is_known_counts_as_neither() -> None:
    """The minute must be one in which the subject was seen to be well."""
    log = FailureLog()
    log.fails("power", "broken")
    log.well("power", 0)
    log.unknown("power")
    assert not log.well("power", STEADY_SECONDS)
    assert not log.fails("power", "broken")
    log.unknown("never failed")
    assert log.subjects == ("power",)


def test_what_never_failed_is_not_told_to_be_well() -> None:
    """There is nothing to end."""
    assert not FailureLog().well("power", 1e9)


def test_a_reason_that_is_never_the_same_does_not_pile_up() -> None:
    """After a few reasons for one subject, no more are logged or kept."""
    log = FailureLog()
    assert sum(log.fails("power", f"error {number}") for number in range(1000)) == REASON_LIMIT
