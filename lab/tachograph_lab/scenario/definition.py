"""The definition of a scenario: a fleet, its steps, the faults and their times, and the expected notifications.

`load` reads one from a file in `incidents/`; a campaign generates them. `docs/scenarios.md` has the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tachograph.wire import with_role
from tachograph_lab.scenario import values
from tachograph_lab.scenario.faults import Fault
from tachograph_lab.scenario.values import optional, several, size

INCIDENTS = Path(__file__).parents[1] / "incidents"
"""The folder of the shipped scenarios."""

SCRAPE_SECONDS = EVALUATION_SECONDS = 5.0
"""The intervals of the shipped prometheus.yml."""


USUAL_OWNER = 1000
"""The uid of ranks, and of exporters, which therefore show the names of runs as they are."""


class ScenarioError(Exception):
    """A scenario cannot be replayed; each line has file:line, what is wrong and what is allowed."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """One run, or a role of it, on `nodes` nodes of `gpus_per_node` GPUs, a rank on each, of the user of uid `owner`.

    With `claims` each rank says that it is on the GPU of that rank of the run of this name at node 0, GPU 0.
    Nodes are numbered within the run from 0; in the cluster, of `cluster_nodes` nodes, they begin at `first_node`.
    """

    run: str = optional(values.text, "llama-70b")
    role: str = optional(values.text, "")
    tier: str = optional(values.choice("hero", "standard", "dev"), "standard")
    owner: int = optional(values.whole, USUAL_OWNER)
    claims: int | None = optional(values.whole, None)
    nodes: int = optional(values.count, 1)
    gpus_per_node: int = optional(values.count, 8)
    gpu: str = optional(values.text, "NVIDIA H100 80GB HBM3")
    tensor_parallel: int = optional(values.count, 1)
    pipeline: int = optional(values.count, 1)
    first_node: int = optional(values.whole, 0)
    first_gpu: int = optional(values.whole, 0)
    cluster_nodes: int = 0

    @property
    def shown_run(self) -> str:
        """The name by which exporters show the run: without its owner only that of their own user."""
        run = with_role(self.run, self.role)
        return run if self.owner == USUAL_OWNER else f"uid:{self.owner}/{run}"

    @property
    def ranks(self) -> int:
        """The number of ranks of the run."""
        return self.nodes * self.gpus_per_node

    def node_name(self, node: int) -> str:
        """Return a node's name, which is also its `instance`: `node-09` where there are 10 to 100."""
        last = max(self.cluster_nodes, self.first_node + self.nodes) - 1
        return f"node-{self.first_node + node:0{len(str(last))}d}"

    def node_of(self, rank: int) -> int:
        """Return the node that a rank runs on."""
        return rank // self.gpus_per_node

    def gpu_of(self, rank: int) -> int:
        """Return the index of a rank's GPU on its node."""
        return self.first_gpu + rank % self.gpus_per_node

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank: stages are blocks of ranks, as in Megatron."""
        return rank * self.pipeline // self.ranks

    def coordinates_of(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinates, in Megatron's order: neighbours share a tensor, then a replica, then a stage."""
        replicas = self.ranks // self.pipeline // self.tensor_parallel
        groups = {"tp": self.tensor_parallel, "dp": replicas, "pp": self.pipeline}
        found = {}
        for dimension, ranks in groups.items():
            rank, number = divmod(rank, ranks)
            if ranks > 1:
                found[dimension] = number
        return found


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The seconds of each phase of an ordinary step; `collective` is the exposed wait of a run without faults.

    `noise` is the standard deviation of a rank's phase as a share of it. The textbook formula replaces all of them: a
    rank's step computes for 0.50 s + 0.01·((7·rank + step) mod 5). `first` are the seconds of an attempt's first
    forward, `stages` the factor of each pipeline stage on its compute.
    """

    data: float = optional(values.duration, 0.01)
    copy: float = optional(values.duration, 0.01)
    forward: float = optional(values.duration, 0.30)
    backward: float = optional(values.duration, 0.50)
    optimizer: float = optional(values.duration, 0.06)
    collective: float = optional(values.duration, 0.12)
    noise: float = optional(values.not_negative, 0.03)
    first: float | None = optional(values.some_time, None)
    stages: tuple[float, ...] | None = several(values.positive, None)
    formula: str = optional(values.choice("", "textbook"), "")

    @property
    def seconds(self) -> float:
        """The duration of a step without faults and noise."""
        if self.formula:
            return 0.54
        slowest = max(self.stages or (1.0,))
        return self.data + self.copy + (self.forward + self.backward + self.optimizer) * slowest + self.collective


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one step of the whole run, and what of it the ranks report: `tokens`: no FLOPs, and so no MFU."""

    tokens: float = optional(values.positive, 65536.0)
    flops_per_token: float = optional(values.positive, 4.6e10)
    global_batch: int = optional(values.count, 1024)
    reports: str = optional(values.choice("all", "tokens", "nothing"), "all")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss that falls from `start` to `end`, by half of the rest every `halves` steps; noise is a share of it."""

    start: float = optional(values.positive, 10.5, key="from")
    end: float = optional(values.positive, 2.2, key="to")
    halves: float = optional(values.positive, 350.0)
    noise: float = optional(values.not_negative, 0.01)


@dataclass(frozen=True, kw_only=True)
class GradientNorm:
    """A gradient norm around `mean`; noise is a share of it."""

    mean: float = optional(values.positive, 0.9)
    noise: float = optional(values.not_negative, 0.03)


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The curves of loss, gradient norm and learning rate.

    The textbook formula replaces loss and norm: 3.0·e^(−0.18·step) + 0.20 and 0.9 + 0.05·sin(step).
    """

    loss: Loss = field(default_factory=Loss, metadata={"section": Loss})
    gradient_norm: GradientNorm = field(default_factory=GradientNorm, metadata={"section": GradientNorm})
    rate: float = optional(values.positive, 3.0e-4)
    formula: str = optional(values.choice("", "textbook"), "")


@dataclass(frozen=True, kw_only=True)
class MemoryInUse:
    """The share of each GPU's memory that its rank's allocator holds while it trains."""

    reserved: float = optional(values.share, 0.78)


@dataclass(frozen=True, kw_only=True)
class ScenarioLimits:
    """The limits that a run sets itself, as with `recorder.threshold`, or that its site sets; 0: none."""

    hang_seconds: float = optional(values.limit("hang_seconds"), 0.0)
    straggler_ratio: float = optional(values.limit("straggler_ratio"), 0.0)
    throughput_drop_ratio: float = optional(values.limit("throughput_drop_ratio"), 0.0)
    data_stall_ratio: float = optional(values.limit("data_stall_ratio"), 0.0)
    checkpoint_age_seconds: float = optional(values.limit("checkpoint_age_seconds"), 0.0)

    def set(self) -> dict[str, float]:
        """Return the limits that are set, by name."""
        return {name: limit for name, limit in vars(self).items() if limit}


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A regular pause in training: it begins every `every` seconds and takes `takes` seconds."""

    every: float = size(values.some_time)
    takes: float = size(values.some_time)


@dataclass(frozen=True, kw_only=True)
class Tolerated:
    """A notification that may be received."""

    alert: str = size(values.text)
    receiver: str = size(values.text)
    labels: Mapping[str, str] = field(default_factory=dict, metadata={"texts": "mapping"})


@dataclass(frozen=True, kw_only=True)
class Expected(Tolerated):
    """A notification that must be received within `within` seconds of fault number `of` (from 1; 0: of the start).

    So many scrape and evaluation intervals are added to `within`. Earlier than `not_before` seconds it is wrong, and so
    is the notification that it is over, unless it `resolves`. `text` lists parts of the alert's description.
    """

    within: float = size(values.some_time)
    plus_scrapes: int = optional(values.whole, 0)
    plus_evaluations: int = optional(values.whole, 0)
    not_before: float = optional(values.duration, 0.0)
    resolves: bool = optional(values.flag, True)
    of: int = optional(values.whole, 1)
    text: tuple[str, ...] = field(default=(), metadata={"texts": "list"})


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A whole scenario; `live` is its variant for replay in real time, None if there is none.

    `runs` are the other runs of its cluster, each with a fleet, steps and faults of its own. `waits` are the ranks that
    report waits for collectives, None: all. `site_limits` are those of the exporters in virtual time. Without
    `evaluation`, the replay chooses how often rules are evaluated.
    """

    path: Path | None = None
    incident: int | None = optional(values.count, None)
    title: str = size(values.text)
    story: str = size(values.text)
    seed: int = optional(values.whole, 0)
    lasts: float = size(values.some_time)
    scrape: float = optional(values.some_time, SCRAPE_SECONDS)
    evaluation: float | None = optional(values.some_time, None)
    node_exporter: bool = optional(values.flag, True)
    fleet: Fleet = field(default_factory=Fleet, metadata={"section": Fleet})
    runs: tuple[Scenario, ...] = ()
    loop: str = optional(values.choice("marked", "basic"), "marked")
    waits: tuple[int, ...] | None = several(values.whole, None, {"all": None, "none": ()})
    total_steps: int | None = optional(values.count, None)
    step: StepTimes = field(default_factory=StepTimes, metadata={"section": StepTimes})
    work: Work = field(default_factory=Work, metadata={"section": Work})
    learning: Learning = field(default_factory=Learning, metadata={"section": Learning})
    memory: MemoryInUse = field(default_factory=MemoryInUse, metadata={"section": MemoryInUse})
    thresholds: ScenarioLimits = field(default_factory=ScenarioLimits, metadata={"section": ScenarioLimits})
    site_limits: ScenarioLimits = field(default_factory=ScenarioLimits, metadata={"section": ScenarioLimits})
    checkpoint: Pause | None = field(default=None, metadata={"section": Pause})
    eval: Pause | None = field(default=None, metadata={"section": Pause})
    faults: tuple[Fault, ...] = ()
    expect: tuple[Expected, ...] = ()
    may: tuple[Tolerated, ...] = ()
    live: Scenario | None = None

    @property
    def every_run(self) -> tuple[Scenario, ...]:
        """The run itself and the others of its cluster."""
        return (self, *self.runs)

    @property
    def every_fault(self) -> tuple[Fault, ...]:
        """The faults of all runs, in the order in which `of` numbers them."""
        return tuple(fault for run in self.every_run for fault in run.faults)

    @property
    def ranks(self) -> int:
        """The number of ranks of all runs."""
        return sum(run.fleet.ranks for run in self.every_run)

    def began(self, expected: Expected) -> float:
        """Return the second from which an expectation's time counts: that of its fault, 0 without one."""
        faults = self.every_fault
        return faults[expected.of - 1].at if faults and expected.of else 0.0

    def limit(self, expected: Expected) -> float:
        """Return the seconds from its fault within which an expectation must be met."""
        evaluation = EVALUATION_SECONDS if self.evaluation is None else self.evaluation
        return expected.within + expected.plus_scrapes * self.scrape + expected.plus_evaluations * evaluation

    def at_intervals(self, scrape: float | None, evaluation: float | None) -> Scenario:
        """Return it with other intervals (None: its own), as much longer as its expectations may take."""
        changed = replace(self, scrape=scrape or self.scrape, evaluation=evaluation or self.evaluation)
        more = [changed.limit(expected) - self.limit(expected) for expected in self.expect]
        return replace(changed, lasts=self.lasts + max([0.0, *more]))

    def for_live(self) -> Scenario:
        """Return the variant for replay in real time; raise ScenarioError if there is none."""
        if self.live is None:
            raise ScenarioError([f"{self.path or self.title}: cannot be replayed in real time; add a `live:` section"])
        return self.live
