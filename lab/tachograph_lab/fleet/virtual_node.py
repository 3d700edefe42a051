"""The real exporter on a simulated node: real frames in, real samples out, no socket, the simulation's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tachograph.node.app import Exporter
from tachograph.node.clock import Clock
from tachograph.node.config import read_config
from tachograph.node.histograms import HistogramSample
from tachograph.node.ranks.frames import Bye, FrameError, Hello, Peer, decode
from tachograph.node.ranks.saved_totals import SavedTotals
from tachograph.node.samples import Sample
from tachograph_lab.fleet.messages import Word
from tachograph_lab.fleet.nodes import SimulatedNode

_UID = 1000
TICK_SECONDS = 2.5
"""Between two ticks further apart than 3 s an exporter takes itself for the one that was stopped."""


class VirtualNode:
    """One exporter's life on a node; `clock` gives Unix seconds.

    When an exporter is started again, make a new one, with the `memory` of the one before unless the node was booted.
    However far the clock goes between two calls, the exporter ticks on the way, so that silence is seen as silence.
    """

    def __init__(self, node: SimulatedNode, clock: Callable[[], float], memory: SavedTotals | None = None) -> None:
        self._clock = clock
        self._now = self._ticked = clock()
        own = Clock(monotonic=self._time, wall=self._time)
        self._exporter = Exporter(read_config(("--socket=/nowhere/rank.sock",), {}), node.gpus, own)
        if memory is not None:
            self._exporter.table.restore(memory)

    @property
    def memory(self) -> SavedTotals:
        """What the next exporter on this node finds in the state file."""
        return self._exporter.table.saved(boot="")

    def hear(self, word: Word) -> None:
        """Take a line from a rank, or the end of its connection."""
        self._catch_up()
        table, link = self._exporter.table, word.connection
        if word.line is None:
            table.lost(link)
            return
        table.heard(link)
        try:
            frame = decode(word.line)
            if isinstance(frame, Hello):
                table.hello(link, frame, Peer(_UID, frame.pid))
            elif isinstance(frame, Bye):
                table.bye(link, frame)
            else:
                table.state(link, frame)
        except FrameError as error:
            table.rejected[error.reason] += 1
        else:
            table.frames += 1

    def tick(self) -> None:
        """Do what the exporter does once a second."""
        self._catch_up()
        self._exporter.table.tick()

    def samples(self) -> Iterator[Sample | HistogramSample]:
        """Yield what a scrape would show now."""
        self._catch_up()
        return iter(self._exporter.samples())

    def _time(self) -> float:
        return self._now

    def _catch_up(self) -> None:
        now = self._clock()
        while self._ticked + TICK_SECONDS <= now:
            self._now = self._ticked = self._ticked + TICK_SECONDS
            self._exporter.table.tick()
        self._now = now
