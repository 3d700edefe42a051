"""The ranks' processes of an attempt as their nodes' exporters see them: who is connected, and what each sends."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tachograph_lab.fleet.messages import Link, RankMessage, encode_frame
from tachograph_lab.fleet.pace import batch_factor
from tachograph_lab.fleet.ranks import AttemptRanks
from tachograph_lab.fleet.simulated_gpus import uuid_of
from tachograph_lab.fleet.simulated_node import SimulatedNode
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import BatchChange, ClockSkew, freezes

_MOMENTS = ("checkpoint_timestamp_seconds", "loss_nonfinite_timestamp_seconds")


@dataclass(slots=True)
class _Process:
    """The process of one rank in the present attempt, on its node."""

    rank: int
    node: SimulatedNode
    alive: bool = False
    hello_at: float = 0.0
    said_hello: bool = False
    sequence: int = 0
    moments: dict[str, tuple[object, float]] = field(default_factory=dict)
    """Times of the day that it tells of, by name: the true one, and by how much its clock was ahead when it read it."""

    def by_clock(self, name: str, moment: float) -> float:
        """Return a time of the day as its clock gave it when it first told of it."""
        if self.moments.get(name, (None, 0.0))[0] != moment:
            self.moments[name] = moment, self.node.ahead
        return moment + self.moments[name][1]


class RankProcesses:
    """One process per rank; those of the attempt before are gone when the next one starts."""

    def __init__(self, scenario: Scenario, number: int, nodes: Sequence[SimulatedNode]) -> None:
        self._scenario = scenario
        self._fleet = fleet = scenario.fleet
        self._number = number
        self._freezes = freezes(scenario.faults)
        self._clocks_are_set = any(isinstance(each, ClockSkew) for each in scenario.faults)
        self._batches = [each for each in scenario.faults if isinstance(each, BatchChange)]
        self._outbox: list[RankMessage] = []
        self._attempt = -1
        self._processes = [_Process(rank, nodes[fleet.node_of(rank)]) for rank in range(fleet.ranks)]

    @property
    def alive(self) -> list[bool]:
        """Whether each rank's process is there."""
        return [process.alive for process in self._processes]

    def living(self, ranks: Iterable[int]) -> list[int]:
        """Return those of these ranks whose process is there."""
        return [rank for rank in ranks if self._processes[rank].alive]

    def start(self, hello_at: Sequence[float], down: Collection[int]) -> None:
        """Start the processes of the next attempt, each with the time of its hello; none on nodes that are down."""
        self._attempt += 1
        self._processes = [
            _Process(old.rank, old.node, self._fleet.node_of(old.rank) not in down, at)
            for old, at in zip(self._processes, hello_at, strict=True)
        ]

    def reconnect(self, rank: int, hello_at: float) -> None:
        """Make a rank send hello to a new exporter, at this time."""
        process = self._processes[rank]
        process.said_hello, process.hello_at = False, hello_at

    def repeat_hello(self) -> None:
        """Make all ranks send hello again, because their facts have changed."""
        for process in self._processes:
            process.said_hello = False

    def messages(
        self, training: AttemptRanks | None, now: float, nodes: Container[str] | None = None
    ) -> list[RankMessage]:
        """Return all messages since the last call, in order, ending with the present state of each rank.

        With `nodes`, only ranks of these nodes send hello and state.
        """
        messages, self._outbox = self._outbox, []
        if training is None:
            return messages
        senders = []
        for process in self._processes:
            if not self._can_send(process, now) or (nodes is not None and process.node.name not in nodes):
                continue
            if not process.said_hello:
                process.said_hello = True
                messages.append(self._message(process, self._hello(process.rank, now)))
            senders.append(process.rank)
        messages.extend(self._states(training, senders, now))
        return messages

    def disconnect(self, ranks: Iterable[int], exit_code: int | None = None) -> None:
        """End processes without a bye: by an exit code where one is given, else killed."""
        for rank in ranks:
            self._end(self._processes[rank], exit_code)

    def say_bye(self, training: AttemptRanks, ranks: Sequence[int], now: float, bye: dict[str, object]) -> None:
        """End processes with a bye; frozen ones are killed."""
        leaving = [self._processes[rank] for rank in ranks]
        sending = [process.rank for process in leaving if process.said_hello and self._can_send(process, now)]
        states = {message.connection[1]: message for message in self._states(training, sending, now)}
        for process in leaving:
            if process.rank in states:
                self._outbox += [states[process.rank], self._message(process, encode_frame("bye", bye))]
            self._end(process)

    def _end(self, process: _Process, exit_code: int | None = None) -> None:
        process.alive = False
        if process.said_hello and process.node.exporter_up:
            self._outbox.append(self._message(process, None)._replace(exit_code=exit_code))

    def _states(self, training: AttemptRanks, ranks: Iterable[int], now: float) -> Iterator[RankMessage]:
        for rank, frame in training.states(ranks, now):
            process = self._processes[rank]
            process.sequence += 1
            state = _by_clock(frame, process) if self._clocks_are_set else frame
            yield self._message(process, encode_frame("state", {"seq": process.sequence, **state}))

    def _hello(self, rank: int, now: float) -> bytes:
        scenario, fleet = self._scenario, self._fleet
        batch = scenario.work.global_batch * batch_factor(self._batches, now)
        facts = {
            "precision": "bf16", "global_batch": round(batch), "framework": "pytorch 2.13.0",
            "flops_convention": "causal",
            **({"tier": fleet.tier} if fleet.tier != "standard" else {}),
        }  # fmt: skip
        coordinates = fleet.coordinates_of(rank)
        watched = scenario.waits is None or rank in scenario.waits
        if not watched and len(coordinates) == 1:  # of a loop without a mesh, the model that it watches has them
            coordinates = {}
        return encode_frame(
            "hello",
            {
                "run": fleet.run, "rank": rank, "local_rank": rank % fleet.gpus_per_node, "world_size": fleet.ranks,
                "attempt": self._attempt, "pid": 10_000 + 1000 * self._attempt + fleet.gpu_of(rank), "facts": facts,
                "uuid": self._claimed(rank), **({"coordinates": coordinates} if coordinates else {}),
                **({"role": fleet.role} if fleet.role else {}),
            },
        )  # fmt: skip

    def _claimed(self, rank: int) -> str:
        """Return the UUID of the GPU that a rank says it is on: its own, or another run's."""
        if self._fleet.claims is None:
            return uuid_of(self._fleet, rank)
        return uuid_of(replace(self._fleet, first_node=0, first_gpu=0), self._fleet.claims)

    def _message(self, process: _Process, text: bytes | None) -> RankMessage:
        link: Link = (self._fleet.run, process.rank, self._attempt, self._number)
        return RankMessage(process.node.name, link, text, uid=self._fleet.owner)

    def _can_send(self, process: _Process, now: float) -> bool:
        here = process.alive and process.node.exporter_up and process.hello_at <= now
        return here and not any(fault.rank == process.rank and fault.at <= now < fault.until for fault in self._freezes)


def _by_clock(frame: dict[str, object], process: _Process) -> dict[str, object]:
    """Return a state by the clock of its node, which may be set at any time: what it has told stays as it was told."""
    shifted = dict(frame)
    for name in ("time", "phase_since"):
        if isinstance(moment := frame[name], float):
            shifted[name] = moment + process.node.ahead
    if isinstance(moment := frame.get("progress_time"), float):
        shifted["progress_time"] = process.by_clock("progress_time", moment)
    metrics = frame["metrics"]
    if isinstance(metrics, dict):
        told = {key: each for key, each in metrics.items() if key in _MOMENTS and isinstance(each, float)}
        shifted["metrics"] = metrics | {key: process.by_clock(key, each) for key, each in told.items()}
    return shifted
