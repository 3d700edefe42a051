"""How processes end in the field, what Prometheus does not see, and several runs on one cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tachograph_lab.fleet import EPOCH
from tachograph_lab.scenario import Fleet, Scenario, StepTimes
from tachograph_lab.scenario.faults import (
    ClockSkew,
    Exit,
    ExporterDown,
    Fail,
    IdlePortDown,
    Kill,
    LeaveEarly,
    NoShow,
    PauseOnce,
    RecoveryAction,
    Rollout,
    Sigterm,
    Stuck,
    Vanish,
)

Play = Callable[..., Any]
QUIET = {"checkpoint": None, "eval": None}
ALL = tuple(range(8))


def byes(played: Any) -> dict[int, tuple[str, object]]:
    """Return each rank's outcome, and its exit status or category."""
    return {
        frame["connection"][1]: (frame["outcome"], frame.get("exit_code", frame.get("category")))
        for frame in played.frames("bye")
    }


def test_a_rank_that_catches_its_error_and_leaves(play: Play) -> None:
    """INCIDENTS 22: it says `finished`, with its status; two seconds later its peers fail in the collective."""
    played = play(Exit(at=30, ranks=(0,), code=1), until=31, **QUIET)
    assert byes(played) == {0: ("finished", 1)}
    assert played.rank("rank_state", 3)["running",] == 1
    played.until(34)
    assert byes(played) == {0: ("finished", 1), **dict.fromkeys(range(1, 8), ("failed", "collective"))}


def test_peers_that_hang_behind_a_rank_that_left(play: Play) -> None:
    """They wait for it for ever, connected."""
    played = play(Exit(at=30, ranks=(0,), code=1, others="hang"), until=60, **QUIET)
    steps = played.rank("train_steps_total", 3)
    assert played.until(90).rank("train_steps_total", 3) == steps
    assert played.rank("rank_state", 3)["running",] == 1


def test_all_leave_with_a_status(play: Play) -> None:
    """INCIDENTS 23: every rank says that it has finished, long before its plan; nothing comes after."""
    played = play(Exit(at=30, ranks=ALL, code=0), until=60, total_steps=10_000, **QUIET)
    assert byes(played) == dict.fromkeys(ALL, ("finished", 0))
    assert max(frame["time"] for frame in played.frames()) == EPOCH + 30


@pytest.mark.parametrize(("requeued", "attempts"), [(20.0, {0, 1}), (float("inf"), {0})])
def test_sigterm(play: Play, requeued: float, attempts: set[int]) -> None:
    """INCIDENTS 39: all say why; the next attempt comes so much later, or never."""
    played = play(Sigterm(at=30, ranks=ALL, requeued=requeued), until=80, **QUIET)
    assert byes(played) == dict.fromkeys(ALL, ("failed", "terminated"))
    assert {frame["attempt"] for frame in played.frames("hello")} == attempts


def test_sigterm_that_is_ignored(play: Play) -> None:
    """FIELD D13: they train on for half a minute, and are killed."""
    played = play(Sigterm(at=30, ranks=ALL, requeued=50.0, ignored=True), until=79, **QUIET)
    assert byes(played) == {}
    assert max(frame["time"] for frame in played.frames()) == pytest.approx(EPOCH + 58, abs=2)
    assert all(played.rank("rank_ended_timestamp_seconds", rank)["died",] == EPOCH + 60 for rank in ALL)


def test_some_are_terminated_and_the_others_lose_them(play: Play) -> None:
    """Those two seconds later, with a collective that failed; then all come back."""
    played = play(Sigterm(at=30, ranks=(4, 5), requeued=20.0), until=49, **QUIET)
    assert byes(played) == {rank: ("failed", "terminated" if rank in (4, 5) else "collective") for rank in ALL}
    assert played.until(75).rank("train_steps_total", 0) > 3


def test_the_early_leaver(play: Play) -> None:
    """INCIDENTS 40: it ends its step and says that it has finished; the others hang in the step after."""
    played = play(LeaveEarly(at=30, ranks=(6,)), until=60, **QUIET)
    assert byes(played) == {6: ("finished", "")}
    (left,) = [frame for frame in played.frames(rank=6) if frame["time"] >= EPOCH + 30][-1:]
    assert left["step"] == played.rank("train_step", 5)
    enqueued = {played.rank("train_collective_enqueued", rank)["0",] for rank in ALL if rank != 6}
    assert enqueued == {left["metrics"]["collective_enqueued"]["0"] + 1}
    assert all(played.rank("rank_phase_seconds", rank)["backward",] > 20 for rank in (0, 5, 7))


def test_one_never_comes(play: Play) -> None:
    """FIELD D5: it never says hello, and the others stay in init."""
    played = play(NoShow(at=0, ranks=(3,)), until=60, **QUIET)
    assert {frame["rank"] for frame in played.frames("hello")} == set(ALL) - {3}
    assert all(played.rank("rank_phase_seconds", rank)["init",] > 50 for rank in (0, 2, 7))


def test_several_early_leavers(play: Play) -> None:
    """INCIDENTS 48: each ends its step and says that it has finished; who stays enters one barrier more."""
    gone = tuple(range(1, 8))
    played = play(
        LeaveEarly(at=30, ranks=gone), PauseOnce(at=30, lasts=99, ranks=(0,), phase="collective"), until=60, **QUIET
    )
    assert byes(played) == dict.fromkeys(gone, ("finished", ""))
    assert played.rank("rank_phase_seconds", 0)["collective",] > 25
    assert played.rank("rank_ended_timestamp_seconds", 5).keys() == {("finished",)}


def test_a_bye_that_is_lost(play: Play) -> None:
    """INCIDENTS 49: the exporter learns of the exit code from the process alone: 0 acquits, 1 is a failure."""
    for code, state in ((0, "finished"), (1, "failed")):
        played = play(Exit(at=30, ranks=(3,), code=code, others="train", bye="lost"), until=31, **QUIET)
        assert byes(played) == {}
        assert played.rank("rank_state", 3)[state,] == 1


def test_all_fail_alike(play: Play) -> None:
    """INCIDENTS 50: one after the other within a time, none of them sooner, and all for the same reason."""
    played = play(Fail(at=30, ranks=ALL, within=3.5), until=32, **QUIET)
    assert byes(played) == dict.fromkeys(range(5), ("failed", "collective"))
    assert byes(played.until(34)) == dict.fromkeys(ALL, ("failed", "collective"))


def test_others_that_train_on(play: Play) -> None:
    """INCIDENTS 50: a rank leaves, and the steps of the others go on."""
    played = play(Exit(at=30, ranks=(2,), code=0, others="train"), until=40, **QUIET)
    steps = played.rank("train_steps_total", 3)
    assert played.until(60).rank("train_steps_total", 3) > steps + 5
    assert byes(played) == {2: ("finished", 0)}


def test_a_rollout_replaces_one_exporter_after_the_other(play: Play) -> None:
    """Each is gone for a while, and its ranks train on; what they counted is whole afterwards."""
    played = play(Rollout(at=30, nodes=(0, 1), each=6, between=10), until=29, **QUIET)
    down = {}
    for second in range(30, 60, 2):
        played.until(second)
        down[second] = [node.exporter_up for node in played.simulation.nodes]
    assert [second for second, (first, _) in down.items() if not first] == [30, 32, 34]
    assert [second for second, (_, second_up) in down.items() if not second_up] == [40, 42, 44]
    assert played.rank("train_steps_total", 0) == play(until=58, **QUIET).rank("train_steps_total", 0)


def test_a_clock_that_is_ahead(play: Play) -> None:
    """All that the node says of the time is ahead: its ranks' frames, its exporter, its host; nothing else is."""
    played = play(ClockSkew(at=20, nodes=(1,), by=40.0), until=50, **QUIET)
    mine, other = played.frames(rank=5)[-1], played.frames(rank=1)[-1]
    assert (mine["time"] - EPOCH, other["time"] - EPOCH) == (90, 50)
    assert mine["progress_time"] - other["progress_time"] == pytest.approx(40, abs=1)
    assert played.rank("rank_phase_seconds", 5).popitem()[1] < 5  # the exporter's clock is the node's, too
    assert [played.host("node_time_seconds", node)[0][1] - EPOCH for node in (0, 1)] == [50, 90]
    assert played.rank("rank_state", 5)["running",] == 1


def test_an_idle_port_and_an_action_of_nvml(play: Play) -> None:
    """INCIDENTS 32 and 42: a port that was up is down; the driver names another action for one GPU."""
    port = IdlePortDown(at=30, node=1, device="enx0")
    played = play(port, RecoveryAction(at=30, rank=5, action="drain_and_reset"), until=20, **QUIET)

    def ports(node: int) -> dict[str, float]:
        return {labels["device"]: value for labels, value in played.host("node_network_up", node)}

    assert (ports(0), ports(1)) == ({"eth0": 1}, {"eth0": 1, "enx0": 1})
    played.until(40)
    assert ports(1) == {"eth0": 1, "enx0": 0}
    actions = {key[0]: key[2] for key in played.series("gpu_recovery_action", 1)}
    assert actions == {"0": "none", "1": "drain_and_reset", "2": "none", "3": "none"}


def cluster(**given: Any) -> dict[str, Any]:
    """Return two runs on the same two nodes, and a third of the first one's name on a node of its own."""
    shared = {"title": "t", "story": "s", "lasts": 200.0, "cluster": 3, **given}
    wide = shared.pop("cluster")

    def run(name: str, seed: int, **fleet: int) -> Scenario:
        where = Fleet(run=name, gpus_per_node=2, cluster_nodes=wide, **fleet)
        return Scenario(**shared, seed=seed, fleet=where, step=StepTimes(noise=0.01))

    return {
        "fleet": Fleet(run="llama", nodes=2, gpus_per_node=2, cluster_nodes=wide),
        "runs": (run("other", 8, nodes=2, first_gpu=2), run("llama", 9, nodes=1, first_node=2)),
    }


def test_several_runs_share_nodes(play: Play) -> None:
    """A node's exporter and GPUs are those of both runs; a run that hangs does not hold up the other."""
    played = play(Stuck(at=30, rank=1, phase="data"), until=80, **QUIET, **cluster())
    assert [node.name for node in played.simulation.nodes] == ["node-0", "node-1", "node-2"]
    told = {
        (sample.labels[0], sample.labels[1]): sample.value
        for sample in played.samples(0)
        if sample.metric.name == "tachograph_train_steps_total"
    }
    assert set(told) == {("llama", "0"), ("llama", "1"), ("other", "0"), ("other", "1")}
    assert told["other", "0"] > told["llama", "0"] + 30
    gpus = {key[:2] for key in played.series("gpu_up", 0)}
    assert [index for index, _ in sorted(gpus)] == ["0", "1", "2", "3"]
    assert len({uuid for node in range(3) for _, uuid in {key[:2] for key in played.series("gpu_up", node)}}) == 10
    ports = [labels["device"] for labels, _ in played.host("node_infiniband_rate_bytes_per_second")]
    assert ports == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    for node in range(3):
        assert set(played.series("exporter_frames_rejected_total", node).values()) == {0}


def test_what_happens_to_a_node_happens_to_all_runs_on_it(play: Play) -> None:
    """In whichever run's faults it stands, with the numbers of that run's nodes."""
    given = cluster()
    other, twin = given["runs"]
    given["runs"] = (replace(other, faults=(ExporterDown(at=30, lasts=10, node=1),)), twin)
    played = play(Vanish(at=30, lasts=10, nodes=(0,)), until=34, **QUIET, **given)
    assert [node.exporter_up for node in played.simulation.nodes] == [True, False, True]
    assert [node.listed for node in played.simulation.nodes] == [False, True, True]
    played.until(60)
    assert [node.exporter_up and node.listed for node in played.simulation.nodes] == [True, True, True]
    assert len({key[0] for key in played.series("rank_info", 1)}) == 2  # the ranks of both runs are back


def test_two_runs_of_one_name_are_two(play: Play) -> None:
    """INCIDENTS 35: each has its own attempt, ranks and steps; one loses a rank and hangs, the other steps."""
    played = play(Kill(at=30, rank=3, others="hang"), until=60, **QUIET, **cluster())
    here, there = (
        {
            sample.labels[1]: sample.value
            for sample in played.samples(node)
            if sample.metric.name == "tachograph_train_steps_total" and sample.labels[0] == "llama"
        }
        for node in (0, 2)
    )
    assert set(here) == set(there) == {"0", "1"}
    assert there["0"] > here["0"] + 20
