"""What a screen says of a run that goes on: since when, on which rank, and what usually helps."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.findings.kinds import RUN_HUNG
from tachograph.node.api.answer import NodeAnswer
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample

PEAKS = ((0, 70), (1, 77), (2, 79))
"""GPUs, and the GiB that tensors took at most."""


def judged(table: Any, hand: Any, *ranks: dict[str, Any], **metrics: Any) -> NodeAnswer:
    """Return what is concluded about ranks at step 90, in steps of 0.1 s, given what each says of a step."""
    wall = hand.clock.wall()
    for number, said in enumerate(ranks):
        table.greet(number, rank=number, world_size=len(ranks), uuid=said.get("uuid"))
        phase = said.get("phase", "backward")
        table.tell(number, metrics={"steps_total": 90} | metrics | said.get("metrics", {}), time=wall,
                   progress_time=wall, phase=phase, phase_since=wall, step=90)  # fmt: skip
    for rank, said in zip(table.ranks(), ranks, strict=True):
        rank.series.gauges |= {"recent_step_seconds": {"": 0.1}, "recent_phase_seconds": said.get("phases", {})}
        if "wait" in said:
            rank.series.gauges["recent_wait_seconds"] = {"": said["wait"]}
    return NodeAnswer("n", table, (), None, hand.clock)


@pytest.mark.parametrize(
    ("data", "metrics", "said"),
    [
        (0.06, {}, "60% of each step (60 ms of 100 ms) is spent waiting for data. → more workers in the DataLoader"),
        (0.06, {"data_workers": 0}, "60% of each step (60 ms of 100 ms) is spent waiting for data (num_workers=0). →"),
        (0.06, {"data_workers": 4}, "60% of each step (60 ms of 100 ms) is spent waiting for data. → more workers"),
        (0.5, {}, "100% of each step (500 ms of 100 ms) is spent waiting for data. → more workers"),
        (0.02, {"data_workers": 0}, ""),
        (0.06, {"threshold": {"data_stall_ratio": 0.7}}, ""),
    ],
)  # fmt: skip
def test_a_wait_for_data(table: Any, hand: Any, data: float, metrics: dict[str, Any], said: str) -> None:
    """Above DataStall's limit or the run's own; a loader without workers is said, which is the usual cause."""
    ranks = [{"phases": {"data": seconds, "forward": 0.03}} for seconds in (data, data, 0.0)]
    found = judged(table, hand, *ranks, **metrics)
    assert found.runs[0].data_seconds == data
    text = "".join(f"{one.sentence.removeprefix('Run r: ')} → {one.remedy}" for one in found.problems)
    assert text.startswith(said)
    assert bool(text) == bool(said)
    assert not any(one.urgent for one in found.problems)


def test_a_standstill_is_no_wait_of_each_step(table: Any, hand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rank waited for once does not become the wait of every step that follows."""
    monkeypatch.setattr("tachograph.node.ranks.rank.Rank.stood_still", True)
    (run,) = judged(table, hand, {"phases": {"data": 15.1}, "wait": 15.0}, {"phases": {"data": 15.1}}).runs
    assert (run.data_seconds, run.wait_seconds, run.ranks[0].data_seconds) == (None, None, None)


def test_a_rank_that_is_late_and_in_what(table: Any, hand: Any) -> None:
    """The phase in which it is busy longer than the others, by how much in each step, and its process."""
    well = {"wait": 0.04, "phases": {"forward": 0.02, "backward": 0.03}}
    found = judged(table, hand, well, {"wait": 0.0, "phases": {"forward": 0.06, "backward": 0.031}}, well)
    (problem,) = found.problems
    assert problem.sentence.startswith("Rank 1 of run r arrives last: it waits 0% of the time, the others here 40%; ")
    assert problem.sentence.endswith("; it spends 40 ms more per step in phase forward (pid 4242).")
    assert problem.remedy.endswith("/runbooks/StragglerRank.md")
    assert (found.runs[0].wait_seconds, found.runs[0].ranks[1].late_phase) == (0.04, "forward")


def test_of_two_ranks_the_difference_is_the_whole_one(table: Any, hand: Any) -> None:
    """The rank that is late is not among those it is compared with."""
    found = judged(table, hand, {"wait": 0.05, "phases": {"forward": 0.01}}, {"wait": 0.0, "phases": {"forward": 0.06}})
    assert "; it spends 50 ms more per step in phase forward" in found.problems[0].sentence


def test_since_when(table: Any, hand: Any) -> None:
    """From ten seconds on; a pause of half a minute is forgiven, after a longer one it starts from 0."""
    late = [{"wait": wait, "phases": {"data": 0.03}} for wait in (0.04, 0.0, 0.04)]
    seconds = []
    for pause in (0, 5, 5, 20, 40):
        hand.turn(pause)
        found = judged(table, hand, *late)
        table.tick()
        found = NodeAnswer("n", table, (), None, hand.clock)
        seconds.append((found.runs[0].ranks[1].late_for_seconds, found.runs[0].data_for_seconds))
        assert [one.seconds for one in found.problems] == list(seconds[-1])
        texts = [one.sentence for one in found.problems]
        if pause == 20:
            assert texts[0].startswith("Rank 1 of run r has arrived last for 30 s: it waits 0% of the time")
            assert "for 30 s, 30% of each step (30 ms of 100 ms) has been spent" in texts[1]
    assert [late_for for late_for, _ in seconds] == [data_for for _, data_for in seconds] == [0, 5, 10, 30, 0]
    well = judged(table, hand, *[{"wait": 0.04, "phases": {"data": 0.01}}] * 3)
    assert (well.runs[0].ranks[1].late_for_seconds, well.runs[0].data_for_seconds, well.problems) == (None, None, [])


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (None, "the loss has been NaN since step 61, on rank 1 first."),
        (60, "on rank 1 first; the last checkpoint from before it is from step 60."),
        (61, "on rank 1 first; no checkpoint from before it is known."),
    ],
)
def test_a_loss_that_is_lost(table: Any, hand: Any, saved: float | None, said: str) -> None:
    """Since which step, where first, and the last checkpoint that does not hold it."""
    ranks = [{"metrics": {"loss": "NaN", "nonfinite_step": {"loss": step}}} for step in (63, 61)]
    save = {} if saved is None else {"checkpoint_step": saved, "checkpoint_timestamp_seconds": hand.clock.wall()}
    (problem,) = judged(table, hand, *ranks, **save).problems
    assert problem.sentence.endswith(said)
    assert problem.seconds == pytest.approx(2.9)
    assert problem.urgent
    assert "restart from a checkpoint from before it" in problem.remedy


@pytest.mark.parametrize(("steps", "losses"), [(20, 2), (19, 0), (20, 1), (20, 3)])
def test_a_loss_that_does_not_recover(table: Any, hand: Any, steps: int, losses: int) -> None:
    """Once half of the ranks that log a loss have seen a spike of 20 steps: since which, and what to go back to."""
    saved = {"checkpoint_step": 60.0, "checkpoint_timestamp_seconds": hand.clock.wall()}
    spike = {"loss": 9.0, "loss_spike_steps": steps, "loss_spikes_total": 1.0}
    well = {"loss": 2.0, "loss_spike_steps": 0, "loss_spikes_total": 0}
    ranks = [{"metrics": (spike if rank < losses else well) | saved} for rank in range(3)]
    found = judged(table, hand, *ranks)
    if steps < 20 or losses < 2:
        assert (found.problems, found.runs[0].spiked_step) == ([], None)
        return
    (problem,) = found.problems
    step = found.runs[0].ranks[0].step
    assert step is not None
    assert found.runs[0].spiked_step == step - 20
    assert problem.urgent
    assert f"the loss spiked at step {step - 20} and does not recover; the last checkpoint from" in problem.sentence
    assert problem.remedy.endswith("/runbooks/LossSpikeNotRecovering.md")


def test_a_save_under_way_is_no_problem(table: Any, hand: Any) -> None:
    """It is said for how long it has been so."""
    found = judged(table, hand, {"phase": "checkpoint"}, {"phase": "backward"})
    assert (found.runs[0].saving_seconds, found.problems) == (0.0, [])
    hand.turn(12.0)
    for rank in range(2):
        table.heard(rank)
    later = NodeAnswer("n", table, (), None, hand.clock)
    assert (later.runs[0].saving_seconds, later.problems) == (12.0, [])
    assert judged(table, hand, {}, {}).runs[0].saving_seconds is None


def test_a_gpu_whose_memory_is_nearly_full(table: Any, hand: Any) -> None:
    """By what tensors took at most, of the fullest GPU; a GPU of unknown size is left out."""
    judged(table, hand, *[{"metrics": {"memory_peak_bytes": 2**30 * gib}, "uuid": f"GPU-{n}"} for n, gib in PEAKS])
    gpus = [GpuIdentity(str(number), f"GPU-{number}", "H100") for number, _ in PEAKS]

    def problems(*gib: int) -> list[str]:
        """Return what is said where the first GPUs have so much memory."""
        samples = (
            Sample(catalog.GPU_MEMORY_TOTAL, (gpu.index, gpu.uuid), 2.0**30 * size)
            for gpu, size in zip(gpus, gib, strict=False)
        )
        snapshot = GpuSnapshot(tuple(samples), 0.0, hand.now, True, "")
        return [one.sentence for one in NodeAnswer("n", table, gpus, snapshot, hand.clock).problems]

    assert problems(80, 80) == ["Rank 1 of run r: tensors took 96% of its GPU's 80.0 GiB at most."]
    assert problems(80, 82) == []


def test_before_a_hang_a_missing_step_is_said(table: Any, hand: Any) -> None:
    """After ten seconds and ten usual steps, as a fact for whoever looks; its process can be looked at."""
    judged(table, hand, {"phase": "data"})
    for seconds, count in ((10.0, 0), (0.1, 1)):
        hand.turn(seconds)
        table.heard(0)
        found = NodeAnswer("n", table, (), None, hand.clock)
        assert (len(found.problems), found.runs[0].state) == (count, "running")
    (problem,) = found.problems
    assert problem.sentence.startswith("Run r: no step for 10 s, usually 100 ms; rank 0 in data for 10 s")
    assert problem.remedy == f"py-spy dump --pid 4242 shows where rank 0 stands: {RUN_HUNG.runbook}"
    assert (problem.seconds, problem.urgent) == (pytest.approx(10.1), False)
