"""The processes of one attempt: they train, keep their books, and say where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tachograph.catalog.rank import PHASES
from tachograph.client.core.steps import StepRecord
from tachograph.client.signals.checkpoints import Checkpoints
from tachograph.client.torch.bus_factor import bus_factor
from tachograph_lab.fleet.accounting import Books
from tachograph_lab.fleet.attempt import CHECKPOINT, CYCLE, DATA, EVAL, OPTIMIZER, Attempt, Position
from tachograph_lab.fleet.calendar import Calendar
from tachograph_lab.fleet.learned import Curves, Learning
from tachograph_lab.fleet.memory import Memory
from tachograph_lab.fleet.messages import encoded
from tachograph_lab.fleet.pace import Pace, batch_factor
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import BatchChange, Freeze, SkipBatches, SkipCollective, SlowLoader

QUEUE = 16
"""Batches that a healthy loader has ready: 8 workers, 2 each."""

SAMPLE_SECONDS = 2.0
"""What is shorter does not move a GPU's temperature, nor its driver's mean of power and utilization."""

_ROWS = [PHASES.index(name) for name in CYCLE]
_GROUP = "0"


class Crew:
    """All ranks of one attempt; times are seconds of the scenario, what is said is Unix time."""

    def __init__(
        self, scenario: Scenario, epoch: float, pace: Pace, curves: Curves, calendar: Calendar, *,
        number: int, began: float, init: float, last_step: int | None, ended: float | None,
    ) -> None:  # fmt: skip
        faults, fleet, work = scenario.faults, scenario.fleet, scenario.work
        self.ranks = fleet.ranks
        self._epoch = epoch
        self._calendar = calendar
        self._first_step = calendar.saved
        self.attempt = Attempt(
            pace, fleet.ranks, began=began, first_step=self._first_step, init=init,
            freezes=[each for each in faults if isinstance(each, Freeze) and each.until > began],
            skips=[each for each in faults if isinstance(each, SkipCollective)],
        )  # fmt: skip
        self._memory = Memory(scenario)
        self._learning = Learning(scenario, curves, resumed=number > 0 and calendar.saved > 0)
        self._classes = [_class(scenario, rank) for rank in range(fleet.ranks)]
        self._heads = {key: rank for rank, key in reversed(list(enumerate(self._classes)))}
        unix_ended = None if ended is None else epoch + ended
        self._books = {key: Books(epoch + began, last_step, unix_ended) for key in self._heads}
        self._savers = Checkpoints(), Checkpoints()
        if number > 0 and calendar.saved > 0:
            for each in self._savers:
                each.resumed(calendar.saved, 0.6 * init)
                each.events[-1]["time"] = epoch + began + init
        self._checkpoint_bytes = int(14 * work.flops_per_token / 6)
        self._per_step = {
            "tokens_total": work.tokens / fleet.ranks,
            "samples_total": work.global_batch / fleet.ranks,
            "flops_total": work.tokens * work.flops_per_token / fleet.ranks,
        }
        self._thresholds = {"threshold": limits} if (limits := scenario.thresholds.set()) else {}
        self._payload = round(2 * work.flops_per_token / 6 / fleet.tensor_parallel)
        self._bus = bus_factor("all_reduce", fleet.ranks) or 0.0
        self._batch_changes = [each for each in faults if isinstance(each, BatchChange)]
        self._skippers = [each for each in faults if isinstance(each, SkipBatches)]
        self._slow_loaders = [each for each in faults if isinstance(each, SlowLoader)]
        self._skipped = [0] * fleet.ranks
        self._skipping: set[int] = set()
        self._worked = (0.0, 0.0)
        self._learned = True
        self._saves_at: float | None = None
        self._open: list[tuple[Any, int]] = []

    def end_cycle(self) -> None:
        """Go on from the end of an all-reduce: a step's gradients are there on every rank."""
        attempt = self.attempt
        at = attempt.completion
        self.settle(at)
        attempt.book()
        self._worked = (
            self._worked[1],
            self._worked[1] + batch_factor(self._batch_changes, float(attempt.step_began[0])),
        )
        for rank in self._skipping:
            self._skipped[rank] += 1
        tenth = attempt.computing % 10 == 0
        self._skipping = {each.rank for each in self._skippers if tenth and each.at <= at < each.until}
        checkpoint = self._calendar.checkpoint(at)
        attempt.begin(at, checkpoint=checkpoint, evaluation=self._calendar.evaluation(at))
        self._saves_at = None
        if np.ndim(checkpoint):
            self._saves_at = at + float(attempt.spent[: CHECKPOINT + 1, 0].sum())
        self._learned = False
        self._open = list(self._heads.items())

    def settle(self, now: float) -> None:
        """Take over what has been completed up to `now`, within the cycle."""
        attempt = self.attempt
        if self._open:
            self._observe(now)
        if not self._learned and now >= attempt.at + attempt.spent[OPTIMIZER, 0]:
            self._learned = True
            self._learning.observe(attempt.computing - 1, float(attempt.step_began[0]))
        if self._saves_at is not None and now >= self._saves_at:
            spent = float(attempt.seconds[CHECKPOINT, 0] + attempt.spent[CHECKPOINT, 0])
            self._savers[0].add(self._epoch + self._saves_at, attempt.computing, self._checkpoint_bytes, spent)
            self._calendar.saved = attempt.computing
            self._saves_at = None

    def _observe(self, now: float) -> None:
        """Give completed steps to the books of those whose optimizer step is over."""
        attempt = self.attempt
        ends = attempt.at + attempt.spent[OPTIMIZER]
        done = [(key, rank) for key, rank in self._open if ends[rank] <= now]
        if not done:
            return
        heads = [rank for _, rank in done]
        seconds = np.zeros((len(PHASES), len(heads)))
        seconds[_ROWS] = attempt.seconds[:, heads]
        seconds[_ROWS[OPTIMIZER]] += attempt.spent[OPTIMIZER, heads]
        number, tag = attempt.computing - 1, "warm-up" if attempt.cycles == 1 else None
        rows = zip(
            done, attempt.step_began[heads].tolist(), ends[heads].tolist(), seconds.T.tolist(),
            attempt.waits[heads].tolist(), strict=True,
        )  # fmt: skip
        for (key, _), began, ended, spent, wait in rows:
            self._books[key].observe(StepRecord(number, began, ended, tag, tuple(spent), wait))
        self._open = [each for each in self._open if each not in done] if len(done) < len(self._open) else []

    def states(self, ranks: Iterable[int], now: float) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield the fields of each rank's state frame at `now`, but for its sequence number."""
        attempt, position = self.attempt, self.attempt.position(now)
        seconds = position.seconds.T.tolist()
        waits = attempt.waits.tolist()
        books: dict[Any, tuple[dict[str, object], dict[str, object]]] = {}
        unix = self._epoch + now
        starved = any(fault.at <= now < fault.until for fault in self._slow_loaders)
        for rank in ranks:
            phases = dict.fromkeys(PHASES, 0.0) | dict(zip(CYCLE, seconds[rank], strict=True))
            phase = CYCLE[position.place[rank]]
            key = self._classes[rank]
            if key not in books:
                books[key] = self._read(self._heads[key], position, seconds)
            worked, histogram = books[key]
            completed = position.completed[rank]
            metrics = {
                **self._learning.of(rank).metrics(),
                **worked,
                **self._own(rank, position, completed, waits[rank], now),
                "data_queue_size": 0 if starved or position.place[rank] == DATA else QUEUE - (rank + completed) % 3,
                "phase_seconds_total": phases,
                "checkpoint_seconds_total": phases["checkpoint"],
            }
            frame = {
                "time": unix, "step": self._first_step + completed, "phase": phase,
                "phase_since": self._epoch + position.since[rank], "metrics": metrics,
                "histograms": {"step_seconds": histogram},
                "events": list(self._savers[rank > 0].events), "dropped": 0,
            }  # fmt: skip
            if completed:
                frame["progress_time"] = self._epoch + position.ended[rank]
            yield rank, frame

    def step_of(self, now: float) -> int:
        """Return the step that rank 0 is at."""
        return self._first_step + self.attempt.position(now).completed[0]

    def work(self, now: float) -> tuple[Any, Any, Any, Any]:
        """Return what each rank's GPU does (computes, waits) and has done so far (computed, waited seconds)."""
        attempt, position = self.attempt, self.attempt.position(now)
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
        """Return the bytes that each rank's allocator holds."""
        position = self.attempt.position(now)
        return [self._memory.reserved(rank, now, CYCLE[position.place[rank]]) for rank in range(self.ranks)]

    def _read(self, head: int, position: Position, seconds: list[list[float]]) -> tuple[Any, Any]:
        phases = dict.fromkeys(PHASES, 0.0) | dict(zip(CYCLE, seconds[head], strict=True))
        step = self._first_step + position.completed[head]
        metrics, histogram = self._books[self._classes[head]].read(CYCLE[position.place[head]], phases, step)
        return {key: encoded(value) for key, value in metrics.items()}, histogram

    def _own(self, rank: int, position: Position, completed: int, wait: float, now: float) -> dict[str, object]:
        """Return what only this rank counts."""
        cycles = self.attempt.cycles
        worked = self._worked[1] if completed == cycles else self._worked[0]
        drawn = position.place[rank] > DATA and rank not in self._skipping
        own: dict[str, object] = {
            "steps_total": completed,
            "batches_total": cycles + drawn - self._skipped[rank],
            "checkpoint_failures_total": 0,
            "collective_enqueued": {_GROUP: position.entered[rank]},
            "collective_completed": {_GROUP: cycles},
            **{key: _whole(worked * amount) for key, amount in self._per_step.items()},
            **self._savers[rank > 0].metrics(),
            **self._memory.metrics(rank, now, CYCLE[position.place[rank]]),
            **self._thresholds,
        }
        if cycles:
            own |= {
                "collectives_total": {"all_reduce": cycles},
                "collective_bytes_total": {"all_reduce": cycles * self._payload},
                "collective_bus_bytes_total": {"all_reduce": cycles * self._payload * self._bus},
                "collective_wait_seconds_total": {"all_reduce": wait},
                "collective_seconds_total": {"all_reduce": wait},
            }
        return own


_IDLE = (DATA, CHECKPOINT, CYCLE.index("init"))


def _class(scenario: Scenario, rank: int) -> tuple[int, tuple[int, ...]]:
    """Return what ranks with the same books have in common: their node, and the faults that concern them alone."""
    touching = tuple(
        number
        for number, fault in enumerate(scenario.faults)
        if rank == getattr(fault, "rank", None) or rank in getattr(fault, "ranks", ())
    )
    return scenario.fleet.node_of(rank), touching if scenario.fleet.nodes > 1 or rank else (*touching, -1)


def _whole(number: float) -> float | int:
    return int(number) if number.is_integer() and abs(number) <= 2**53 else number
