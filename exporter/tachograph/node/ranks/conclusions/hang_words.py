"""The words of a hang's evidence, as texts print them: they stay the same as long as the run stands still."""

from __future__ import annotations

from collections.abc import Collection

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.rank import Rank
from tachograph.text.humanize import count


def stopped_at(view: RunView) -> str:
    """Return where the run stands still: `at step 48,201`."""
    if view.without_step is None:
        return "before its first step"
    return "" if view.train_step is None else f"at step {count(view.train_step)}"


def only_kind(ranks: Collection[Rank]) -> str:
    """Return the kind of all collectives that the ranks have made, such as `all_reduce`; empty unless it is one."""
    kinds = {op for rank in ranks for op in rank.series.counters.get(catalog.TRAIN_COLLECTIVE_SECONDS.key, {})}
    return kinds.pop() if len(kinds) == 1 else ""


def doing_what(phase: str, *, is_stuck: bool) -> str:
    """Return what a rank does, in words."""
    return f"phase {phase}" + (" (a save in which nothing moves)" if is_stuck else "")
