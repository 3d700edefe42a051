"""Random seams: an incident, or none, and beside it something that ends a past.

That is a restart of the run, an exporter or Prometheus that is away and back, or a pause. A seam makes a page later at
most. It brings no page of its own, and none comes a second time because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random

from tachograph.text.humanize import duration, plural
from tachograph_lab.scenario import Expected, Fleet, Pause, Scenario, Tolerated, Work, faults
from tachograph_lab.scenario.faults import Fault
from tachograph_lab.scenario.random_incidents import RUN, FaultSite, page
from tachograph_lab.scenario.random_scenario import step_times

SHAPES = ((2, 2), (2, 4), (3, 2), (3, 4), (4, 2))
STEPS = (0.4, 1.0, 2.5)
INTERVALS = (5.0, 5.0, 15.0, 30.0)
AWAY = (20.0, 70.0, 300.0)
"""Seconds for which an exporter is away: a restart, a rollout, an image that has to be pulled."""

WARM_UP = 420.0
AFTER = 540.0
SETTLES = 120.0
"""Seconds that a Prometheus without data needs to know a run's usual step, and who is late."""


@dataclass(frozen=True)
class SeamSite(FaultSite):
    """The place and time of an incident, and how often Prometheus scrapes."""

    scrape: float

    @property
    def every_node(self) -> tuple[int, ...]:
        """All nodes."""
        return tuple(range(self.fleet.nodes))

    @property
    def every_rank(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(self.fleet.ranks))


@dataclass(frozen=True)
class Broken:
    """A fault of the run, and the pages that it must cause."""

    faults: tuple[Fault, ...] = ()
    expect: tuple[Expected, ...] = ()
    over: bool = False
    """All ranks have ended."""
    unseen: tuple[Tolerated, ...] = ()
    """What is sent instead if no exporter sees it."""
    forgotten: tuple[Tolerated, ...] = ()
    """What is sent as well once the exporter that saw it is replaced."""


@dataclass(frozen=True)
class Seam:
    """An event beside it: how much later pages may come, and what else may be sent; it may end the incident.

    While it begins, the exporter of its rank is `blind`; later, it is `replaced`.
    """

    faults: tuple[Fault, ...] = ()
    later: float = 0.0
    may: tuple[Tolerated, ...] = ()
    ends: float | None = None
    blind: bool = False
    replaced: bool = False
    is_new: bool = False
    """Prometheus has not seen that the run was there."""
    pauses: dict[str, Pause] = field(default_factory=dict)


def _pages(*alerts: str) -> tuple[Tolerated, ...]:
    return tuple(Tolerated(alert=alert, receiver="page", labels={"run": RUN}) for alert in alerts)


def _tolerated(expected: Iterable[Expected]) -> tuple[Tolerated, ...]:
    """Return that what is expected may be sent, and need not."""
    return tuple(Tolerated(alert=one.alert, receiver=one.receiver, labels=one.labels) for one in expected)


def _nothing(_: SeamSite) -> Broken:
    return Broken()


def _stuck(site: SeamSite) -> Broken:
    phase = site.dice.choice(("data", "forward", "optimizer"))
    within = 30 + 5 * site.step
    return Broken(
        (faults.Stuck(at=site.at, rank=site.rank, phase=phase),),
        page("RunHung", within, site.who, f"rank {site.rank} "),
        unseen=_pages("RunHung"),
    )  # fmt: skip


def _killed(site: SeamSite) -> Broken:
    fault = faults.Kill(at=site.at, rank=site.rank, cause="oom", others="hang")
    return Broken((fault,), page("RankDead", 12, site.who, f"Rank {site.rank} "), unseen=_pages("RunHung"))


def _failed(site: SeamSite) -> Broken:
    fault = faults.Exit(at=site.at, ranks=(site.rank,), code=1, others="end")
    down = page("RunDown", 260, {"run": RUN})
    expect = page("RankFailed", 20, site.who, f"Rank {site.rank} ") + down
    return Broken((fault,), expect, over=True, unseen=_pages("RankFailed", "RunDown"))


def _frozen(site: SeamSite) -> Broken:
    fault = faults.Freeze(at=site.at, rank=site.rank)
    hung = _pages("RunHung")  # an exporter does not know of a process that was silent before it started
    return Broken((fault,), page("RankFrozen", 37, site.who, f"Rank {site.rank} "), unseen=hung, forgotten=hung)


def _late(site: SeamSite) -> Broken:
    adds = site.step * site.dice.uniform(0.6, 1.5)
    fault = faults.SlowPhase(at=site.at, ranks=(site.rank,), phase="forward", adds=adds)
    expect = page("StragglerRank", 95, site.who, f"Rank {site.rank} ")
    return Broken((fault,), expect, unseen=_pages("MfuDropped"))


def _nan(site: SeamSite) -> Broken:
    fault = faults.Nan(at=site.at, rank=site.rank, what="loss")
    expect = page("LossNotFinite", 12 + 2 * site.step, site.who, f"rank {site.rank} ")
    return Broken((fault,), expect, unseen=_pages("LossNotFinite"))


INCIDENTS: tuple[tuple[str, Callable[[SeamSite], Broken]], ...] = (
    ("nothing", _nothing),
    ("stuck", _stuck),
    ("killed", _killed),
    ("failed", _failed),
    ("frozen", _frozen),
    ("late rank", _late),
    ("NaN", _nan),
)


def _away(site: SeamSite, node: int, begins: float) -> Seam:
    """Return that a node's exporter is away at a time before or after the incident."""
    away = site.dice.choice(AWAY)
    fault = faults.ExporterDown(at=site.at + begins, lasts=away, node=node)
    back = max(0.0, begins + away)
    instance = {"instance": site.fleet.node_name(node)}
    # After four minutes, an exporter that is away is a ticket, and a third of a run that is out of sight is a page. A
    # late rank of that node is named again.
    may = (Tolerated(alert="ExporterDown", receiver="ticket", labels=instance), *_pages("RunBlind"))
    is_own = node == site.node
    may += _pages("MfuDropped", "StragglerRank") * is_own
    return Seam(
        (fault,),
        later=back + site.scrape if begins <= 0 and back else 0.0,
        may=may if away >= AWAY[-1] else (),
        blind=is_own and begins <= 0 < begins + away,
        replaced=is_own and begins > 0,
    )


def _own_before(site: SeamSite) -> Seam:
    return _away(site, site.node, -AWAY[-1] - site.dice.uniform(25, 60))


def _own_within(site: SeamSite) -> Seam:
    return _away(site, site.node, -site.dice.uniform(2, 15))


def _own_after(site: SeamSite) -> Seam:
    return _away(site, site.node, site.dice.uniform(100, 200))


def _other_within(site: SeamSite) -> Seam:
    return _away(site, (site.node + 1) % site.fleet.nodes, -site.dice.uniform(2, 15))


def _rollout(site: SeamSite) -> Seam:
    begins = site.dice.choice((-150.0, -30.0, 150.0))
    fault = faults.Rollout(at=site.at + begins, nodes=site.every_node, each=25.0, between=45.0)
    return Seam(
        (fault,), later=45.0 * site.fleet.nodes if begins == -30.0 else 30.0, blind=begins == -30.0, replaced=True
    )


def _prometheus(site: SeamSite) -> Seam:
    begins = site.dice.choice((-60.0, 10.0, 150.0))
    later = SETTLES + max(begins, 0.0) if begins <= 10.0 else 0.0
    return Seam((faults.PrometheusRestart(at=site.at + begins),), later=later, is_new=True)


def _restarted(site: SeamSite) -> Seam:
    """Return that the run is aborted some time after the incident, and starts again."""
    after = site.dice.uniform(150, 240)
    fault = faults.Sigterm(at=site.at + after, ranks=site.every_rank, requeued=site.dice.uniform(5, 90))
    return Seam((fault,), ends=after)


def _restarted_before(site: SeamSite) -> Seam:
    fault = faults.Sigterm(at=site.at - 200, ranks=site.every_rank, requeued=site.dice.uniform(5, 90))
    return Seam((fault,), later=60.0)


def _saves(site: SeamSite) -> Seam:
    pause = Pause(every=site.dice.uniform(100, 200), takes=site.dice.uniform(10, 50))
    return Seam(later=pause.takes + 60, pauses={"checkpoint": pause})


def _evaluates(site: SeamSite) -> Seam:
    pause = Pause(every=site.dice.uniform(150, 300), takes=site.dice.uniform(40, 120))
    return Seam(later=pause.takes + 60, pauses={"eval": pause})


SEAMS: tuple[tuple[str, Callable[[SeamSite], Seam]], ...] = (
    ("its exporter away before", _own_before),
    ("its exporter away", _own_within),
    ("its exporter away after", _own_after),
    ("another exporter away", _other_within),
    ("rollout", _rollout),
    ("Prometheus anew", _prometheus),
    ("run restarted", _restarted),
    ("run restarted before", _restarted_before),
    ("saves", _saves),
    ("evaluations", _evaluates),
)


def generate(number: int, seed: int) -> Scenario:
    """Return scenario `number` of a campaign of seams; the same arguments always give the same scenario."""
    dice = Random(f"seams/{seed}/{number}")
    word, incident = INCIDENTS[number % len(INCIDENTS)]
    beside, seam = SEAMS[number // len(INCIDENTS) % len(SEAMS)]
    nodes, gpus = dice.choice(SHAPES)
    fleet = Fleet(run=RUN, nodes=nodes, gpus_per_node=gpus)
    step, scrape = dice.choice(STEPS), dice.choice(INTERVALS)
    site = SeamSite(dice, fleet, step, WARM_UP + round(dice.uniform(0, 60)), dice.randrange(fleet.ranks), scrape)
    broken, happens = incident(site), seam(site)
    if happens.ends is not None and broken.over:
        happens = Seam()  # it has ended by itself, and stays away
    spoilt = tuple(
        replace(fault, lasts=happens.ends) if happens.ends is not None and fault.lasting else fault
        for fault in broken.faults
    )
    within = 3 * (scrape - 5.0) + happens.later
    expect = tuple(
        replace(expected, within=expected.within + within, plus_scrapes=3, of=1) for expected in broken.expect
    )
    may = happens.may + (broken.forgotten if happens.replaced or happens.blind else ())
    if happens.is_new:
        may += _tolerated(one for one in expect if one.alert == "RunDown")
        expect = tuple(one for one in expect if one.alert != "RunDown")
    if happens.blind and broken.unseen:
        may += broken.unseen + _tolerated(expect)
        expect = ()
    return Scenario(
        title=f"{number}: {word}, {beside}, {fleet.ranks} ranks on {plural(nodes, 'node')}, "
        f"{duration(step)} per step, {scrape:g} s scrapes",
        story=f"{word} at {site.at:.0f} s, rank {site.rank} on {fleet.node_name(site.node)}; {beside}",
        seed=dice.randrange(2**31),
        lasts=round(site.at + AFTER + within),
        scrape=scrape,
        evaluation=scrape,
        fleet=fleet,
        step=step_times(step, 0.02),
        work=Work(tokens=8192.0 * fleet.ranks * step),
        checkpoint=happens.pauses.get("checkpoint", Pause(every=7200.0, takes=30.0)),
        eval=happens.pauses.get("eval"),
        faults=spoilt + happens.faults,
        expect=expect,
        may=may,
    )
