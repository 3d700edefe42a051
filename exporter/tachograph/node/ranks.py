"""The ranks of this node: whose they are, what state they are in, and how long they are remembered."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from tachograph import catalog
from tachograph.node.clock import Clock
from tachograph.node.frames import Bye, FrameError, Hello, State
from tachograph.node.histograms import HistogramSample, RunHistogram
from tachograph.node.limits import Limits
from tachograph.node.peaks import dtype_of, peaks_of
from tachograph.node.rank import Moment, Peer, Rank
from tachograph.node.rank_gpu import Finder
from tachograph.node.readings import GpuIdentity, GpuSnapshot, Sample
from tachograph.node.run_totals import RunTotals
from tachograph.wire import MAX_EVENTS

SETTLING_SECONDS = 3.0
"""What is added up over a run's ranks is withheld this long after the run is first seen: ranks that reconnect one by
one after a restart of the exporter would otherwise look like a counter that falls and then doubles."""

LONGEST_TICK = 3.0
"""Between two ticks further apart the exporter itself did not run: its ranks are not to blame for the silence."""

MAX_LAST_WORDS = 256
MAX_FORGOTTEN = 4096
"""Ranks of which a little is kept after they are forgotten – a requeued job may come back after hours: more than any
node has, fewer than a rude sender makes up."""

_log = logging.getLogger(__name__)


class GpuFacts(Protocol):
    """What the rank table asks of the GPU side."""

    def snapshot(self) -> GpuSnapshot | None:
        """Return the last collection, None before the first."""
        ...

    def gpus(self) -> Sequence[GpuIdentity]:
        """Return the GPUs known on this node, also those that cannot be read now."""
        ...

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        """Return the GPU that a process of this node computes on, None where that is none or more than one."""
        ...

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        """Return a GPU's dense peak FLOP/s, or None where the part is not in the table."""
        ...


class Life(NamedTuple):
    """What is remembered of a process of a rank: its step, when it was last heard (Unix), and how it ended."""

    step: int | None
    heartbeat: float
    attempt: int
    finished: bool

    @classmethod
    def of(cls, rank: Rank) -> Life:
        """Return the life of a rank so far."""
        return cls(rank.step, rank.heartbeat, rank.hello.attempt, rank.outcome == "finished")

    def goes_on(self, hello: Hello) -> bool:
        """Return whether a hello goes on with it: not after a finish, unless it calls itself a later attempt."""
        return not self.finished or hello.attempt > self.attempt


class Welcome(NamedTuple):
    """The answer to an accepted hello."""

    last_step: int | None
    ended: float | None
    """Unix seconds when an earlier process of this rank was last heard, None where none is known."""
    superseded: object | None
    """The connection that spoke for this rank until now."""


class Run:
    """One run on this node; it belongs to the uid whose rank said hello first."""

    def __init__(self, owner: int, first_seen: float) -> None:
        self.owner = owner
        self.first_seen = first_seen
        self.ranks: dict[int, Rank] = {}
        self.histograms: dict[str, RunHistogram] = {}
        self.totals = RunTotals()
        self.restarts: dict[int, int] = {}
        """Of ranks that were forgotten, while others of the run are known."""


class RankTable:
    """Every rank this node knows; a link is any object that stands for a connection."""

    def __init__(self, limits: Limits, clock: Clock, gpus: GpuFacts) -> None:
        self._limits = limits
        self._clock = clock
        self._gpus = gpus
        self._runs: dict[str, Run] = {}
        self._by_link: dict[object, Rank] = {}
        self._past: dict[tuple[int, str, int], Life] = {}
        self._ticked = clock.monotonic()
        self._without_peak: set[str] = set()
        self.frames = 0
        self.rejected: Counter[str] = Counter(dict.fromkeys(catalog.REJECT_REASONS, 0))
        self.dropped: Counter[str] = Counter(dict.fromkeys(catalog.DROP_REASONS, 0))
        self.moments: deque[Moment] = deque(maxlen=MAX_EVENTS)

    def hello(self, link: object, hello: Hello, peer: Peer) -> Welcome:
        """Bind a connection to a rank; raise FrameError where the rank or its run is not the sender's to claim."""
        old = self._claimable(link, hello, peer)
        if old is None:
            self._make_room()
        run = self._runs.setdefault(hello.run, Run(peer.uid, self._clock.monotonic()))
        superseded = None
        same = old is not None and old.same_process(hello, peer)
        earlier = self._past.pop((peer.uid, hello.run, hello.rank), None) if old is None else Life.of(old)
        last_step = ended = None
        if earlier is not None and earlier.goes_on(hello):
            last_step, ended = earlier.step, earlier.heartbeat
        if same and old is not None and old.link is not None:
            ended = None
        if old is not None and old.link is not None:
            del self._by_link[old.link]
            superseded = old.link if old.link is not link else None
        if old is not None and same and old.outcome in ("", "dead"):
            rank = old
            rank.greet(hello, peer, link)
        else:
            rank = run.ranks[hello.rank] = self._successor(run, old, hello, peer, link)
        self._by_link[link] = rank
        self.heard(link)
        self._seat([rank])
        return Welcome(last_step, ended, superseded)

    def _successor(self, run: Run, old: Rank | None, hello: Hello, peer: Peer, link: object) -> Rank:
        """Return a rank for a process that is not the one known so far."""
        lives = run.restarts.pop(hello.rank, None) if old is None else old.restarts
        rank = Rank(hello, peer, link, self._limits, self.dropped, restarts=0 if lives is None else lives + 1)
        rank.since = self._clock.monotonic()
        if old is not None:
            rank.states |= old.states
        return rank

    def _claimable(self, link: object, hello: Hello, peer: Peer) -> Rank | None:
        """Return the rank that a hello may take over, None where there is none yet; raise FrameError if it may not."""
        bound = self._by_link.get(link)
        if bound is not None and bound.key != (hello.run, str(hello.rank)):
            raise FrameError("invalid", f"this connection already speaks for rank {bound.key[1]} of run {bound.key[0]}")
        run = self._runs.get(hello.run)
        if run is None:
            return None
        if run.owner != peer.uid:
            raise FrameError("owner", f"run {hello.run} belongs to uid {run.owner}, you are uid {peer.uid}")
        old = run.ranks.get(hello.rank)
        if old is None or old.link in (None, link) or old.same_process(hello, peer):
            return old
        if hello.attempt <= old.hello.attempt:
            raise FrameError(
                "conflict",
                f"rank {hello.rank} of run {hello.run} is held by pid {old.peer.pid or old.hello.pid} in attempt "
                f"{old.hello.attempt}: give another run name or rank, or a higher attempt",
            )
        return old

    def state(self, link: object, state: State) -> None:
        """Take over a rank's state; raise FrameError where the connection has not said hello."""
        rank = self._speaker(link)
        run = self._runs[rank.hello.run]
        run.totals.add(rank.tell(state, self._clock.monotonic()))
        for key, now, before in rank.observations(state):
            run.histograms.setdefault(key, RunHistogram()).add(now, before)
        self.moments.extend(Moment(rank.hello.run, rank.hello.rank, event) for event in rank.news(state))

    def bye(self, link: object, bye: Bye) -> Rank:
        """End a rank in its right mind and return it; the connection may say hello again."""
        rank = self._speaker(link)
        del self._by_link[link]
        words = ": ".join(text[:MAX_LAST_WORDS] for text in (bye.category, bye.message) if text)
        rank.end(bye.outcome, self._clock.monotonic(), words)
        if bye.outcome == "failed":
            rank.series.fail(bye.category)
        return rank

    def lost(self, link: object) -> Rank | None:
        """Note the end of a connection; return the rank that died with it, if one did."""
        rank = self._by_link.pop(link, None)
        if rank is not None:
            rank.end("dead", self._clock.monotonic())
            rank.heartbeat = self._clock.wall()  # its last sign of life: who ended first is told by it
        return rank

    def heard(self, link: object) -> None:
        """Note that a connection spoke, whatever it said."""
        if (rank := self._by_link.get(link)) is not None:
            rank.heard, rank.heartbeat = self._clock.monotonic(), self._clock.wall()

    def _speaker(self, link: object) -> Rank:
        rank = self._by_link.get(link)
        if rank is None:
            raise FrameError("no_hello", "this connection speaks for no rank: say hello first")
        return rank

    def tick(self) -> None:
        """Forget ranks whose time is over, and look where the others sit; call it about once a second."""
        now = self._clock.monotonic()
        gap, self._ticked = now - self._ticked, now
        for rank in list(self.ranks()):
            if rank.ended is None:
                if gap > LONGEST_TICK:
                    rank.heard = min(now, rank.heard + gap)
            elif now - rank.ended > self._retention(rank):
                self._forget(rank)
        self._seat(rank for rank in self.ranks() if rank.ended is None)

    def _seat(self, ranks: Iterable[Rank]) -> None:
        """Find where living ranks sit, again and again: NVML lists a process once it uses CUDA, and pids come back."""
        finder = Finder(self._gpus.gpus(), self._gpus.gpu_of_pid, self._mig_parents)
        for rank in ranks:
            rank.seat.look(finder, rank.hello, rank.peer.pid, rank.left)
            self._tell_of_peak(rank)

    def _tell_of_peak(self, rank: Rank) -> None:
        """Log a device of which no peak is known, once, where that costs a rank its MFU."""
        gpu = rank.seat.gpu
        if gpu is None or not gpu.name or gpu.name in self._without_peak or rank.peak_flops is not None:
            return
        if dtype_of(rank.precision) not in peaks_of(gpu.name):
            self._without_peak.add(gpu.name)
            _log.warning(
                "no peak FLOP/s known, so no MFU: give peak_flops= to Recorder, or facts.peak_flops in the hello",
                extra={"device": gpu.name, "precision": rank.precision, "run": rank.hello.run},
            )

    def _mig_parents(self) -> Mapping[str, str]:
        snapshot = self._gpus.snapshot()
        rows = [sample.labels for sample in snapshot.samples if sample.metric is catalog.MIG_INFO] if snapshot else []
        return {mig_uuid: uuid for _, uuid, _, mig_uuid, _ in rows}

    def _retention(self, rank: Rank) -> float:
        return self._limits.retention_finished if rank.outcome == "finished" else self._limits.retention

    def _make_room(self) -> None:
        ranks = list(self.ranks())
        if len(ranks) >= self._limits.ranks:
            ended = [(rank.ended, position) for position, rank in enumerate(ranks) if rank.ended is not None]
            if not ended:
                raise FrameError("rank_limit", f"this node already has {len(ranks)} live ranks (limits.ranks)")
            self._forget(ranks[min(ended)[1]])

    def _forget(self, rank: Rank) -> None:
        run = self._runs[rank.hello.run]
        del run.ranks[rank.hello.rank]
        self._past[run.owner, rank.hello.run, rank.hello.rank] = Life.of(rank)
        if len(self._past) > MAX_FORGOTTEN:
            del self._past[next(iter(self._past))]
        if len(run.restarts) < MAX_FORGOTTEN:
            run.restarts[rank.hello.rank] = rank.restarts
        if not run.ranks:
            del self._runs[rank.hello.run]

    def ranks(self) -> Iterator[Rank]:
        """Yield every known rank, run by run in order."""
        for _, run in sorted(self._runs.items()):
            for _, rank in sorted(run.ranks.items()):
                yield rank

    def state_of(self, rank: Rank) -> str:
        """Return one of `catalog.STATES`."""
        if rank.outcome:
            return rank.outcome
        return "frozen" if self._clock.monotonic() - rank.heard > self._limits.frozen_after else "running"

    def gpu_of(self, rank: Rank) -> str:
        """Return the index of a rank's GPU, empty where this node does not know it."""
        return rank.seat.gpu.index if rank.seat.gpu is not None else ""

    def samples(self) -> Iterator[Sample | HistogramSample]:
        """Yield all that the ranks show now, and what was refused or dropped."""
        self.tick()
        now = self._clock.monotonic()
        for rank in self.ranks():
            gpu = rank.seat.gpu
            peak = self._gpus.peak_flops(gpu.uuid, rank.precision) if gpu is not None else None
            yield from rank.samples(now, self.state_of(rank), peak)
        for name, run in sorted(self._runs.items()):
            if now - run.first_seen >= SETTLING_SECONDS:
                yield from run.totals.samples(name)
                for key, histogram in run.histograms.items():
                    yield histogram.sample(catalog.TRAIN_HISTOGRAMS[key], (name,))
        yield Sample(catalog.FRAMES, (), self.frames)
        for metric, counts in ((catalog.FRAMES_REJECTED, self.rejected), (catalog.SERIES_DROPPED, self.dropped)):
            for reason, count in counts.items():
                yield Sample(metric, (reason,), count)
