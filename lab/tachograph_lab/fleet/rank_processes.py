"""The ranks' processes of an attempt as their nodes' exporters see them: who is connected, and what each sends."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence

from tachograph_lab.fleet.messages import Link, RankMessage, encode_frame
from tachograph_lab.fleet.pace import batch_factor
from tachograph_lab.fleet.ranks import AttemptRanks
from tachograph_lab.fleet.simulated_gpus import uuid_of
from tachograph_lab.fleet.simulated_node import SimulatedNode
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import BatchChange, freezes


class RankProcesses:
    """One process per rank; those of the attempt before are gone when the next one starts.

    `alive` says of each rank whether its process is there.
    """

    def __init__(self, scenario: Scenario, number: int, nodes: Sequence[SimulatedNode]) -> None:
        self._scenario = scenario
        self._fleet = fleet = scenario.fleet
        self._number = number
        self._nodes = nodes
        self._names = [fleet.node_name(node) for node in range(fleet.nodes)]
        self._freezes = freezes(scenario.faults)
        self._batches = [each for each in scenario.faults if isinstance(each, BatchChange)]
        self._outbox: list[RankMessage] = []
        self._attempt = -1
        self.alive = [False] * fleet.ranks
        self._hello_at: list[float] = [0.0] * fleet.ranks
        self._said_hello = [False] * fleet.ranks
        self._sequences = [0] * fleet.ranks

    def start(self, hello_at: list[float], down: Collection[int]) -> None:
        """Start the processes of the next attempt, each with the time of its hello; none on nodes that are down."""
        self._attempt += 1
        self.alive = [self._fleet.node_of(rank) not in down for rank in range(self._fleet.ranks)]
        self._hello_at = hello_at
        self._said_hello = [False] * self._fleet.ranks
        self._sequences = [0] * self._fleet.ranks

    def reconnect(self, rank: int, hello_at: float) -> None:
        """Make a rank send hello to a new exporter, at this time."""
        self._said_hello[rank] = False
        self._hello_at[rank] = hello_at

    def repeat_hello(self) -> None:
        """Make all ranks send hello again, because their facts have changed."""
        self._said_hello = [False] * self._fleet.ranks

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
        for rank in range(self._fleet.ranks):
            if not self._can_send(rank, now) or (nodes is not None and self._node_name(rank) not in nodes):
                continue
            if not self._said_hello[rank]:
                self._said_hello[rank] = True
                messages.append(self._message(rank, self._hello(rank, now)))
            senders.append(rank)
        messages.extend(self._states(training, senders, now))
        return messages

    def disconnect(self, ranks: Iterable[int]) -> None:
        """End processes without a bye."""
        for rank in ranks:
            self._end(rank)

    def say_bye(self, training: AttemptRanks, ranks: Sequence[int], now: float, bye: dict[str, object]) -> None:
        """End processes with a bye; frozen ones are killed."""
        sending = [rank for rank in ranks if self._can_send(rank, now) and self._said_hello[rank]]
        states = {message.connection[1]: message for message in self._states(training, sending, now)}
        for rank in ranks:
            if rank in states:
                self._outbox += [states[rank], self._message(rank, encode_frame("bye", bye))]
            self._end(rank)

    def _end(self, rank: int) -> None:
        self.alive[rank] = False
        if self._said_hello[rank] and self._has_exporter(rank):
            self._outbox.append(self._message(rank, None))

    def _states(self, training: AttemptRanks, ranks: Iterable[int], now: float) -> Iterator[RankMessage]:
        for rank, frame in training.states(ranks, now):
            self._sequences[rank] += 1
            state = _by_clock(frame, self._nodes[self._fleet.node_of(rank)].ahead)
            yield self._message(rank, encode_frame("state", {"seq": self._sequences[rank], **state}))

    def _hello(self, rank: int, now: float) -> bytes:
        scenario, fleet = self._scenario, self._fleet
        batch = scenario.work.global_batch * batch_factor(self._batches, now)
        facts = {
            "precision": "bf16", "global_batch": round(batch), "framework": "pytorch 2.13.0",
            "flops_convention": "causal",
            **({"tier": fleet.tier} if fleet.tier != "standard" else {}),
        }  # fmt: skip
        coordinates = fleet.coordinates_of(rank)
        return encode_frame(
            "hello",
            {
                "run": fleet.run, "rank": rank, "local_rank": rank % fleet.gpus_per_node, "world_size": fleet.ranks,
                "attempt": self._attempt, "pid": 10_000 + 1000 * self._attempt + fleet.gpu_of(rank), "facts": facts,
                "uuid": uuid_of(fleet, rank), **({"coordinates": coordinates} if coordinates else {}),
            },
        )  # fmt: skip

    def _message(self, rank: int, text: bytes | None) -> RankMessage:
        link: Link = (self._fleet.run, rank, self._attempt, self._number)
        return RankMessage(self._node_name(rank), link, text)

    def _node_name(self, rank: int) -> str:
        return self._names[self._fleet.node_of(rank)]

    def _can_send(self, rank: int, now: float) -> bool:
        here = self.alive[rank] and self._has_exporter(rank) and self._hello_at[rank] <= now
        return here and not self._frozen(rank, now)

    def _has_exporter(self, rank: int) -> bool:
        """Return whether a rank's node has an exporter to connect to."""
        return self._nodes[self._fleet.node_of(rank)].exporter_up

    def _frozen(self, rank: int, now: float) -> bool:
        return any(fault.rank == rank and fault.at <= now < fault.until for fault in self._freezes)


def _by_clock(frame: dict[str, object], ahead: float) -> dict[str, object]:
    """Return a state by a clock that is so many seconds ahead."""
    if not ahead:
        return frame
    shifted = dict(frame)
    for name in ("time", "phase_since", "progress_time"):
        if isinstance(moment := frame.get(name), float):
            shifted[name] = moment + ahead
    return shifted
