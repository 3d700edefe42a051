"""The faults of the fault bench and the alerts expected for each, defined before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

RANKS = 4
NODES, RANKS_PER_NODE = 4, 2
"""Of a job with a slow node: a node is judged where it is one of four or more."""

STEP_SECONDS = 0.125
CULPRIT = 2
"""The rank with the fault: neither the first nor the last one, and not the one that saves checkpoints; or the node."""

SHARES = (0.5, 0.2, 0.1)
"""Delays as shares of the job's own healthy step."""

TURNS_SECONDS = 720.0
"""That nobody is late on average, and yet all wait, is a ticket after six minutes, and eleven after an evaluation."""

PLACES = {
    "loader": "data",
    "copy": "copy",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "before collective": "other",
}
"""The place of a delay -> the phase to be named; right before a collective, outside of phases, it is `other`."""

PARALLELISMS = ("ddp", "fsdp2", "hsdp", "tensor", "pipeline", "fsdp2-tensor", "experts")
"""Of the basic loops: sharded parameters, split layers, 1F1B with four micro-batches, all_to_all, meshes of 2 × 2."""

MARKED, BASIC, UNEDITED = "marked", "basic", "unedited"
"""The loops: every phase marked; only the steps and the loader; no word of Tachograph, under `tachograph run`."""

STRAGGLER, STRAGGLER_NODE = "StragglerRank", "StragglerNode"
SYMPTOMS_OF_AN_END = ("RankFailed", "RunHung")
"""Of the ranks that lose a peer. That they died as well is not one of them: nobody killed them."""


@dataclass(frozen=True)
class Verdict:
    """An alert, the rank it names (None: no rank), the phase in its text (None: not checked), and the node it names."""

    alert: str
    rank: int | None = None
    phase: str | None = None
    node: str | None = None

    def __str__(self) -> str:
        who = "" if self.rank is None else f" rank {self.rank}"
        who += "" if self.node is None else f" {self.node}"
        return f"{self.alert}{who}{f' ({self.phase})' if self.phase else ''}"


@dataclass(frozen=True)
class Scenario:
    """One job and its expected alert.

    `kind` and `place`, `share`, `rotating` say what happens from `onset` seconds on, `seconds` is the length of what
    comes after. `expected` None: nothing but info may be said. `allowed` are alerts that are right as well, but not
    asked for. `quiet` scenarios expect an info alert, which nobody is sent.
    """

    name: str
    kind: str
    expected: Verdict | None
    place: str = ""
    share: float = 0.0
    rotating: bool = False
    onset: float = 35.0
    seconds: float = 90.0
    allowed: tuple[str, ...] = ()
    long: bool = False
    repeat: int = 0
    parallelism: str = "ddp"
    loop: str = MARKED
    nodes: int = 1

    @property
    def run(self) -> str:
        """The run's name, of letters, digits and hyphens."""
        return f"{self.name.replace(' ', '-').replace('%', '')}-{self.repeat}"

    @property
    def ranks(self) -> int:
        """The ranks of the job."""
        return RANKS if self.nodes == 1 else self.nodes * RANKS_PER_NODE

    @property
    def ends(self) -> bool:
        """Whether the fault ends the job."""
        return self.kind == "killed"

    @property
    def tier(self) -> str:
        """The row of the summary it counts in."""
        if self.loop != MARKED:
            return f"{self.loop} {self.parallelism}"
        if self.kind == "healthy":
            return "healthy"
        return f"delay {self.share:.0%}" if self.kind == "delay" else "other faults"

    @property
    def steps_before(self) -> int:
        """Steps until the fault."""
        return round(self.onset / STEP_SECONDS)

    @property
    def steps(self) -> int:
        """Steps of the whole run; a delay stretches those after the onset."""
        return self.steps_before + round(self.seconds / (STEP_SECONDS * (1 + self.share)))


HEALTHY = Scenario("healthy", "healthy", None)


def delays() -> list[Scenario]:
    """Return every combination of delay, place and rotation, the largest delay first."""
    return [
        Scenario(
            f"{place} {share:.0%} {'rotating' if rotating else 'fixed'}",
            "delay",
            Verdict(STRAGGLER, None if rotating else CULPRIT, phase),
            place=place,
            share=share,
            rotating=rotating,
            seconds=TURNS_SECONDS if rotating else 90.0,
        )
        for share in SHARES
        for place, phase in PLACES.items()
        for rotating in (False, True)
    ]


OTHERS = (
    Scenario("NaN", "nan", Verdict("LossNotFinite", CULPRIT), seconds=20),
    Scenario("spike heals", "spike", Verdict("LossSpike"), seconds=45),
    Scenario("spike stays", "spike-stays", Verdict("LossSpikeNotRecovering"), seconds=45, allowed=("LossSpike",)),
    Scenario("drift", "drift", Verdict("InvariantBroken", CULPRIT), seconds=120),
    Scenario("checksum", "checksum", Verdict("SilentDataCorruptionSuspected", CULPRIT), seconds=120),
    Scenario("omitted collective", "omitted", Verdict("RunHung", CULPRIT), seconds=60),
    Scenario("killed", "killed", Verdict("RankDead", CULPRIT), seconds=30, allowed=SYMPTOMS_OF_AN_END),
    Scenario("frozen", "frozen", Verdict("RankFrozen", CULPRIT), seconds=40, allowed=SYMPTOMS_OF_AN_END),
)

HANGS = (
    Scenario("omitted collective", "omitted", Verdict("RunHung", CULPRIT), seconds=60),
    Scenario("wrong order", "order", Verdict("RunHung", CULPRIT), seconds=60),
    Scenario("stuck loader", "loader", Verdict("RunHung", CULPRIT), seconds=60),
    Scenario("left early", "left", Verdict("RunHung", CULPRIT), seconds=60),
    Scenario("killed", "killed", Verdict("RankDead", CULPRIT), seconds=30, allowed=SYMPTOMS_OF_AN_END),
)
"""In basic loops: one rank leaves out a collective and goes on, or enters two in the other order; its loader stops; its
data end before the others'; it is killed."""

BASIC_PLACES = ("loader", "forward", "backward", "optimizer")
BASIC_HEALTHY = 4
SMALLEST_REPEATS = 3
"""Jobs of a basic loop for each place of the smallest delay, which is near what noise hides."""


def node_name(node: int) -> str:
    """Return the name of a node of a job."""
    return f"node-{node}"


PASTS = {"pipeline": 300.0, "experts": 450.0}
"""Nominal seconds before a node is slow, where ranks may differ by design: a past of 12 minutes or more.

So long a job is played once.
"""

SLOW_NODES = tuple(
    Scenario(
        f"backward {share:.0%} node",
        "delay",
        Verdict(STRAGGLER_NODE, None, "backward", node_name(CULPRIT)),
        place="backward",
        share=share,
        nodes=NODES,
    )
    for share in SHARES[:2]
)


def basic() -> list[Scenario]:
    """Return the basic loop under each parallelism: delays on one rank, a node, and in turn; hangs; healthy runs."""
    late = [
        one
        for one in delays()
        if one.place in BASIC_PLACES and (not one.rotating or (one.place, one.share) == ("backward", SHARES[0]))
    ]
    again = [
        replace(one, repeat=repeat)
        for repeat in range(1, SMALLEST_REPEATS)
        for one in late
        if one.share == SHARES[-1] and not one.rotating
    ]
    calm = [replace(HEALTHY, repeat=repeat) for repeat in range(BASIC_HEALTHY)]
    calm.append(replace(HEALTHY, name="healthy nodes", nodes=NODES))
    return [
        replace(
            one,
            name=f"{BASIC} {parallelism} {one.name}",
            parallelism=parallelism,
            loop=BASIC,
            onset=PASTS.get(parallelism, one.onset) if one.nodes > 1 and one.expected else one.onset,
        )
        for one in interleaved((*HANGS, *late, *SLOW_NODES, *again), calm)
        for parallelism in PARALLELISMS
        if not (one.nodes > 1 and parallelism in PASTS and one.share == SHARES[1])
    ]


def unedited() -> list[Scenario]:
    """Return the unedited loop under each parallelism: a delay in each place, hangs, and a healthy run."""
    late = [one for one in delays() if one.place in BASIC_PLACES and one.share == SHARES[1] and not one.rotating]
    hangs = [one for one in HANGS if one.kind in ("omitted", "loader", "killed")]
    return [
        replace(one, name=f"{UNEDITED} {parallelism} {one.name}", parallelism=parallelism, loop=UNEDITED)
        for one in interleaved((*hangs, *late), [HEALTHY])
        for parallelism in PARALLELISMS
    ]


LONG = (
    Scenario("divergence", "divergence", Verdict("LossDiverging"), onset=240, seconds=1700, long=True),
    Scenario("leak", "leak", Verdict("MemoryLeak", CULPRIT), onset=60, seconds=6300, long=True),
)
"""LossDiverging uses 20 minutes; MemoryLeak waits 30 for memory to settle, then needs growth in each 20 of 60 more."""


def campaign(healthy: int, repeats: int) -> list[Scenario]:
    """Return all jobs in the order of their start: the long ones, then faults and healthy runs interleaved.

    If time runs out, as many of each were done as could be.
    """
    faults = interleaved(basic(), unedited())
    for repeat in range(repeats):
        faults += [replace(scenario, repeat=repeat) for scenario in (*delays(), *OTHERS)]
    calm = [replace(HEALTHY, repeat=repeat) for repeat in range(healthy)]
    return [*LONG, *interleaved(faults, calm)]


def interleaved(first: Sequence[Scenario], second: Sequence[Scenario]) -> list[Scenario]:
    """Return both, evenly mixed, each in its own order."""
    placed = [((index + 0.5) / len(part), scenario) for part in (first, second) for index, scenario in enumerate(part)]
    return [scenario for _, scenario in sorted(placed, key=lambda pair: pair[0])]
