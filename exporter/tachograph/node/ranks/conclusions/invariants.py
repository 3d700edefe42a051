"""Whether the ranks of a run on this node hold the same numbers, at the step that most of them show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView, seat
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

SETTLED_SECONDS = 90.0
"""A number that changes at a step that was reached before, in a new attempt or as it is set anew, is not shown for so
long: by then every node has been scraped since, a minute after the last scrape at most."""

THROUGHOUT = 0.0
"""The step of a number without one: it holds for the whole run."""

GLOBAL_BATCH = "global_batch"
_CONFIGURED = catalog.TRAIN_CONFIG_INFO.labels.index(GLOBAL_BATCH) - len(catalog.RANK)


class SharedNumber(NamedTuple):
    """A number, and the first of the ranks that hold it."""

    value: float
    rank: Rank


@dataclass
class Shared:
    """One name: what its ranks hold at the step that most of them show, and since when it is settled."""

    step: float = -1.0
    numbers: dict[Rank, float] = field(default_factory=dict)
    ranks: frozenset[Rank] = frozenset()
    unsettled: float = -math.inf

    def take(self, held: dict[Rank, tuple[float, float]], now: float) -> None:
        """Take the step and the number that each rank shows now; a number may change at a later step only."""
        step = _most([at for at, _ in held.values()])
        numbers = {rank: value for rank, (at, value) in held.items() if at == step}
        changed = step == self.step and any(self.numbers.get(rank, value) != value for rank, value in numbers.items())
        if step < self.step or changed or not self.ranks.issuperset(held):
            self.unsettled = now
        self.step, self.numbers, self.ranks = step, numbers, frozenset(held)


class RunInvariants:
    """Remembers what each name was, and for how many steps the global batch is not the configured one."""

    def __init__(self) -> None:
        self._names: dict[str, Shared] = {}
        self._wrong_since: float | None = None

    def look(self, view: RunView) -> None:
        """Note what the ranks hold."""
        found: dict[str, dict[Rank, tuple[float, float]]] = {}
        for rank in view.alive:
            steps = rank.series.gauges.get(catalog.TRAIN_INVARIANT_STEP.key, {})
            for name, value in rank.series.gauges.get(catalog.TRAIN_INVARIANT.key, {}).items():
                if math.isfinite(value):
                    found.setdefault(name, {})[rank] = steps.get(name, THROUGHOUT), value
        self._names = {name: self._names.get(name) or Shared() for name in found}
        for name, held in found.items():
            self._names[name].take(held, view.now)
        self._note_global_batch(view)

    def _note_global_batch(self, view: RunView) -> None:
        shared, step = self._names.get(GLOBAL_BATCH), view.train_step
        configured = {rank.config[_CONFIGURED] for rank in view.alive} - {""}
        if shared is None or step is None or not configured or f"{max(shared.numbers.values()):.17g}" in configured:
            self._wrong_since = None
        elif self._wrong_since is None or step < self._wrong_since:
            self._wrong_since = step

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield one number for each name that its ranks agree on, and three where they do not."""
        for name, shared in self._names.items():
            if view.now - shared.unsettled < SETTLED_SECONDS or not shared.numbers:
                continue
            yield Sample(catalog.RUN_INVARIANT_STEP, (view.run, name), shared.step)
            for share, held in shares(shared.numbers).items():
                yield Sample(catalog.RUN_INVARIANT, (view.run, name, share, *seat(held.rank)), held.value)
        if self._wrong_since is not None and view.train_step is not None:
            steps = view.train_step - self._wrong_since
            yield Sample(catalog.RUN_GLOBAL_BATCH_WRONG_STEPS, (view.run,), steps)


def shares(numbers: Mapping[Rank, float]) -> dict[str, SharedNumber]:
    """Return what most ranks hold, and the least and the greatest where they differ; no most where there is a tie."""
    counts = Counter(numbers.values()).most_common(2)
    first = {value: rank for rank, value in reversed(list(numbers.items()))}
    found = {} if len(counts) == 2 and counts[0][1] == counts[1][1] else {"most": counts[0][0]}
    if len(counts) == 2:
        found |= {"least": min(first), "greatest": max(first)}
    return {share: SharedNumber(value, first[value]) for share, value in found.items()}


def _most(steps: list[float]) -> float:
    """Return the step that most ranks show; the earlier of two."""
    return min(set(steps), key=lambda step: (-steps.count(step), step))
