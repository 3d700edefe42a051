"""Several scenarios in one Prometheus, their runs side by side as in a cluster, each judged alone.

Most of promtool's time goes to each rule at each moment, however few ranks there are: ten small fleets cost little more
than one. Runs, nodes and GPUs get a mark before their name, which is taken off what is said of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tachograph.lab.replay import virtual
from tachograph.lab.replay.evaluation import EvaluationError, evaluate
from tachograph.lab.replay.firing import Firing
from tachograph.lab.replay.recording import Recording, is_staggered, record
from tachograph.lab.replay.scraped import Series
from tachograph.lab.replay.shipped import shipped
from tachograph.lab.replay.verdict import Verdict
from tachograph.lab.scenario import Scenario

MARKED = ("run", "instance", "uuid")
"""The labels that tell one cluster's parts from another's."""

MOST_SCENARIOS, MOST_RANK_SECONDS = 12, 4_000_000
"""How much goes together: what promtool holds of it stays below 4 GiB."""


def packs(scenarios: Iterable[Scenario]) -> list[list[Scenario]]:
    """Return the scenarios in groups that can be replayed together: of one rhythm, and of about the same length."""
    found: list[list[Scenario]] = []
    for _, alike in groupby(sorted(scenarios, key=_kind), key=lambda one: _kind(one)[:2]):
        pack: list[Scenario] = []
        for scenario in alike:
            if pack and (len(pack) == MOST_SCENARIOS or _size([*pack, scenario]) > MOST_RANK_SECONDS):
                found.append(pack)
                pack = []
            pack.append(scenario)
        found.append(pack)
    return found


def _kind(scenario: Scenario) -> tuple[float, bool, float]:
    return virtual.rhythm(scenario), is_staggered(scenario), scenario.lasts


def _size(pack: Sequence[Scenario]) -> float:
    return max(one.lasts for one in pack) * sum(one.fleet.ranks for one in pack)


def replay_together(scenarios: Sequence[Scenario], suite: str, scrape_seconds: float = 5.0) -> list[Verdict]:
    """Return the verdict on each of a pack's scenarios. Raises BinariesUnavailable."""
    rules = shipped()
    parts = {f"c{number}x-": record(one, rules.words, scrape_seconds) for number, one in enumerate(scenarios)}
    try:
        firings = evaluate(_Cluster(parts), rules, virtual.rhythm(scenarios[0]), suite)
    except EvaluationError as error:
        return [virtual.failed(scenario, error).verdict for scenario in scenarios]
    return [
        virtual.received(scenario, of_part(firings, mark, recording.seconds), recording.seconds).verdict
        for scenario, (mark, recording) in zip(scenarios, parts.items(), strict=True)
    ]


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

    def series(self) -> Iterator[Series]:
        """Yield every series, part by part."""
        for mark, recording in self._parts.items():
            for one in recording.series():
                yield one._replace(labels={k: mark + v if k in MARKED and v else v for k, v in one.labels.items()})
