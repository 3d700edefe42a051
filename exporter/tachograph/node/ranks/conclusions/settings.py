"""The settings that the ranks of a run were started with: number, role, whom alerts wake, and limits of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tachograph.catalog import index as catalog
from tachograph.findings.limits import RUN
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample
from tachograph.wire import without_role

_TIER = catalog.TRAIN_CONFIG_INFO.labels.index("tier") - 2


def tier_of(ranks: Iterable[Rank]) -> str:
    """Return the highest tier of these ranks, where one that has set none is standard."""
    tiers = {rank.config[_TIER] or "standard" for rank in ranks}
    return next(tier for tier in catalog.TIERS if tier in tiers)


def settings(view: RunView) -> Iterator[Sample]:
    """Yield the world size that most of the living ranks have, the tier, the role, and the limits that apply."""
    sizes = Counter(rank.hello.world_size for rank in view.alive or view.states)
    if sizes:  # of as many that say so each, the largest: without one of its own a rank has it from its number
        yield Sample(catalog.RUN_WORLD_SIZE, (view.run,), max(sizes, key=lambda size: (sizes[size], size)))
    if view.states and (tier := tier_of(view.states)) != "standard":
        yield Sample(catalog.RUN_TIER, (view.run, tier), 1)
    if view.states and view.role:
        yield Sample(catalog.RUN_ROLE, (view.run, view.role, without_role(view.run, view.role)), 1)
    for name, (value, set_by) in view.limits.items() if view.alive else ():
        yield Sample(catalog.RUN_LIMIT, (view.run, name, set_by), value)
        if set_by == RUN:
            yield Sample(catalog.RUN_THRESHOLD, (view.run, name), value)
