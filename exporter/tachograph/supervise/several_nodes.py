"""The findings of several nodes about one run, as one: each exporter concludes about its part of it.

Unknown is not gone: while a node of the attempt does not answer, nothing is known of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tachograph.catalog.rank import ALIVE
from tachograph.catalog.run import NONE_WAITS
from tachograph.diagnosis import STATES
from tachograph.supervise.findings import AskingThreads, FindingSource
from tachograph.supervise.run_seen import CheckpointSeen, NotThere, RankSeen, RunSeen, Silent, Unknown, whole
from tachograph.supervise.triggers import worst_of_nodes
from tachograph.text.humanize import plural

NODES_A_TURN = 8
"""How many nodes are asked at a look while nothing is wrong, as each costs half a millisecond of it."""
MOST_THREADS = 16
"""For all nodes: that all are asked is rare, and their answers are read one after the other."""


def sources_of(addresses: Mapping[str, str], names: Sequence[str]) -> dict[str, FindingSource]:
    """Return the exporters at these addresses, by node, which are asked about the run of these names."""
    threads = AskingThreads(min(len(addresses), MOST_THREADS))
    return {node: FindingSource(address, names, node, by=threads) for node, address in addresses.items()}


class SeveralNodes:
    """The exporters of all nodes that an attempt may run on."""

    def __init__(self, sources: Mapping[str, FindingSource], used: Callable[[], Collection[str]]) -> None:
        """`used` returns the nodes of the attempt that runs: what others show is of an earlier one."""
        self._sources = sources
        self._used = used
        self._parts: dict[str, RunSeen | Unknown] = {}
        """What each node of the attempt answered last, the one that was asked first of all coming first."""

    def begin(self) -> None:
        """Take all ranks that any of them shows now for those of earlier attempts."""
        self._parts = {}
        for source in self._sources.values():
            source.ask()
        for source in self._sources.values():
            source.note_earlier()

    def look(self, attempt_seconds: float, *, in_turns: bool = False) -> RunSeen | Unknown:
        """Return what is known of the run by all its nodes.

        Where they take turns, a few of them are asked, and what the others answered last stands for them. That shows
        that nothing is wrong, and nothing else: otherwise all are asked at once.
        """
        used = self._used()
        if in_turns and self._parts.keys() == set(used) and len(used) > NODES_A_TURN:
            asked = self._answers(list(self._parts)[:NODES_A_TURN], attempt_seconds)
            others = {node: part for node, part in self._parts.items() if node not in asked}
            seen = merged({**others, **asked})
            if isinstance(seen, RunSeen) and not any(map(_is_wrong, (seen, *asked.values()))):
                self._parts = {**others, **asked}
                return replace(seen, times={node: time for node, time in seen.times.items() if node in asked})
        self._parts = self._answers([node for node in self._sources if node in used], attempt_seconds)
        return merged(self._parts)

    def _answers(self, nodes: Collection[str], attempt_seconds: float) -> dict[str, RunSeen | Unknown]:
        """Return what these nodes answer, which are asked at the same time."""
        for node in nodes:
            self._sources[node].ask()
        return {node: self._sources[node].part(attempt_seconds) for node in nodes}


def _is_wrong(part: RunSeen | Unknown) -> bool:
    """Return whether something is wrong with a run, or with its part on one node."""
    return isinstance(part, RunSeen) and worst_of_nodes(part) is not None


def merged(parts: Mapping[str, RunSeen | Unknown]) -> RunSeen | Unknown:
    """Return the run that these parts of it make, by node."""
    silent = {
        node: part for node, part in parts.items() if isinstance(part, Unknown) and not isinstance(part, NotThere)
    }
    if silent:
        first = next(iter(silent.values()))
        more = f", nor of {plural(len(silent) - 1, 'other node')}" if len(silent) > 1 else ""
        return Silent(f"nothing is known of node {next(iter(silent))}{more}: {first.why}")
    shown = [part for part in parts.values() if isinstance(part, RunSeen) and part.ranks]
    if not shown:
        return next(map(whole, parts.values()), Unknown("no node of the run is known"))
    ranks: dict[int, RankSeen] = {}
    for rank in (rank for part in shown for rank in part.ranks):
        other = ranks.get(rank.rank)
        if other is not None and other.state in ALIVE and rank.state in ALIVE:
            return Unknown(f"rank {rank.rank} of run {shown[0].name} is on {other.node} and on {rank.node}")
        if other is None or _age(rank) < _age(other):
            ranks[rank.rank] = rank
    without_step = [part.seconds_without_step for part in shown if part.seconds_without_step is not None]
    spiked = [part.spiked_step for part in shown if part.spiked_step is not None]
    culprits = {part.culprit for part in shown if part.culprit is not None}
    return whole(
        replace(
            shown[0],
            times={node: time for part in shown for node, time in part.times.items()},
            state=_state([part.state for part in shown]),
            world_size=max(part.world_size for part in shown),
            seconds_without_step=min(without_step, default=None),
            hang_limit=_hang_limit(shown),
            saving_seconds=max(
                (part.saving_seconds for part in shown if part.saving_seconds is not None), default=None
            ),
            culprit=culprits.pop() if len(culprits) == 1 else None,
            checkpoints=_common([part.checkpoints for part in shown if part.checkpoints]),
            ranks=tuple(ranks[number] for number in sorted(ranks)),
            problems=tuple(problem for part in shown for problem in part.problems),
            node="",
            spiked_step=min(spiked) if spiked and 2 * len(spiked) >= len(shown) else None,
            gpu_trouble=tuple(trouble for part in shown for trouble in part.gpu_trouble),
        )
    )


def _hang_limit(parts: Sequence[RunSeen]) -> float:
    """Return the longest; ranks that wait for nobody have no more time if others hang because they wait for them."""
    some_hang = any(part.state == "hung" for part in parts)
    return max(
        part.hang_limit
        for part in parts
        if part.state == "hung" or not (some_hang and part.hang_limit_of == NONE_WAITS)
    )


def _common(parts: Sequence[Sequence[CheckpointSeen]]) -> tuple[CheckpointSeen, ...]:
    """Return the checkpoints that each node with any has, durable where it is on each, suspect where it is on any."""
    by_step = [{one.step: one for one in part} for part in parts]
    found = []
    for step in sorted(set.intersection(*map(set, by_step)) if by_step else ()):
        each = [part[step] for part in by_step]
        found.append(
            CheckpointSeen(
                step,
                max(one.time for one in each),
                next((one.path for one in each if one.path), ""),
                is_durable=all(one.is_durable for one in each),
                is_suspect=any(one.is_suspect for one in each),
            )
        )
    return tuple(found)


def _age(rank: RankSeen) -> float:
    """Return for how long a rank has ended, below 0 for one that has not."""
    return -1.0 if rank.ended_seconds is None else rank.ended_seconds


def _state(states: Sequence[str]) -> str:
    """Return the worst state; a run hangs only once none of its nodes gives it time, as one does after a pause there.

    That is what the rules take, too: the least time without a step (prometheus/src/progress.yml).
    """
    if "hung" in states and "running" in states:
        states = ["overdue", *(state for state in states if state != "hung")]
    return min(states, key=_place)


def _place(state: str) -> int:
    """Return how bad a state is, from 0; what a newer exporter says is the worst."""
    return STATES.index(state) if state in STATES else -1
