"""Scenarios replayed together get the same verdicts as alone."""

from __future__ import annotations

from dataclasses import replace

from tachograph_lab.replay import virtual
from tachograph_lab.replay.alertmanager import Firing
from tachograph_lab.scenario import Expected, Fleet, Scenario
from tachograph_lab.scenario.faults import Fault, Freeze, Kill, ScrapeBlocked, SlowLoader


def scenario(*faults: Fault, expect: tuple[Expected, ...] = (), lasts: float = 120) -> Scenario:
    """Return a run on two nodes of two GPUs; all have the same name, as those of a campaign."""
    fleet = Fleet(run="small", nodes=2, gpus_per_node=2)
    return Scenario(title="Small", story="Small.", lasts=lasts, fleet=fleet, faults=faults, expect=expect)


def who(alert: str, rank: int, within: float = 20) -> Expected:
    """Return the page that names a rank, its node and its GPU."""
    labels = {"run": "small", "rank": str(rank), "instance": f"node-{rank // 2}", "gpu": str(rank % 2)}
    return Expected(alert=alert, receiver="page", within=within, text=(f"ank {rank} (node-{rank // 2}",), labels=labels)


def test_each_is_told_its_own_culprit_and_nothing_of_the_others() -> None:
    """Each gets its own alerts alone, though runs and nodes share their names; a shorter one gets none for its end."""
    pack = [
        scenario(Kill(at=61, rank=3), expect=(who("RankDead", 3),)),
        scenario(Freeze(at=61, rank=0), expect=(who("RankFrozen", 0, within=40),)),  # after half a minute of silence
        scenario(lasts=60),
    ]
    for verdict in virtual.replay(pack, "bookworm"):
        assert verdict.ok, "\n".join(verdict.lines)


def test_what_cannot_be_told_apart_is_everybodys() -> None:
    """An alert on the cluster counts for each part, so that none is lost; one that starts after its end does not."""
    fired = [
        Firing({"alertname": "A", "run": "c0x-r"}, 10, 200, {"summary": "Run c0x-r."}),
        Firing({"alertname": "B", "instance": "c1x-n"}, 10, None, {}),
        Firing({"alertname": "C"}, 10, None, {}),
        Firing({"alertname": "C"}, 101, None, {}),
    ]
    assert virtual.of_part(fired, "c0x-", 100) == [
        Firing({"alertname": "A", "run": "r"}, 10, None, {"summary": "Run r."}),
        Firing({"alertname": "C"}, 10, None, {}),
    ]


def test_a_pack_has_one_rhythm_and_a_bound() -> None:
    """Scenarios with alerts that are due soon are evaluated more often, and the size of a pack is limited."""
    soon = scenario(expect=(replace(who("RankDead", 0), within=10),))
    slow = [scenario(lasts=100.0 + number) for number in range(virtual.MOST_SCENARIOS + 1)]
    sizes = [len(pack) for pack in virtual.packs([soon, *slow])]
    assert sizes == [virtual.MOST_SCENARIOS, 1, 1]


def test_a_scenario_of_many_runs_is_replayed_alone() -> None:
    """Some alerts count the runs of a cluster, and would count those of others."""
    one, many = scenario(), replace(scenario(), runs=(scenario(),) * (virtual.MANY_RUNS - 1))
    assert sorted(len(pack) for pack in virtual.packs([one, many, one])) == [1, 2]


def test_a_scenario_of_many_silent_nodes_is_replayed_alone() -> None:
    """NodesUnreachable counts the nodes of a cluster: beside those of others, most of one's own are few."""
    cut_off = (ScrapeBlocked(at=10, node=node) for node in range(virtual.MANY_NODES))
    one, all_of_it = scenario(), scenario(*cut_off)
    assert sorted(len(pack) for pack in virtual.packs([one, all_of_it, one])) == [1, 2]


def test_nodes_of_three_gpus_are_replayed_alone() -> None:
    """Beside nodes of four, each would lack one."""
    one, odd = scenario(), replace(scenario(), fleet=Fleet(run="small", nodes=2, gpus_per_node=3))
    assert sorted(len(pack) for pack in virtual.packs([one, odd, one])) == [1, 2]


def test_few_runs_that_wait_for_data_are_replayed_together() -> None:
    """Three would have slow storage in common."""
    hungry = [scenario(SlowLoader(at=10, adds=1.0), lasts=100.0 + number) for number in range(3)]
    assert sorted(len(pack) for pack in virtual.packs([*hungry, scenario(lasts=200)])) == [2, 2]
