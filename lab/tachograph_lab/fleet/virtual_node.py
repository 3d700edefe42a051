"""The real exporter on a simulated node: real frames in, real samples out, no socket, on the simulation's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tachograph.node.app import Exporter
from tachograph.node.clock import Clock
from tachograph.node.config import read_config
from tachograph.node.histograms import HistogramSample
from tachograph.node.ranks import rank_ends
from tachograph.node.ranks.frames import BoxPart, Bye, FrameError, Hello, Peer, State, decode
from tachograph.node.ranks.run_names import RunNames
from tachograph.node.ranks.saved_totals import SavedTotals
from tachograph.node.samples import Sample
from tachograph_lab.fleet.cluster_node import ClusterNode
from tachograph_lab.fleet.messages import RankMessage
from tachograph_lab.fleet.simulated_node import SimulatedNode
from tachograph_lab.scenario.definition import USUAL_OWNER

TICK_SECONDS = 2.5
"""An exporter whose ticks are more than 3 s apart concludes that it was itself suspended."""


class VirtualNode:
    """One exporter process on a node; `clock` returns Unix seconds.

    It runs with the defaults of a real exporter, unless `flags` say otherwise.
    For a restarted exporter make a new VirtualNode, with the `memory` of the previous one unless the node was rebooted.
    However far the clock advances between two calls, the exporter ticks in between, so that silent ranks are noticed.
    """

    def __init__(
        self,
        node: SimulatedNode | ClusterNode,
        clock: Callable[[], float],
        memory: SavedTotals | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._clock = clock
        self._now = self._ticked = clock()
        own = Clock(monotonic=self._time, wall=lambda: self._now + node.ahead)
        config = read_config(("--socket=/nowhere/rank.sock", *flags), {})
        names = RunNames(config.run_owner, own_uid=USUAL_OWNER, user=lambda _: None)
        self._exporter = Exporter(config, node.gpus, own, names, node)
        if memory is not None:
            self._exporter.table.restore(memory)

    @property
    def memory(self) -> SavedTotals:
        """The state that the next exporter on this node finds in the state file."""
        return self._exporter.table.saved(boot="")

    def receive(self, message: RankMessage) -> None:
        """Receive a frame from a rank, or the end of its connection."""
        self._catch_up()
        table, link = self._exporter.table, message.connection
        if message.frame is None:
            rank = table.lost(link, unsure=True)
            if rank is not None:
                rank_ends.gone(rank, None if message.exit_code is None else message.exit_code << 8)
            return
        table.heard(link)
        try:
            frame = decode(message.frame)
            if isinstance(frame, Hello):
                table.hello(link, frame, Peer(message.uid, frame.pid))
            elif isinstance(frame, Bye):
                table.bye(link, frame)
            elif isinstance(frame, BoxPart):
                table.box(link, frame)
            elif isinstance(frame, State):
                table.state(link, frame)
        except FrameError as error:
            table.rejected[error.reason] += 1
        else:
            table.frames += 1

    def tick(self) -> None:
        """Run the exporter's tick, which it does once a second."""
        self._catch_up()
        self._exporter.table.tick()
        self._exporter.look_at_hardware()

    def samples(self) -> Iterator[Sample | HistogramSample]:
        """Yield the samples of a scrape now."""
        self._catch_up()
        return iter(self._exporter.samples())

    def api_node(self) -> str:
        """Return what its `/api/node` answers now."""
        self._catch_up()
        return self._exporter.api_node()

    def _time(self) -> float:
        return self._now

    def _catch_up(self) -> None:
        now = self._clock()
        while self._ticked + TICK_SECONDS <= now:
            self._now = self._ticked = self._ticked + TICK_SECONDS
            self._exporter.table.tick()
            self._exporter.look_at_hardware()
        self._now = now
