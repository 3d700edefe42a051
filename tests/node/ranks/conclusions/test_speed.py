"""How fast a run makes its steps and waits for data, by frames of its ranks on a hand clock."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.ranks.frames import Hello, Peer, State

MINUTE = 60.0
Told = dict[tuple[str, ...], float]


class Run:
    """Two ranks on a node; each frame of a rank follows `spacing` seconds after the one before, and a tick them all."""

    def __init__(self, table: Any, hand: Any, facts: dict[str, object] | None = None) -> None:
        self.table, self.hand, self.seq, self.facts = table, hand, 0, facts or {}
        self.steps = self.seconds = self.data = self.tokens = 0.0
        self.more: dict[str, object] = {}
        self.start()

    def start(self, attempt: int = 0) -> None:
        for rank in range(2):
            hello = Hello(v=1, run="r", rank=rank, world_size=2, pid=10 + rank, attempt=attempt, facts=self.facts)
            self.table.hello((attempt, rank), hello, Peer(1000, 10 * attempt + rank + 1))
        self.links = [(attempt, 0), (attempt, 1)]
        self.steps = self.seconds = self.data = self.tokens = 0.0
        self.began = self.hand.clock.wall()

    def goes(
        self, seconds: float, step: float, data: float = 0.01, tokens: float = 100.0, spacing: float = 5.0
    ) -> Told:
        """Make steps of this length, of which each rank waits `data` seconds; return what the node says."""
        for _ in range(int(seconds / spacing)):
            made = spacing / step
            self.steps += made
            self.seconds += spacing
            self.data += made * data
            self.tokens += made * tokens
            self.hand.turn(spacing)
            self.tell()
            self.table.tick()
        return told(self.table)

    def tell(self, **over: Any) -> None:
        self.seq += 1
        for link in self.links:
            metrics = {
                "steps_total": self.steps,
                "ordinary_steps_total": self.steps,
                "ordinary_step_seconds_total": self.seconds,
                "ordinary_phase_seconds_total": {"data": self.data, "forward": self.seconds - self.data},
                "phase_seconds_total": {"data": self.data, "forward": self.seconds - self.data},
                "tokens_total": self.tokens,
                "flops_total": self.tokens * 1e12,
                **self.more,
            }
            now = self.hand.clock.wall()
            frame = {"v": 1, "seq": self.seq, "time": now, "progress_time": now, "metrics": metrics, **over}
            self.table.state(link, State(**frame))


def told(table: Any) -> Told:
    return {
        (sample.metric.name.removeprefix("tachograph_"), *sample.labels[1:]): float(sample.value)
        for sample in table.samples()
        if sample.metric.name.startswith("tachograph_run_")
    }


@pytest.fixture
def run(table: Any, hand: Any) -> Run:
    return Run(table, hand)


def test_the_best_unit_that_is_known(table: Any, hand: Any) -> None:
    """Tokens of a mean rank; MFU where FLOPs and the peak are known; steps where nothing is."""
    known = Run(table, hand, {"peak_flops": 1e15})
    shown = known.goes(2 * MINUTE, 0.5)
    assert shown["run_speed", "mfu"] == pytest.approx(0.2)
    assert shown["run_peak_flops",] == 2e15
    assert not [key for key in shown if key[0] == "speed" and key[1] != "mfu"]


def test_tokens_of_a_mean_rank_where_no_peak_is_known(run: Run) -> None:
    """Also by the clock, of all ranks; nothing stands for FLOPs."""
    shown = run.goes(3 * MINUTE, 0.5)
    assert shown["run_speed", "tokens"] == pytest.approx(200)
    assert shown["run_work_per_second", "tokens"] == pytest.approx(400, rel=0.1)
    assert ("run_work_per_second", "flops") not in shown
    assert ("run_peak_flops",) not in shown


def test_steps_where_nothing_else_is_known(run: Run) -> None:
    """Another batch is the start of another past."""
    run.more = {"tokens_total": 0.0, "flops_total": 0.0, "invariant": {"global_batch": 64}}
    assert run.goes(15 * MINUTE, 0.5)["run_usual_speed", "steps"] == pytest.approx(2)
    run.more["invariant"] = {"global_batch": 128}
    shown = run.goes(5 * MINUTE, 1.0)
    assert shown["run_speed", "steps"] == pytest.approx(1)
    assert ("run_usual_speed", "steps") not in shown
    assert shown["run_batch_changed_seconds",] == pytest.approx(5 * MINUTE, abs=10)


def test_a_larger_batch_is_no_slower_by_the_token_and_a_smaller_one_may_be(run: Run) -> None:
    """What was usual stands beside what takes longer behind a larger batch; half a batch begins anew."""
    run.more["invariant"] = {"global_batch": 64}
    assert run.goes(15 * MINUTE, 0.5)["run_usual_speed", "tokens"] == pytest.approx(200)
    run.more["invariant"] = {"global_batch": 128}
    assert run.goes(5 * MINUTE, 1.0)["run_usual_speed", "tokens"] == pytest.approx(200)
    run.more["invariant"] = {"global_batch": 32}
    assert ("run_usual_speed", "tokens") not in run.goes(5 * MINUTE, 1.0)


def test_a_loss_of_speed_is_known_in_a_minute_and_a_half(run: Run) -> None:
    """What was usual stays so; how long it has been slow is counted from there."""
    assert run.goes(20 * MINUTE, 0.5)["run_slow_seconds",] == 0
    run.goes(90, 1.0)
    shown = run.goes(20 * MINUTE, 1.0)
    assert shown["run_speed", "tokens"] == pytest.approx(100)
    assert shown["run_usual_speed", "tokens"] == pytest.approx(200)
    assert shown["run_slow_seconds",] == pytest.approx(20 * MINUTE, abs=30)


def test_the_best_hour_is_known_after_the_first_one(run: Run) -> None:
    """Before, nothing is."""
    assert ("run_best_speed", "tokens") not in run.goes(60 * MINUTE, 0.5)
    assert run.goes(10 * MINUTE, 0.6)["run_best_speed", "tokens"] == pytest.approx(200)


@pytest.mark.parametrize("step", [0.3, 7.0, 40.0, 200.0])
def test_a_loss_is_found_however_long_steps_are(run: Run, step: float) -> None:
    """In two minutes and eight steps; a tenth is none."""
    run.goes(max(30 * MINUTE, 12 * step), step, spacing=max(5.0, step))
    little, much = 1.1 * step, 1.6 * step
    assert run.goes(max(10 * MINUTE, 8 * step), little, spacing=max(5.0, little))["run_slow_seconds",] == 0
    shown = run.goes(2 * MINUTE + 8 * much, much, spacing=max(5.0, much))
    assert shown["run_speed", "tokens"] < 0.85 * shown["run_usual_speed", "tokens"]


def test_a_run_may_lose_what_its_threshold_says(run: Run) -> None:
    """The most tolerant rank's; a threshold of no meaning is none."""
    run.more = {"threshold": {"throughput_drop_ratio": 0.6}}
    run.goes(20 * MINUTE, 0.5)
    assert run.goes(5 * MINUTE, 1.0)["run_slow_seconds",] == 0
    run.more = {}
    assert run.goes(MINUTE, 1.0)["run_slow_seconds",] > 0


def test_a_pause_is_no_loss_of_speed(run: Run) -> None:
    """The step that took a minute more than usual does not count, nor does the time without one."""
    run.goes(20 * MINUTE, 0.5)
    for _ in range(10):
        run.hand.turn(60.0, run.table.tick)
        run.steps += 1
        run.seconds += 60
        run.tokens += 100
        run.tell()
        shown = run.goes(30, 0.5)
        assert shown["run_speed", "tokens"] == pytest.approx(200, rel=0.1)
    assert shown["run_slow_seconds",] == 0


def test_another_batch_is_no_loss_of_tokens(run: Run) -> None:
    """Steps that take twice as long and are worth twice as much: known as another batch, and as fast throughout."""
    run.goes(20 * MINUTE, 0.5)
    for _ in range(12):
        shown = run.goes(15, 1.0, tokens=200.0)
        assert shown["run_speed", "tokens"] == pytest.approx(200)
    assert shown["run_batch_changed_seconds",] == pytest.approx(3 * MINUTE, abs=30)
    assert run.goes(10 * MINUTE, 1.0, tokens=210.0)["run_batch_changed_seconds",] > 12 * MINUTE


def test_half_a_batch_is_another_step(run: Run) -> None:
    """It makes fewer tokens a second, as the optimizer's part is as long as before; that is no loss, and soon usual."""
    run.goes(20 * MINUTE, 0.5)
    shown = run.goes(6 * MINUTE, 0.3, tokens=50.0)
    assert shown["run_speed", "tokens"] == pytest.approx(167, abs=1)
    assert ("run_usual_speed", "tokens") not in shown
    shown = run.goes(20 * MINUTE, 0.3, tokens=50.0)
    assert shown["run_usual_speed", "tokens"] == pytest.approx(167, abs=1)
    assert shown["run_slow_seconds",] == 0
    assert run.goes(3 * MINUTE, 0.4, tokens=50.0)["run_slow_seconds",] > 60


def test_other_processes_have_no_past(run: Run) -> None:
    """A new attempt may be of another size; one that only says hello again is no new one."""
    began = run.goes(20 * MINUTE, 0.5)["run_started_timestamp_seconds",]
    assert began == pytest.approx(run.hand.clock.wall() - 20 * MINUTE, abs=10)
    for link in run.links:
        run.table.lost(link)
    run.start(attempt=1)
    shown = run.goes(5 * MINUTE, 1.0)
    assert shown["run_started_timestamp_seconds",] == pytest.approx(began + 20 * MINUTE, abs=10)
    assert shown["run_speed", "tokens"] == pytest.approx(100)
    assert ("run_usual_speed", "tokens") not in shown


def test_work_by_the_clock_goes_on_over_processes(run: Run) -> None:
    """A successor starts at 0: nothing is taken away, and what a rank had done before it was seen does not count."""
    run.tokens = 1e9
    assert run.goes(3 * MINUTE, 0.5)["run_work_per_second", "tokens"] == pytest.approx(400, rel=0.1)
    for link in run.links:
        run.table.lost(link)
    run.start(attempt=1)
    assert 0 <= run.goes(10, 0.5)["run_work_per_second", "tokens"] < 450


def test_a_wait_for_data_that_is_usual_is_no_stall(run: Run) -> None:
    """However long it is."""
    shown = run.goes(20 * MINUTE, 0.5, data=0.3)
    assert shown["run_data_wait_ratio",] == pytest.approx(0.6)
    assert shown["run_usual_data_wait_ratio",] == pytest.approx(0.6)
    assert shown["run_data_stall_seconds",] == 0


def test_a_wait_for_data_that_is_three_times_the_usual_one_is_a_stall(run: Run) -> None:
    """It is counted from its first steps on; the figure shows it when three fifths of two minutes do."""
    run.goes(20 * MINUTE, 0.5)
    shown = run.goes(MINUTE, 0.8, data=0.31)
    assert shown["run_data_wait_ratio",] < 0.05
    assert shown["run_data_stall_seconds",] == pytest.approx(MINUTE, abs=25)
    shown = run.goes(MINUTE, 0.8, data=0.31)
    assert shown["run_data_wait_ratio",] == pytest.approx(0.39, abs=0.01)
    assert shown["run_usual_data_wait_ratio",] == pytest.approx(0.02)
    run.goes(40, 0.5)
    assert run.goes(40, 0.5)["run_data_stall_seconds",] == 0


@pytest.mark.parametrize(("site", "own"), [({"data_stall_ratio": 0.5}, {}), ({}, {"data_stall_ratio": 0.5})])
def test_a_wait_that_a_site_or_a_run_allows_is_no_stall(
    run: Run, site: dict[str, float], own: dict[str, float]
) -> None:
    """StorageSlow counts these stalls, DataStall compares the wait with the same limit."""
    run.table.site_limits = site
    run.more = {"threshold": own} if own else {}
    run.goes(20 * MINUTE, 0.5)
    assert run.goes(2 * MINUTE, 0.8, data=0.31)["run_data_stall_seconds",] == 0
    assert run.goes(2 * MINUTE, 1.2, data=0.71)["run_data_stall_seconds",] > 60


def test_ranks_that_stand_still_in_data_are_stalled(run: Run) -> None:
    """Ten seconds longer than a step; not before the first step, which loads and compiles."""
    run.tell(phase="data", phase_since=run.hand.clock.wall() - 100, progress_time=None)
    assert ("run_data_stall_seconds",) not in told(run.table)
    run.goes(2 * MINUTE, 0.5)
    began = run.hand.clock.wall()
    run.tell(phase="data", phase_since=began)
    run.hand.turn(9.0, run.table.tick)
    assert told(run.table)["run_data_stall_seconds",] == 0
    for _ in range(20):
        for link in run.links:
            run.table.heard(link)
        run.tell(phase="data", phase_since=began, progress_time=began)
        run.hand.turn(1.0, run.table.tick)
    assert told(run.table)["run_data_stall_seconds",] == pytest.approx(20, abs=2)
