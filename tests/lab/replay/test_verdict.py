"""A replay passes if everything expected was sent to the right receiver, in time, once, and nothing else was sent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tachograph_lab.replay.verdict import ReceivedAlert, ReplayVerdict, judge
from tachograph_lab.scenario import Expected, Fleet, Scenario, Tolerated
from tachograph_lab.scenario.faults import ThrottledGpus

LATE = Expected(alert="StragglerRank", receiver="page", within=180, labels={"rank": "3"}, text=("thermal", "84"))
SCENARIO = Scenario(
    title="A throttle", story="It throttles.", lasts=600, fleet=Fleet(), expect=(LATE,),
    faults=(ThrottledGpus(at=300, ranks=(3,), to=0.8),),
    may=(Tolerated(alert="GpuHot", receiver="ticket", labels={"gpu": "3"}),),
)  # fmt: skip


def told(
    time: float, alert: str = "StragglerRank", receiver: str = "page", status: str = "firing", **labels: str
) -> ReceivedAlert:
    words = {"description": "Thermal throttling at 84 °C.", "runbook_url": "http://x/nonsense"}
    return ReceivedAlert(time, receiver, status, {"alertname": alert, "rank": "3", **labels}, words)


def verdict(*received: ReceivedAlert, scenario: Scenario = SCENARIO) -> ReplayVerdict:
    found = judge(scenario, received)
    assert ("FAIL" in found.lines[0]) is not found.ok
    return found


def test_the_expected_page_alone_passes() -> None:
    """It has its delay from the fault; resolved, info and tolerated alerts are listed and do no harm."""
    found = verdict(
        told(400),
        told(500, status="resolved"),
        told(320, "GpuHot", "ticket", gpu="3"),
        told(310, "Slow", "null"),
        told(0, "TachographWatchdog", "watchdog"),
    )
    assert found.ok
    assert [(one.delay, one.wrong) for one in found.expectations] == [(100, "")]
    assert [len(part) for part in (found.tolerated, found.silent, found.resolved)] == [1, 1, 1]
    assert any("after 1 min 40 s, limit 3 min" in line for line in found.lines)


def test_what_does_not_resolve_must_not_be_over() -> None:
    """`resolves: false`: a notification that it is over is wrong; that another alert is over is not."""
    scenario = replace(SCENARIO, expect=(replace(LATE, resolves=False),))
    assert verdict(told(400), told(500, "Slow", status="resolved"), scenario=scenario).ok
    (one,) = verdict(told(400), told(430, status="resolved"), scenario=scenario).expectations
    assert one.wrong == "resolved 30 s later"


@pytest.mark.parametrize(("after", "why"), [(59, "early by 1.0 s"), (60, "")])
def test_what_is_due_later_must_not_be_early(after: float, why: str) -> None:
    """`not_before` counts from the fault, as `within` does."""
    scenario = replace(SCENARIO, expect=(replace(LATE, not_before=60),))
    (one,) = verdict(told(300 + after), scenario=scenario).expectations
    assert one.wrong == why


def test_time_can_count_from_the_start() -> None:
    """`of: 0` is second 0: what is received before the first fault meets it."""
    scenario = replace(SCENARIO, expect=(replace(LATE, of=0),))
    (one,) = verdict(told(100), scenario=scenario).expectations
    assert (one.delay, one.wrong) == (100, "")


@pytest.mark.parametrize(
    ("received", "why"),
    [
        ([], "never received"),
        ([told(400, rank="4")], "names rank 4"),
        ([told(400, receiver="ticket")], "sent to ticket"),
        ([told(299)], "sent 1.0 s before"),
        (
            [told(400)._replace(annotations={"description": "84 °C", "runbook_url": "thermal"})],
            "does not contain 'thermal'",
        ),
    ],
)
def test_what_is_missing_says_why(received: list[ReceivedAlert], why: str) -> None:
    """The nearest alert received is explained, and counts as extra."""
    found = verdict(*received)
    assert not found.ok
    assert why in found.expectations[0].wrong
    assert len(found.extra) == len(received)
    assert any(line.strip().startswith("MISSING") and why in line for line in found.lines)


def test_late_is_wrong_and_not_extra() -> None:
    """A correct page that is 20 s too late fails the replay."""
    found = verdict(told(500))
    assert (found.ok, found.extra, found.expectations[0].wrong) == (False, (), "late by 20 s")


@pytest.mark.parametrize(
    "other",
    [
        told(400, "MfuDropped"),
        told(400, rank="4"),
        told(430),
        told(320, "GpuHot", "ticket", gpu="4"),
        told(320, "GpuHot", gpu="3"),
        told(700, "GpuHot", "chat"),
    ],
)
def test_anything_else_that_a_person_is_told_is_extra(other: ReceivedAlert) -> None:
    """A symptom, a wrong rank in the right notification, a second page for the same, a tolerated alert elsewhere."""
    found = verdict(told(400), other)
    assert not found.ok
    assert found.extra == (other,)


def test_one_notification_may_name_several() -> None:
    """Two ranks of a node in one page meet one expectation of that node, and each an expectation of its own."""
    of_node = replace(SCENARIO, expect=(replace(LATE, labels={"instance": "n"}),))
    assert verdict(told(400, instance="n"), told(400.2, instance="n", rank="4"), scenario=of_node).ok
    each = replace(SCENARIO, expect=(LATE, replace(LATE, labels={"rank": "4"})))
    assert verdict(told(400), told(400, rank="4"), scenario=each).ok
    assert not verdict(told(400), scenario=each).ok


def test_an_error_of_the_replay_fails_it() -> None:
    """A rule that failed proves nothing by being silent."""
    found = judge(replace(SCENARIO, expect=()), (), ("rule: x, err: many-to-many",))
    assert not found.ok
    assert "many-to-many" in "\n".join(found.lines)
