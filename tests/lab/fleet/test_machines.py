"""GPUs and hosts of a simulated fleet read as real ones do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.catalog.index import gpu_metrics
from tachograph.catalog.metric import COUNTER, DASHBOARDS
from tachograph.node.gpu.reading_table import ACTIVITIES, CALLS, FIELDS
from tachograph.node.samples import Sample
from tachograph.node.shown_gpus import shown
from tachograph_lab.checkout import root
from tachograph_lab.scenario.definition import MemoryInUse
from tachograph_lab.scenario.faults import (
    Ecc,
    HungGpu,
    Leak,
    LinkDown,
    LoggedXid,
    LostGpu,
    SlowCollective,
    SlowPhase,
    Stuck,
    ThrottledGpus,
)  # fmt: skip

Play = Callable[..., Any]

NEVER_ON_A_HEALTHY_DAY = {
    "tachograph_exporter_collector_unavailable_info": "every collector has something to read",
    "tachograph_exporter_user_over_share_total": "nobody wants more than a share",
    "tachograph_gpu_clock_event_active": "no GPU's clocks are held down",
    "tachograph_gpu_fabric_degraded": "every NVLink fabric works as it should",
    "tachograph_gpu_memory_full_ratio": "every GPU has memory left",
    "tachograph_gpu_nvlink_errors_per_second": "NVLinks report no errors",
    "tachograph_gpu_nvlink_links_down": "every NVLink is up",
    "tachograph_gpu_pcie_replays_per_second": "no PCIe packet is sent again",
    "tachograph_gpu_pcie_speed_ratio": "every PCIe link has its full speed",
    "tachograph_gpu_slowdown_ratio": "no GPU is throttled",
    "tachograph_gpu_unavailable_info": "every GPU can be read",
    "tachograph_gpu_xid_errors_total": "there was no Xid",
    "tachograph_gpu_xid_info": "there was no Xid",
    "tachograph_gpu_xid_timestamp_seconds": "there was no Xid",
    "tachograph_node_kernel_message_age_seconds": "the simulated nodes have no kernel's log",
    "tachograph_node_port_down_seconds": "every port is up",
    "tachograph_node_port_errors_per_second": "no port corrupts packets",
    "tachograph_node_port_never_up_seconds": "every port is up",
    "tachograph_node_port_recent_errors": "no port counts errors",
    "tachograph_node_port_speed_ratio": "every port has its full speed",
    "tachograph_rank_ended_timestamp_seconds": "no rank has ended",
    "tachograph_rank_shares_gpu_info": "every rank has a GPU of its own",
    "tachograph_run_batch_changed_seconds": "the batch is what it was",
    "tachograph_run_checkpoint_failed_ranks": "every save succeeded",
    "tachograph_run_checkpoint_saving_seconds": "no save is under way",
    "tachograph_run_overdue_line_ranks": "no step is overdue",
    "tachograph_run_ended_seconds": "no rank has ended",
    "tachograph_run_ended_together": "no rank has ended",
    "tachograph_run_finished_timestamp_seconds": "no rank has ended",
    "tachograph_run_first_end_seconds": "no rank has ended",
    "tachograph_run_gone_seconds": "no rank has ended",
    "tachograph_run_last_words_age_seconds": "no rank has failed",
    "tachograph_run_fruitless_attempts": "no rank has ended",
    "tachograph_run_frozen_seconds": "no rank is silent",
    "tachograph_run_global_batch_wrong_steps": "the global batch is the configured one",
    "tachograph_run_grad_norm_nonfinite_steps": "every gradient norm is finite",
    "tachograph_run_grad_norm_vanished_steps": "no gradient has vanished",
    "tachograph_run_hang_enqueued": "the run is not overdue",
    "tachograph_run_hang_still_seconds": "the run is not overdue",
    "tachograph_run_hang_suspect_enqueued": "the run is not overdue",
    "tachograph_run_hang_suspect_seconds": "the run is not overdue",
    "tachograph_run_overdue_ranks": "the run is not overdue",
    "tachograph_run_pause_limit_seconds": "the run is not overdue",
    "tachograph_run_loss_nonfinite_ranks": "nothing was NaN",
    "tachograph_run_loss_nonfinite_seconds": "nothing was NaN",
    "tachograph_run_loss_nonfinite_step": "nothing was NaN",
    "tachograph_run_loss_spiked_seconds": "the loss did not spike",
    "tachograph_run_memory_fragmented_ratio": "little memory lies in split blocks",
    "tachograph_run_memory_leak_bytes_per_second": "no memory has grown for an hour",
    "tachograph_run_memory_leaking_ranks": "no memory has grown for an hour",
    "tachograph_run_memory_retries": "no allocation was retried",
    "tachograph_run_start_stalled_seconds": "the run has made its first step",
    "tachograph_train_misuse_total": "the loop uses its recorder as it should",
}
NOT_YET = {
    "tachograph_run_batches_per_step": "after 100 steps",
    "tachograph_run_best_speed": "after 65 minutes",
    "tachograph_run_collective_bus_bandwidth_bytes": "a minute after a save",
    "tachograph_run_collective_seconds": "a minute after a save",
    "tachograph_run_least_wait_past_seconds": "after 5 minutes",
    "tachograph_run_wait_past_seconds": "after 5 minutes",
    "tachograph_run_usual_data_wait_ratio": "after 10 minutes",
    "tachograph_run_usual_speed": "after 10 minutes",
}
NOT_ON_THIS_FLEET = {
    "tachograph_gpu_page_retirement_pending": "parts before Ampere",
    "tachograph_gpu_sm_active_ratio": "shown where the driver counts no cycles",
    "tachograph_gpu_tensor_active_ratio": "shown where the driver counts no cycles",
    "tachograph_run_amp_loss_scale": "bf16 needs no scaler",
    "tachograph_run_amp_skipped_steps_total": "bf16 needs no scaler",
    "tachograph_run_checkpoint_free_ratio": "the simulated run saves nowhere",
    "tachograph_run_role_info": "the run has no roles",
    "tachograph_run_step_distribution_seconds": "Prometheus scrapes text",
    "tachograph_supervisor_actions_total": "nobody supervises the run",
    "tachograph_supervisor_blind_seconds": "nobody supervises the run",
    "tachograph_supervisor_look_age_seconds": "nobody supervises the run",
    "tachograph_supervisor_skips": "nobody supervises the run",
    "tachograph_supervisor_question_seconds": "nobody supervises the run",
    "tachograph_supervisor_restarts_left": "nobody supervises the run",
    "tachograph_run_schedule_idle_seconds": "the loop has no watched schedule",
    "tachograph_run_schedule_idle_steps": "the loop has no watched schedule",
    "tachograph_run_schedule_step": "the loop has no watched schedule",
    "tachograph_run_steps_short": "the run has no plan",
    "tachograph_run_threshold": "the run sets no limits of its own",
    "tachograph_run_tier_info": "the run has the default tier",
    "tachograph_run_val_loss": "the loop logs none",
    "tachograph_run_val_loss_spike_evaluations": "the loop logs none",
    "tachograph_train_total_steps": "the run has no plan",
}


def test_all_that_rules_read_is_there(play: Play) -> None:
    """A rule that reads metrics which the fleet never exposes, as replays show them, would be quiet in every one."""
    played = play(until=110, series=DASHBOARDS)
    read = set()
    for path in root().glob("prometheus/rules/*.yml"):
        if path.stem != "dcgm":  # what another exporter shows
            text = re.sub(r"(?m)^\s*#.*$", "", path.read_text(encoding="utf-8"))
            read |= set(re.findall(r"\b((?:tachograph|node)_[a-z0-9_]+)\b(?![:\"/])", text))
    there = {sample.metric.name for sample in played.samples()} | {
        f"tachograph_train_step_seconds_{part}" for part in ("sum", "count", "bucket")
    }
    there |= {name for name, _, _ in played.simulation.nodes[0].host_samples()}
    missing = read - there - {"node_exporter", "node_down"}  # words of texts and labels
    assert missing == NEVER_ON_A_HEALTHY_DAY.keys() | NOT_YET.keys() | NOT_ON_THIS_FLEET.keys()


def test_readings_are_those_of_a_real_part(play: Play) -> None:
    """No GPU has a series that the exporter hides by default, none twice, none that the reading table lacks."""
    snapshot = play(until=30).simulation.nodes[0].gpus.snapshot()
    series = [(sample.metric.name, sample.labels) for sample in snapshot.samples]
    assert len(series) == len(set(series))
    hidden = {sample.metric.name for sample in snapshot.samples} - {s.metric.name for s in shown(snapshot.samples)}
    assert hidden == set()
    table = [value for call in CALLS for value in call.values]
    table += [each.value for each in (*FIELDS, *ACTIVITIES)]
    known = {(value.metric.name, value.labels) for value in table if not value.words}
    read = {value.metric.name for value in table if not value.words}
    for sample in snapshot.samples:
        if sample.metric.name in read:
            assert (sample.metric.name, sample.labels[2:]) in known
    assert {sample.metric.name for sample in snapshot.samples} <= {metric.name for metric in gpu_metrics()}


def test_counters_of_gpus_never_fall(play: Play) -> None:
    """Also where a rank is stuck, throttled or gone."""
    faults = Stuck(at=40, lasts=15, rank=1, phase="forward"), ThrottledGpus(at=20, lasts=10, ranks=(2,), to=0.5)
    played, last = play(*faults, Ecc(at=30, rank=3), until=0), {}
    for second in range(1, 75):
        for sample in played.until(second).simulation.nodes[0].gpus.snapshot().samples:
            if sample.metric.kind == COUNTER:
                key = sample.metric.name, sample.labels
                assert sample.value >= last.get(key, 0.0), (second, key)
                last[key] = sample.value


def gpu(played: Any, name: str, rank: int) -> Any:
    """Return a family of a rank's GPU by its own labels."""
    found = {
        labels[2:]: value
        for labels, value in played.series(f"gpu_{name}", rank // 4).items()
        if labels[0] == str(rank % 4)
    }
    return found.get((), found or None)


def test_utilization_is_full_while_waiting(play: Play) -> None:
    """INCIDENTS 2: a GPU that waits for an all-reduce runs a kernel; SM activity tells waiting from computing."""
    played = play(Stuck(at=20, rank=5, phase="data"), until=60)
    assert [gpu(played, "utilization_ratio", rank) for rank in range(8)] == [1, 1, 1, 1, 1, 0, 1, 1]
    active = gpu(played, "sm_active_cycles_total", 0), gpu(played, "sm_cycles_total", 0)
    played.until(80)
    share = (gpu(played, "sm_active_cycles_total", 0) - active[0]) / (gpu(played, "sm_cycles_total", 0) - active[1])
    assert share == pytest.approx(0.25)


@pytest.mark.parametrize(("cause", "reason"), [("thermal", "sw_thermal_slowdown"), ("power", "sw_power_cap")])
def test_throttling_shows_in_clock_and_reason(play: Play, cause: str, reason: str) -> None:
    """INCIDENTS 4: clock at 80 % of its peers', the driver counts the seconds, the rank comes last; all read 100 %."""
    played = play(ThrottledGpus(at=20, ranks=(5,), to=0.8, cause=cause), until=50)
    assert gpu(played, "clock_hertz", 5)["sm",] / gpu(played, "clock_hertz", 0)["sm",] == pytest.approx(0.8, abs=0.02)
    assert gpu(played, "clock_event_seconds_total", 5)[reason,] == pytest.approx(30)
    assert sum(gpu(played, "clock_event_seconds_total", 4).values()) == 0
    assert (gpu(played, "temperature_celsius", 5)["gpu",] == 84) == (cause == "thermal")
    assert {gpu(played, "utilization_ratio", rank) for rank in range(8)} == {1}
    waits = [played.said("collective_wait_seconds_total", rank)["all_reduce"] for rank in range(8)]
    assert min(waits) == waits[5]


@pytest.mark.parametrize(("fault", "reason"), [(LostGpu, "lost"), (HungGpu, "hung")])
def test_a_gpu_that_cannot_be_read(play: Play, fault: Any, reason: str) -> None:
    """INCIDENTS 15: it stays known, has no readings, and its rank makes no progress."""
    played = play(fault(at=20, rank=5), until=40)
    assert gpu(played, "up", 5) == 0
    assert gpu(played, "unavailable_info", 5) == {(reason,): 1}
    assert gpu(played, "utilization_ratio", 5) is None
    assert gpu(played, "up", 4) == 1
    assert played.rank("rank_info", 5)["1", "8", "0", "1", gpu_uuid(played, 5), "1000"] == 1
    assert "forward" in str(played.rank("rank_phase_seconds", 5))
    assert [sample for sample in played.samples(1) if down(sample)] == []


def gpu_uuid(played: Any, rank: int) -> str:
    return str(played.simulation.nodes[rank // 4].gpus.gpus()[rank % 4].uuid)


def down(sample: Sample) -> bool:
    return sample.metric.name == "tachograph_exporter_collector_success" and not sample.value


def test_ecc_and_xid(play: Play) -> None:
    """INCIDENTS 15: one uncorrectable error and a row to be replaced; an Xid with its time and what to do."""
    played = play(Ecc(at=20, rank=5), LoggedXid(at=25, rank=6, number=79), until=30)
    assert gpu(played, "ecc_errors_total", 5)["uncorrected", "volatile"] == 1
    assert gpu(played, "row_remap_pending", 5) == 1
    assert gpu(played, "xid_errors_total", 6)["79",] == 1
    assert not gpu(played, "xid_errors_total", 5)
    assert [labels[:2] for labels in gpu(played, "xid_info", 6)] == [("79", "reboot")]


def test_leaks(play: Play) -> None:
    """INCIDENTS 16: reserved memory and with it the GPU's, or the process's and with it the host's."""
    played = play(
        Leak(at=0, ranks=(5,), bytes_per_hour=3.6e9), Leak(at=0, ranks=(1,), bytes_per_hour=3.6e9, kind="host")
    )
    assert gpu(played, "memory_used_bytes", 5) - gpu(played, "memory_used_bytes", 4) == pytest.approx(60e6, rel=0.1)
    host = [played.rank("train_host_memory_bytes", rank) for rank in (1, 2)]
    assert host[0] - host[1] == pytest.approx(60e6, rel=0.1)
    (_, left), (_, other) = (
        played.host("node_memory_MemAvailable_bytes", 0)[0],
        played.host("node_memory_MemAvailable_bytes", 1)[0],
    )
    assert other - left == pytest.approx(60e6, rel=0.1)


def test_links(play: Play) -> None:
    """INCIDENTS 3: symbol errors rise behind the bad switch only; a port that is down holds up everyone."""
    played = play(SlowCollective(at=20, nodes=(1,), adds=0.2, nic_errors=3.0), LinkDown(at=40, node=0), until=60)
    assert {value for _, value in played.host("node_infiniband_symbol_error_total", 1)} == {120}
    assert {value for _, value in played.host("node_infiniband_symbol_error_total", 0)} == {0}
    assert [value for _, value in played.host("node_infiniband_state_id", 0)] == [1, 4, 4, 4]
    assert played.series("node_port_down_seconds", 0).keys() == {("mlx5_0", "1")}
    assert played.series("node_port_errors_per_second", 1).keys() == {(f"mlx5_{place}", "1") for place in range(4)}
    assert not played.series("node_port_down_seconds", 1) | played.series("node_port_recent_errors", 0)
    assert played.rank("rank_phase_seconds", 7)["backward",] > 15


def test_a_slow_phase_can_be_any_of_a_step(play: Play) -> None:
    """Also a phase at the end of a step, and what a rank does before it enters the all-reduce."""
    for phase in ("copy", "optimizer", "collective"):
        played = play(SlowPhase(at=15, ranks=(5,), phase=phase, adds=0.4), until=40)
        waits = [played.said("collective_wait_seconds_total", rank)["all_reduce"] for rank in range(8)]
        assert min(waits) == waits[5], phase
        seconds = played.said("phase_seconds_total", 5)
        if phase not in {"backward", "collective"}:
            assert seconds[phase] > played.said("phase_seconds_total", 4)[phase] + 5, phase


def test_memory_in_use_is_the_scenarios(play: Play) -> None:
    """Every rank's allocator holds the share that the scenario gives, and its GPU at least as much."""
    played = play(until=20, memory=MemoryInUse(reserved=0.9))
    reserved = played.rank("train_memory_reserved_bytes", 5)
    assert reserved == pytest.approx(0.9 * gpu(played, "memory_total_bytes", 5), rel=0.01)
    assert gpu(played, "memory_used_bytes", 5) > reserved
