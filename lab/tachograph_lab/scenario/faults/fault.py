"""A fault of a scenario: when it begins and ends, where it is, and which quantities it sets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from tachograph_lab.scenario import values
from tachograph_lab.scenario.values import optional, size

RUN = -1
"""The place of a fault that affects the whole run."""

Claim = tuple[str, frozenset[int]]
"""A quantity and the places at which a fault sets it; two faults must not claim the same at the same time."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that begins at second `at` and lasts for `lasts` seconds (None: to the end)."""

    word: ClassVar[str]
    lasting: ClassVar[bool] = True
    """Whether it can be given an end (`for:`)."""
    one_of: ClassVar[tuple[str, ...]] = ()
    """Exactly one of these keys is given."""
    sets: ClassVar[tuple[str, ...]] = ()
    """The quantities that it sets, to detect contradictions; may refer to its own fields."""

    at: float = size(values.duration)
    lasts: float | None = optional(values.some_time, None, key="for")

    @property
    def until(self) -> float:
        """The second at which it ends."""
        return math.inf if self.lasts is None else self.at + self.lasts

    @property
    def where(self) -> frozenset[int]:
        """The ranks or nodes that it affects."""
        for part in fields(self):
            if "place" in part.metadata:
                value = getattr(self, part.name)
                return frozenset(value if isinstance(value, tuple) else (value,))
        return frozenset({RUN})

    def claims(self, gpus_per_node: int) -> Iterator[Claim]:
        """Yield the quantities that it sets, and where."""
        for quantity in self.sets:
            yield quantity.format_map(vars(self)), self.where
