"""Scenarios replayed in virtual time: simulated, scraped, judged by the shipped rules and routed, in seconds.

Most of promtool's time goes to each rule at each moment, however few ranks there are: ten small fleets cost little more
than one. So several share one Prometheus, their runs side by side as in a cluster, and each is judged alone: runs,
nodes and GPUs get a mark before their name, which is taken off what is said of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tachograph_lab.checkout import root
from tachograph_lab.replay import alertmanager_config
from tachograph_lab.replay.alertmanager import AlertmanagerModel, Firing
from tachograph_lab.replay.evaluation import EvaluationError, evaluate
from tachograph_lab.replay.recording import Recording, is_staggered, record
from tachograph_lab.replay.scraped import ScrapedSeries
from tachograph_lab.replay.shipped import shipped
from tachograph_lab.replay.verdict import ReplayVerdict, judge
from tachograph_lab.scenario import Scenario

EPOCH = 1_767_607_200.0
"""What Alertmanager's time intervals take for second 0: Monday 2026-01-05, 10:00 UTC, in working hours."""

EVALUATION_SECONDS, FINE_SECONDS, COARSE_SECONDS = 5.0, 2.5, 15.0
"""Between two evaluations: in general, where something must be told soon of a small fleet, and in a long story."""

SOON_SECONDS, SMALL_RANKS = 15.0, 256
"""What must be told within this time and a step, and the fleet up to which it is looked for with the finer rhythm."""

LONG_SECONDS = 3 * 3600.0
"""A story from here on tells of hours; Prometheus, too, evaluates most groups no more often than every 15 s."""

MARKED = ("run", "instance", "uuid")
"""The labels that tell one cluster's parts from another's."""

MOST_SCENARIOS, MOST_RANK_SECONDS = 12, 4_000_000
"""How much goes together: some 200 MB of text, for which promtool takes up to 6 GiB."""


def packs(scenarios: Iterable[Scenario]) -> list[list[Scenario]]:
    """Return the scenarios in groups that can be replayed together, of one rhythm and about one length; big first."""
    found: list[list[Scenario]] = []
    for _, alike in groupby(sorted(scenarios, key=_kind), key=lambda one: _kind(one)[:2]):
        pack: list[Scenario] = []
        for scenario in alike:
            if pack and (len(pack) == MOST_SCENARIOS or _size([*pack, scenario]) > MOST_RANK_SECONDS):
                found.append(pack)
                pack = []
            pack.append(scenario)
        found.append(pack)
    return sorted(found, key=_size, reverse=True)


def _kind(scenario: Scenario) -> tuple[float, bool, float]:
    return rhythm(scenario), is_staggered(scenario), scenario.lasts


def _size(pack: Sequence[Scenario]) -> float:
    return max(one.lasts for one in pack) * sum(one.fleet.ranks for one in pack)


def rhythm(scenario: Scenario) -> float:
    """Return the seconds between two evaluations of a scenario's replay.

    Times are judged as they are expected: fast groups, which Prometheus evaluates every 2 s, are evaluated every 2.5 s
    where that decides, in small fleets with something to be told soon.
    """
    if scenario.lasts >= LONG_SECONDS:
        return COARSE_SECONDS
    soon = any(expected.within <= SOON_SECONDS + scenario.step.seconds for expected in scenario.expect)
    return FINE_SECONDS if soon and scenario.fleet.ranks <= SMALL_RANKS else EVALUATION_SECONDS


def replay(pack: Sequence[Scenario], suite: str, scrape_seconds: float = 5.0) -> list[ReplayVerdict]:
    """Return the verdict on each of a pack's scenarios; the same pack always has the same.

    A rule that fails is an error of every verdict. Raises BinariesUnavailable.
    """
    rules = shipped()
    parts = {f"c{number}x-": record(one, rules.words, scrape_seconds) for number, one in enumerate(pack)}
    try:
        firings = evaluate(_Cluster(parts), rules, rhythm(pack[0]), suite)
    except EvaluationError as error:
        return [judge(scenario, (), error.lines) for scenario in pack]
    routes = alertmanager_config.read(root() / "alertmanager/alertmanager.yml")
    verdicts = []
    for scenario, (mark, recording) in zip(pack, parts.items(), strict=True):
        own = of_part(firings, mark, recording.seconds)
        verdicts.append(judge(scenario, AlertmanagerModel(routes, EPOCH).notifications(own, recording.seconds)))
    return verdicts


def of_part(firings: Iterable[Firing], mark: str, seconds: float) -> list[Firing]:
    """Return what fired of a part until its end, without its mark; what carries no part's mark is everybody's."""
    own = []
    for firing in firings:
        marked = [firing.labels[name] for name in MARKED if name in firing.labels]
        if firing.start <= seconds and (not marked or any(value.startswith(mark) for value in marked)):
            end = firing.end if firing.end is not None and firing.end <= seconds else None
            own.append(Firing(_bare(firing.labels, mark), firing.start, end, _bare(firing.annotations, mark)))
    return own


def _bare(texts: Mapping[str, str], mark: str) -> dict[str, str]:
    return {name: text.replace(mark, "") for name, text in texts.items()}


class _Cluster(Recording):
    """The recordings of several fleets as one, each under its mark."""

    def __init__(self, parts: Mapping[str, Recording]) -> None:
        first = next(iter(parts.values()))
        super().__init__((), first.scrape_seconds, max(one.seconds for one in parts.values()), first.grid_seconds)
        self._parts = parts

    def series(self) -> Iterator[ScrapedSeries]:
        """Yield every series, part by part."""
        for mark, recording in self._parts.items():
            for one in recording.series():
                yield one._replace(labels={k: mark + v if k in MARKED and v else v for k, v in one.labels.items()})
