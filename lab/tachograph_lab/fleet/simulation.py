"""A scenario in simulated time: attempts start and end, ranks leave, nodes fail."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable
from functools import partial

import numpy as np

from tachograph_lab.fleet.logged_values import TrainingCurves
from tachograph_lab.fleet.messages import RankMessage
from tachograph_lab.fleet.pace import Pace
from tachograph_lab.fleet.pauses import PauseSchedule
from tachograph_lab.fleet.rank_processes import RankProcesses
from tachograph_lab.fleet.ranks import AttemptRanks
from tachograph_lab.fleet.simulated_gpus import GpuWork, SimulatedGpus
from tachograph_lab.fleet.simulated_node import SimulatedHost, SimulatedNode, is_unreachable
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import (
    BatchChange,
    ClockSkew,
    DuplicateTarget,
    Exit,
    ExporterDown,
    Fail,
    Fault,
    Finish,
    Kill,
    LeaveEarly,
    NodeDown,
    NoShow,
    PlannedRestart,
    RestartLoop,
    Rollout,
    ScrapeBlocked,
    ScrapeFailure,
    ScrapeLost,
    Sigterm,
    Vanish,
)

EPOCH = 1_763_690_000.0
"""The default Unix time of a scenario's second 0."""

INIT_SECONDS = 12.0
HELLO_SECONDS = 2.0
"""The ranks of an attempt create their recorders within this time, one after the other."""

GIVING_UP_SECONDS = 10.0
"""Until ranks end that have lost a peer: their collectives fail, or their launcher stops them."""

PEER_LOST_SECONDS = 0.1, 1.0
"""The range within which a rank's failure makes its peers' collectives fail."""

ABORT_SECONDS = 2.0
"""Until the peers of a rank that has left fail in the collective in which they wait for it."""

KILL_WAIT_SECONDS = 30.0
"""Until a scheduler kills what has not ended on SIGTERM."""

REQUEUE_SECONDS = 10.0
"""The pause between two attempts of a restart loop."""

Action = Callable[[float], None]


class Simulation:
    """Runs one run of a scenario; `epoch` is the Unix time of second 0, `number` its own among the runs of a cluster.

    The same scenario always sends the same messages.
    """

    def __init__(self, scenario: Scenario, epoch: float = EPOCH, number: int = 0) -> None:
        self.now = 0.0
        self._scenario = scenario
        self._fleet = fleet = scenario.fleet
        self._epoch = epoch
        self._pace = Pace(scenario)
        self._curves = TrainingCurves(scenario)
        self._pauses = PauseSchedule(scenario)
        self._random = np.random.default_rng([scenario.seed, 4])
        self._computed, self._waited = np.zeros(fleet.ranks), np.zeros(fleet.ranks)
        self._reported = np.zeros((2, fleet.ranks))
        self._work: GpuWork | None = None
        self.nodes = tuple(
            SimulatedNode(
                fleet.node_name(node),
                SimulatedGpus(scenario, node, self._gpu_work, epoch, self._unix),
                SimulatedHost(scenario, node, epoch, self._seconds, self._carried),
            )
            for node in range(fleet.nodes)
        )
        self._processes = RankProcesses(scenario, number, self.nodes)
        self._scrapes = [
            each for each in scenario.faults if isinstance(each, (ScrapeFailure, ScrapeLost, ScrapeBlocked))
        ]
        self._vanished = [each for each in scenario.faults if isinstance(each, Vanish)]
        self._doubled = [each for each in scenario.faults if isinstance(each, DuplicateTarget)]
        self._skews = [each for each in scenario.faults if isinstance(each, ClockSkew)]
        self._events: list[tuple[float, int, Action]] = []
        self._scheduled = 0
        self._training: AttemptRanks | None = None
        self._attempts = 0
        self._last_step: int | None = None
        self._ended: float | None = None
        self._down: set[int] = set()
        self._loop_fails_at = 0.0
        self._at(0.0, self._starting(0.0 if scenario.step.formula else INIT_SECONDS))
        self._schedule()

    def advance(self, now: float) -> None:
        """Run everything that is due up to second `now` of the scenario."""
        while True:
            event = self._events[0][0] if self._events else float("inf")
            cycle = self._training.cycle_ends if self._training is not None else float("inf")
            if min(event, cycle) > now:
                break
            if event <= cycle:
                _, _, action = heapq.heappop(self._events)
                action(event)
            elif self._training is not None:
                self._training.end_cycle()
        self.now = now
        self._work = None
        if self._training is not None:
            self._training.settle(now)
        for number, node in enumerate(self.nodes):
            node.reachable = not any(
                is_unreachable(fault, number, now, self._scenario.scrape) for fault in self._scrapes
            )
            node.listed = not any(number in each.nodes and each.at <= now < each.until for each in self._vanished)
            again = (each for each in self._doubled if number in each.nodes and each.at <= now < each.until)
            node.second = next(((each.job, each.instance(node.name)) for each in again), None)
            node.ahead = sum(each.by for each in self._skews if number in each.nodes and each.at <= now < each.until)

    @property
    def is_training(self) -> bool:
        """Whether an attempt is under way, of which processes are left."""
        return self._training is not None

    def messages(self, nodes: Container[str] | None = None) -> list[RankMessage]:
        """Return all messages from ranks since the last call, in order, ending with the present state of each rank.

        With `nodes`, only ranks of these nodes send hello and state.
        """
        return self._processes.messages(self._training, self.now, nodes)

    def _schedule(self) -> None:
        """Schedule the scenario's faults that happen at a time of their own."""
        for fault in self._scenario.faults:
            self._schedule_nodes(fault)
            if isinstance(fault, Kill):
                self._at(fault.at, self._killing(fault))
            elif isinstance(fault, PlannedRestart):
                self._at(fault.at, self._ending("failed", "terminated", "SIGTERM"))
                self._at(fault.until, self._start)
            elif isinstance(fault, RestartLoop):
                self._loop(fault)
            elif isinstance(fault, Exit):
                self._at(fault.at, self._exiting(fault))
            elif isinstance(fault, Fail):
                self._fail_together(fault)
            elif isinstance(fault, Sigterm):
                self._at(fault.at + KILL_WAIT_SECONDS * fault.ignored, self._terminating(fault))
                self._at(fault.until, self._start)
            elif isinstance(fault, LeaveEarly):
                for rank in fault.ranks:
                    self._at(fault.at, self._leaving(rank))
            elif isinstance(fault, Finish):
                self._at(fault.at, self._ending("finished", "", ""))
            elif isinstance(fault, BatchChange):
                self._at(fault.at, lambda _: self._processes.repeat_hello())

    def _schedule_nodes(self, fault: Fault) -> None:
        """Schedule what happens to nodes and their exporters."""
        if isinstance(fault, NodeDown):
            self._at(fault.at, self._node_goes(fault.node))
            self._at(fault.until, self._node_comes(fault.node))
        for down in fault.downs() if isinstance(fault, Rollout) else [fault]:
            if isinstance(down, ExporterDown):
                self._at(down.at, self._exporter_goes(down.node))
                self._at(down.until, self._exporter_comes(down.node))

    def _loop(self, fault: RestartLoop) -> None:
        """Schedule the ends and starts of a restart loop; the attempt after the last failed one goes well."""
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
        """Start the next attempt."""
        self._pauses.restart(now)
        no_shows = [each for each in self._scenario.faults if isinstance(each, NoShow) and each.at <= now]
        if no_shows:
            init = self._scenario.lasts
        self._training = AttemptRanks(
            self._scenario, self._epoch, self._pace, self._curves, self._pauses,
            number=self._attempts, began=now, init=init, last_step=self._last_step, ended=self._ended,
        )  # fmt: skip
        self._attempts += 1
        offsets = self._random.uniform(0.1, HELLO_SECONDS, self._fleet.ranks).tolist()
        self._processes.start([now + offset for offset in offsets], self._down)
        self._processes.disconnect(rank for each in no_shows for rank in each.ranks)

    def _starting(self, init: float) -> Action:
        return lambda now: self._start(now, init)

    def _ending(self, outcome: str, category: str, message: str) -> Action:
        """Return the action that ends the attempt, with a bye from every rank that can send one."""

        def end(now: float) -> None:
            training = self._training
            if training is not None:
                self._leave(training, range(self._fleet.ranks), now, _bye(outcome, category, message))
                self._end_attempt(training, now)

        return end

    def _failing(self, category: str) -> Action:
        """Return the action that ends the attempt by one rank's failure: the others lose their peer, node by node."""

        def fail(now: float) -> None:
            training = self._training
            if training is None:
                return
            first = int(self._random.integers(self._fleet.ranks))
            training.hang(now)
            self._leave(training, [first], now, _bye("failed", category, f"attempt failed: {category}"))
            lost = "failed", "collective", f"RuntimeError: connection closed by peer, rank {first}"
            for node, after in enumerate(self._random.uniform(*PEER_LOST_SECONDS, self._fleet.nodes).tolist()):
                self._at(now + after, partial(self._leave, training, self._ranks_of(node), bye=_bye(*lost)))
            self._at(now + PEER_LOST_SECONDS[1], self._ending(*lost))

        return fail

    def _exiting(self, fault: Exit) -> Action:
        """Return the action by which ranks leave with an exit status; the others lose them, or wait for them."""

        def leave(now: float) -> None:
            training = self._training
            if training is None:
                return
            if fault.bye == "lost":
                self._disconnect(fault.ranks, now, fault.code)
            bye: dict[str, object] = {"outcome": "finished", "exit_code": fault.code}
            if fault.others == "train":
                self._leave(training, fault.ranks, now, bye)
            else:
                self._part(training, fault.ranks, now, bye, hang=fault.others == "hang")

        return leave

    def _fail_together(self, fault: Fail) -> None:
        """Schedule the failures of ranks that fail alike, evenly spread over their time."""
        bye = _bye("failed", fault.category, f"all failed: {fault.category}")

        def fail(rank: int, now: float) -> None:
            if self._training is not None:
                self._part(self._training, [rank], now, bye, hang=True)

        for number, rank in enumerate(fault.ranks):
            self._at(fault.at + fault.within * number / max(len(fault.ranks) - 1, 1), partial(fail, rank))

    def _terminating(self, fault: Sigterm) -> Action:
        """Return the action by which ranks end on SIGTERM, or are killed for ignoring it; the others lose them."""

        def terminate(now: float) -> None:
            if self._training is not None:
                if fault.ignored:
                    self._disconnect(fault.ranks, now)
                told = _bye("failed", "terminated", "SIGTERM")
                self._part(self._training, fault.ranks, now, told, hang=fault.others == "hang")

        return terminate

    def _part(
        self, training: AttemptRanks, ranks: Iterable[int], now: float, bye: dict[str, object], *, hang: bool
    ) -> None:
        """End these ranks of an attempt; a little later the others fail in a collective, unless they hang in it."""
        training.hang(now)
        self._leave(training, ranks, now, bye)
        if not any(self._processes.alive):
            self._end_attempt(training, now)
        elif not hang:
            gone = f"RuntimeError: connection closed by peer, rank {min(ranks)}"
            self._at(now + ABORT_SECONDS, self._ending("failed", "collective", gone))

    def _leaving(self, rank: int) -> Action:
        """Return the action by which a rank leaves the loop at the end of its next step, and its peers wait for it."""

        def leave(now: float) -> None:
            training = self._training
            if training is None:
                return

            def bye(later: float) -> None:
                if self._training is training:
                    self._part(training, [rank], later, _bye("finished", "", ""), hang=True)

            self._at(training.next_step_end(rank, now), bye)

        return leave

    def _end_attempt(self, training: AttemptRanks, now: float) -> None:
        """Note that nothing of an attempt is left."""
        self._last_step, self._ended = training.step_of(now), now
        self._training = None

    def _leave(self, training: AttemptRanks, ranks: Iterable[int], now: float, bye: dict[str, object]) -> None:
        """End these ranks of an attempt with a bye, unless the attempt is over already."""
        if self._training is training:
            training.settle(now)
            living = self._processes.living(ranks)
            self._processes.say_bye(training, living, now, bye)
            self._add_gpu_work(living, now)

    def _killing(self, fault: Kill) -> Action:
        def kill(now: float) -> None:
            training = self._training
            if training is None or not self._processes.living([fault.rank]):
                return
            training.hang(now)
            self._disconnect([fault.rank], now)
            if fault.others != "hang":
                self._at(now + GIVING_UP_SECONDS, lambda later: self._give_up(training, fault, later))

        return kill

    def _give_up(self, training: AttemptRanks, fault: Kill, now: float) -> None:
        """End the remaining ranks: a peer is gone."""
        if self._training is not training:
            return
        if fault.others == "end":
            message = f"RuntimeError: connection closed by peer, rank {fault.rank}"
            self._leave(training, range(self._fleet.ranks), now, _bye("failed", "collective", message))
        else:
            self._disconnect(range(self._fleet.ranks), now)
        self._end_attempt(training, now)

    def _node_goes(self, node: int) -> Action:
        def go(now: float) -> None:
            self._down.add(node)
            self.nodes[node].up = self.nodes[node].exporter_up = False
            if self._training is not None:
                self._training.hang(now)
                self._disconnect(self._ranks_of(node), now)

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
        """Return the action that starts a new exporter, to which ranks reconnect after their back-off."""

        def come(now: float) -> None:
            self.nodes[node].exporter_up = True
            for rank in self._ranks_of(node):
                if self._training is not None:
                    self._processes.reconnect(rank, now + float(self._random.uniform(0.5, 4.0)))

        return come

    def _disconnect(self, ranks: Iterable[int], now: float, exit_code: int | None = None) -> None:
        """End processes without a bye."""
        living = self._processes.living(ranks)
        self._add_gpu_work(living, now)
        self._processes.disconnect(living, exit_code)

    def _ranks_of(self, node: int) -> range:
        first = node * self._fleet.gpus_per_node
        return range(first, first + self._fleet.gpus_per_node)

    def _add_gpu_work(self, ranks: list[int], now: float) -> None:
        """Add the work that the GPUs of ranks that end now have done for them."""
        if self._training is not None and ranks:
            _, _, computed, waited = self._training.work(now)
            self._computed[ranks] += computed[ranks]
            self._waited[ranks] += waited[ranks]

    def _gpu_work(self) -> GpuWork:
        if self._work is None:
            living = np.array(self._processes.alive)
            computed, waited = self._computed, self._waited
            computing = waiting = np.zeros(self._fleet.ranks, dtype=bool)
            reserved = [0.0] * self._fleet.ranks
            if self._training is not None:
                computing, waiting, now_computed, now_waited = self._training.work(self.now)
                computed, waited = computed + living * now_computed, waited + living * now_waited
                reserved = self._training.reserved(self.now)
            computed, waited = self._reported = np.maximum(self._reported, (computed, waited))
            self._work = GpuWork(
                self.now, (computing & living).tolist(), (waiting & living).tolist(), computed.tolist(),
                waited.tolist(), [each if alive else 0.0 for each, alive in zip(reserved, living, strict=True)],
            )  # fmt: skip
        return self._work

    def _carried(self, rank: int) -> float:
        """Return the bytes that a GPU's port has transferred: its share of each all-reduce."""
        return self._training.cycles * 1e9 if self._training is not None else 0.0

    def _seconds(self) -> float:
        return self.now

    def _unix(self) -> float:
        return self._epoch + self.now


def _bye(outcome: str, category: str, message: str) -> dict[str, object]:
    return {"outcome": outcome, "category": category, "message": message}
