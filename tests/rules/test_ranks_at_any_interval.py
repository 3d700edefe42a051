"""Who ended first, at any scrape interval: nodes scraped in turn, lost scrapes, wrong clocks, exporters that forget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"
FILES = [RULES / f"{name}.yml" for name in ("clocks", "exporter", "runs", "progress", "ranks")]
RETENTION, RETENTION_FINISHED = 900.0, 120.0
"""For how long exporters show a rank that ended (exporter/tachograph/node/ranks/limits.py)."""
EVALUATION = 4
SCRAPES = (5, 15, 30, 60)
DEFAULT = 30
"""The one that every run of the tests takes; the others are for `make test-all`."""
T = 130.3
"""When the first rank ends."""

KINDS = {"died": "died", "collective": "communication", "terminated": "told", "finished": ""}
"""The kind of an end by its reason; for all other reasons it is `failed`."""

Series = dict[str, str]


@dataclass(frozen=True)
class Fleet:
    """One rank on each of some nodes, scraped in turn; when each ended and why, and what goes wrong."""

    scrape: int
    ranks: int = 3
    ends: Mapping[int, tuple[float, str]] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
    """Nodes whose first scrape after T is lost."""
    ahead: Mapping[int, float] = field(default_factory=dict)
    away: Mapping[int, float] = field(default_factory=dict)
    """Since when a node cannot be scraped."""
    restarted: Mapping[int, float] = field(default_factory=dict)
    """When a node's exporter starts anew, and knows no rank that ended."""
    silent: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """From when until when a rank holds its connection and sends nothing."""
    phase: str = "forward"
    lasts: int = 320

    def series(self) -> Iterator[Series]:
        """Yield what Prometheus holds, on a grid of seconds."""
        for rank in range(self.ranks):
            offset = 1 + rank * self.scrape // self.ranks
            pages: dict[str, dict[int, str]] = {}
            before: dict[str, float] = {}
            lost = next(t for t in range(offset, self.lasts + 99, self.scrape) if t > T) if rank in self.lost else -1
            for moment in range(offset, self.lasts, self.scrape):
                fails = moment == lost or moment > self.away.get(rank, 1e9)
                page = {} if fails else self._page(rank, moment)
                for name in before.keys() - page.keys():
                    pages[name][moment] = "stale"
                for name, value in page.items():
                    pages.setdefault(name, {})[moment] = f"{value:.10g}"
                up = f'up{{job="tachograph",instance="node-{rank}"}}'
                pages.setdefault(up, {})[moment] = "0" if fails else "1"
                before = page
            for name, values in pages.items():
                yield {"series": name, "values": " ".join(values.get(t, "_") for t in range(self.lasts))}

    def _page(self, rank: int, now: float) -> dict[str, float]:
        ahead = self.ahead.get(rank, 0.0)
        node = {f'tachograph_exporter_time_seconds{{instance="node-{rank}"}}': now + ahead}
        end, reason = self.ends.get(rank, (1e9, ""))
        ended = end <= now
        kept = RETENTION_FINISHED if reason == "finished" else RETENTION
        if ended and (now > end + kept or end < self.restarted.get(rank, 0.0) <= now):
            return node
        begin, until = self.silent.get(rank, (1e9, 1e9))
        heard = end if ended else begin if begin <= now < until else now
        state = "running" if heard > now - 10 else "frozen"
        if ended:
            state = {"died": "dead", "finished": "finished"}.get(reason, "failed")
        shown: dict[tuple[str, str], float] = {
            ("rank_info", f'gpu="0",uuid="U{rank}"'): 1.0,
            ("rank_up", ""): float(not ended or reason == "finished"),
            ("rank_state", f'state="{state}"'): 1.0,
            ("train_step", ""): 4000.0,
            ("train_total_steps", ""): 10000.0,
        }
        if not ended:
            shown["rank_phase_seconds", f'phase="{self.phase}"'] = 1.0
        node.update(self._concluded(rank, now, heard))
        at = f'run="r",rank="{rank}",instance="node-{rank}"'
        node[f'tachograph_run_ranks{{run="r",instance="node-{rank}",state="running"}}'] = float(state == "running")
        if state == "frozen":
            node[f'tachograph_run_ranks{{run="r",instance="node-{rank}",state="frozen"}}'] = 1.0
        return node | {
            f"tachograph_{name}{{{at}{',' if more else ''}{more}}}": value for (name, more), value in shown.items()
        }

    def _concluded(self, rank: int, now: float, heard: float) -> Iterator[tuple[str, float]]:
        """Yield what a node concludes about its rank (conclusions/ends.py and frozen.py)."""
        end, reason = self.ends.get(rank, (1e9, ""))
        where = f'gpu="0",uuid="U{rank}",instance="node-{rank}"'
        kind = KINDS.get(reason, "failed")
        if end <= now and kind:
            labels = f'run="r",kind="{kind}",reason="{reason}",rank="{rank}",{where}'
            yield f"tachograph_run_first_end_seconds{{{labels}}}", now - end
            yield f'tachograph_run_ended_together{{run="r",kind="{kind}",instance="node-{rank}"}}', 1.0
        if end <= now and kind in ("", "told"):
            yield f'tachograph_run_ended_seconds{{run="r",outcome="{reason}",instance="node-{rank}"}}', now - end
        if heard < now - (60 if self.phase in ("init", "checkpoint", "eval") else 30) and end > now:
            yield f'tachograph_run_frozen_seconds{{run="r",rank="{rank}",phase="{self.phase}",{where}}}', now - heard


def alerts(moment: float, window: str, *expected: str) -> dict[str, Any]:
    """Expect that these alerts, each with its rank, and no others of runs and nodes fired within the window."""
    return {
        "expr": 'count by (alertname, rank) (count_over_time(ALERTS{alertstate="firing",'
        f'alertname=~"Rank.+|Run.+|NodeClock.+"}}[{window}]))',
        "eval_time": f"{moment:.0f}s",
        "exp_samples": [{"labels": f"{{{labels}}}", "value": 1} for labels in expected],
    }


def named(alert: str, rank: int) -> str:
    """Return the labels of an alert that names a rank."""
    return f'alertname="{alert}",rank="{rank}"'


def shows(fleet: Fleet, *expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule test over a fleet."""
    return {"interval": "1s", "input_series": list(fleet.series()), "promql_expr_test": list(expected)}


RuleTests = Callable[..., None]


def at_intervals(*scrapes: int, default: int = DEFAULT) -> pytest.MarkDecorator:
    """Run a test at each of some intervals; it takes too long for more than one of them every time."""
    assert default in scrapes
    slow = pytest.mark.slow
    return pytest.mark.parametrize(
        "scrape", [scrape if scrape == default else pytest.param(scrape, marks=slow) for scrape in scrapes]
    )


at_any_interval = at_intervals(*SCRAPES)


def died(first: int, later: float = 1.5, reason: str = "died") -> dict[int, tuple[float, str]]:
    """Return the ends of three ranks, of which two follow the first."""
    return {rank: (T, "died") if rank == first else (T + later, reason) for rank in range(3)}


@at_any_interval
def test_the_first_to_die_is_named_in_time_and_nobody_else(rule_tests: RuleTests, scrape: int) -> None:
    """Within two scrapes, two evaluations and 2 s, wherever its node is in the turn, and whatever its peers say."""
    due = T + 2 * scrape + 2 * EVALUATION + 2
    rule_tests(
        FILES,
        *(
            shows(
                Fleet(scrape, ends=died(first, later, reason)),
                alerts(due, "10m", named("RankDead", first)),
                alerts(300, "10m", named("RankDead", first)),
            )
            for first, later, reason in ((0, 1.5, "died"), (1, 2.0, "collective"), (2, 0.7, "terminated"))
        ),
        interval=f"{EVALUATION}s",
    )


@at_any_interval
def test_a_lost_scrape_names_no_innocent(rule_tests: RuleTests, scrape: int) -> None:
    """The scrape that would have shown the first death fails: nobody is named until the next."""
    due = T + 2 * scrape + 2 * EVALUATION + 2
    tests = [
        shows(
            Fleet(scrape, ends=died(first), lost=(first,)),
            alerts(due, "10m", named("RankDead", first)),
            alerts(300, "10m", named("RankDead", first)),
        )
        for first in range(3)
    ]
    rule_tests(FILES, *tests, interval=f"{EVALUATION}s")


@at_intervals(*SCRAPES[:3])
def test_a_node_that_stays_away_is_waited_for_three_scrapes(rule_tests: RuleTests, scrape: int) -> None:
    """And 5 s, after it was last seen; then whoever is known is named."""
    end = 300.3 + scrape
    away = Fleet(scrape, ends={0: (end, "died")}, away={2: 300.0}, lasts=480)
    cap = max(range(1 + 2 * scrape // 3, 301, scrape)) + 3 * scrape + 5
    rule_tests(
        FILES,
        shows(away, alerts(cap - 4, "10m"), alerts(cap + 2 * EVALUATION + 2, "10m", named("RankDead", 0))),
        interval=f"{EVALUATION}s",
    )


@pytest.mark.slow
@at_intervals(5, 60, default=60)
def test_an_exit_code_names_the_rank_that_left(rule_tests: RuleTests, scrape: int) -> None:
    """Its peers fail in the collective 2 s later, or hang; nobody comes back, and the run is down."""
    due = T + 2 * scrape + 2 * EVALUATION + 2
    failed = Fleet(scrape, ends={0: (T, "exit_code"), 1: (T + 2, "collective"), 2: (T + 2, "collective")}, lasts=460)
    hung = Fleet(scrape, ends={0: (T, "exit_code")}, lasts=460)
    lost = Fleet(scrape, ends=dict(failed.ends), lost=(0,), lasts=460)
    rule_tests(
        FILES,
        shows(failed, alerts(due, "10m", named("RankFailed", 0)),
             alerts(T + 180 + 2 * scrape + 10, "10m", named("RankFailed", 0), 'alertname="RunDown"')),
        shows(hung, alerts(due, "10m", named("RankFailed", 0)), alerts(380, "10m", named("RankFailed", 0))),
        shows(lost, alerts(due, "10m", named("RankFailed", 0)),
             alerts(T + 180 + 2 * scrape + 10, "10m", named("RankFailed", 0), 'alertname="RunDown"')),
        interval=f"{EVALUATION}s",
    )  # fmt: skip


@pytest.mark.slow
@at_intervals(15, 60, default=60)
def test_a_wrong_clock_names_nobody(rule_tests: RuleTests, scrape: int) -> None:
    """A node whose clock is 40 s off, either way, is neither first for that, nor waited for; a ticket after 3 min."""
    due = T + 2 * scrape + 2 * EVALUATION + 2
    ticket = 'alertname="NodeClockSkewed"'
    first_scraped = 1 + scrape // 3
    by_then = [ticket] if due > first_scraped + 180 + 2 * EVALUATION else []  # at 60 s, not at 15 s
    rule_tests(
        FILES,
        *(
            shows(
                Fleet(scrape, ends=died(first), ahead={1: ahead}),
                alerts(due, "10m", named("RankDead", first), *by_then),
                alerts(310, "10m", named("RankDead", first), ticket),
            )
            for first, ahead in ((0, 40.0), (2, -40.0), (1, 40.0), (1, -40.0))
        ),
        interval=f"{EVALUATION}s",
    )


def test_a_page_that_ends_does_not_come_back(rule_tests: RuleTests) -> None:
    """Neither when exporters forget the dead, one by one, nor when that of the first one starts anew."""
    ended = ('alertname="RunDown"',)
    rule_tests(
        FILES,
        shows(Fleet(30, ends=died(2), lasts=1500), alerts(1490, "30m", named("RankDead", 2), *ended),
             alerts(1490, "4m", *ended)),
        shows(Fleet(30, ends=died(2), restarted={2: 400.0}, lasts=1500),
             alerts(1490, "30m", named("RankDead", 2), *ended)),
        interval="30s",
    )  # fmt: skip


@pytest.mark.slow
@at_intervals(*SCRAPES[:3])
def test_the_lock_is_frozen_after_half_a_minute(rule_tests: RuleTests, scrape: int) -> None:
    """12 s of Python's lock are nothing, nor 45 s while saving; a minute of it while training is a page."""
    rule_tests(
        FILES,
        shows(Fleet(scrape, silent={1: (T, T + 12)}), alerts(300, "10m")),
        shows(Fleet(scrape, silent={1: (T, T + 45)}, phase="checkpoint"), alerts(300, "10m")),
        shows(Fleet(scrape, silent={1: (T, T + 60)}), alerts(T + 31, "10m"),
             alerts(T + 66, "10m", named("RankFrozen", 1))),
        shows(Fleet(scrape, silent={1: (T, T + 100)}, phase="init"), alerts(T + 61, "10m"),
             alerts(T + 106, "10m", named("RankFrozen", 1))),
        shows(Fleet(scrape, silent={1: (T, T + 60)}, ahead={1: 40.0}),
             alerts(T + 66, "10m", named("RankFrozen", 1), 'alertname="NodeClockSkewed"')),
        interval=f"{EVALUATION}s",
    )  # fmt: skip
