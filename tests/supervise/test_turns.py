"""The nodes of a large run are asked in turns while nothing is wrong, and all at once when anything may be."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tachograph.supervise import policy
from tachograph.supervise.ledger import SHADOW
from tachograph.supervise.run_seen import RunSeen, Unknown
from tachograph.supervise.several_nodes import NODES_A_TURN, SeveralNodes, sources_of
from tachograph_lab.fleet.simulation import Simulation
from tachograph_lab.fleet.virtual_node import VirtualNode
from tachograph_lab.scenario.definition import Fleet, Scenario
from tachograph_lab.scenario.faults import Fault, LoggedXid, Stuck
from tests.http_servers import serving
from tests.supervise.world import BEGIN, Child, World

NODES = 17
JOB = "4711"
READY_SECONDS = 30.0
"""Of the simulation, before it is supervised: its ranks make steps by then."""
FAULT_SECONDS = 10.0
CYCLE_SECONDS = 5.0 * math.ceil(NODES / NODES_A_TURN)


class Exporters:
    """The real exporters of a simulated run of a rank a node, behind one HTTP server."""

    def __init__(self, *faults: Fault) -> None:
        fleet = Fleet(run="r", nodes=NODES, gpus_per_node=1)
        scenario = Scenario(title="turns", story="turns", lasts=1e6, fleet=fleet, faults=faults)
        self._epoch = time.time() - READY_SECONDS
        self._simulation = Simulation(scenario, self._epoch)
        self._nodes = {one.name: VirtualNode(one, self._now) for one in self._simulation.nodes}
        self._kept: dict[str, bytes] = {}
        self.silent: set[str] = set()
        self.still: set[str] = set()
        self.asked: Counter[str] = Counter()
        """How often each node was asked since this was last taken."""

    def _now(self) -> float:
        return self._epoch + self._simulation.now

    def advance(self, seconds: float) -> None:
        """Let the run go on until so many seconds after it is supervised."""
        self._simulation.advance(READY_SECONDS + seconds)
        for message in self._simulation.messages():
            self._nodes[message.node].receive(message)
        for node in self._nodes.values():
            node.tick()

    def answer(self, path: str, _: bytes) -> tuple[int, bytes]:
        """Answer `/NODE/api/node`."""
        name = path.split("/")[1]
        self.asked[name] += 1
        if name not in self.still or name not in self._kept:
            said = self._nodes[name].api_node().replace('"job_id": ""', f'"job_id": "{JOB}"')
            self._kept[name] = said.encode()
        return (503, b"") if name in self.silent else (200, self._kept[name])

    @contextmanager
    def watched(self) -> Iterator[SeveralNodes]:
        """Yield what asks all of them."""
        with serving(self.answer) as url:
            sources = sources_of({name: f"{url}/{name}" for name in self._nodes}, ["r"])
            yield SeveralNodes(sources, lambda: self._nodes)


@dataclass
class Turns(World):
    """The world of a supervisor that asks those exporters; `looked` has who was asked at each look."""

    exporters: Exporters = field(default_factory=Exporters)
    nodes: SeveralNodes | None = None
    looked: list[tuple[float, Counter[str]]] = field(default_factory=list)
    on_look: Callable[[float], None] = lambda _: None

    def look(self, _: float, *, in_turns: bool = False) -> RunSeen | Unknown:
        assert self.nodes is not None
        self.on_look(self.now)
        self.exporters.advance(self.now)
        self.exporters.asked = Counter()
        seen = self.nodes.look(self.now + READY_SECONDS, in_turns=in_turns)
        self.looked.append((self.now, self.exporters.asked))
        return seen

    def start(self, environment: Mapping[str, str]) -> Child:
        child = super().start(environment)
        child.job = JOB
        return child


def played(
    folder: Path, seconds: float, *faults: Fault, on_look: Callable[[Exporters, float], None] | None = None
) -> Turns:
    """Return what became of a run that an impatient supervisor in shadow mode has looked at for so long."""
    exporters = Exporters(*faults)
    impatient = folder / "policy.yml"
    impatient.write_text(policy.DEFAULT.read_text().replace("for: 30s", "for: 5s"))
    world = Turns(
        folder, lambda *_: Unknown(""), ends=[(0, seconds)], mode=SHADOW, policy=impatient, exporters=exporters
    )
    if on_look is not None:
        world.on_look = lambda now: on_look(exporters, now)
    with exporters.watched() as world.nodes:
        assert world.supervise() == 0
    return world


def numbers(looked: Sequence[tuple[float, Counter[str]]]) -> list[int]:
    """Return how many nodes were asked at each look."""
    return [len(asked) for _, asked in looked]


def test_nodes_take_turns_while_nothing_is_wrong(tmp_path: Path) -> None:
    """A few every 5 s, each once in a cycle, so that the cost does not grow with the nodes; nothing is decided."""
    world = played(tmp_path, 50.0)
    assert world.decisions() == []
    assert {facts["blind_seconds"] for _, facts in world.told} == {0.0}
    first, *rest = [one for one in world.looked if one[0] < 50.0]
    assert len(first[1]) == NODES
    assert set(numbers(rest)) == {NODES_A_TURN}
    assert {after - before for (before, _), (after, _) in pairwise(rest)} == {5.0}
    for begin, _ in rest[: -math.ceil(NODES / NODES_A_TURN)]:
        cycle = [asked for at, asked in rest if begin <= at < begin + CYCLE_SECONDS]
        assert len(sum(cycle, Counter())) == NODES


def test_a_hang_is_seen_by_whoever_is_asked(tmp_path: Path) -> None:
    """It is shown by all nodes: at the next look all are asked, and then every second, as without turns."""
    world = played(tmp_path, 50.0, Stuck(at=READY_SECONDS + FAULT_SECONDS, rank=NODES - 1, phase="backward"))
    (decision,) = [one for one in world.entries if one["kind"] == "decision"]
    assert (decision["outcome"], decision["trigger"]) == ("would", "hung")
    found = next(at for at, asked in world.looked[1:] if len(asked) == NODES)
    assert FAULT_SECONDS + 15.0 < found <= FAULT_SECONDS + 15.0 + 4.0 + 5.0, "its limit, three steps, and a look"
    assert found + 10.0 <= decision["time"] - BEGIN <= found + 11.0
    assert numbers([one for one in world.looked if found < one[0] < found + 10.0]) == [NODES] * 9


def test_what_one_node_says_is_seen_in_its_turn(tmp_path: Path) -> None:
    """A broken GPU of a run that goes on: within a cycle of looks, and by all nodes before anything is decided."""
    world = played(tmp_path, 35.0, LoggedXid(at=READY_SECONDS + FAULT_SECONDS, rank=NODES - 1, number=79))
    (trigger,) = {one["trigger"] for one in world.entries if one["kind"] == "decision"}
    assert trigger == "gpu_fault"
    found = next(at for at, asked in world.looked[1:] if len(asked) == NODES)
    assert FAULT_SECONDS <= found <= FAULT_SECONDS + CYCLE_SECONDS


@pytest.mark.parametrize("how", ["silent", "still"])
def test_a_node_of_which_nothing_is_known_leaves_the_run_unknown(tmp_path: Path, how: str) -> None:
    """Once its turn has come, and until it answers anew: the others' turns do not hide it."""
    begin, end = 10.0, 50.0

    def on_look(exporters: Exporters, now: float) -> None:
        setattr(exporters, how, {"node-13"} if begin <= now < end else set())

    world = played(tmp_path, end + 15.0, on_look=on_look)
    blind = {at: facts["blind_seconds"] for at, facts in world.told}
    assert max(blind.values()) >= end - begin - CYCLE_SECONDS - 5.0
    assert [at for at, seconds in blind.items() if seconds and not begin < at <= end + 5.0] == []
    assert set(numbers([one for one in world.looked if begin + CYCLE_SECONDS < one[0] < end])) == {NODES}
    assert set(numbers([one for one in world.looked if end + 5.0 < one[0] < end + 15.0])) == {NODES_A_TURN}
    assert world.decisions() == []
