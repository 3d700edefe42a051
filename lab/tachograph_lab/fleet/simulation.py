"""A scenario in simulated time: attempts come and go, ranks speak, nodes fail."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from tachograph_lab.fleet.calendar import Calendar
from tachograph_lab.fleet.gpus import SimulatedGpus, Work, uuid_of
from tachograph_lab.fleet.host import Host
from tachograph_lab.fleet.learned import Curves
from tachograph_lab.fleet.messages import Link, Word, line
from tachograph_lab.fleet.nodes import SimulatedNode, is_unreachable
from tachograph_lab.fleet.pace import Pace, batch_factor
from tachograph_lab.fleet.ranks import Crew
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import (
    BatchChange,
    ExporterDown,
    Finish,
    Freeze,
    Kill,
    NodeDown,
    PlannedRestart,
    RestartLoop,
    ScrapeBlocked,
    ScrapeFailure,
)

EPOCH = 1_763_690_000.0
"""Unix seconds of a scenario's beginning where nobody gives another."""

INIT_SECONDS = 12.0
GREETING_SECONDS = 2.0
"""Ranks of an attempt make their recorder within this time, one after the other."""

GIVING_UP_SECONDS = 10.0
"""After a peer is gone: connections reset, the others' collectives fail, or their launcher ends them."""

PEER_LOST_SECONDS = 0.1, 1.0
"""Within this time after a rank has ended, its peers' collectives fail as well."""

REQUEUE_SECONDS = 10.0
"""Between two attempts of a restart loop."""

Action = Callable[[float], None]


@dataclass(slots=True)
class _Process:
    """A rank's process of this attempt, as far as the exporter of its node can tell."""

    greets_at: float
    alive: bool = True
    greeted: bool = False
    sequence: int = 0


class Simulation:
    """Runs a scenario; `epoch` is the Unix time of its beginning. The same scenario always says the same words."""

    def __init__(self, scenario: Scenario, epoch: float = EPOCH) -> None:
        self.now = 0.0
        self._scenario = scenario
        self._fleet = fleet = scenario.fleet
        self._epoch = epoch
        self._pace = Pace(scenario)
        self._curves = Curves(scenario)
        self._calendar = Calendar(scenario)
        self._random = np.random.default_rng([scenario.seed, 4])
        self._names = [fleet.node_name(node) for node in range(fleet.nodes)]
        self._computed, self._waited = np.zeros(fleet.ranks), np.zeros(fleet.ranks)
        self._told = np.zeros((2, fleet.ranks))
        self._work: Work | None = None
        self.nodes = tuple(
            SimulatedNode(
                name,
                SimulatedGpus(scenario, node, self._gpu_work, epoch, self._unix),
                Host(scenario, node, epoch, self._seconds, self._carried),
            )
            for node, name in enumerate(self._names)
        )
        self._freezes = {each.rank: each for each in scenario.faults if isinstance(each, Freeze)}
        self._scrapes = [each for each in scenario.faults if isinstance(each, (ScrapeFailure, ScrapeBlocked))]
        self._batches = [each for each in scenario.faults if isinstance(each, BatchChange)]
        self._outbox: list[Word] = []
        self._events: list[tuple[float, int, Action]] = []
        self._scheduled = 0
        self._crew: Crew | None = None
        self._processes: list[_Process] = []
        self._attempts = 0
        self._last_step: int | None = None
        self._ended: float | None = None
        self._down: set[int] = set()
        self._loop_fails_at = 0.0
        self._at(0.0, self._starting(0.0 if scenario.step.formula else INIT_SECONDS))
        self._schedule()

    def advance(self, now: float) -> None:
        """Let everything happen that happens up to second `now` of the scenario."""
        while True:
            event = self._events[0][0] if self._events else float("inf")
            cycle = self._crew.attempt.completion if self._crew is not None else float("inf")
            if min(event, cycle) > now:
                break
            if event <= cycle:
                _, _, action = heapq.heappop(self._events)
                action(event)
            elif self._crew is not None:
                self._crew.end_cycle()
        self.now = now
        self._work = None
        if self._crew is not None:
            self._crew.settle(now)
        for number, node in enumerate(self.nodes):
            node.reachable = not any(is_unreachable(fault, number, now) for fault in self._scrapes)

    def words(self, nodes: Container[str] | None = None) -> list[Word]:
        """Return all that ranks say since the last call, in order, the state of each now at the end.

        With `nodes`, only ranks of these nodes say hello and tell their state.
        """
        words, self._outbox = self._outbox, []
        if self._crew is None:
            return words
        speakers = []
        for rank, process in enumerate(self._processes):
            if not self._speaks(rank, self.now) or (nodes is not None and self._node_name(rank) not in nodes):
                continue
            if not process.greeted:
                process.greeted = True
                words.append(self._word(rank, self._hello(rank)))
            speakers.append(rank)
        words.extend(self._states(speakers, self.now))
        return words

    def _schedule(self) -> None:
        """Enter what the scenario's faults make happen at a moment of their own."""
        for fault in self._scenario.faults:
            if isinstance(fault, Kill):
                self._at(fault.at, self._killing(fault))
            elif isinstance(fault, NodeDown):
                self._at(fault.at, self._node_goes(fault.node))
                self._at(fault.until, self._node_comes(fault.node))
            elif isinstance(fault, ExporterDown):
                self._at(fault.at, self._exporter_goes(fault.node))
                self._at(fault.until, self._exporter_comes(fault.node))
            elif isinstance(fault, PlannedRestart):
                self._at(fault.at, self._ending("failed", "terminated", "SIGTERM"))
                self._at(fault.until, self._start)
            elif isinstance(fault, RestartLoop):
                self._loop(fault)
            elif isinstance(fault, Finish):
                self._at(fault.at, self._ending("finished", "", ""))
            elif isinstance(fault, BatchChange):
                self._at(fault.at, self._greet_again)

    def _loop(self, fault: RestartLoop) -> None:
        """Enter the ends and beginnings of a restart loop; the attempt after the last that fails goes well."""
        pause = min(REQUEUE_SECONDS, fault.every / 2)
        for failed in range(fault.attempts + 1):
            fails = fault.at + failed * fault.every
            self._at(fails, self._failing(fault.category))
            self._at(fails + pause, self._starting(fault.every if failed < fault.attempts else INIT_SECONDS))

    def _at(self, time: float, action: Action) -> None:
        if time < float("inf"):
            self._scheduled += 1
            heapq.heappush(self._events, (time, self._scheduled, action))

    def _start(self, now: float, init: float = INIT_SECONDS) -> None:
        """Begin the next attempt."""
        self._calendar.restart(now)
        self._crew = Crew(
            self._scenario, self._epoch, self._pace, self._curves, self._calendar,
            number=self._attempts, began=now, init=init, last_step=self._last_step, ended=self._ended,
        )  # fmt: skip
        self._attempts += 1
        offsets = self._random.uniform(0.1, GREETING_SECONDS, self._fleet.ranks).tolist()
        self._processes = [_Process(now + offset) for offset in offsets]
        for rank, process in enumerate(self._processes):
            process.alive = self._fleet.node_of(rank) not in self._down

    def _starting(self, init: float) -> Action:
        return lambda now: self._start(now, init)

    def _ending(self, outcome: str, category: str, message: str) -> Action:
        """Return the end of the attempt, at which all ranks that can speak say bye."""

        def end(now: float) -> None:
            crew = self._crew
            if crew is not None:
                self._leave(crew, range(self._fleet.ranks), now, _bye(outcome, category, message))
                self._last_step, self._ended = crew.step_of(now), now
                self._crew = None

        return end

    def _failing(self, category: str) -> Action:
        """Return the end of the attempt by one rank's failure: the others lose their peer, node by node."""

        def fail(now: float) -> None:
            crew = self._crew
            if crew is None:
                return
            first = int(self._random.integers(self._fleet.ranks))
            crew.attempt.hang(now)
            self._leave(crew, [first], now, _bye("failed", category, f"attempt failed: {category}"))
            lost = "failed", "collective", f"RuntimeError: connection closed by peer, rank {first}"
            for node, after in enumerate(self._random.uniform(*PEER_LOST_SECONDS, self._fleet.nodes).tolist()):
                self._at(now + after, partial(self._leave, crew, self._ranks_of(node), bye=_bye(*lost)))
            self._at(now + PEER_LOST_SECONDS[1], self._ending(*lost))

        return fail

    def _leave(self, crew: Crew, ranks: Iterable[int], now: float, bye: dict[str, object]) -> None:
        """Let these of a crew's ranks say bye, unless all of it is over already."""
        if self._crew is crew:
            crew.settle(now)
            living = [rank for rank in ranks if self._processes[rank].alive]
            self._goodbyes(living, now, bye)
            self._book_gpus(living, now)

    def _killing(self, fault: Kill) -> Action:
        def kill(now: float) -> None:
            crew = self._crew
            if crew is None or not self._processes[fault.rank].alive:
                return
            crew.attempt.hang(now)
            self._hang_up([fault.rank], now)
            if fault.others != "hang":
                self._at(now + GIVING_UP_SECONDS, lambda later: self._give_up(crew, fault, later))

        return kill

    def _give_up(self, crew: Crew, fault: Kill, now: float) -> None:
        """End the ranks that are left: a peer is gone."""
        if self._crew is not crew:
            return
        if fault.others == "end":
            message = f"RuntimeError: connection closed by peer, rank {fault.rank}"
            self._leave(crew, range(self._fleet.ranks), now, _bye("failed", "collective", message))
        else:
            self._hang_up(range(self._fleet.ranks), now)
        self._last_step, self._ended = crew.step_of(now), now
        self._crew = None

    def _node_goes(self, node: int) -> Action:
        def go(now: float) -> None:
            self._down.add(node)
            self.nodes[node].up = self.nodes[node].exporter_up = False
            if self._crew is not None:
                self._crew.attempt.hang(now)
                self._hang_up(self._ranks_of(node), now)

        return go

    def _node_comes(self, node: int) -> Action:
        def come(now: float) -> None:
            self._down.discard(node)
            self.nodes[node].up = self.nodes[node].exporter_up = True

        return come

    def _exporter_goes(self, node: int) -> Action:
        def go(now: float) -> None:
            self.nodes[node].exporter_up = False

        return go

    def _exporter_comes(self, node: int) -> Action:
        """Return the start of a new exporter, to which ranks come back as their back-off lets them."""

        def come(now: float) -> None:
            self.nodes[node].exporter_up = True
            for rank in self._ranks_of(node):
                if self._crew is not None:
                    self._processes[rank].greeted = False
                    self._processes[rank].greets_at = now + float(self._random.uniform(0.5, 4.0))

        return come

    def _greet_again(self, now: float) -> None:
        """Let ranks say hello again, because their facts have changed."""
        for process in self._processes:
            process.greeted = False

    def _hang_up(self, ranks: Iterable[int], now: float) -> None:
        """End processes without a word."""
        ranks = [rank for rank in ranks if self._processes[rank].alive]
        self._book_gpus(ranks, now)
        for rank in ranks:
            process = self._processes[rank]
            process.alive = False
            if process.greeted and self._heard(rank):
                self._outbox.append(self._word(rank, None))

    def _goodbyes(self, ranks: Iterable[int], now: float, bye: dict[str, object]) -> None:
        """End processes in their right mind; one that is stopped is killed in the end."""
        ranks = list(ranks)
        speaking = [rank for rank in ranks if self._speaks(rank, now) and self._processes[rank].greeted]
        states = {word.connection[1]: word for word in self._states(speaking, now)}
        for rank in ranks:
            process = self._processes[rank]
            process.alive = False
            if rank in states:
                self._outbox += [states[rank], self._word(rank, line("bye", bye))]
            if process.greeted and self._heard(rank):
                self._outbox.append(self._word(rank, None))

    def _states(self, ranks: Iterable[int], now: float) -> Iterator[Word]:
        if self._crew is None:
            return
        for rank, frame in self._crew.states(ranks, now):
            process = self._processes[rank]
            process.sequence += 1
            yield self._word(rank, line("state", {"seq": process.sequence, **frame}))

    def _hello(self, rank: int) -> bytes:
        scenario, fleet = self._scenario, self._fleet
        batch = scenario.work.global_batch * batch_factor(self._batches, self.now)
        facts = {
            "precision": "bf16", "global_batch": round(batch), "framework": "pytorch 2.13.0",
            "flops_convention": "causal",
            **({"tier": fleet.tier} if fleet.tier != "standard" else {}),
        }  # fmt: skip
        number = self._attempts - 1
        return line(
            "hello",
            {
                "run": fleet.run, "rank": rank, "local_rank": fleet.gpu_of(rank), "world_size": fleet.ranks,
                "attempt": number, "pid": 10_000 + 1000 * number + fleet.gpu_of(rank), "facts": facts,
                "uuid": uuid_of(fleet.run, rank),
            },
        )  # fmt: skip

    def _word(self, rank: int, text: bytes | None) -> Word:
        link: Link = (self._fleet.run, rank, self._attempts - 1)
        return Word(self._node_name(rank), link, text)

    def _node_name(self, rank: int) -> str:
        return self._names[self._fleet.node_of(rank)]

    def _speaks(self, rank: int, now: float) -> bool:
        process = self._processes[rank]
        return process.alive and self._heard(rank) and process.greets_at <= now and not self._frozen(rank, now)

    def _heard(self, rank: int) -> bool:
        """Return whether there is an exporter that a rank could speak to."""
        return self.nodes[self._fleet.node_of(rank)].exporter_up

    def _frozen(self, rank: int, now: float) -> bool:
        fault = self._freezes.get(rank)
        return fault is not None and fault.at <= now < fault.until

    def _ranks_of(self, node: int) -> range:
        first = node * self._fleet.gpus_per_node
        return range(first, first + self._fleet.gpus_per_node)

    def _book_gpus(self, ranks: list[int], now: float) -> None:
        """Keep what the GPUs of ranks that end now have done for them."""
        if self._crew is not None and ranks:
            _, _, computed, waited = self._crew.work(now)
            self._computed[ranks] += computed[ranks]
            self._waited[ranks] += waited[ranks]

    def _gpu_work(self) -> Work:
        if self._work is None:
            living = np.array([process.alive for process in self._processes] or [False] * self._fleet.ranks)
            computed, waited = self._computed, self._waited
            computing = waiting = np.zeros(self._fleet.ranks, dtype=bool)
            reserved = [0.0] * self._fleet.ranks
            if self._crew is not None:
                computing, waiting, now_computed, now_waited = self._crew.work(self.now)
                computed, waited = computed + living * now_computed, waited + living * now_waited
                reserved = self._crew.reserved(self.now)
            computed, waited = self._told = np.maximum(self._told, (computed, waited))
            self._work = Work(
                self.now, (computing & living).tolist(), (waiting & living).tolist(), computed.tolist(),
                waited.tolist(), [each if alive else 0.0 for each, alive in zip(reserved, living, strict=True)],
            )  # fmt: skip
        return self._work

    def _carried(self, rank: int) -> float:
        """Return the bytes that a GPU's port has sent: its share of each all-reduce."""
        return self._crew.attempt.cycles * 1e9 if self._crew is not None else 0.0

    def _seconds(self) -> float:
        return self.now

    def _unix(self) -> float:
        return self._epoch + self.now


def _bye(outcome: str, category: str, message: str) -> dict[str, object]:
    return {"outcome": outcome, "category": category, "message": message}
