"""The rank processes of one attempt: their training, their accounting, and the state frames they send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tachograph.catalog.rank import PHASES
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.checkpoints import Checkpoints
from tachograph.client.signals.ordinary_totals import OrdinaryTotals
from tachograph.client.torch.bus_factor import bus_factor
from tachograph_lab.fleet.accounting import RankAccounting
from tachograph_lab.fleet.attempt import CHECKPOINT, CYCLE, DATA, EVAL, OPTIMIZER, Attempt, Position
from tachograph_lab.fleet.logged_values import LoggedByRank, TrainingCurves
from tachograph_lab.fleet.messages import encoded
from tachograph_lab.fleet.pace import Pace, batch_factor, token_factor
from tachograph_lab.fleet.pauses import PauseSchedule
from tachograph_lab.fleet.simulated_memory import SimulatedMemory
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import (
    BatchChange,
    PauseOnce,
    SkipBatches,
    SkipCollective,
    SlowLoader,
    Stuck,
    freezes,
)

QUEUE = 16
"""Batches that a healthy loader has prefetched: 8 workers, 2 each."""

SAMPLE_SECONDS = 2.0
"""Shorter pauses change neither a GPU's temperature nor the driver's averages of power and utilization."""

MOMENT = 1e-6
"""Seconds after which something that has just ended has surely ended, however sums are rounded."""

_UNMARKED = ("checkpoint", "eval", "init")
"""Phases that a basic loop does not mark: their time is in phase `other`."""

_GROUP = "0"


class AttemptRanks:
    """All ranks of one attempt; arguments are seconds of the scenario, frames carry Unix time."""

    def __init__(
        self, scenario: Scenario, epoch: float, pace: Pace, curves: TrainingCurves, pauses: PauseSchedule, *,
        number: int, began: float, init: float, last_step: int | None, ended: float | None,
    ) -> None:  # fmt: skip
        faults, fleet, work = scenario.faults, scenario.fleet, scenario.work
        self.ranks = fleet.ranks
        self._epoch = epoch
        self._pauses = pauses
        self._first_step = pauses.saved
        self._attempt = Attempt(
            pace, fleet.ranks, began=began, first_step=self._first_step, init=init,
            freezes=[each for each in freezes(faults) if each.until > began],
            skips=[each for each in faults if isinstance(each, SkipCollective)],
            pauses=[each for each in faults if isinstance(each, PauseOnce)],
            stuck_saves=[each for each in faults if isinstance(each, Stuck) and each.phase == "checkpoint"],
        )  # fmt: skip
        self._is_basic = scenario.loop == "basic"
        self._shown = ["other" if self._is_basic and name in _UNMARKED else name for name in CYCLE]
        self._rows = [PHASES.index(name) for name in self._shown]
        self._waiting = frozenset(range(fleet.ranks) if scenario.waits is None else scenario.waits)
        self._memory = SimulatedMemory(scenario)
        self._logged = LoggedByRank(scenario, epoch, curves, resumed=number > 0 and pauses.saved > 0)
        self._classes = [_class(scenario, rank) for rank in range(fleet.ranks)]
        self._heads = {key: rank for rank, key in reversed(list(enumerate(self._classes)))}
        unix_ended = None if ended is None else epoch + ended
        self._accounting = {key: RankAccounting(epoch + began, last_step, unix_ended) for key in self._heads}
        self._accounted = {rank: self._accounting[key] for key, rank in self._heads.items()}
        self._ordinary = [OrdinaryTotals() for _ in range(fleet.ranks)]
        self._savers = Checkpoints(), Checkpoints()
        if number > 0 and pauses.saved > 0 and not self._is_basic:
            for each in self._savers:
                each.resumed(pauses.saved, 0.6 * init)
                each.events[-1]["time"] = epoch + began + init
        self._checkpoint_bytes = int(14 * work.flops_per_token / 6)
        per_step = (
            ("tokens_total", work.tokens / fleet.ranks, 0),
            ("flops_total", work.tokens * work.flops_per_token / fleet.ranks, 0),
            ("samples_total", work.global_batch / fleet.ranks, 1),
        )
        self._per_step = per_step[: {"all": 3, "tokens": 1, "nothing": 0}[work.reports]]
        self._constants: dict[str, object] = {"threshold": limits} if (limits := scenario.thresholds.set()) else {}
        if scenario.total_steps is not None:
            self._constants["total_steps"] = scenario.total_steps
        self._payload = round(2 * work.flops_per_token / 6 / fleet.tensor_parallel)
        self._bus = bus_factor("all_reduce", fleet.ranks) or 0.0
        self._batch_changes = [each for each in faults if isinstance(each, BatchChange)]
        self._skippers = [each for each in faults if isinstance(each, SkipBatches)]
        self._slow_loaders = [each for each in faults if isinstance(each, SlowLoader)]
        self._skipped = [0] * fleet.ranks
        self._skipping: set[int] = set()
        self._worked = np.zeros((2, 2))  # up to the step before and now: as many steps of the configured tokens, batch
        self._step_observed = True
        self._saves_at: float | None = None
        self._open = np.zeros(fleet.ranks, dtype=bool)

    @property
    def cycle_ends(self) -> float:
        """The second at which the current all-reduce ends; inf: it hangs."""
        return self._attempt.completion

    @property
    def cycles(self) -> int:
        """The number of all-reduces completed."""
        return self._attempt.cycles

    def hang(self, at: float) -> None:
        """Make every all-reduce from now on hang: one of the ranks is gone."""
        self._attempt.hang(at)

    def next_step_end(self, rank: int, now: float) -> float:
        """Return the second at which a rank ends the step that it is in; inf: never, as things are."""
        attempt = self._attempt
        ends = attempt.at + float(attempt.spent[OPTIMIZER, rank])
        if not attempt.cycles or ends <= now:
            ends = attempt.next_optimizer_ends(rank)
        return ends + MOMENT

    def end_cycle(self) -> None:
        """Begin the next cycle at the end of an all-reduce, when every rank has the step's gradients."""
        attempt = self._attempt
        at = attempt.completion
        self.settle(at)
        attempt.add_cycle()
        began = float(attempt.step_began[0])
        factors = token_factor(self._batch_changes, began), batch_factor(self._batch_changes, began)
        self._worked = np.array((self._worked[1], self._worked[1] + factors))
        for rank in self._skipping:
            self._skipped[rank] += 1
        tenth = attempt.computing % 10 == 0
        self._skipping = {each.rank for each in self._skippers if tenth and each.at <= at < each.until}
        checkpoint = self._pauses.checkpoint(at)
        attempt.begin(at, checkpoint=checkpoint, evaluation=self._pauses.evaluation(at))
        self._saves_at = None
        if np.ndim(checkpoint):
            self._saves_at = at + float(attempt.spent[: CHECKPOINT + 1, 0].sum())
        self._step_observed = False
        self._open[:] = True
        self._open[list(attempt.aside.before)] = False

    def settle(self, now: float) -> None:
        """Record everything that has been completed up to `now`, within the cycle."""
        attempt = self._attempt
        if self._open.any():
            self._observe(now)
        if not self._step_observed and now >= attempt.at + attempt.spent[OPTIMIZER, 0]:
            self._step_observed = True
            self._logged.observe(attempt.computing - 1, float(attempt.step_began[0]))
        if self._saves_at is not None and now >= self._saves_at:
            spent = float(attempt.seconds[CHECKPOINT, 0] + attempt.spent[CHECKPOINT, 0])
            if not self._is_basic:
                self._savers[0].add(self._epoch + self._saves_at, attempt.computing, self._checkpoint_bytes, spent)
            self._pauses.saved = attempt.computing
            self._saves_at = None

    def _observe(self, now: float) -> None:
        """Have the completed step observed of every rank whose optimizer step is over."""
        attempt = self._attempt
        ends = attempt.at + attempt.spent[OPTIMIZER]
        done = np.flatnonzero(self._open & (ends <= now))
        if not len(done):
            return
        self._open[done] = False
        seconds = np.zeros((len(PHASES), len(done)))
        np.add.at(seconds, self._rows, attempt.seconds[:, done])
        seconds[self._rows[OPTIMIZER]] += attempt.spent[OPTIMIZER, done]
        number, tag = attempt.computing - 1, "warm-up" if attempt.cycles == 1 else None
        rows = zip(
            done.tolist(), attempt.step_began[done].tolist(), ends[done].tolist(), seconds.T.tolist(),
            attempt.waits[done].tolist(), strict=True,
        )  # fmt: skip
        for rank, began, ended, spent, wait in rows:
            record = StepRecord(number, began, ended, tag, tuple(spent), wait if rank in self._waiting else 0.0)
            self._ordinary[rank].observe(record)
            if (accounting := self._accounted.get(rank)) is not None:
                accounting.observe(record)

    def states(self, ranks: Iterable[int], now: float) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield the fields of each rank's state frame at `now`, except its sequence number."""
        attempt, position = self._attempt, self._attempt.position(now)
        seconds = position.seconds.T.tolist()
        waits = attempt.waits.tolist()
        read: dict[Any, tuple[dict[str, object], dict[str, object]]] = {}
        unix = self._epoch + now
        starved = any(fault.at <= now < fault.until for fault in self._slow_loaders)
        for rank in ranks:
            phases = self._by_phase(seconds[rank])
            key = self._classes[rank]
            if key not in read:
                read[key] = self._read(self._heads[key], position, seconds)
            worked, histogram = read[key]
            completed = position.completed[rank]
            metrics = {
                **self._logged.of(rank).metrics(),
                **self._logged.scaler,
                **worked,
                **self._own(rank, position, completed, waits[rank], now),
                **self._ordinary[rank].metrics(),
                "data_queue_size": 0 if starved or position.place[rank] == DATA else QUEUE - (rank + completed) % 3,
                "phase_seconds_total": phases,
                "checkpoint_seconds_total": phases["checkpoint"],
            }
            frame = {
                "time": unix, "step": self._first_step + completed, "phase": self._shown[position.place[rank]],
                "phase_since": self._epoch + position.since[rank],
                "phase_seconds": max(0.0, now - position.since[rank]), "metrics": metrics,
                "histograms": {"step_seconds": histogram},
                "events": list(self._savers[rank > 0].events), "dropped": 0,
            }  # fmt: skip
            if frame["phase"] == "checkpoint" and (still := attempt.still_seconds(rank, now)) >= 1.0:
                frame["still"] = still
            if completed:
                frame["progress_time"] = self._epoch + position.ended[rank]
                frame["progress_seconds"] = max(0.0, now - position.ended[rank])
            yield rank, frame

    def step_of(self, now: float) -> int:
        """Return the current step of rank 0."""
        return self._first_step + self._attempt.position(now).completed[0]

    def work(self, now: float) -> tuple[Any, Any, Any, Any]:
        """Return, for each rank's GPU: whether it computes, whether it waits, seconds computed, seconds waited."""
        attempt, position = self._attempt, self._attempt.position(now)
        place, since = np.array(position.place), np.array(position.since)
        waiting = now >= attempt.arrivals
        waited = attempt.waits + np.maximum(0.0, now - attempt.arrivals)
        busy = position.seconds.sum(0) - position.seconds[CHECKPOINT] - position.seconds[EVAL + 1 : DATA + 1].sum(0)
        stuck = np.isinf(attempt.spent[place, np.arange(self.ranks)])
        held = np.where(stuck, now - since, 0.0)
        computed = busy - waited - np.where(np.isin(place, _IDLE), 0.0, held)
        idle = (np.isin(place, _IDLE) | stuck) & (now - since > SAMPLE_SECONDS) & ~waiting
        long = waiting & (now - attempt.arrivals > SAMPLE_SECONDS)
        return ~idle & ~long, long, computed, waited

    def reserved(self, now: float) -> list[float]:
        """Return the bytes that each rank's allocator has reserved."""
        position = self._attempt.position(now)
        return [self._memory.reserved(rank, now, CYCLE[position.place[rank]]) for rank in range(self.ranks)]

    def _read(self, head: int, position: Position, seconds: list[list[float]]) -> tuple[Any, Any]:
        phases = self._by_phase(seconds[head])
        step = self._first_step + position.completed[head]
        metrics, histogram = self._accounting[self._classes[head]].read(self._shown[position.place[head]], phases, step)
        return {key: encoded(value) for key, value in metrics.items()}, histogram

    def _by_phase(self, seconds: Iterable[float]) -> dict[str, float]:
        """Return a rank's seconds in each phase as its loop marks them, given those by part of the cycle."""
        phases = dict.fromkeys(PHASES, 0.0)
        for name, spent in zip(self._shown, seconds, strict=True):
            phases[name] += spent
        return phases

    def _own(self, rank: int, position: Position, completed: int, wait: float, now: float) -> dict[str, object]:
        """Return the metrics that are this rank's own."""
        cycles = self._attempt.cycles_of(rank)
        worked = self._worked[int(completed == self._attempt.cycles)].tolist()
        if rank in self._attempt.aside.before:
            worked = [steps * completed / max(self._attempt.cycles - 1, 1) for steps in worked]
        drawn = position.place[rank] > DATA and rank not in self._skipping
        own: dict[str, object] = {
            "steps_total": completed,
            "batches_total": cycles + drawn - self._skipped[rank],
            "checkpoint_failures_total": 0,
            **self._sequence_numbers(rank, position),
            **{key: _whole(worked[of] * amount) for key, amount, of in self._per_step},
            **self._savers[rank > 0].metrics(),
            **self._memory.metrics(rank, now, CYCLE[position.place[rank]]),
            **self._constants,
        }
        if cycles and rank in self._waiting:
            own |= {
                "collectives_total": {"all_reduce": cycles},
                "collective_bytes_total": {"all_reduce": cycles * self._payload},
                "collective_bus_bytes_total": {"all_reduce": cycles * self._payload * self._bus},
                "collective_wait_seconds_total": {"all_reduce": wait},
                "collective_seconds_total": {"all_reduce": wait},
            }
        return own

    def _sequence_numbers(self, rank: int, position: Position) -> dict[str, object]:
        if rank not in self._waiting:
            return {}
        return {
            "collective_enqueued": {_GROUP: position.entered[rank]},
            "collective_completed": {_GROUP: self._attempt.cycles_of(rank)},
        }


_IDLE = (DATA, CHECKPOINT, CYCLE.index("init"))


def _class(scenario: Scenario, rank: int) -> tuple[int, int, bool, tuple[int, ...]]:
    """Return what ranks that share one accounting have in common.

    Their node, their pipeline stage, whether they report waits, and the faults that affect only them.
    """
    touching = tuple(
        number
        for number, fault in enumerate(scenario.faults)
        if rank == getattr(fault, "rank", None) or rank in getattr(fault, "ranks", ())
    )
    touching = touching if scenario.fleet.nodes > 1 or rank else (*touching, -1)
    waits = scenario.waits is None or rank in scenario.waits
    return scenario.fleet.node_of(rank), scenario.fleet.stage_of(rank), waits, touching


def _whole(number: float) -> float | int:
    return int(number) if number.is_integer() and abs(number) <= 2**53 else number
