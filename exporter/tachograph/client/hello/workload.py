"""The amounts of work per step, the static facts of a run and its own metrics, as given to the constructor."""

from __future__ import annotations

import math
from collections.abc import Callable

from tachograph.catalog.rank import TIERS
from tachograph.client.core.arguments import count, name, one_of
from tachograph.client.core.misuse import Misuse
from tachograph.client.core.notice import shown
from tachograph.client.core.scalars import number
from tachograph.client.hello.own_metrics import own_metrics
from tachograph.client.torch.loaded_torch import loaded_torch
from tachograph.findings.limits import LIMIT_NAMES, LIMITS

MEASURED = "measured"
GIVEN = "given"
"""Conventions beside those of `model_flops`: counted by `Recorder.count_flops`, or a number of unknown origin."""


class Workload:
    """One rank's share of a step, by counter; facts and metrics for the hello; and the number of invalid arguments.

    Amounts per step are given for the whole run; a rank's counters take one `world_size`-th of them. `per_token` has
    the FLOPs of one token.
    """

    def __init__(self, world_size: int, misuse: Misuse | None = None, **given: object) -> None:
        misuse = misuse or Misuse()
        self.refused = 0
        self.own_metrics = own_metrics(given.get("metrics"), misuse)

        def take(key: str, read: Callable[[object], float | str | None]) -> float | str | None:
            if given.get(key) is None:
                return None
            value = read(given[key])
            if value is None:
                self.refused += 1
                if key == "tier":
                    misuse.note("unknown_tier", f"tier={shown(given[key])}", wrong=given[key], right=TIERS)
                else:
                    misuse.note("wrong_type", key, f"cannot be {shown(given[key])}: the value is ignored")
            return value

        tokens = take("tokens_per_step", amount)
        stated = take("flops_convention", _convention)
        per_token = given.get("flops_per_token")
        try:
            convention = getattr(per_token, "convention", None)
        except Exception:  # noqa: BLE001 - a user's object in the place of a number
            convention = None
        if convention is not None:  # a ModelFlops says how it counted
            self.refused += stated not in (None, convention)
            stated = _convention(convention)
            given["flops_per_token"] = getattr(per_token, "total", None)
        model, hardware = take("flops_per_token", amount), take("hardware_flops_per_token", amount)
        totals = {
            "tokens_total": tokens,
            "samples_total": take("samples_per_step", amount),
            "flops_total": take("flops_per_step", amount) or _product(model, tokens),
            "hardware_flops_total": _product(hardware, tokens),
        }
        self.per_step = {key: _share(total, world_size) for key, total in totals.items() if isinstance(total, float)}
        per_token = {"flops_total": model, "hardware_flops_total": hardware}
        self.per_token = {key: flops for key, flops in per_token.items() if isinstance(flops, float)}
        facts = {
            "precision": take("precision", name),
            "global_batch": take("global_batch", count),
            "peak_flops": take("peak_flops", amount),
            "flops_convention": stated or (GIVEN if "flops_total" in {**self.per_step, **self.per_token} else None),
            "tier": take("tier", _tier),
        }
        self.facts = {key: fact for key, fact in facts.items() if fact is not None}

    def measured(self, flops: float) -> None:
        """Take this rank's operations of one step as `Recorder.count_flops` counted them, recomputation included.

        What the constructor was given stays; the first count stays, too, or the counters would fall.
        """
        if "flops_total" not in self.per_step:
            self.facts["flops_convention"] = MEASURED
        for key in ("flops_total", "hardware_flops_total"):
            self.per_step.setdefault(key, _share(flops, 1))


def framework() -> dict[str, str]:
    """Return the fact of which PyTorch is loaded; empty while there is none."""
    version = getattr(loaded_torch(), "__version__", None)
    fact = None if version is None else name(f"pytorch {version}")
    return {} if fact is None else {"framework": fact}


def amount(value: object) -> float | None:
    """Return `value` as a finite number above zero, or None."""
    given = number(value)
    return given if given is not None and 0 < given < math.inf else None


def _convention(value: object) -> str | None:
    from tachograph.client.flops.model_flops import (
        CONVENTIONS,  # late: most runs do not need it, and the module is not small
    )

    return one_of((*CONVENTIONS, MEASURED, GIVEN), value)


def _tier(value: object) -> str | None:
    return one_of(TIERS, value)


def _product(per_token: object, tokens: object) -> float | None:
    """Return the product as a finite number, None where a factor is missing."""
    return amount(per_token * tokens) if isinstance(per_token, float) and isinstance(tokens, float) else None


def _share(total: float, world_size: int) -> float:
    """Return one rank's share, whole where it can be, so that sums over a long run stay exact."""
    share = total / world_size
    return int(share) if share.is_integer() else share


class OwnLimits:
    """The run's own limits by name; the training thread sets them, the sender thread reads."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def set(self, name: object, value: object) -> bool:
        """Take one over; return False if there is no limit of this name, or the value is not in its range."""
        limit = amount(value)
        known = one_of(LIMIT_NAMES, name)
        if limit is None or known is None or not LIMITS[known].admits(limit):
            return False
        self._values = {**self._values, known: limit}  # a new one, for the other thread may be reading
        return True

    def metrics(self) -> dict[str, object]:
        """Return the limits by wire key and name; empty while none is set."""
        return {"threshold": self._values} if self._values else {}
