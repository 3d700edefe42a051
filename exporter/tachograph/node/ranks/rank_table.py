"""The ranks of this node: their owners, their states, and how long they are remembered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tachograph.catalog import index as catalog
from tachograph.node.clock import Clock
from tachograph.node.histograms import HistogramSample
from tachograph.node.ranks import rank_ends
from tachograph.node.ranks.boxes import Boxes
from tachograph.node.ranks.conclusions.run import RunConclusions
from tachograph.node.ranks.conclusions.view import RunView
from tachograph.node.ranks.coverage import UnrecordedProcesses
from tachograph.node.ranks.earlier_processes import EarlierProcess, EarlierProcesses
from tachograph.node.ranks.frames import BoxPart, Bye, FrameError, Hello, Peer, State, Supervision, Welcome
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.rank_gpus import GpuFacts, RankGpus
from tachograph.node.ranks.run import Run
from tachograph.node.ranks.run_names import MAX_SHOWN_BYTES, RunNames
from tachograph.node.ranks.saved_ranks import ended_before
from tachograph.node.ranks.saved_totals import VERSION, SavedTotals
from tachograph.node.ranks.shares import Shares
from tachograph.node.ranks.silent_ranks import look_at_processes
from tachograph.node.ranks.stack_memory import StackMemory
from tachograph.node.ranks.supervisors import SUPERVISOR, Supervisors
from tachograph.node.samples import Sample
from tachograph.wire import MAX_BOX_REASON_BYTES, cut, fits

RECONNECTED_SECONDS = 5.0
"""After a restart of the exporter living ranks are back by then, and those that had ended before are shown again: not
sooner, or a run would look as if nobody were left of it."""
LONGEST_TICK = 3.0
"""If two ticks are further apart, the exporter itself did not run: the silence of its ranks does not count, nor does
their time without a step beyond this."""

CAPTURE_SECONDS = 10.0
"""How often, at most, the ranks of a run are asked for their boxes: taking one holds a rank's Python for a moment."""


class RankTable:
    """Every rank known on this node; a link is any object that represents a connection."""

    def __init__(self, limits: Limits, clock: Clock, gpus: GpuFacts, names: RunNames | None = None) -> None:
        self._limits = limits
        self._names = names or RunNames("never")
        self._clock = clock
        self.gpus = RankGpus(gpus, clock)
        self._runs: dict[str, Run] = {}
        self._by_link: dict[object, Rank] = {}
        self._said_bye: dict[object, Rank] = {}
        """The ranks of open connections that have said bye: the box of a failure comes after it."""
        self._earlier = EarlierProcesses()
        self._ticked = self._restored = clock.monotonic()
        self.site_limits: Mapping[str, float] = {}
        """The site's limits by name, for runs that set none of their own."""
        self.shares = Shares(clock.monotonic)
        self.kept_sums: Mapping[str, list[Sample | HistogramSample]] | None = None
        """The sums over each run as last saved. Only these are shown, since a sum that falls at a restart would look
        like a counter reset. None without a state file: current sums are shown."""
        self.frames = 0
        self.rejected: Counter[str] = Counter(dict.fromkeys(catalog.REJECT_REASONS, 0))
        self.dropped: Counter[str] = Counter(dict.fromkeys(catalog.DROP_REASONS, 0))
        self.boxes = Boxes(
            clock=clock.monotonic, is_known=self._runs.__contains__, dropped=self.dropped, exceeded=self.shares.exceeded
        )
        """The last boxes of each rank; they outlive the ranks."""
        self._supervisors = Supervisors(limits)

    def hello(self, link: object, hello: Hello, peer: Peer) -> Welcome:
        """Bind a connection to a rank; raise FrameError if the sender may not claim the rank or its run.

        Everything that can fail is done before anything changes.
        """
        hello = hello.shown_as(self._names.shown(hello, peer, self._has_ranks))
        old = self._claimable(link, hello, peer)
        if old is not None and not old.same_process(hello, peer):
            rank_ends.gone(old)
        run = self._runs.get(hello.run) or self._new_run(hello, peer.uid)
        absent = run.absent.get(hello.rank)
        rank = run.speaker(link, hello, peer, self._limits, self.dropped)
        if old is None:
            self._make_room(peer.uid)
        self._runs[hello.run] = run
        run.absent.pop(hello.rank, None)
        same = rank is old or (absent is not None and absent.is_of(hello, peer))
        earlier = self._earlier.pop(peer.uid, hello.run, hello.rank)
        if old is not None:
            earlier = EarlierProcess.of(old)
        elif absent is not None:
            earlier = EarlierProcess.restored(absent)
        last_step = ended = ago = None
        if earlier is not None and earlier.continues_in(hello):
            last_step, ended = earlier.step, earlier.heartbeat
            ago = None if earlier.heard is None else max(0.0, self._clock.monotonic() - earlier.heard)
        if same and (old is None or old.link is not None or not (old.outcome or old.lost)):
            ended = ago = None  # the process never ended, only this exporter or the connection did
        superseded = None
        if old is not None and old.link is not None:
            del self._by_link[old.link]
            superseded = old.link if old.link is not link else None
        if rank is old:
            rank.apply_hello(hello, peer, link)
        else:
            run.ranks[hello.rank] = rank
            rank.began = rank.began or self._clock.monotonic()
            self.shares.of(peer.uid).series += rank.series.size - (old.series.size if old is not None else 0)
            run.restarts.pop(hello.rank, None)
        rank.name(self.shares.of(peer.uid).names)
        self._by_link[link] = rank
        self._said_bye.pop(link, None)
        self.heard(link)
        self.gpus.place([rank])
        return Welcome(last_step, ended, ago, superseded, hello.run)

    def is_owner_awaited(self, uid: int) -> bool:
        """Return whether a first hello should wait, because its user's name is being looked up."""
        return self._names.is_awaited(uid, self._has_ranks)

    def is_role_awaited(self, hello: Hello, peer: Peer) -> bool:
        """Return whether this hello should wait, because it is being looked up whether its run is a user's name."""
        return self._names.is_role_awaited(hello, peer, self._has_ranks)

    def _has_ranks(self, who: int | str) -> bool:
        """Return whether a user has ranks, by uid, or a run has ranks with roles, by name."""
        return any(
            run.ranks and (name.startswith(f"{who}/") if isinstance(who, str) else run.owner == who)
            for name, run in self._runs.items()
        )

    def _new_run(self, hello: Hello, owner: int) -> Run:
        self.boxes.drop_of_others(hello.run, owner)
        return Run(owner, hello.role)

    def _claimable(self, link: object, hello: Hello, peer: Peer) -> Rank | None:
        """Return the rank that a hello may take over, None if there is none yet; raise FrameError if it may not."""
        bound = self._by_link.get(link)
        if bound is not None and bound.key != (hello.run, str(hello.rank)):
            raise FrameError("invalid", f"this connection already speaks for rank {bound.key[1]} of run {bound.key[0]}")
        run = self._runs.get(hello.run)
        are_awaited = self._clock.monotonic() - self._restored <= RECONNECTED_SECONDS
        return None if run is None else run.claimable(link, hello, peer, are_awaited=are_awaited)

    def watch_process(self, link: object, memory: StackMemory | None) -> None:
        """Look at the process of a connection's rank where it is silent; it leaves its stacks in this memory."""
        self._speaker(link).watch_process(memory)

    def state(self, link: object, state: State) -> None:
        """Apply a rank's state; raise FrameError if the connection has not said hello."""
        rank = self._speaker(link)
        run = self._runs[rank.hello.run]
        share, held = self.shares.of(rank.peer.uid), rank.series.size
        refused, dropped = share.names.refused, self.dropped["series_limit"]
        run.totals.add(rank.apply(state, self._clock.monotonic(), self._limits.series - share.series + held))
        share.series += rank.series.size - held
        if self.dropped["series_limit"] != dropped:
            self._note_dropped(rank.peer.uid, self.dropped["series_limit"] - dropped, share.names.refused - refused)
        run.take(rank, state)

    def _note_dropped(self, uid: int, series: int, names: int) -> None:
        """Charge series dropped from a frame to their user, unless the limit of one rank was what they exceeded.

        `names` of them were new ones, which were charged when they were refused.
        """
        if series > names and self.shares.of(uid).series >= self._limits.series:
            self.shares.exceeded(uid, "series", series - names)

    def box(self, link: object, part: BoxPart) -> None:
        """Take a part of a rank's box, also after its bye; raise FrameError if it does not fit the parts before it."""
        rank = self._said_bye.get(link) or self._speaker(link)
        run = self._runs.get(rank.hello.run)
        if run is None or run.owner != rank.peer.uid:
            raise FrameError("owner", f"run {rank.hello.run} is not yours any more")
        self.boxes.add(rank.peer.uid, rank.hello, part)

    def supervised(self, said: Supervision, peer: Peer) -> None:
        """Take what the supervisor of a run says of itself; raise FrameError if the run is another user's."""
        name = self._names.shown(said.hello(), peer, self._has_ranks)
        if (run := self._runs.get(name)) is not None and run.owner != peer.uid:
            raise FrameError("owner", f"run {name} belongs to uid {run.owner}, you are uid {peer.uid}")
        if (named := self.shares.of(peer.uid).names.rank(name, SUPERVISOR, "")) is None:
            raise FrameError("rank_limit", "you have had too many new names on this node: wait an hour")
        self._supervisors.take(name, peer.uid, said, named, self._clock.monotonic())

    def capture(self, name: str, reason: str) -> int:
        """Ask every connected rank of a run for its box, at most once in CAPTURE_SECONDS; return how many were asked.

        Sooner than that nobody is asked again, and the number is that of the request before.
        """
        run, now = self._runs.get(name), self._clock.monotonic()
        if run is None:
            return 0
        if run.captured is None or now - run.captured[0] >= CAPTURE_SECONDS:
            return run.capture(cut(reason, MAX_BOX_REASON_BYTES), now)
        self.shares.exceeded(run.owner, "captures")
        return run.captured[1]

    def bye(self, link: object, bye: Bye) -> Rank:
        """End a rank that shuts down in an orderly way, and return it; the connection may say hello again."""
        rank = self._speaker(link)
        self._said_bye[link] = self._by_link.pop(link)
        rank_ends.said_bye(rank, bye, self._clock.monotonic())
        return rank

    def lost(self, link: object, *, unsure: bool = False, lives: bool = False) -> Rank | None:
        """Note the end of a connection; return its rank if it had not said bye.

        Where its process `lives`, that is no end: the rank may come back, and is frozen if it does not. Else it died;
        where that is `unsure`, `rank_ends.gone` will say how it ended.
        """
        self._said_bye.pop(link, None)
        rank = self._by_link.pop(link, None)
        if rank is not None:
            rank.link = None
            if not lives:
                self.ended_alone(rank)
                if not unsure:
                    rank_ends.gone(rank)
        return rank

    def ended_alone(self, rank: Rank) -> bool:
        """Note that the process of a rank without a connection has ended; return whether that is news."""
        run = self._runs.get(rank.hello.run)
        if rank.link is not None or rank.outcome or run is None or run.ranks.get(rank.hello.rank) is not rank:
            return False
        rank.lose(self._clock.monotonic(), self._clock.wall())
        return True

    def heard(self, link: object) -> None:
        """Note that a connection sent something, whatever it was."""
        if (rank := self._by_link.get(link)) is not None:
            rank.heard, rank.heartbeat = self._clock.monotonic(), self._clock.wall()

    def _speaker(self, link: object) -> Rank:
        rank = self._by_link.get(link)
        if rank is None:
            raise FrameError("no_hello", "this connection speaks for no rank: say hello first")
        return rank

    def tick(self) -> None:
        """Forget ranks past their retention, find the GPUs of the others, and conclude; call it about once a second."""
        now = self._clock.monotonic()
        self.boxes.drop_old()
        while self._names.users.refused:
            self.shares.exceeded(self._names.users.refused.pop(), "owner_lookups")
        self._supervisors.forget_old(now)
        gap, self._ticked = now - self._ticked, now
        for rank in list(self.ranks()):
            if rank.ended is None and gap > LONGEST_TICK:
                rank.heard = min(now, rank.heard + gap)
                rank.skip(gap - LONGEST_TICK, now)
            rank.states.add(self.state_of(rank))
            if rank.ended is not None and now - rank.ended > self._retention(rank):
                self._forget(rank)
            elif rank.named is None and rank.ended is None:
                rank.name(self.shares.of(rank.peer.uid).names)
        if now - self._restored > RECONNECTED_SECONDS:
            self._show_ended(now)
        if now - self._restored > self._limits.retention:
            for name, run in list(self._runs.items()):
                run.absent.clear()  # they did not come back
                self._drop_empty(name)
        self.gpus.place(rank for rank in self.ranks() if rank.ended is None)
        frozen = [rank for rank in self.ranks() if self.state_of(rank) == "frozen"]
        look_at_processes(frozen, self.shares, now)
        for name, run in self._runs.items():
            if run.ranks:
                began = time.thread_time()
                run.conclusions.look(self.view(name, run))
                self.shares.of(run.owner).spend(time.thread_time() - began)

    def _show_ended(self, now: float) -> None:
        """Show the ranks again that had ended before this exporter started, as long as any others."""
        for name, run in self._runs.items():
            for number, process in list(run.absent.items()):
                if process.end is None or number in run.ranks:
                    continue
                rank = ended_before(name, process, process.end, self._limits, self.dropped, role=run.role)
                if now - process.end.ended > self._retention(rank):
                    continue
                del run.absent[number]
                run.ranks[number] = rank
                share = self.shares.of(rank.peer.uid)
                share.series += rank.series.size
                rank.name(share.names)

    def _retention(self, rank: Rank) -> float:
        return self._limits.retention_finished if rank.outcome == "finished" else self._limits.retention

    def _make_room(self, uid: int) -> None:
        """Forget a rank of a user if the user or node is at its limit: a finished one, else the one that ended first,
        else one without a connection.
        """  # noqa: D205
        own = [rank for rank in self.ranks() if rank.peer.uid == uid]
        everybody = sum(len(run.ranks) for run in self._runs.values())
        if len(own) < self._limits.ranks and everybody < self._limits.node_ranks:
            return
        ended = [(rank.outcome != "finished", rank.ended, index) for index, rank in enumerate(own) if rank.ended]
        lost = [rank for rank in own if rank.link is None]
        if ended:
            self._forget(own[min(ended)[2]])
        elif lost:  # their process lives, and may come back
            self._forget(min(lost, key=lambda rank: rank.heard))
        elif len(own) >= self._limits.ranks:
            self.shares.exceeded(uid, "ranks")
            raise FrameError("rank_limit", f"you already have {len(own)} live ranks on this node (limits.ranks)")
        else:
            raise FrameError("rank_limit", f"this node already has {everybody} ranks (4 × limits.ranks)")

    def _forget(self, rank: Rank) -> None:
        run = self._runs[rank.hello.run]
        self.shares.of(rank.peer.uid).series -= rank.series.size
        self._earlier.remember(run.owner, rank.hello.run, rank.hello.rank, EarlierProcess.of(rank))
        run.forget(rank)
        self._drop_empty(rank.hello.run)

    def _drop_empty(self, name: str) -> None:
        if not self._runs[name].ranks and not self._runs[name].absent:
            del self._runs[name]

    def saved(self, boot: str) -> SavedTotals:
        """Return what the next exporter on this node needs to continue from here."""
        return SavedTotals(
            version=VERSION,
            boot=boot,
            runs=[run.saved(name) for name, run in self._runs.items()],
            lives=self._earlier.saved(),
        )

    def restore(self, saved: SavedTotals) -> None:
        """Load what a previous exporter saved; call it before any rank connects."""
        for run in saved.runs:
            if run.run and fits(run.run, MAX_SHOWN_BYTES):
                self._runs[run.run] = Run.restored(run)
        for life in saved.lives:
            self._earlier.restore(life)
        self._restored = self._clock.monotonic()

    def sums(self) -> dict[str, list[Sample | HistogramSample]]:
        """Return the sums over the ranks of each run."""
        return {name: run.sums(name) for name, run in self._runs.items()}

    def ranks(self) -> Iterator[Rank]:
        """Yield every known rank, run by run in order."""
        for _, run in sorted(self._runs.items()):
            for _, rank in sorted(run.ranks.items()):
                yield rank

    def rank(self, run: str, rank: int) -> Rank | None:
        """Return a known rank."""
        known = self._runs.get(run)
        return None if known is None else known.ranks.get(rank)

    def owner_of(self, run: str) -> int | None:
        """Return whose a run is that is known here, or has left boxes; None for any other."""
        known = self._runs.get(run)
        return self.boxes.owner_of(run) if known is None else known.owner

    def has_run_of(self, uid: int) -> bool:
        """Return whether a user has a run here."""
        return any(run.owner == uid for run in self._runs.values())

    def state_of(self, rank: Rank) -> str:
        """Return one of `catalog.STATES`."""
        if rank.outcome:
            return rank.outcome
        now = self._clock.monotonic()
        if rank.failed_by(now) is not None:
            return "failed"
        return "frozen" if now - rank.heard > self._limits.frozen_after else "running"

    def concluded(self, run: str) -> tuple[RunView, RunConclusions]:
        """Return the facts of a run that has ranks here, at this moment, and what is concluded from them."""
        found = self._runs[run]
        view = self.view(run, found)
        found.conclusions.saves.look(view)
        return view, found.conclusions

    def runs(self) -> list[tuple[str, Run]]:
        """Return every run and its name, in order."""
        return sorted(self._runs.items())

    def of_supervisors(self) -> Iterator[tuple[int, Sequence[Sample]]]:
        """Yield the samples of each supervisor, with its owner."""
        owners = {name: run.owner for name, run in self._runs.items()}
        yield from self._supervisors.blocks(owners, self._clock.monotonic())

    def view(self, name: str, run: Run) -> RunView:
        """Return the facts of a run's ranks at this moment."""
        states = {rank: self.state_of(rank) for _, rank in sorted(run.ranks.items())}
        now, wall = self._clock.monotonic(), self._clock.wall()
        return RunView(name, states, now, wall, self.site_limits, self.gpus.peak_flops_of, run.role)

    def unrecorded(self) -> list[UnrecordedProcesses]:
        """Return the processes, by user, on GPUs on which nothing is recorded."""
        return self.gpus.unrecorded(self.ranks(), lambda uid: self._names.user(uid, self._has_ranks))
