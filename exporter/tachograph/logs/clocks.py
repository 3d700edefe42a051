"""How far the clocks of two nodes differ, by the steps that both report: ranks make a step together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import NamedTuple

from tachograph.logs import shape
from tachograph.logs.line import LineShape
from tachograph.logs.progress import step_label, step_lines
from tachograph.logs.record import read
from tachograph.logs.sightings import Context

FEWEST = 3
"""Steps that two logs must have in common."""
AGREEING = 5.0
"""Seconds within which the differences of such steps must lie: else they are of two attempts, or printed late."""
MOST_STEPS = 12
"""Lines that report steps which are read of a log."""
FARTHEST = 900.0
"""Seconds; a larger difference is none of clocks."""

Source = tuple[int, str]
"""The number of a file, and a node: lines of both have one clock."""


class StepLines(NamedTuple):
    """Some lines of a file that report steps, as they are, and what is needed to read them."""

    lines: tuple[bytes, ...]
    shape: LineShape
    written: float
    node: str


class StepClocks:
    """The times of steps in each file, whose lines are read when they are asked for."""

    def __init__(self) -> None:
        self._lines: dict[int, list[Callable[[], StepLines]]] = {}
        self._times: dict[int, dict[str, dict[bytes, float]]] = {}

    def add(self, file: int, steps: Callable[[], StepLines]) -> None:
        """Note how to get the lines of a file that report steps."""
        self._lines.setdefault(file, []).append(steps)

    def apart(self, one: Source, other: Source) -> float | None:
        """Return by how many seconds the clock of `one` is ahead of the other's; None if no steps say it."""
        if one == other or (one[1] and one[1] == other[1]):
            return 0.0
        mine, theirs = self._of(one), self._of(other)
        ahead = sorted(time - theirs[label] for label, time in mine.items() if label in theirs)
        if len(ahead) < FEWEST or ahead[-1] - ahead[0] > AGREEING or abs(ahead[0]) > FARTHEST:
            return None
        return median(ahead)

    def _of(self, source: Source) -> dict[bytes, float]:
        file, node = source
        if file not in self._times:
            self._times[file] = _read(steps() for steps in self._lines.get(file, ()))
        return self._times[file].get(node, {})


def steps_in(block: bytes, context: Context) -> StepLines:
    """Return lines that report steps in the beginning of a log."""
    first, later = shape.samples(block)
    steps = tuple(step_lines(block, block.lower(), MOST_STEPS))
    return StepLines(steps, shape.learn(first, context.written, later), context.written, context.node)


def _read(parts: Iterable[StepLines]) -> dict[str, dict[bytes, float]]:
    """Return the first time of each step, for each node."""
    found: dict[str, dict[bytes, float]] = {}
    for part in parts:
        for raw in part.lines:
            line = read(raw.decode("utf-8", errors="replace"), part.written, part.shape).lines[0]
            if line.time is not None and (label := step_label(raw)):
                found.setdefault(line.node or part.node, {}).setdefault(label, line.time)
    return found
