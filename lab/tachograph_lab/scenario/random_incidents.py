"""The kinds of random incident: one fault somewhere in a fleet, and the notifications it must cause, by its kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tachograph.client.torch.model.model_watch import OPTIMIZER_STEP_EVERY
from tachograph_lab.scenario import Expected, Fleet, Loss, Tolerated, faults
from tachograph_lab.scenario.faults import CHECKSUM_EVERY, Fault

RUN = "campaign"
SLOWEST_BUDGETED = 12.0
"""Seconds of the longest step for which the usual budgets hold."""

WARM_UP, BASELINE = 240.0, 1080.0
"""Seconds before the fault: for alerts without a baseline, and for those that compare a run with its own past."""

FROZEN_SECONDS = 35.0
"""Budget for a frozen rank: 23 s in which it may hold Python's lock, two scrapes, and 2 s."""

FATAL_XIDS = (48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 144, 145, 146, 147, 148, 149, 150, 155, 158)
PROGRAM_XIDS = (13, 31, 43, 45)


@dataclass(frozen=True)
class FaultSite:
    """The place and time of a fault, and the random generator for its size."""

    dice: Random
    fleet: Fleet
    step: float
    at: float
    rank: int

    @property
    def node(self) -> int:
        """The node of the rank."""
        return self.fleet.node_of(self.rank)

    @property
    def who(self) -> dict[str, str]:
        """The labels that name the rank."""
        gpu, node = str(self.fleet.gpu_of(self.rank)), self.fleet.node_name(self.node)
        return {"run": RUN, "rank": str(self.rank), "instance": node, "gpu": gpu}

    @property
    def whose_node(self) -> dict[str, str]:
        """The labels that name its node."""
        return {"run": RUN, "instance": self.fleet.node_name(self.node)}

    @property
    def hang(self) -> float:
        """The budget for a hang: 30 s and three steps."""
        return 30 + 3 * self.step

    def straggler(self, slowed: float, steps: int = 7) -> float:
        """Return the budget for a straggler: 90 s, or so many of the steps that it makes `slowed` seconds long."""
        return 90.0 if self.step <= 8 else max(300.0, 60 + steps * slowed)

    def steps(self, number: int) -> float:
        """Return the seconds that so many steps take beyond the usual budgets, which hold for steps of up to 12 s."""
        return number * self.step if self.step > SLOWEST_BUDGETED else 0.0


@dataclass(frozen=True)
class RandomIncident:
    """One fault with the notifications that it must cause, and those that it may."""

    fault: Fault
    expect: tuple[Expected, ...] = ()
    may: tuple[Tolerated, ...] = ()


@dataclass(frozen=True)
class IncidentKind:
    """A kind of random incident: its generator, and its requirements on the fleet."""

    word: str
    make: Callable[[FaultSite], RandomIncident]
    warm_up: float = WARM_UP
    after: float = 360.0
    ranks: int = 2
    nodes: int = 1
    slow_steps: bool = True
    uneven: bool = True
    slowest: float = float("inf")
    loss: Loss = field(default_factory=Loss)


def page(alert: str, within: float, labels: dict[str, str], *text: str) -> tuple[Expected, ...]:
    """Return one expected page."""
    return (Expected(alert=alert, receiver="page", within=within, labels=labels, text=text),)


def ticket(alert: str, within: float, labels: dict[str, str], *text: str) -> tuple[Expected, ...]:
    """Return one expected ticket."""
    return (Expected(alert=alert, receiver="ticket", within=within, labels=labels, text=text),)


def _late(place: FaultSite, share: float) -> faults.SlowPhase:
    """Return a fault that makes a rank late by a share of the resulting step."""
    phase = place.dice.choice(("data", "forward", "backward", "optimizer"))
    return faults.SlowPhase(at=place.at, ranks=(place.rank,), phase=phase, adds=place.step * share / (1 - share))


def _stuck(place: FaultSite) -> RandomIncident:
    phase = place.dice.choice(("data", "copy", "forward", "optimizer"))
    fault = faults.Stuck(at=place.at, rank=place.rank, phase=phase)
    # That phase of the step under way may be over; if its collectives are, too, the others still end the next step.
    within = place.hang + place.step * (2 if phase == "optimizer" else 1)
    return RandomIncident(fault, page("RunHung", within, place.who, f"rank {place.rank} ", f"phase {phase}"))


def _skip(place: FaultSite) -> RandomIncident:
    fault = faults.SkipCollective(at=place.at, rank=place.rank)
    within = place.hang + place.step  # it is skipped in the first step that begins after the fault
    return RandomIncident(fault, page("RunHung", within, place.who, f"rank {place.rank} "))


def _kill(place: FaultSite) -> RandomIncident:
    cause = place.dice.choice(("oom", "segfault"))
    fault = faults.Kill(at=place.at, rank=place.rank, cause=cause, others=place.dice.choice(("hang", "end")))
    down = page("RunDown", 260, {"run": RUN}) if fault.others == "end" else ()
    return RandomIncident(fault, page("RankDead", 10, place.who, f"Rank {place.rank} ") + down)


def _freeze(place: FaultSite) -> RandomIncident:
    fault = faults.Freeze(at=place.at, rank=place.rank)
    return RandomIncident(fault, page("RankFrozen", FROZEN_SECONDS, place.who, f"Rank {place.rank} "))


def _throttle(place: FaultSite) -> RandomIncident:
    to = place.dice.choice((0.4, 0.5, 0.6))
    fault = faults.ThrottledGpus(at=place.at, ranks=(place.rank,), to=to, cause="thermal")
    mend = Tolerated(alert="GpuThermalThrottling", receiver="ticket", labels={"instance": place.who["instance"]})
    return RandomIncident(fault, page("StragglerRank", place.straggler(place.step / to), place.who, "thermal"), (mend,))


def _late_rank(place: FaultSite) -> RandomIncident:
    fault = _late(place, place.dice.uniform(0.3, 0.7))
    within = place.straggler(place.step + fault.adds)
    return RandomIncident(fault, page("StragglerRank", within, place.who, f"Rank {place.rank} "))


def _slightly_late_rank(place: FaultSite) -> RandomIncident:
    share = place.dice.uniform(0.12, 0.16)
    fault = _late(place, share)
    # A small lag must last twice as long, and tickets are grouped for 30 s.
    within = place.straggler(place.step + fault.adds, 11) + 90
    lost_speed = Tolerated(alert="MfuDropped", receiver="page", labels={"run": RUN})
    may = (lost_speed,) if share > 0.14 else ()  # its limit is 15 %
    return RandomIncident(fault, ticket("StragglerRank", within, place.who, f"Rank {place.rank} "), may)


def _late_node(place: FaultSite) -> RandomIncident:
    first = place.node * place.fleet.gpus_per_node
    ranks = tuple(range(first, first + place.fleet.gpus_per_node))
    fault = faults.SlowPhase(at=place.at, ranks=ranks, phase="backward", adds=place.step * place.dice.uniform(0.5, 1.5))
    node = place.whose_node["instance"]
    within = place.straggler(place.step + fault.adds)
    return RandomIncident(fault, page("StragglerNode", within, place.whose_node, f"Node {node} "))


def _nan(place: FaultSite) -> RandomIncident:
    fault = faults.Nan(at=place.at, rank=place.rank, what="loss")
    within = 10 + 2 * place.step  # the loss of the first step that begins after the fault is known at its end
    return RandomIncident(fault, page("LossNotFinite", within, place.who, f"rank {place.rank} "))


def _checksum(place: FaultSite) -> RandomIncident:
    fault = faults.WrongChecksum(at=place.at, rank=place.rank)
    within = 300 + place.steps(CHECKSUM_EVERY + 3)
    return RandomIncident(fault, page("SilentDataCorruptionSuspected", within, place.who, f"Rank {place.rank} "))


def _batches(place: FaultSite) -> RandomIncident:
    fault = faults.SkipBatches(at=place.at, rank=place.rank)
    within = 240 + 100 * place.step  # one batch in ten steps is skipped, and more than four are noticed
    return RandomIncident(fault, page("InvariantBroken", within, place.who, "batches_per_step"))


def _optimizer(place: FaultSite) -> RandomIncident:
    fault = faults.StaleOptimizer(at=place.at, rank=place.rank)
    within = 300 + place.steps(OPTIMIZER_STEP_EVERY + 3)
    return RandomIncident(fault, page("InvariantBroken", within, place.who, "optimizer_step"))


def _global_batch(place: FaultSite) -> RandomIncident:
    return RandomIncident(
        faults.WrongGlobalBatch(at=place.at),
        page("InvariantBroken", 300 + place.steps(5), {"run": RUN}, "global batch"),
    )


def _ecc(place: FaultSite) -> RandomIncident:
    reset = Tolerated(alert="GpuRowRemapPending", receiver="ticket", labels={"instance": place.who["instance"]})
    fault = faults.Ecc(at=place.at, rank=place.rank)
    return RandomIncident(fault, page("GpuEccUncorrected", 10, place.who, "rank"), (reset,))


def _fatal_xid(place: FaultSite) -> RandomIncident:
    number = place.dice.choice(FATAL_XIDS)
    fault = faults.LoggedXid(at=place.at, rank=place.rank, number=number)
    return RandomIncident(fault, page("GpuXidFatal", 10, place.who, f"Xid {number}"))


def _program_xid(place: FaultSite) -> RandomIncident:
    return RandomIncident(faults.LoggedXid(at=place.at, rank=place.rank, number=place.dice.choice(PROGRAM_XIDS)))


def _gpu_lost(place: FaultSite) -> RandomIncident:
    return RandomIncident(faults.LostGpu(at=place.at, rank=place.rank), page("GpuLost", 10, place.who, "rank"))


def _gpu_hung(place: FaultSite) -> RandomIncident:
    # A call counts as hanging only once it has taken longer than any should.
    return RandomIncident(faults.HungGpu(at=place.at, rank=place.rank), page("GpuHung", 30, place.who, "rank"))


def _exporter_down(place: FaultSite) -> RandomIncident:
    fault = faults.ExporterDown(at=place.at, lasts=place.dice.choice((400.0, 500.0)), node=place.node)
    labels = {"instance": place.whose_node["instance"]}
    return RandomIncident(fault, ticket("ExporterDown", 360, labels, labels["instance"]))


def _scrape_blocked(place: FaultSite) -> RandomIncident:
    fault = faults.ScrapeBlocked(at=place.at, lasts=place.dice.choice((400.0, 500.0)), node=place.node)
    labels = {"instance": place.whose_node["instance"]}
    return RandomIncident(fault, ticket("TelemetryLost", 360, labels, labels["instance"]))


def _node_down(place: FaultSite) -> RandomIncident:
    fault = faults.NodeDown(at=place.at, node=place.node)
    within = 90 + min(place.steps(2), 230)  # what its run shows, or five minutes of silence
    return RandomIncident(fault, page("NodeDown", within, place.whose_node, place.whose_node["instance"]))


def _link_down(place: FaultSite) -> RandomIncident:
    fault = faults.LinkDown(at=place.at, node=place.node)
    within = 60 + place.steps(2)  # a run stands still after two steps
    return RandomIncident(fault, page("NicLinkDown", within, place.whose_node, place.whose_node["instance"]))


def _healing_spike(place: FaultSite) -> RandomIncident:
    return RandomIncident(faults.LossSpike(at=place.at, by=place.dice.uniform(1, 3), steps=place.dice.randint(1, 3)))


def _lasting_spike(place: FaultSite) -> RandomIncident:
    factor = place.dice.uniform(4, 8)
    fault = faults.LossSpike(at=place.at, by=place.dice.uniform(1.5, 3), recovers=False, gradient_factor=factor)
    return RandomIncident(fault, page("LossSpikeNotRecovering", 20 + 22 * place.step, {"run": RUN}, "confirms it"))


def _hungry(place: FaultSite) -> RandomIncident:
    fault = faults.SlowLoader(at=place.at, share=place.dice.uniform(0.35, 0.6))
    return RandomIncident(fault, page("DataStall", 240, {"run": RUN}, "waits for data"))


def _slow_network(place: FaultSite) -> RandomIncident:
    count = max(2, place.fleet.nodes // 5)
    nodes = tuple(sorted(place.dice.sample(range(place.fleet.nodes), count)))
    fault = faults.SlowCollective(
        at=place.at, nodes=nodes, adds=place.step * place.dice.uniform(0.5, 1.0), nic_errors=20.0
    )
    mend = Tolerated(alert="NicErrorsRising", receiver="ticket")
    names = (place.fleet.node_name(node) for node in nodes[:8])
    return RandomIncident(fault, page("MfuDropped", 300, {"run": RUN}, *names), (mend,))


def _loop(place: FaultSite) -> RandomIncident:
    category = place.dice.choice(("oom", "data", "exception"))
    fault = faults.RestartLoop(at=place.at, every=place.dice.choice((120.0, 240.0)), attempts=3, category=category)
    first = Tolerated(alert="RankFailed", receiver="page", labels={"run": RUN})
    return RandomIncident(fault, page("RestartLoop", 900, {"run": RUN}, category), (first,))


def _climb(place: FaultSite) -> RandomIncident:
    fault = faults.LossClimb(at=place.at, lasts=1800, per_minute=place.dice.uniform(0.002, 0.004))
    return RandomIncident(fault, ticket("LossDiverging", 1200, {"run": RUN}, "climbed steadily"))


def _leak(place: FaultSite) -> RandomIncident:
    rate = place.dice.uniform(1.5e9, 5.0e9)  # free memory lasts for 12 to 4 hours; beyond a day there is no alert
    fault = faults.Leak(at=place.at, ranks=(place.rank,), bytes_per_hour=rate, kind="device")
    return RandomIncident(fault, ticket("MemoryLeak", 7200, place.who, f"Rank {place.rank} "))


def _planned(place: FaultSite) -> RandomIncident:
    return RandomIncident(faults.PlannedRestart(at=place.at, takes=place.dice.choice((60.0, 180.0))))


def _scrapes(place: FaultSite) -> RandomIncident:
    return RandomIncident(faults.ScrapeFailure(at=place.at, node=place.node, every=place.dice.choice((60.0, 200.0))))


KINDS = (
    IncidentKind("stuck", _stuck),
    IncidentKind("skipped collective", _skip),
    IncidentKind("killed", _kill),
    IncidentKind("frozen", _freeze),
    IncidentKind("throttled", _throttle, ranks=4),
    IncidentKind("late rank", _late_rank),
    # With what its stage takes longer by design, a small lag may be a page.
    IncidentKind("slightly late rank", _slightly_late_rank, ranks=4, after=480, uneven=False),
    # A node may be a stage, which counts as late by its own past alone.
    IncidentKind("late node", _late_node, nodes=4, uneven=False),
    IncidentKind("NaN", _nan),
    IncidentKind("wrong checksum", _checksum, ranks=4),
    IncidentKind("skipped batches", _batches, ranks=4, warm_up=600, after=1500, slowest=12.0),
    IncidentKind("stale optimizer", _optimizer, ranks=4),
    IncidentKind("wrong global batch", _global_batch),
    IncidentKind("uncorrectable error", _ecc),
    IncidentKind("fatal Xid", _fatal_xid),
    IncidentKind("program's Xid", _program_xid),
    IncidentKind("lost GPU", _gpu_lost),
    IncidentKind("hung driver", _gpu_hung),
    IncidentKind("exporter down", _exporter_down, after=600, nodes=4),
    IncidentKind("node out of sight", _scrape_blocked, after=600, nodes=4),
    IncidentKind("node down", _node_down, nodes=2),
    IncidentKind("link down", _link_down, nodes=2),
    IncidentKind("spike that heals", _healing_spike, warm_up=600, slowest=12.0),
    IncidentKind("spike that stays", _lasting_spike, warm_up=600, slowest=12.0),
    IncidentKind("slow loader", _hungry, warm_up=BASELINE, slow_steps=False),
    IncidentKind("slow network", _slow_network, warm_up=BASELINE, nodes=8, slow_steps=False),
    IncidentKind("restart loop", _loop, warm_up=600, after=960, slowest=12.0),
    # Late in training: earlier, the loss falls faster than the fault makes it climb.
    IncidentKind("climbing loss", _climb, warm_up=3000, after=1800, slow_steps=False, loss=Loss(start=2.4)),
    IncidentKind("leak", _leak, warm_up=3600, after=7500, slow_steps=False),
    IncidentKind("planned restart", _planned, warm_up=600, after=900),
    IncidentKind("failed scrapes", _scrapes, after=900),
)
"""Used in turn, so that every kind is equally frequent."""
