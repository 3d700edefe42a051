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
    return at_step(view.train_step)


def at_step(step: float | None) -> str:
    """Return `at step 48,201`, or nothing if that is not known."""
    return "" if step is None else f"at step {count(step)}"


def only_kind(ranks: Collection[Rank]) -> str:
    """Return the kind of all collectives that the ranks have made, such as `all_reduce`; empty unless it is one."""
    kinds = {op for rank in ranks for op in rank.series.counters.get(catalog.TRAIN_COLLECTIVE_SECONDS.key, {})}
    return kinds.pop() if len(kinds) == 1 else ""


def collective(kind: str, number: float, group: str) -> str:
    """Return in which collective ranks wait: `in all_reduce 1,771 of group 2`; the first group is not named."""
    return f"in {kind or 'collective'} {count(number)}" + ("" if group == "0" else f" of group {group}")


def doing_what(rank: Rank, phase: str, *, is_stuck: bool) -> str:
    """Return what a rank does and at which line, with the command that shows its whole stack on its node."""
    words = f"in phase {phase}" + (" (a save in which nothing moves)" if is_stuck else "")
    words += f", at {rank.where}." if rank.where else "."
    return (
        f"{words} Its whole stack: py-spy dump --pid {rank.pid} on its node, before anyone kills the run."
        if rank.pid
        else words
    )
