"""Numbers that all ranks of a run must share: set by the training code, or found by `ModelWatch`.

Ranks are compared where they report the same name at the same step. They are scraped up to an interval apart, so a step
must be on show for longer than that. A name that is set often is therefore reported only at the first set of each block
of 2^n steps, with n such that a block lasts 62 s or more: ranks in step choose the same n, without communicating, and a
rank whose n is one off still shares every second block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import monotonic

from tachograph.client.core.arguments import name as printable
from tachograph.client.core.arguments import whole
from tachograph.client.core.scalars import read

NAME_LIMIT = 16
NAME_LENGTH = 64
MODULUS = 1 << 53
"""Integers below it are exact in JSON and in Prometheus."""

SHORTEST_SECONDS, LONGEST_SECONDS = 62.0, 248.0
"""How long a block lasts: two scrapes of 30 s and a frame between at least; the factor of four keeps n steady."""


class _Shown:
    """The reported value of one name, and when the next one will be reported."""

    __slots__ = ("at", "latest", "shift")

    def __init__(self, value: float, step: int, at: float) -> None:
        self.latest = (value, step)  # one object, so that the sender thread never sees half of a change
        self.at = at
        self.shift = 0

    def set(self, value: float, step: int, now: float) -> None:
        if step >> self.shift == self.latest[1] >> self.shift and step != self.latest[1]:
            return
        if (steps := step - self.latest[1]) > 0:
            block = (now - self.at) / steps * (1 << self.shift)
            if block < SHORTEST_SECONDS:
                self.shift += 1
            elif block > LONGEST_SECONDS and self.shift:
                self.shift -= 1
        self.at = now
        self.latest = (value, step)


class Invariants:
    """The latest comparable value of each name. The training thread sets, the sender thread reads."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._shown: dict[str, _Shown] = {}

    def set(self, name: str, value: object, step: int | None) -> bool:
        """Take `value` of `name` at `step` (None: 0, a constant of the run); False for what cannot be one.

        An integer of any size counts modulo 2^53; anything else must be a finite number, and no CUDA tensor.
        """
        number = _number(value)
        at = 0 if step is None else whole(step, MODULUS - 1)
        text = printable(name)
        if number is None or at is None or text is None:
            return False
        name = text
        if (shown := self._shown.get(name)) is not None:
            shown.set(number, at, self._clock())
            return True
        if len(name) > NAME_LENGTH or len(self._shown) >= NAME_LIMIT:
            return False
        self._shown[name] = _Shown(number, at, self._clock())
        return True

    def metrics(self) -> Iterator[tuple[str, object]]:
        """Yield `invariant` and `invariant_step` by wire key, each by name."""
        latest = {name: shown.latest for name, shown in list(self._shown.items())}
        if latest:
            yield "invariant", {name: value for name, (value, _) in latest.items()}
            yield "invariant_step", {name: step for name, (_, step) in latest.items()}


def _number(value: object) -> float | None:
    kind = type(value)
    if issubclass(kind, int) and kind is not bool:
        reading: object = int.__int__(value)  # type: ignore[arg-type]  # int's own: a subclass may do anything
    else:
        reading = read(value)
    if type(reading) is int:
        return reading % MODULUS
    return reading if isinstance(reading, float) and math.isfinite(reading) else None
