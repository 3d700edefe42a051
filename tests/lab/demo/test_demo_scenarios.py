"""The demo's verdict on a page."""

from __future__ import annotations

import pytest

from tachograph_lab.demo.demo_scenarios import RL_SCENARIOS, SCENARIOS, DemoResult, DemoScenario, names_culprit, surplus
from tachograph_lab.demo.fault_injection import HANG, SPIKE, InjectedFault
from tachograph_lab.pager import FIRING, RESOLVED, PagedAlert

HANGS = DemoScenario("stuck", InjectedFault(HANG, rank=3), "RunHung", 30, steps=3)


def page(
    alert: str = "RunHung", text: str = "rank 3 (node-1) never entered it", status: str = FIRING, **labels: str
) -> PagedAlert:
    everything = {"alertname": alert, "severity": "critical", "run": "demo", **labels}
    return PagedAlert(1.0, "page", status, everything, {"description": text}, alert, "2025-11-21T05:00:00Z")


def test_the_budget_counts_steps() -> None:
    """A budget is seconds and steps of the run."""
    assert HANGS.budget(0.5) == 31.5


def test_slower_scrapes_make_budgets_longer() -> None:
    """By three scrapes, of a death or a NaN by two, as far as they are longer than 5 s."""
    budgets = {one.alert: one.budget(0.5, 15) - one.budget(0.5) for one in SCENARIOS}
    assert budgets == dict.fromkeys(budgets, 30.0) | dict.fromkeys(("RankDead", "LossNotFinite"), 20.0)
    assert HANGS.budget(0.5, 1) == HANGS.budget(0.5)


@pytest.mark.parametrize(
    ("received", "delay", "resolved", "fault"),
    [
        (None, 0.0, None, "missing"),
        (page(rank="3"), 31.0, 5.0, ""),
        (page(rank="3"), 31.6, 5.0, "late"),
        (page(rank="3"), 3.0, None, "not resolved"),
        (page(rank="2"), 3.0, 5.0, "wrong culprit"),
        (page(), 3.0, 5.0, "wrong culprit"),
        (page(text="Rank 31 never entered it.", rank="3"), 3.0, 5.0, "wrong culprit"),
    ],
)
def test_verdict(received: PagedAlert | None, delay: float, resolved: float | None, fault: str) -> None:
    """A page must be there, name the culprit in label and text, be in time if it can, and end after healing."""
    result = DemoResult(HANGS, 31.5, received, delay, resolved)
    assert result.verdict == (fault or "ok")
    assert bool(result.fault) == (fault not in ("", "late"))  # late is said, and is no error: the machine may be busy


def test_a_fault_of_all_ranks_blames_none() -> None:
    """If every rank is affected alike, a page that names one is wrong."""
    spike = InjectedFault(SPIKE)
    assert names_culprit(page(text="The loss spiked."), spike.rank)
    assert not names_culprit(page(text="The loss spiked.", rank="0"), spike.rank)


def test_surplus_is_what_no_fault_called_for() -> None:
    """Any other critical alert that fired is surplus, even a second one of the right kind; other alerts are not."""
    answer = page(rank="3")
    second = page("StragglerRank", rank="3")
    info = page("LossSpike", severity="info")
    ended = page(rank="3", status=RESOLVED)
    assert surplus([answer, second, info, ended], [DemoResult(HANGS, 31.5, answer, 3.0, 5.0)]) == [second]


def test_every_kind_of_fault_is_played_once() -> None:
    """Each demo gives different faults and expects as many different pages."""
    for played, many in ((SCENARIOS, 5), (RL_SCENARIOS, 3)):
        assert len({scenario.fault.kind for scenario in played}) == len({scenario.alert for scenario in played}) == many


def test_faults_at_the_same_time_are_in_runs_of_their_own() -> None:
    """In the order of their pages, as none is healed before the last."""
    assert len({scenario.run for scenario in RL_SCENARIOS}) == len(RL_SCENARIOS)
    assert [scenario.seconds for scenario in RL_SCENARIOS] == sorted(scenario.seconds for scenario in RL_SCENARIOS)
    assert not any(scenario.heals for scenario in RL_SCENARIOS)
