"""The demo's output, and the samples from Prometheus that it shows for the ranks."""

from __future__ import annotations

import io

from rich.console import Console

from tachograph.servers.prometheus_api import TimeSeries
from tachograph_lab.demo.demo_scenarios import DemoResult, DemoScenario
from tachograph_lab.demo.fault_injection import HANG, InjectedFault
from tachograph_lab.demo.screen import Screen
from tachograph_lab.demo.vitals import Vitals, vitals
from tachograph_lab.pager import FIRING, PagedAlert

HANGS = DemoScenario("rank 3 stuck in its loader", InjectedFault(HANG, rank=3), "RunHung", 30)
PAGE = PagedAlert(
    time=100.0,
    receiver="page",
    status=FIRING,
    labels={"alertname": "RunHung", "severity": "critical", "run": "demo", "rank": "3"},
    annotations={"summary": "Run demo is hanging.", "description": "rank 3 never entered it [phase data]"},
    fingerprint="f",
    started="2025-11-21T05:00:00Z",
)


def printed(screen: Screen) -> str:
    assert isinstance(screen.console.file, io.StringIO)
    return screen.console.file.getvalue()


def plain() -> Screen:
    return Screen(Console(file=io.StringIO(), highlight=False))


def test_plain_output_has_no_escape_codes() -> None:
    """Output to a file is plain text: what the demo waits for, the page with its delay and text, and no live view."""
    with plain() as screen:
        screen.title("Demo", "four ranks")
        screen.waiting("waiting for RunHung", 30)
        screen.show("demo", [Vitals(0, "running", "data", 3.0, 5.0, 2.0, 0.001, ())])
        screen.page(PAGE, 22.81, wanted=True)
    text = printed(screen)
    assert "\x1b" not in text
    assert "… waiting for RunHung, at most 30 s" in text
    assert "PAGE after 22.8 s · RunHung · run demo, rank 3" in text
    assert "rank 3 never entered it [phase data]" in text
    assert "as Prometheus sees it" not in text


def test_the_summary_shows_verdicts_and_surplus() -> None:
    """A right answer is ticked, a missing page and a surplus one are named."""
    with plain() as screen:
        screen.summary([DemoResult(HANGS, 31.5, PAGE, 22.8, 12.0), DemoResult(HANGS, 31.5)], [PAGE])
    right, missing = [line for line in printed(screen).splitlines() if "stuck in its loader" in line]
    assert right.split()[-1] == "✓"
    assert "22.8 s" in right
    assert "31.5 s" in right
    assert "✗ missing" in missing
    assert "no RunHung" in missing
    assert "✗ surplus page: RunHung" in printed(screen)


def test_a_terminal_shows_the_ranks() -> None:
    """On a terminal the ranks are shown below the log; a dash stands for a missing sample."""
    screen = Screen(Console(file=io.StringIO(), force_terminal=True, width=120, highlight=False))
    with screen:
        screen.show("demo", [Vitals(3, "dead", None, None, 1_234.0, float("nan"), None, ("RankDead",))])
        screen.waiting("waiting for RankDead", 10)
    text = printed(screen)
    assert "run demo, as Prometheus sees it" in text
    for shown in ("dead", "1,234", "NaN", "RankDead", "waiting for RankDead"):
        assert shown in text


def test_vitals_are_one_row_per_rank() -> None:
    """A rank's samples become one row: the state that is 1, pending alerts with a question mark, gaps as None."""

    class Answers:
        def query(self, expression: str) -> list[TimeSeries]:
            assert 'run="demo"' in expression
            return [
                TimeSeries({"__name__": "tachograph_rank_state", "rank": "10", "state": "dead"}, ((0.0, 1),)),
                TimeSeries({"__name__": "tachograph_rank_state", "rank": "10", "state": "running"}, ((0.0, 0),)),
                TimeSeries({"__name__": "tachograph_train_step", "rank": "2"}, ((0.0, 7),)),
                TimeSeries({"__name__": "tachograph_rank_phase_seconds", "rank": "2", "phase": "data"}, ((0.0, 0.0),)),
                TimeSeries(
                    {"__name__": "ALERTS", "rank": "2", "alertname": "StragglerRank", "alertstate": "pending"},
                    ((0.0, 1),),
                ),
            ]

    assert vitals(Answers(), "demo") == [  # type: ignore[arg-type]
        Vitals(2, None, "data", 0.0, 7, None, None, ("StragglerRank?",)),
        Vitals(10, "dead", None, None, None, None, None, ()),
    ]
