"""What a step is worth, and the static facts of a run, as the constructor was told them."""

from __future__ import annotations

import math
from collections.abc import Callable

from tachograph.client.identity import count, name
from tachograph.client.loaded_torch import loaded_torch
from tachograph.client.scalars import number


class Workload:
    """One rank's share of a step, by counter; the facts for the hello; and how many arguments could not be right.

    Amounts per step are given for the whole run; a rank's counters take one `world_size`-th of them.
    """

    def __init__(self, world_size: int, **given: object) -> None:
        self.refused = 0

        def take(key: str, read: Callable[[object], float | str | None]) -> float | str | None:
            value = read(given[key]) if given.get(key) is not None else None
            self.refused += value is None and given.get(key) is not None
            return value

        per_token = take("flops_per_token", amount)
        totals = {
            "tokens_total": take("tokens_per_step", amount),
            "samples_total": take("samples_per_step", amount),
            "flops_total": take("flops_per_step", amount),
        }
        tokens = totals["tokens_total"]
        if totals["flops_total"] is None and isinstance(per_token, float) and isinstance(tokens, float):
            totals["flops_total"] = per_token * tokens
        self.per_step = {key: _share(total, world_size) for key, total in totals.items() if isinstance(total, float)}
        version = getattr(loaded_torch(), "__version__", None)
        facts = {
            "precision": take("precision", name),
            "global_batch": take("global_batch", count),
            "peak_flops": take("peak_flops", amount),
            "framework": None if version is None else name(f"pytorch {version}"),
        }
        self.facts = {key: fact for key, fact in facts.items() if fact is not None}


def amount(value: object) -> float | None:
    """Return `value` as a finite number above zero, or None."""
    given = number(value)
    return given if given is not None and 0 < given < math.inf else None


def _share(total: float, world_size: int) -> float:
    """Return one rank's share, whole where it can be, so that sums over a long run stay exact."""
    share = total / world_size
    return int(share) if share.is_integer() else share
