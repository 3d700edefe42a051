"""Replays scenarios in virtual time, in seconds: simulates and scrapes them, evaluates the rules, routes the alerts.

promtool spends most of its time per rule and moment, whatever the number of ranks: ten small fleets cost little more
than one. So several scenarios share one Prometheus, as the runs of a cluster do, and each is judged alone: the names of
runs, nodes and GPUs get a prefix, which is removed from the alerts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from tachograph_lab.checkout import root
from tachograph_lab.replay import alertmanager_config
from tachograph_lab.replay.alertmanager import AlertmanagerModel, Firing
from tachograph_lab.replay.evaluation import EvaluationError, evaluate
from tachograph_lab.replay.recording import Recording, is_staggered, record
from tachograph_lab.replay.scraped import MISSING, ScrapedSeries
from tachograph_lab.replay.shipped_rules import ShippedRules, shipped
from tachograph_lab.replay.verdict import ReplayVerdict, judge
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.definition import EVALUATION_SECONDS
from tachograph_lab.scenario.faults import NodeDown, PrometheusAway, PrometheusRestart, ScrapeBlocked, SlowLoader

CONFIGURATION = root() / "alertmanager/alertmanager.yml"
"""The shipped configuration of Alertmanager."""

EPOCH = 1_767_607_200.0
"""The time of second 0 for Alertmanager's time intervals: Monday 2026-01-05, 10:00 UTC, in working hours."""

FINE_SECONDS, COARSE_SECONDS = 2.5, 15.0
"""The evaluation interval for an alert that is due soon in a small fleet, and in a long scenario."""

SOON_SECONDS, SMALL_RANKS = 15.0, 256
"""An alert is due soon if it must come within this time and a step; the largest fleet for the finer interval."""

LONG_SECONDS = 3 * 3600.0
"""The shortest long scenario. MfuDropped, ThroughputDropped and DataStall want more samples than there are then."""

GIVEN_UP_SECONDS = 240.0
"""Until Alertmanager resolves an alert of which it hears no more: four times as long as Prometheus takes to repeat it.
"""

MANY_RUNS, MANY_NODES = 3, 3
"""The fewest runs, and the fewest nodes that fall silent, that show what a whole cluster has in common."""

PREFIXED = ("run", "instance", "uuid")
"""The labels whose values get a scenario's prefix."""

MOST_SCENARIOS, MOST_RANK_SECONDS = 12, 1_000_000
"""The limits of a pack: with more, what the rules record takes promtool more than its 6 GiB, and it only tidies up."""


def packs(scenarios: Iterable[Scenario]) -> list[list[Scenario]]:
    """Return the scenarios in groups to replay together, with one interval and similar length; largest first.

    Those of which an alert counts runs or nodes of the whole cluster are replayed alone. Three runs that wait for data
    would have slow storage in common: no more than two go together.
    """
    every = list(scenarios)
    found = [[one] for one in every if _is_of_a_cluster(one)]
    others = [one for one in every if not _is_of_a_cluster(one)]
    for _, alike in groupby(sorted(others, key=_kind), key=lambda one: _kind(one)[0]):
        pack: list[Scenario] = []
        for scenario in alike:
            more = [*pack, scenario]
            if pack and (len(more) > MOST_SCENARIOS or _size(more) > MOST_RANK_SECONDS or _starving(more) >= MANY_RUNS):
                found.append(pack)
                pack = []
            pack.append(scenario)
        found.append(pack)
    return sorted(found, key=_size, reverse=True)


def _is_of_a_cluster(scenario: Scenario) -> bool:
    """Return whether an alert may count this scenario's runs, silent nodes or GPUs together with those of others.

    StorageSlow counts runs, NodesUnreachable nodes, and to NodeGpuMissing a node of 3 GPUs lacks one beside nodes of 4.
    """
    silent = {fault.node for fault in scenario.every_fault if isinstance(fault, NodeDown | ScrapeBlocked)}
    odd = any(run.fleet.gpus_per_node.bit_count() > 1 for run in scenario.every_run)
    return len(scenario.every_run) >= MANY_RUNS or len(silent) >= MANY_NODES or odd


def _starving(pack: Sequence[Scenario]) -> int:
    """Return how many runs of a pack wait for their data at some time."""
    return sum(
        any(isinstance(fault, SlowLoader) or getattr(fault, "phase", "") == "data" for fault in one.every_fault)
        for one in pack
    )


def _kind(scenario: Scenario) -> tuple[tuple[float, float, bool, tuple[tuple[float, float], ...]], float]:
    """Return what the scenarios of a pack have in common, and the length of this one."""
    return (interval(scenario), scenario.scrape, is_staggered(scenario), outages(scenario)), scenario.lasts


def _size(pack: Sequence[Scenario]) -> float:
    return max(one.lasts for one in pack) * sum(one.ranks for one in pack)


def interval(scenario: Scenario) -> float:
    """Return the seconds between two evaluations in a scenario's replay.

    Each group of rules has an interval, so that Prometheus' does not matter: most are evaluated every 5 s. Fast groups,
    which Prometheus evaluates every 2 s, are evaluated every 2.5 s where that decides whether an alert is in time: in
    small fleets with an alert that is due soon. A scenario's own interval is that of rules made with `--interval`.
    """
    if scenario.evaluation is not None and scenario.evaluation > EVALUATION_SECONDS:
        return scenario.evaluation
    if scenario.lasts >= LONG_SECONDS and scenario.evaluation is None:
        return COARSE_SECONDS
    soon = any(scenario.limit(expected) <= SOON_SECONDS + scenario.step.seconds for expected in scenario.expect)
    return FINE_SECONDS if soon and scenario.ranks <= SMALL_RANKS else EVALUATION_SECONDS


def replay(pack: Sequence[Scenario], suite: str) -> list[ReplayVerdict]:
    """Return the verdict on each scenario of a pack; the same pack always gives the same verdicts.

    A failing rule is an error of every verdict. Raises BinariesUnavailable.
    """
    try:
        fired = firings_of(pack, suite)
    except EvaluationError as error:
        return [judge(scenario, (), error.lines) for scenario in pack]
    routes = alertmanager_config.read(CONFIGURATION)
    return [
        judge(scenario, AlertmanagerModel(routes, EPOCH).notifications(own, seconds))
        for scenario, (own, seconds) in zip(pack, fired, strict=True)
    ]


def firings_of(pack: Sequence[Scenario], suite: str) -> list[tuple[list[Firing], float]]:
    """Return what fires in each scenario of a pack, and how many seconds of it were recorded.

    Raises EvaluationError where a rule fails, and BinariesUnavailable.
    """
    rules = shipped()
    parts = {f"c{number}x-": record(one, rules.words) for number, one in enumerate(pack)}
    firings = _firings(_Cluster(parts), rules, pack[0], suite)
    return [(of_part(firings, prefix, one.seconds), one.seconds) for prefix, one in parts.items()]


def _firings(cluster: _Cluster, rules: ShippedRules, scenario: Scenario, suite: str) -> list[Firing]:
    """Return what fires, evaluated anew from each return of Prometheus on."""
    found: list[Firing] = []
    lives = [(0.0, 0.0), *outages(scenario)]
    ends = [*(gone for gone, _ in lives[1:]), cluster.seconds]
    for (gone, start), end in zip(lives, ends, strict=True):
        known = cluster if len(lives) == 1 else KnownSince(cluster, start, end)
        found = after_restart(found, evaluate(known, rules, interval(scenario), suite), gone, start)
    return found


def outages(scenario: Scenario) -> tuple[tuple[float, float], ...]:
    """Return the seconds at which Prometheus is gone and at which it starts anew."""
    kinds = (PrometheusRestart, PrometheusAway)
    return tuple(sorted((fault.at, fault.until) for fault in scenario.every_fault if isinstance(fault, kinds)))


def after_restart(before: Iterable[Firing], after: Iterable[Firing], gone: float, start: float) -> list[Firing]:
    """Return firings over an absence of Prometheus from second `gone` until `start`.

    An alert that fires again before Alertmanager gives it up has never ended; one that does not ends then.
    """
    given_up = gone + GIVEN_UP_SECONDS
    new = [one._replace(start=max(start, one.start)) for one in after if one.end is None or one.end > start]
    found: list[Firing] = []
    for one in before:
        if one.end is not None:
            found.append(one)
            continue
        same = (each for each in new if each.labels == one.labels and each.start <= given_up)
        again = next(same, None)
        if again is not None:
            new.remove(again)
        found.append(one._replace(end=given_up if again is None else again.end))
    return sorted([*found, *new], key=lambda one: one.start)


def of_part(firings: Iterable[Firing], prefix: str, seconds: float) -> list[Firing]:
    """Return the firings of one part until its end, without its prefix; those without a prefix belong to all parts."""
    own = []
    for firing in firings:
        prefixed = [firing.labels[name] for name in PREFIXED if name in firing.labels]
        if firing.start <= seconds and (not prefixed or any(value.startswith(prefix) for value in prefixed)):
            end = firing.end if firing.end is not None and firing.end <= seconds else None
            own.append(Firing(_bare(firing.labels, prefix), firing.start, end, _bare(firing.annotations, prefix)))
    return own


def _bare(texts: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name: text.replace(prefix, "") for name, text in texts.items()}


class KnownSince(Recording):
    """A recording of which Prometheus knows nothing from before second `start`, up to `end`."""

    def __init__(self, whole: Recording, start: float, end: float) -> None:
        super().__init__((), whole.scrape_seconds, end, whole.grid_seconds)
        self._whole, self._start = whole, start

    def series(self) -> Iterator[ScrapedSeries]:
        """Yield every series."""
        for one in self._whole.series():
            moments = (one.first + np.arange(len(one.values)) * self.spacing) * self.grid_seconds
            yield one._replace(values=np.where(moments >= self._start, one.values, MISSING))


class _Cluster(Recording):
    """The recordings of several fleets as one, each with its prefix."""

    def __init__(self, parts: Mapping[str, Recording]) -> None:
        first = next(iter(parts.values()))
        super().__init__((), first.scrape_seconds, max(one.seconds for one in parts.values()), first.grid_seconds)
        self._parts = parts

    def series(self) -> Iterator[ScrapedSeries]:
        """Yield every series, part by part."""
        for prefix, recording in self._parts.items():
            for one in recording.series():
                yield one._replace(labels={k: prefix + v if k in PREFIXED and v else v for k, v in one.labels.items()})
