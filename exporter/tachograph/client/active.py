"""The implementation of a recorder's calls that records: the parts of one rank, and what connects them."""

# ruff: noqa: D102 - `Recorder` documents the calls

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet, ref

from tachograph.catalog.rank import STEP_TAGS
from tachograph.client.core.arguments import LARGEST, count, flag, location, one_of, path_of, whole
from tachograph.client.core.batches import Batches
from tachograph.client.core.compiled import NOTHING
from tachograph.client.core.garbage import GarbageTag
from tachograph.client.core.misuse import WORD_LENGTH, Misuse, named
from tachograph.client.core.notice import notice, raised_by_signal, shown
from tachograph.client.core.scalars import number as as_number
from tachograph.client.hello.identity import Identity
from tachograph.client.hello.workload import OwnLimits, Workload
from tachograph.client.no_op import NoOpCalls
from tachograph.client.signals.goodput import Goodput
from tachograph.client.torch.collectives import Collective, watch_buckets
from tachograph.client.transport import shutdown
from tachograph.client.transport.failure_reason import FINISHED, FINISHED_AT_EXIT, end_by
from tachograph.client.transport.outputs import Outputs
from tachograph.client.transport.rank_state import RankState
from tachograph.client.transport.sender import Sender, Who
from tachograph.findings.limits import LIMIT_NAMES, LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tachograph.client.core.phases import Phase
    from tachograph.client.signals.invariants import Invariants
    from tachograph.client.transport.interfaces import MetricSource, Sink, Trace


_MISUSES = {"phase": "unknown_phase", "threshold": "unknown_threshold"}
"""The kinds of misuse of words that have one of their own."""


class ActiveCalls(NoOpCalls):
    """Records one rank from `start` to `close`; a call may raise, which the `Recorder` in front of it contains."""

    records = True

    def __init__(
        self,
        identity: Identity,
        workload: Workload,
        misuse: Misuse,
        *,
        device_time: bool,
        total_steps: object,
        mesh: object = None,
    ) -> None:
        self.state = state = RankState(identity, workload, misuse, device_time=device_time)
        self.step, self.clock, self.dropped = state.step, state.clock, state.dropped
        state.coordinates.take(mesh, misuse)
        if total_steps is not None:
            state.step.log(total_steps=total_steps)
        self.sender: Sender | None = None
        self.outputs: Outputs | None = None
        self._watched: WeakSet[Any] = WeakSet()
        self._detach: list[Callable[[], None]] = []
        self._invariants: Invariants | None = None
        self._own_limits = OwnLimits()
        state.sources.add(self._own_limits)
        self._garbage = GarbageTag(state.step, state.clock)

    def start(self, sinks: Sequence[Sink], trace: Trace | None) -> None:
        """Open the outputs, and measure."""
        state = self.state
        state.accelerator.locate()
        goodput = Goodput(
            state.clock, state.step, lambda: self.last_step, self._ended_before, answered=lambda: self.received
        )
        state.observers.add(goodput)
        state.sources.add(goodput)
        self.outputs = Outputs(state, sinks, trace)
        self.phases = self.outputs.phases
        self._garbage.start()

    def connect(self, socket: object) -> None:
        """Send all of it to the exporter, from the start on."""
        path, who = path_of(socket), self.state.identity
        shutdown.make_room(Who(path, who.group, who.rank))
        self.sender = Sender(self.state, path)

    def register(self, forked: Callable[[], None]) -> None:
        """Send a shutdown frame when the process ends; `forked` is called in every child made by fork."""
        if self.sender is not None:
            shutdown.register(self.sender, forked)

    @property
    def last_step(self) -> int | None:
        return self.sender.last_step if self.sender is not None else None

    @property
    def received(self) -> bool:
        return self.sender is not None and self.sender.accepted

    @property
    def bucket_reductions(self) -> int:
        return self.state.collectives.bucket_reductions

    @property
    def identity(self) -> Identity:
        return self.state.identity

    def position(self) -> tuple[int, str]:
        return self.step.next, self.clock.current.name

    def prepare_step(self, number: object, tag: object, accumulating: object) -> None:
        step = self.step
        if number is not None:
            if (given := count(number)) is not None:
                step.next = given
            else:
                self.drop("number of step()")
        if tag is not None:
            if (named := one_of(STEP_TAGS, tag)) is not None:
                step.given = named
            else:
                self.drop("tag", tag, STEP_TAGS)
        if (micro := flag(accumulating)) is None:
            self.drop("accumulating of step()")
        elif micro:
            step.accumulating = True

    def tag(self, name: str) -> None:
        tag = one_of(STEP_TAGS, name)
        if tag is None:
            self.drop("tag", name, STEP_TAGS)
        elif self.step.under_way:
            self.clock.tag = tag
        else:
            self.drop("tag() outside a step")

    def draws_from(self, loader: object, iterator: object) -> None:
        self.state.loaders.began(loader, iterator)

    def count_batches(self, number: int) -> None:
        self.state.batches.count += number

    def trains_here(self) -> None:
        """Show where this thread stands if the run stands still, and no longer where the one before does."""
        self.state.standstill.thread = get_ident()

    def data(self, loader: Iterable[Any]) -> Batches[Any]:
        phase = cast("Phase", self.phases["data"])
        return Batches(loader, phase, self.clock, self.state.batches, self.state.loaders)

    def collective(self, operation: str, payload: int) -> AbstractContextManager[None]:
        size = whole(payload, LARGEST)
        if size is None:
            self.drop("bytes of collective()")
            return NOTHING
        totals = self.state.collectives.marked[operation]
        collective = Collective(self.clock.phases["collective"], totals, size)
        trace = self.outputs.trace if self.outputs is not None else None
        return collective if trace is None else trace.phase(collective, operation)

    def watch(self, model: object, optimizer: object, **wanted: object) -> None:
        state = self.state
        state.accelerator.locate()
        try:
            known = model is not None and model in self._watched
            if model is not None:
                self._watched.add(model)
            optimizer_ref = None if optimizer is None else ref(optimizer)
        except Exception as error:  # noqa: BLE001 - neither has the expected type, and may raise anything
            self._refuse_watch("nothing", error)
            return
        if model is not None or optimizer is not None:
            state.collectives.watch_waits(self.clock)
        if optimizer_ref is not None:
            state.logged.optimizer = optimizer_ref
        if known:
            return
        if model is not None:
            try:
                if (totals := watch_buckets(model)) is not None:
                    state.collectives.watch(totals)
            except Exception as error:  # noqa: BLE001 - PyTorch may refuse in any way; training goes on without
                self._refuse_watch("no collective wait", error)
            state.coordinates.find(model)
        scheduler, scaler = wanted["scheduler"], wanted["scaler"]
        if model is None and optimizer is None and scheduler is None and scaler is None:
            return
        try:
            from tachograph.client.torch.model.model_watch import ModelWatch  # late: only a watched model needs it

            watch = ModelWatch(
                model, optimizer, scheduler=scheduler, scaler=scaler,
                layers=self._whole("layers", wanted), activations=flag(wanted["activations"]) or False,
                update_every=self._whole("update_every", wanted),
                checksum_every=self._whole("checksum_every", wanted),
                memory_layers=flag(wanted["memory_layers"]) or False,
                rank=state.identity.rank, coordinates=state.coordinates.read(),
                invariants=self._shared_numbers(), dropped=self.dropped,
            )  # fmt: skip
            watch.attach()
            state.sources.add(watch)
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse_watch("nothing of model and optimizer", error)
        try:
            from tachograph.client.torch.model.unmarked_phases import UnmarkedPhases

            phases = UnmarkedPhases(state.clock, state.step)
            self._detach.append(phases.detach)
            phases.attach(model, optimizer)
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse_watch("no phase without a mark", error)

    def invariant(self, name: str, value: float, step: int | None) -> None:
        if not self._shared_numbers().set(name, value, step):
            self.drop("invariant")

    def threshold(self, name: str, value: float) -> None:
        if self._own_limits.set(name, value):
            return
        if (known := one_of(LIMIT_NAMES, name)) is None:
            self.drop("threshold", name, LIMIT_NAMES)
        else:
            self.dropped.count += 1
            hint = f"is dropped: {shown(value)[:WORD_LENGTH]} is not {LIMITS[known].expected}"
            self.state.misuse.note("wrong_type", f"threshold({known!r}, …)", hint)

    def count_flops(self) -> AbstractContextManager[None]:
        from tachograph.client.flops.flop_count import FlopCount  # late: most runs never count

        self.clock.tag = self.clock.tag or "warm-up"
        return FlopCount(self.state.workload.measured, self.dropped)

    def checkpoint_saved(self, step: int, bytes: int | None, path: object) -> None:
        saved, size = count(step), None if bytes is None else whole(bytes, LARGEST)
        place = None if path is None else location(path)
        if saved is None or (bytes is not None and size is None) or (path is not None and place is None):
            self.drop("step, bytes or path of checkpoint_saved()")
        if saved is not None:
            self.state.checkpoints.add(time.time(), saved, size, self.clock.checkpoint_seconds(), place)
            self._wake()

    def checkpoint_failed(self) -> None:
        self.state.checkpoints.failed(self.clock.checkpoint_seconds())
        self._wake()

    def resumed(self, step: int, seconds: float | None) -> None:
        begun, took = count(step), None if seconds is None else as_number(seconds)
        if begun is None or (seconds is not None and took is None):
            self.drop("step or seconds of resumed()")
        if begun is not None:
            self.state.checkpoints.resumed(begun, took)
            self.state.logged.resumed = True
            if not (self.step.next or self.step.under_way):
                self.step.next = begun
            self._wake()

    def add_source(self, source: MetricSource) -> None:
        if callable(getattr(source, "metrics", None)):
            self.state.added_sources.add(source)
        else:
            self.drop("a source without metrics()")

    def close(self, error: BaseException | None) -> None:
        try:
            if self.sender is not None:
                failed = issubclass(type(error), BaseException)
                said = FINISHED if sys.exc_info()[1] is None else FINISHED_AT_EXIT  # in a `finally`: nobody knows yet
                end = end_by(cast("BaseException", error)) if failed else said
                shutdown.shut_down(end, only=self.sender)
        finally:
            self.release(close=True)

    def release(self, *, close: bool) -> None:
        self._garbage.stop()
        self.state.collectives.release()
        while self._detach:
            self._detach.pop()()
        if self.outputs is not None:
            (self.outputs.close if close else self.outputs.release)()

    def drop(self, what: str, wrong: object = None, right: tuple[str, ...] = ()) -> None:
        self.dropped.count += 1
        if right:
            self.state.misuse.note(
                _MISUSES.get(what, "unknown_name"), f"{what}({shown(wrong)[:WORD_LENGTH]})", wrong=wrong, right=right
            )
        else:
            self.state.misuse.note("wrong_type", what, "is invalid, and is dropped")

    def ignored(self, call: str, names: Iterable[object], takes: tuple[str, ...]) -> None:
        self.dropped.count += 1
        for name in names:
            self.state.misuse.note("unknown_name", named(call, name), wrong=name, right=takes)
        if not names:
            expected = f"has one argument too many: it takes {', '.join(takes)} by name"
            self.state.misuse.note("wrong_type", f"{call}()", expected)

    def _shared_numbers(self) -> Invariants:
        if self._invariants is None:
            from tachograph.client.signals.invariants import Invariants  # late: many runs have none

            self._invariants = Invariants()
            self.state.sources.add(self._invariants)
        return self._invariants

    def _ended_before(self) -> float | None:
        return self.sender.ended if self.sender is not None else None

    def _wake(self) -> None:
        if self.sender is not None:
            self.sender.wake()

    def _refuse_watch(self, what: str, error: Exception) -> None:
        if raised_by_signal(error):
            raise error
        self.dropped.count += 1
        notice("watch", f"{what} is measured", error)

    def _whole(self, argument: str, wanted: dict[str, object]) -> int:
        """Return how many, or every how many steps; 0, which is never, if the value is not a whole number."""
        if (number := whole(wanted[argument], LARGEST)) is None:
            self.drop(f"{argument} of watch()")
        return number or 0
