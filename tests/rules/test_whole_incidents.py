"""Whole incidents, as exporters show them scrape by scrape: how runs end, and what is paged of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from tachograph.catalog.run import KIND_OF_END

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"
FILES = [RULES / f"{subject}.yml" for subject in ("clocks", "exporter", "runs", "progress", "ranks", "learning")]
STATES = {"died": "dead", "finished": "finished"}
KEPT_SECONDS, KEPT_FINISHED_SECONDS, KEPT_RESTARTED_SECONDS = 900, 120, 120
"""For how long the exporter shows a rank that ended, one that finished, and the end of one that is back."""


@dataclass(frozen=True)
class Process:
    """A rank's process. It steps once a second from `start` on, until it ends or at `stops`."""

    rank: int
    node: str
    start: int = -200
    end: float = math.inf
    reason: str = ""
    stops: float = math.inf
    waits: str = "backward"
    nan_from: float = math.inf

    def page(self, now: float, clock: float, before: Process | None) -> Iterator[tuple[str, object]]:
        """Yield what is shown at `now` of it, and of the one `before` it on this node."""
        ended = now >= self.end
        if not self.start <= now < self.end + (KEPT_FINISHED_SECONDS if self.reason == "finished" else KEPT_SECONDS):
            return
        state = STATES.get(self.reason, "failed") if ended else "running"
        done = math.floor(min(now, self.end, self.stops) - 0.001)
        who = f'run="r",rank="{self.rank}",instance="{self.node}"'
        yield f'tachograph_rank_info{{{who},gpu="{self.rank}",uuid="U{self.node}{self.rank}"}}', 1
        yield f"tachograph_rank_up{{{who}}}", int(state in ("running", "finished"))
        for one in ("running", "dead", "failed", "finished"):
            yield f'tachograph_rank_state{{{who},state="{one}"}}', int(one == state)
        over = self if ended else before
        if over and over.end <= now < over.end + (KEPT_SECONDS if ended else KEPT_RESTARTED_SECONDS):
            yield f'tachograph_rank_ended_timestamp_seconds{{{who},reason="{over.reason}"}}', over.end + clock
        yield f"tachograph_train_step{{{who}}}", done + 1000
        yield f"tachograph_train_steps_total{{{who}}}", done - self.start
        lost = done - self.nan_from
        if lost > 0:
            yield f"tachograph_train_loss_nonfinite_timestamp_seconds{{{who}}}", done + clock
            yield f'tachograph_train_nonfinite_step{{{who},source="loss"}}', self.nan_from + 1000
        if ended:
            return
        yield f"tachograph_rank_start_timestamp_seconds{{{who}}}", self.start + clock
        yield f"tachograph_rank_progress_timestamp_seconds{{{who}}}", done + clock
        yield f"tachograph_train_recent_step_seconds{{{who}}}", 1
        yield f"tachograph_train_loss{{{who}}}", "NaN" if lost > 0 else 2.3
        phase, since = ("forward", 0.3) if now < self.stops else (self.waits, now - self.stops)
        yield f'tachograph_rank_phase_seconds{{{who},phase="{phase}"}}', since


def values_of(page: Mapping[str, object], name: str) -> Iterator[tuple[str, float]]:
    """Yield a family's values by rank."""
    for one, value in page.items():
        if one.startswith(f"tachograph_{name}{{"):
            yield one.split('rank="')[1].split('"')[0], float(cast("float", value))


@dataclass(frozen=True)
class Incident:
    """Processes, and what is paged: by alert the rank that is named, and the time until which it must have come."""

    processes: Sequence[Process]
    pages: Mapping[tuple[str, str], int]
    scrape: int = 5
    lasts: int = 420
    clocks: Mapping[str, int] = field(default_factory=dict)
    fails: Mapping[str, int] = field(default_factory=dict)
    """When a node's scrape fails, once."""

    def series(self) -> dict[str, dict[int, object]]:
        """Return the samples of each series by time; each node is scraped at a moment of its own."""
        samples: dict[str, dict[int, object]] = defaultdict(dict)
        for number, node in enumerate(sorted({one.node for one in self.processes})):
            shown: set[str] = set()
            clock = self.clocks.get(node, 0)
            for now in range(1 + 2 * number, self.lasts + 1, self.scrape):
                answers = not 0 <= now - self.fails.get(node, math.inf) < self.scrape
                page: dict[str, object] = {f'up{{job="tachograph",instance="{node}"}}': int(answers)}
                if answers:
                    page[f'tachograph_exporter_time_seconds{{instance="{node}"}}'] = now + clock
                    page |= self._ranks(node, now, clock)
                for one, value in page.items():
                    samples[one][now] = value
                for one in shown - page.keys():
                    samples[one][now] = "stale"
                shown = set(page)
        return samples

    def _ranks(self, node: str, now: int, clock: int) -> dict[str, object]:
        begun = [one for one in self.processes if one.node == node and one.start <= now]
        page: dict[str, object] = {}
        for rank in {one.rank for one in begun}:
            *before, last = sorted((one for one in begun if one.rank == rank), key=lambda one: one.start)
            page |= last.page(now, clock, before[-1] if before else None)
        page |= dict(self._ends(node, begun, now)) | self._lost(node, page, now + clock)
        return page | self._concluded(node, page, now + clock)

    @staticmethod
    def _ends(node: str, begun: Sequence[Process], now: float) -> Iterator[tuple[str, object]]:
        """Yield what the exporter concludes of the ends there (conclusions/ends.py)."""
        ended = [one for one in begun if one.end <= now]
        if finished := [one.end for one in ended if one.reason == "finished" and now - 30 > one.end > now - 120]:
            yield f'tachograph_run_ended_seconds{{run="r",instance="{node}",outcome="finished"}}', now - max(finished)
        ended = [one for one in ended if one.reason != "finished"]
        newest = max((one.start for one in ended), default=0)
        alive = {one.rank: one for one in begun if now < one.end}
        step = max((min(now, one.stops) for one in alive.values()), default=-math.inf)
        ended = [one for one in ended if one.end >= newest and one.end >= step - 60]
        if not ended or (now > max(one.end for one in ended) + KEPT_SECONDS and not alive):
            return
        if all(one.rank in alive for one in ended) and now > min(one.end for one in ended) + 75:
            return
        first = {}
        for one in sorted(ended, key=lambda one: -one.end):
            first[KIND_OF_END.get(one.reason, "failed")] = one
        for kind, one in first.items():
            who = f'rank="{one.rank}",gpu="{one.rank}",uuid="U{node}{one.rank}"'
            labels = f'run="r",instance="{node}",kind="{kind}",reason="{one.reason}",{who}'
            yield f"tachograph_run_first_end_seconds{{{labels}}}", now - one.end
            near = sum(abs(each.end - one.end) <= 0.5 and each.reason == one.reason for each in ended)
            yield f'tachograph_run_ended_together{{run="r",instance="{node}",kind="{kind}"}}', near
        if newest > 0:
            yield f'tachograph_run_ended_attempt_seconds{{run="r",instance="{node}"}}', now - newest + 5
        if not alive and min(first, key=lambda kind: first[kind].end) == "told":
            labels = f'run="r",instance="{node}",outcome="{first["told"].reason}"'
            yield f"tachograph_run_ended_seconds{{{labels}}}", now - first["told"].end

    @staticmethod
    def _lost(node: str, page: Mapping[str, object], now: int) -> dict[str, object]:
        """Return what the exporter says of the step, and of losses that were not finite within 70 s."""
        run = f'run="r",instance="{node}"'
        of_ranks = {name: dict(values_of(page, name)) for name in (
            "train_step", "train_nonfinite_step", "train_loss_nonfinite_timestamp_seconds", "train_loss",
        )}  # fmt: skip
        alive = {rank: step for rank, step in of_ranks["train_step"].items() if rank in of_ranks["train_loss"]}
        said: dict[str, object] = {f"tachograph_run_train_step{{{run}}}": max(alive.values())} if alive else {}
        last = of_ranks["train_loss_nonfinite_timestamp_seconds"]
        steps = {
            rank: of_ranks["train_nonfinite_step"][rank]
            for rank, at in last.items()
            if now - at < 70 + 530 * (rank not in alive)
        }
        if steps:
            first = [rank for rank, step in steps.items() if step == min(steps.values())]
            gpu = f'rank="{first[0]}",gpu="{first[0]}",uuid="U{node}{first[0]}"'
            said |= {
                f"tachograph_run_loss_nonfinite_step{{{run},{gpu}}}": min(steps.values()),
                f"tachograph_run_loss_nonfinite_seconds{{{run}}}": max(last.values()) + 1000 - min(steps.values()),
                f'tachograph_run_loss_nonfinite_ranks{{{run},when="first"}}': len(first),
                f'tachograph_run_loss_nonfinite_ranks{{{run},when="lately"}}': len(steps),
            }
        return said

    @staticmethod
    def _concluded(node: str, page: Mapping[str, object], now: int) -> dict[str, object]:
        """Return what the exporter concludes of the ranks on its page."""
        if not page:
            return {}
        running = [
            one for one in page if one.startswith("tachograph_rank_state{") and 'state="running"' in one and page[one]
        ]
        steps = [
            cast("float", page[one]) for one in page if one.startswith("tachograph_rank_progress_timestamp_seconds{")
        ]
        if not steps:
            return {f'tachograph_run_ranks{{run="r",instance="{node}",state="running"}}': len(running)}
        run = f'run="r",instance="{node}"'
        return {
            f'tachograph_run_ranks{{{run},state="running"}}': len(running),
            f"tachograph_run_progress_timestamp_seconds{{{run}}}": max(steps),
            f"tachograph_run_progress_age_seconds{{{run}}}": now - max(steps),
            f"tachograph_run_step_seconds{{{run}}}": 1,
            f"tachograph_run_hang_limit_seconds{{{run}}}": 18,
        }

    def test(self) -> dict[str, object]:
        """Return promtool's test of it."""
        told = 'ALERTS{severity="critical",alertstate="firing"}'
        expected = [
            {"labels": f'{{alertname="{alert}"' + (f',rank="{rank}"' if rank else "") + "}", "value": 1}
            for alert, rank in self.pages
        ]  # fmt: skip
        asked = [
            {"expr": f"group by (alertname, rank) (count_over_time({told}[{self.lasts}s]))",
             "eval_time": f"{self.lasts}s", "exp_samples": expected},
            *(
                {"expr": f'count(ALERTS{{alertname="{alert}",rank="{rank}",alertstate="firing"}})',
                 "eval_time": f"{by}s", "exp_samples": [{"labels": "{}", "value": 1}]}
                for (alert, rank), by in self.pages.items()
            ),
        ]  # fmt: skip
        return {
            "interval": "1s",
            "input_series": [
                {"series": one, "values": " ".join(str(values.get(now, "_")) for now in range(self.lasts + 1))}
                for one, values in self.series().items()
            ],
            "promql_expr_test": asked,
        }


def pairs(*ends: tuple[float, str], stops: float = 100) -> list[Process]:
    """Return a process for each end, two on a node, from a on."""
    return [
        Process(rank, "ab"[rank // 2], end=end, reason=reason, stops=stops) for rank, (end, reason) in enumerate(ends)
    ]


def outlived(first: str, second: str) -> list[Process]:
    """Return two attempts: rank 3 ends the first, rank 1 the second, in which there is no rank 3 any more."""
    attempts = pairs((102, "collective"), (102, "collective"), (102, "collective"), (100, first))
    for rank in range(3):
        end, reason = (460, second) if rank == 1 else (472, "collective")
        attempts.append(Process(rank, "ab"[rank // 2], start=115, end=end, reason=reason))
    return attempts


def back(start: int) -> list[Process]:
    """Return four that are started again, where they were."""
    return [Process(rank, "ab"[rank // 2], start=start) for rank in range(4)]


KILLED = pairs((100.3, "terminated"), (100, "died"), (100.4, "terminated"), (100.5, "terminated"))
INCIDENTS = {
    # Two have handlers and end; two wait in NCCL, where no handler runs, until they are killed half a minute later.
    "told to end, and killed": Incident(
        pairs((100, "terminated"), (130, "died"), (100.2, "terminated"), (130.2, "died"), stops=99), {}
    ),
    "a node is preempted in a save": Incident(
        [
            *pairs((100, "terminated"), (100.2, "terminated"), (135, "collective"), (140, "collective"), stops=98),
            *back(250),
        ],
        {},
    ),
    # What was killed is back within seconds; scraped once a minute, the run is stepping when the death is seen.
    "killed and back, every minute": Incident(
        [
            *(replace(one, end=one.end + 30, stops=130) for one in KILLED),
            *back(135),
        ],
        {("RankDead", "1"): 190}, scrape=60,
    ),
    "killed and back, one clock ahead": Incident(
        [*(replace(one, end=one.end + 7, stops=107) for one in KILLED), *back(115)],
        {("RankDead", "1"): 128}, scrape=15, clocks={"b": 12},
    ),
    # Where rank 0 failed is scraped after where it is now; where the rank is that failed because of it, before.
    "moved to other nodes, every minute": Incident(
        [
            Process(0, "b", end=100, reason="exception", stops=99),
            Process(1, "c", end=100.5, reason="collective", stops=99),
            Process(0, "a", start=115),
            Process(1, "d", start=115),
        ],
        {}, scrape=60, lasts=500,
    ),
    "goes on with three, and is interrupted": Incident(
        [
            *KILLED,
            *(replace(one, end=500, reason="interrupted", stops=499) for one in back(108) if one.rank != 1),
        ],
        {("RankDead", "1"): 110}, lasts=900,
    ),
    "the next job of a chain dies": Incident(
        [
            *pairs((100, "finished"), (101, "finished")),
            Process(0, "a", start=190, end=300, reason="collective", stops=299),
            Process(1, "a", start=190, end=300.3, reason="died", stops=299),
        ],
        {("RankFailed", "0"): 330, ("RunDown", ""): 520}, scrape=15, lasts=1000,
    ),
    # The next attempt has a rank fewer: the end of the fourth is still shown when one of the three ends.
    "an end that the run outlived, then a death": Incident(
        outlived("data", "died"), {("RankFailed", "3"): 120, ("RankDead", "1"): 480, ("RunDown", ""): 690}, lasts=699,
    ),
    "a death that the run outlived, then an end": Incident(
        outlived("died", "data"), {("RankDead", "3"): 120, ("RankFailed", "1"): 560, ("RunDown", ""): 690}, lasts=699,
    ),
    # NCCL's timeout ends those that waited; who made them wait was paged ten minutes before.
    "a hang that a timeout ends": Incident(
        [
            *pairs((700, "collective"), (700.2, "collective"), (700.4, "died")),
            Process(3, "b", end=705, reason="terminated", stops=100, waits="data"),
        ],
        {("RunHung", "3"): 140, ("RunDown", ""): 900}, lasts=1000,
    ),
    "a loss is lost, and a scrape fails": Incident(
        [Process(rank, "ab"[rank // 2], nan_from=240 + (rank != 3)) for rank in range(4)],
        {("LossNotFinite", "3"): 395}, fails={"b": 360}, lasts=600,
    ),
    "a loss is lost, and a scrape fails, every minute": Incident(
        [Process(rank, "ab"[rank // 2], nan_from=240 + (rank != 3)) for rank in range(4)],
        {("LossNotFinite", "3"): 415}, fails={"b": 363}, lasts=600, scrape=60,
    ),
    # The page of the loss silences that of the failure for as long as there is one.
    "a loss is lost, and the run stops itself": Incident(
        [
            Process(rank, "ab"[rank // 2], end=302 + rank / 10, reason="nonfinite" if rank == 0 else "collective",
                    stops=302, nan_from=300 + 9 * (rank != 0))
            for rank in range(4)
        ],
        {("LossNotFinite", "0"): 890, ("RankFailed", "0"): 890, ("RunDown", ""): 890}, lasts=899,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "incident",
    [pytest.param(one, id=name, marks=pytest.mark.slow if one.lasts > 420 else ()) for name, one in INCIDENTS.items()],
)
def test_what_is_paged_of_it(rule_tests: Callable[..., None], incident: Incident) -> None:
    """These pages and no others, each in time."""
    rule_tests(FILES, incident.test())
