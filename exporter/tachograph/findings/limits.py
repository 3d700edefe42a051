"""The limits that a site or a run may set: the one table of them, from which client, exporter and rules take them.

A run's own limit (`recorder.threshold`) takes precedence over the site's (`limits:` of the exporter), which takes
precedence over the default. The node applies it, and shows it as tachograph_run_limit to the rules that compare nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from tachograph.catalog.rank import SET_BY

LimitName = Literal[
    "hang_seconds", "straggler_ratio", "throughput_drop_ratio", "data_stall_ratio", "checkpoint_age_seconds"
]  # fmt: skip
LIMIT_NAMES: tuple[str, ...] = get_args(LimitName)
HasDefault = Literal["hang_seconds", "straggler_ratio", "throughput_drop_ratio", "data_stall_ratio"]

RUN, SITE, DEFAULT = SET_BY

SECONDS, SHARE = "a number of seconds", "a share (0.2 for 20 %)"


class Limit(NamedTuple):  # and not a dataclass: those cost `import tachograph` 4 ms and 1 MB
    """A limit and the range in which it can be set. Without a `default`, the run's own past is the limit."""

    name: LimitName
    unit: str
    default: float | None
    least: float
    greatest: float
    meaning: str

    @property
    def expected(self) -> str:
        """The values that can be set, in words."""
        return f"{self.unit} from {self.least:.7g} to {self.greatest:.7g}"

    def fault(self, value: object) -> str | None:
        """Return why the limit cannot be this value; None if it can."""
        if isinstance(value, int | float) and not isinstance(value, bool) and self.admits(value):
            return None
        return f"must be {self.expected}, not {value!r}"

    def admits(self, value: float) -> bool:
        """Return whether a number is in the range; NaN is not."""
        return self.least <= value <= self.greatest


LIMITS: Mapping[str, Limit] = MappingProxyType({
    limit.name: limit
    for limit in (
        # A screen shows after 10 s that there is no step, and a rank may be silent for as long before it is frozen.
        Limit(
            "hang_seconds", SECONDS, 15.0, 10.0, 86_400.0,
            "time without a step, in addition to three usual steps, until a run counts as hung",
        ),
        # A lag below 0.06 of the step is noise (diagnosis.LAG_RATIO).
        Limit(
            "straggler_ratio", SHARE, 0.2, 0.06, 0.95,
            "lag of a rank, as a share of the step, above which it pages",
        ),
        Limit(
            "throughput_drop_ratio", SHARE, 0.15, 0.05, 0.95,
            "share of its usual speed that a run may lose",
        ),
        Limit(
            "data_stall_ratio", SHARE, 0.2, 0.05, 0.95,
            "share of its steps for which the median rank may wait for data",
        ),
        Limit(
            "checkpoint_age_seconds", SECONDS, None, 60.0, 2_592_000.0,
            "time that a run may train without a checkpoint; by default, three of its usual intervals and a minute",
        ),
    )
})  # fmt: skip


class Applied(NamedTuple):
    """A limit as it applies to a run, and which of `SET_BY` set it."""

    value: float
    set_by: str


def applied(own: Mapping[str, float], site: Mapping[str, float]) -> dict[str, Applied]:
    """Return the limits that apply to a run, given its own and the site's; one without a default may be missing."""
    found = {name: Applied(limit.default, DEFAULT) for name, limit in LIMITS.items() if limit.default is not None}
    found.update((name, Applied(value, SITE)) for name, value in site.items())
    found.update((name, Applied(value, RUN)) for name, value in own.items())
    return found
