"""One rank, as represented by its present process: its hello, its last state, and its samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from tachograph.catalog import index as catalog
from tachograph.node.histograms import MOST, Buckets
from tachograph.node.process_status import numbers
from tachograph.node.ranks.claims import Claims
from tachograph.node.ranks.frames import Event, Hello, Peer, State
from tachograph.node.ranks.gpu_placement import DeviceGrant, GpuPlacement
from tachograph.node.ranks.iterations import Iterations
from tachograph.node.ranks.last_words import SILENCE, EarlierEnd, LastWords, last_words
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.names import NamedRank, NewNames
from tachograph.node.ranks.raised import Raised, known_reason, raised
from tachograph.node.ranks.rank_histograms import RankHistograms
from tachograph.node.ranks.rank_progress import RankProgress
from tachograph.node.ranks.recent_steps import RecentSteps
from tachograph.node.ranks.run_totals import CounterDelta
from tachograph.node.ranks.save_times import SaveTimes
from tachograph.node.ranks.saved_totals import SavedEnd, SavedProcess
from tachograph.node.ranks.series import RankSeries
from tachograph.node.ranks.stack_memory import StackMemory, StuckProcess
from tachograph.node.ranks.told_moment import ToldMoment
from tachograph.node.ranks.unsaid import Unsaid
from tachograph.processes.process_tree import started_at
from tachograph.text import humanize
from tachograph.wire import MAX_PATH_BYTES, MAX_WHERE_BYTES

MAX_DEVICES_BYTES = 1024
DEFAULT_PRECISION = "bf16"

_PHASES = catalog.TRAIN_PHASE_SECONDS.key
_STEP = catalog.TRAIN_STEP.key
_STEPS = catalog.TRAIN_STEPS.key
_SAVED = catalog.TRAIN_CHECKPOINT_TIMESTAMP.key
_NONFINITE = catalog.TRAIN_LOSS_NONFINITE_TIMESTAMP.key


class Rank:
    """A rank of a run; `link` is its connection, None without one, `outcome` how it ended: dead, failed or finished.

    All times are by the exporter's monotonic clock, but for those whose name says `wall`: what a rank tells by the
    clock of the day is for people to read. `lost` is when its process was gone without a bye: how it ended may be known
    a moment later. `failure_reason` is what it said of that itself, `end_note` what the kernel says.
    `restarts` counts the processes of this rank before this one, which `began` by the monotonic clock, and `first`
    means that none is known; `states` are those of catalog.STATES that a tick found it in.
    """

    def __init__(
        self,
        hello: Hello,
        peer: Peer,
        link: object,
        limits: Limits,
        drops: Counter[str],
        *,
        restarts: int = 0,
        first: bool = True,
    ) -> None:
        self._limits = limits
        self._drops = drops
        self._claims = Claims(drops)
        self.heard = self.heartbeat = 0.0
        self._is_first = first
        self.restarts = restarts
        self.states: set[str] = set()
        self.began = self.looked = 0.0
        self.named: NamedRank | None = None
        """None while its user has had too many new names: then the rank has no series."""
        self.earlier_end: EarlierEnd | None = None
        self.apply_hello(hello, peer, link)
        self._start_again()

    def apply_hello(self, hello: Hello, peer: Peer, link: object) -> None:
        """Apply a hello, the first one or that of a reconnection; all of it is parsed before anything changes."""
        config = tuple(
            self._claims.fact(name, hello.facts.get(name, "")) for name in catalog.TRAIN_CONFIG_INFO.labels[2:]
        )
        peak_flops = self._claims.peak_flops(hello.facts)
        devices = (
            self._claims.text(each, MAX_DEVICES_BYTES) for each in (hello.visible_devices, hello.granted_devices)
        )
        grant, job, own = DeviceGrant(*devices), self._claims.job(hello.job), self._claims.own_metrics(hello.metrics)
        coordinates, thread = self._claims.coordinates(hello.coordinates), self._claims.thread(hello.stacks)
        self.hello, self.peer, self.link = hello, peer, link
        self.ended: float | None = None
        self.ended_at = 0.0
        self.lost: float | None = None
        self.outcome = self.end_reason = self.failure_reason = self.end_note = ""
        self._last_words = SILENCE
        self.key = (hello.run, str(hello.rank))
        self.restarts = max(self.restarts, hello.attempt)
        self.config, self.peak_flops, self.grant, self.job = config, peak_flops, grant, job
        self.own_metrics, self.coordinates = own, coordinates
        self.precision = config[0] or DEFAULT_PRECISION
        self._thread = thread
        self._process: StuckProcess | None = None
        self.own_pid = self.process_started = ""

    def _start_again(self) -> None:
        self.placement = GpuPlacement()
        self.series = RankSeries(self._limits, self._drops)
        if self.named is not None:
            self.series.name(self.named)
        self._recent = RecentSteps()
        self.iterations = Iterations()
        self.saves = SaveTimes()
        self.unsaid = Unsaid()
        self.seq = -1
        self._catching_up = False
        self.step: int | None = None
        self.progressed = RankProgress()
        self._phase_since, self._saved, self._nonfinite = ToldMoment(), ToldMoment(), ToldMoment()
        self.started: float | None = None
        self.started_wall = 0.0
        self.phase: str | None = None
        self._told: float | None = None
        self._skipped = -math.inf, 0.0
        self.dropped = 0
        self.notices: tuple[str, ...] = ()
        self.where = ""
        self.still = 0.0
        self.checkpoint_path = ""
        self._raised: Raised | None = None
        self._last_raised: Raised | None = None
        self._last_event = -1
        self.histograms = RankHistograms(self._drops)

    def name(self, names: NewNames) -> bool:
        """Give the rank series if its user's names have room for them; return whether they had."""
        hello = self.hello
        said = hello.local_rank, hello.world_size, hello.attempt, hello.uuid, self.config, self.job, self.coordinates
        self.named = names.rank(hello.run, hello.rank, str(hash(repr(said))))
        if self.named is not None:
            self.series.name(self.named)
        return self.named is not None

    def watch_process(self, memory: StackMemory | None) -> None:
        """Look at its process where it is silent, which leaves its stacks in this memory, if there is one.

        Note by what it is known within a container: `own_pid`, and when it began, in the kernel's ticks since boot.
        """
        self._process = StuckProcess(self.peer.pid, self._thread, memory)
        if self.peer.pid:
            self.own_pid = str(next(reversed(numbers(self.peer.pid)), ""))
            self.process_started = started_at(self.peer.pid)

    def look_at_process(self, now: float) -> None:
        """Look what its process does, while it is silent."""
        self.looked = now
        if self._process is not None:
            self._process.look()
            if self._process.where:
                self.where = self._labelled("where", self._process.where)

    @property
    def process_state(self) -> str:
        """The state of a process that was silent when it was last looked at, in the kernel's words; "" if unknown."""
        return "" if self._process is None else self._process.state

    def same_process(self, hello: Hello, peer: Peer) -> bool:
        """Return whether a hello comes from the rank's present process, in the same attempt."""
        return (self.peer, self.hello.pid, self.hello.attempt) == (peer, hello.pid, hello.attempt)

    def resume(self, saved: SavedProcess) -> None:
        """Continue from what a previous exporter saved of this process."""
        self.seq, self.step = saved.seq, saved.step
        self.began = self.began if saved.began is None else saved.began
        self.started, self.started_wall = saved.started, saved.started_wall
        self.progressed.resume(saved)
        self.histograms.resume(saved)
        self.series.merged = {key: dict(values) for key, values in saved.merged.items() if key in catalog.TRAIN_METRICS}

    def end_as(self, saved: SavedEnd) -> None:
        """End as its process did while a previous exporter ran."""
        self.ended, self.ended_at = saved.ended, saved.at
        self.outcome, self.end_note = saved.outcome, saved.note
        self.end_reason = known_reason(saved.reason) if saved.outcome == "failed" else saved.reason
        self._last_words = LastWords(saved.category, saved.line)

    def skip(self, seconds: float, now: float) -> None:
        """Leave out seconds in which the exporter did not run, as where its node was suspended."""
        self._skipped = now, seconds
        if self._told is not None:
            self._told = min(now, self._told + seconds)
        for moment in (self.progressed, self._phase_since, self._nonfinite):
            moment.skip(seconds, now)
        if self._raised is not None:
            self._raised = self._raised._replace(seen=min(now, self._raised.seen + seconds))

    def lose(self, now: float, wall: float) -> None:
        """Note that the process is gone without a bye; `wall` is the time of the day."""
        self.link, self.lost = None, now
        self.heard = now
        self.heartbeat = wall  # its last sign of life: shows which rank ended first

    def end(self, outcome: str, now: float) -> None:
        """End the rank as dead or finished."""
        failed = self.failed_by(now)
        self.link, self.outcome, self.ended, self.ended_at = None, outcome, now, now
        self.end_reason = "died" if outcome == "dead" else outcome
        if failed is not None and outcome == "dead":
            self.fail(failed.category, failed.message)
            self.failure_reason = f"{failed.category}: {failed.message}"

    def fail(self, category: str, message: str = "") -> None:
        """Make the end of the rank a failure, since what it raised, if it did."""
        self.outcome, self.end_reason = "failed", known_reason(category)
        self._last_words = self._words(self.end_reason, message)
        self.series.fail(self._last_words.category)
        last = self._last_raised
        if last is not None and (self.progress is None or self.progress <= last.at):
            self.ended_at = min(self.ended_at, last.at)

    def why_failed(self, now: float) -> str:
        """Return why the rank failed, in words, also while its process lives; empty if it did not say so."""
        failed = self.failed_by(now)
        if failed is None:
            return self.failure_reason
        return f"{failed.category}: {failed.message} (its process has not ended)"

    def last_words(self, now: float) -> LastWords:
        """Return what the rank said when it failed, also while its process lives."""
        failed = self.failed_by(now)
        return self._last_words if failed is None else self._words(failed.category, failed.message)

    def died_by(self, signal: str) -> None:
        """Note by which signal a dead rank's process ended, in words: it left none of its own."""
        self._last_words = LastWords(line=signal)

    def failed_by(self, now: float) -> Raised | None:
        """Return what a living rank has failed by: an exception that has held it up for long enough."""
        raised = self._raised
        return raised if raised is not None and not self.outcome and raised.has_failed_it(now) else None

    def follow(self, earlier: Rank) -> None:
        """Continue from an earlier process of this rank: the states it was in, and its end unless it finished."""
        self.states |= earlier.states
        if earlier.ended is not None and earlier.outcome != "finished":
            self.earlier_end = EarlierEnd(
                earlier.ended, earlier.ended_at, earlier.began, earlier.restarts, earlier.end_reason,
                earlier.last_words(earlier.ended), earlier.step,
            )  # fmt: skip

    def apply(self, state: State, now: float, most: int) -> list[CounterDelta]:
        """Apply a state, with at most `most` series; return what it adds to the run's merged families."""
        # If the first frame seen of a process is not its first one, an exporter whose sums are lost has counted it: the
        # sums start at 0 and contain what it adds from now on.
        self._catching_up = self._is_first and self.seq < 0 and state.seq > 1
        if state.seq < self.seq:
            # Pids do not identify processes reliably: in other pid namespaces every container has the same few. A
            # sequence that restarts belongs to another process, whose counts restart too.
            self._start_again()
            self.restarts = min(self.restarts + 1, MOST)
        before, self.seq, self._told = self._told, state.seq, now
        self.step = state.step
        self._note_phase(state, now, before)
        self.dropped = max(self.dropped, state.dropped)
        self.notices = self._claims.notices(state.notices)
        self.where = self._labelled("where", self._claims.text(state.where, MAX_WHERE_BYTES))
        self.still = self._claims.seconds(state.still)
        self.checkpoint_path = self._claims.text(state.checkpoint_path, MAX_PATH_BYTES)
        if self._process is not None:
            self._process.go_on()
        try:
            self._raised = raised(state.raised, self._raised, state.time, now, before)
        except ValueError:
            self._raised = None
            self._drops["wrong_type"] += 1
        self._last_raised = self._raised or self._last_raised
        self.unsaid.count_steps(self.series, state)
        deltas = self.series.take(state.metrics, most)
        self.unsaid.take(self.series, state, now)
        if self._catching_up:
            deltas = [delta._replace(number=0.0) for delta in deltas]
        age = self._counted_age(state.progress_seconds, now)
        self.progressed.take_state(state, self.series.total(_STEPS) or 0.0, now, before, age)
        if state.phase_since is None and state.phase_seconds is None and self.progress is not None:
            self._phase_since.at = max(self._phase_since.at or now, self.progress)
        self._saved.take(self.series.gauge(_SAVED), state.time, now, before)
        self._nonfinite.take(self.series.gauge(_NONFINITE), state.time, now, before)
        self._recent.take(self.series, now, self.progressed.at, self.progressed.wall)
        self.iterations.take(self.series, self.phase, self.phase_seconds(now))
        self.saves.take(self.series, self.phase)
        if self.started is None:
            accounted = self.series.total(_PHASES) or 0.0
            self.started, self.started_wall = now - accounted, state.time - accounted
        if state.step is not None:
            self.series.gauges[_STEP] = {"": state.step}
        return deltas

    def _note_phase(self, state: State, now: float, before: float | None) -> None:
        """Note the phase, and since when: as the rank says, else since it was first heard to be in it."""
        phase = state.phase
        if phase is not None and phase not in catalog.PHASES:
            self._drops["unknown_phase"] += 1
            phase = None
        if phase != self.phase:
            self.phase, self._phase_since = phase, ToldMoment()
        self._phase_since.take(state.phase_since, state.time, now, before, self._counted_age(state.phase_seconds, now))
        if self._phase_since.at is None:
            self._phase_since.at = now

    def _counted_age(self, age: float | None, now: float) -> float | None:
        """Return an age by a rank's monotonic clock without what was left out last."""
        at, seconds = self._skipped
        return age if age is None or age <= now - at else max(now - at, age - seconds)

    def new_events(self, state: State) -> Iterator[Event]:
        """Yield the events of a state that were not seen before."""
        for event in state.events:
            if event.id > self._last_event:
                self._last_event = event.id
                yield event

    def observations(self, state: State) -> Iterator[tuple[str, Buckets, Buckets]]:
        """Yield each histogram of a state: its key, its present and its previous buckets."""
        return self.histograms.take(state.histograms, catching_up=self._catching_up)

    @property
    def pid(self) -> str:
        """Its process as the node numbers it, else as it does itself; "" where neither is known."""
        return str(self.peer.pid or self.hello.pid or "")

    @property
    def place(self) -> tuple[str, str]:
        """The index and the UUID of its GPU, empty where they are not known."""
        gpu = self.placement.gpu
        return (gpu.index, gpu.uuid) if gpu is not None else ("", self.hello.uuid or "")

    @property
    def written_coordinates(self) -> str:
        """Where it is in the run's parallelism, as texts write it; "" for a single coordinate, which is its number."""
        return humanize.coordinates(self.coordinates, "") if len(self.coordinates) > 1 else ""

    @property
    def usual_step_seconds(self) -> float | None:
        """Its usual step when it last made some, however long ago."""
        return self._recent.step_seconds

    @property
    def stood_still(self) -> bool:
        """Whether its recent means are those of a standstill, not of its steps."""
        return self._recent.stood_still

    @property
    def rates(self) -> Mapping[str, float]:
        """The worth of a second of its recent ordinary steps: steps, tokens, samples and FLOPs."""
        return self._recent.rates

    @property
    def progress(self) -> float | None:
        """When its last step was completed; None before the first."""
        return self.progressed.at

    @property
    def saved_at(self) -> float | None:
        """When it last said that it had saved; None if it never did."""
        return self._saved.at if self.series.gauge(_SAVED) is not None else None

    @property
    def nonfinite_at(self) -> float | None:
        """When its loss was last NaN or infinite, as its frames told; None if none did."""
        return self._nonfinite.at

    def phase_seconds(self, now: float) -> float | None:
        """Return the seconds in the current phase, continued by the exporter's clock since the rank's last frame."""
        since = self._phase_since.at
        return None if self.phase is None or self.outcome or since is None else max(0.0, now - since)

    def end_at(self, now: float) -> tuple[float, str] | None:
        """Return when this process ended, which may live on, and why; None if it has not."""
        if self.outcome:
            return self.ended_at, self.end_reason
        failed = self.failed_by(now)
        return None if failed is None else (failed.at, failed.category)

    def last_end(self, now: float) -> tuple[float, str] | None:
        """Return the end of this process, which may live on, or, for a while, of the one before it."""
        earlier = self.earlier_end
        return self.end_at(now) or (None if earlier is None else earlier.shown(now))

    def _words(self, reason: str, message: str) -> LastWords:
        said = last_words(reason, message)
        return said._replace(line=self._labelled("words", said.line))

    def _labelled(self, what: str, text: str) -> str:
        """Return a text that becomes a label while the rank is in its phase; "" where its user's names have no room."""
        if not text or (self.named is not None and self.named.takes(what, f"{self.phase} {text}")):
            return text
        self._drops["series_limit"] += 1
        return ""
