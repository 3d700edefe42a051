"""Whether memory grows all the time, lies in fragments, or barely suffices.

What a rank holds is looked at by its floor, the least of ten minutes: evaluations and checkpoints come and go above it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from statistics import median

from tachograph.catalog import index as catalog
from tachograph.diagnosis import MEMORY_FULL_RATIO
from tachograph.node.ranks.conclusions.view import RunView, gauge
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

EVERY_SECONDS = 10.0
FLOOR_SECONDS = 600.0
FLOORS = 6
"""An hour of them."""
SETTLED_SECONDS = 1800.0
"""For this long after its first step a rank's memory is still settling."""
LEAK_BYTES = 1e7
"""What a leak adds in 20 minutes at least."""
RETRY_SECONDS = 600.0
FRAGMENTED = 0.05

KINDS: Mapping[str, str] = {"gpu": catalog.TRAIN_MEMORY_RESERVED.key, "host": catalog.TRAIN_HOST_MEMORY.key}


class _Floors:
    """The least of each ten minutes, the newest last."""

    def __init__(self) -> None:
        self._floors: deque[float] = deque(maxlen=FLOORS)
        self._least = math.inf

    def note(self, value: float | None, *, turn: bool) -> None:
        """Note a value, with `turn` as the first of the next ten minutes."""
        if turn and self._least < math.inf:
            self._floors.append(self._least)
            self._least = math.inf
        if value is not None:
            self._least = min(self._least, value)

    @property
    def slope(self) -> float:
        """Bytes per second of a floor that rose in each 20 minutes of an hour, else 0: a jump is over after 20."""
        floors = list(self._floors)
        rises = [later - earlier for earlier, later in zip(floors, floors[2:], strict=False)]
        leaks = len(floors) == FLOORS and min(rises) >= LEAK_BYTES
        return median(rises) / (2 * FLOOR_SECONDS) if leaks else 0.0


class _Process:
    """The facts remembered of a rank's process."""

    def __init__(self) -> None:
        self.steps = 0.0
        self._turned: float | None = None
        self._floors = {kind: _Floors() for kind in KINDS}
        self._retries: deque[tuple[float, float]] = deque()

    def look(self, rank: Rank, steps: float, now: float) -> None:
        """Note what the rank holds now."""
        self.steps = steps
        self._retries.append((now, rank.series.total(catalog.TRAIN_MEMORY_RETRIES.key) or 0.0))
        while self._retries[0][0] < now - RETRY_SECONDS:
            self._retries.popleft()
        if self._turned is None:
            self._turned = now + SETTLED_SECONDS if steps else None
        elif now >= self._turned:
            turn = now - self._turned >= FLOOR_SECONDS
            for kind, floors in self._floors.items():
                floors.note(gauge(rank, KINDS[kind]), turn=turn)
            self._turned = now if turn else self._turned

    @property
    def retries(self) -> float:
        """Retries within the last ten minutes."""
        return self._retries[-1][1] - self._retries[0][1]

    def slope(self, kind: str) -> float:
        """Bytes per second by which a kind of memory leaks, 0 if it does not."""
        return self._floors[kind].slope


class Memory:
    """Remembers floors and retries of each process."""

    def __init__(self) -> None:
        self._looked = -math.inf
        self._processes: dict[Rank, _Process] = {}
        self._named: dict[str, Rank] = {}

    def look(self, view: RunView) -> None:
        """Note what each rank holds, every ten seconds."""
        if view.now - self._looked < EVERY_SECONDS:
            return
        self._looked = view.now
        before, self._processes = self._processes, {}
        for rank in view.alive:
            steps = rank.series.total(catalog.TRAIN_STEPS.key) or 0.0
            known = before.get(rank)
            process = known if known is not None and known.steps <= steps else _Process()
            process.look(rank, steps, view.now)
            self._processes[rank] = process

    def samples(self, view: RunView) -> Iterator[Sample]:
        """Yield what is amiss, with the rank where it is most so; and the least room that an allocator has."""
        leaking: set[Rank] = set()
        for kind in KINDS:
            slopes = {rank: slope for rank, process in self._processes.items() if (slope := process.slope(kind))}
            leaking |= slopes.keys()
            for (run, rank, *place), slope in self._worst(catalog.RUN_MEMORY_LEAK.name + kind, slopes):
                value = slope if kind == "gpu" else sum(slopes.values())
                yield Sample(catalog.RUN_MEMORY_LEAK, (run, rank, *place, kind), value)
        if leaking:
            yield Sample(catalog.RUN_MEMORY_LEAKING, (view.run,), len(leaking))
        retries = {rank: process.retries for rank, process in self._processes.items() if process.retries > 0}
        for labels, value in self._worst(catalog.RUN_MEMORY_RETRIES.name, retries):
            yield Sample(catalog.RUN_MEMORY_RETRIES, labels, value)
        fragmented = shares(view, catalog.TRAIN_MEMORY_INACTIVE.key)
        fragmented = {rank: share for rank, share in fragmented.items() if share >= FRAGMENTED}
        for labels, value in self._worst(catalog.RUN_MEMORY_FRAGMENTED.name, fragmented):
            yield Sample(catalog.RUN_MEMORY_FRAGMENTED, labels, value)
        if peaks := shares(view, catalog.TRAIN_MEMORY_PEAK.key):
            yield Sample(catalog.RUN_MEMORY_PEAK, (view.run,), max(peaks.values()))

    def _worst(self, what: str, values: Mapping[Rank, float]) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the labels and the value of the rank with most: the one named before, while it has half as much."""
        if not values:
            self._named.pop(what, None)
            return
        rank = max(values, key=values.__getitem__)
        before = self._named.get(what)
        if before is not None and 2 * values.get(before, 0.0) >= values[rank]:
            rank = before
        self._named[what] = rank
        yield (*rank.key, *rank.place), values[rank]


def shares(view: RunView, key: str) -> Mapping[Rank, float]:
    """Return a gauge of each rank that runs, as a share of the GPU memory that its allocator holds."""
    found = {}
    for rank in view.running:
        held, value = gauge(rank, catalog.TRAIN_MEMORY_RESERVED.key), gauge(rank, key)
        if held and value is not None:
            found[rank] = value / held
    return found


def fullest(view: RunView, sizes: Mapping[str, float]) -> tuple[Rank, float] | None:
    """Return the rank whose tensors took most of its GPU's memory, and the share, if that is nearly all of it."""
    peaks = {rank: gauge(rank, catalog.TRAIN_MEMORY_PEAK.key) for rank in view.running}
    found = {
        rank: peak / size for rank, peak in peaks.items() if peak is not None and (size := sizes.get(rank.place[1]))
    }
    rank = max(found, key=found.__getitem__, default=None)
    return (rank, found[rank]) if rank is not None and found[rank] >= MEMORY_FULL_RATIO else None
