"""The budget of a GPU: the series that are shown unasked, and the driver calls that a collection costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.catalog import index as catalog
from tachograph.node.gpu.reading_table import SLOW_SECONDS
from tachograph.node.samples import Sample
from tachograph.node.shown_gpus import shown

NOT_SUPPORTED = 3
OneGpu = Callable[..., Any]


def test_a_gpu_has_at_most_40_series_unless_detail_is_asked_for(fake: Any, one_gpu: OneGpu) -> None:
    """These are shown by default of a GPU that had no Xid, and nothing of the rest."""
    collector = one_gpu()
    told = collector.at(0, 1)
    assert {(name, *labels) for name, *labels in told.shown if name != "info"} == {
        *((name,) for name in (
            "up", "readings_failed", "utilization_ratio", "memory_total_bytes",
            "memory_used_bytes",
            "temperature_margin_celsius", "power_watts", "power_limit_watts", "energy_joules_total",
            "ecc_sram_threshold_exceeded", "row_remap_pending", "row_remap_failed", "pcie_link_generation",
            "pcie_link_generation_max", "pcie_link_width", "pcie_link_width_max", "pcie_replays_total", "nvlink_links",
            "nvlink_links_active", "fabric_ready", "sm_cycles_total", "sm_active_cycles_total",
            "tensor_active_cycles_total",
        )),
        ("temperature_celsius", "gpu"), ("clock_hertz", "sm"),
        *(("clock_event_seconds_total", reason) for reason in (
            "sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
        )),
        ("ecc_errors_total", "corrected", "volatile"), ("ecc_errors_total", "uncorrected", "volatile"),
        ("remapped_rows_total", "uncorrected"), ("recovery_action", "none"),
        ("nvlink_bytes_total", "transmit"),
        ("nvlink_errors_total", "crc_flit"), ("nvlink_errors_total", "replay"), ("nvlink_errors_total", "recovery"),
    }  # fmt: skip
    assert len(told.shown) <= 40


def test_what_stands_in_is_shown_where_the_better_is_absent(fake: Any, one_gpu: OneGpu) -> None:
    """Without cycle counters the sampled ratios are shown, and without heat counters the older one for all heat."""
    for metric in (249, 250):
        fake.gpm_error(0, metric, NOT_SUPPORTED)
    for field_id in (269, 270):
        fake.field_error(0, field_id, NOT_SUPPORTED)
    better = {("sm_active_cycles_total",), ("tensor_active_cycles_total",), ("clock_event_seconds_total", "thermal")}
    stand_ins = {("sm_active_ratio",), ("tensor_active_ratio",), ("clock_event_seconds_total", "thermal")}
    assert stand_ins <= one_gpu(0).at(0, 1).shown
    whole = one_gpu(1).at(0, 1)
    assert not stand_ins & whole.shown
    assert stand_ins <= whole.samples.keys(), "hidden, and there for those who need it"
    assert better - stand_ins <= whole.shown


def test_one_gpu_hides_nothing_of_another() -> None:
    """A stand-in is hidden for the GPU that has the better reading, not for its neighbour."""
    samples = [
        Sample(catalog.GPU_SM_ACTIVE, ("0", "GPU-a"), 0.5),
        Sample(catalog.GPU_SM_ACTIVE_CYCLES, ("0", "GPU-a"), 7.0),
        Sample(catalog.GPU_SM_ACTIVE, ("1", "GPU-b"), 0.5),
        Sample(catalog.GPU_MEMORY_FREE, ("1", "GPU-b"), 1.0),
    ]
    assert list(shown(samples)) == samples[1:3]
    assert [sample.metric.is_detail(sample.labels) for sample in samples] == [False, False, False, True]


def test_a_collection_costs_one_field_call_and_nothing_slow(fake: Any, one_gpu: OneGpu) -> None:
    """Each second asks for all fields at once and for GPM once; process lists wait for the slow round."""
    collector = one_gpu()
    collector.at(0, 1)
    calls = ("fields", "gpm_sample", "gpm_metrics", "processes", "mps_processes", "nvlink", "fabric", "margin", "uuid")
    before = {call: fake.called(call) for call in calls}
    collector.at(*range(2, 12))
    cost = {call: fake.called(call) - before[call] for call in calls}
    assert cost == {call: 10 if call in {"fields", "gpm_sample", "gpm_metrics"} else 0 for call in calls}
    collector.at(SLOW_SECONDS)
    assert fake.called("processes") > before["processes"]
    assert [fake.called(call) for call in ("pcie_throughput", "fan", "process_utilization")] == [0, 0, 0]


def test_what_is_dear_is_read_only_for_detail(fake: Any, one_gpu: OneGpu) -> None:
    """Locations of ECC errors, PCIe error kinds and single links are not read while they are not shown."""
    dear = (7, 28, 161, 173, 197)
    one_gpu().at(0, 1, SLOW_SECONDS, 2 * SLOW_SECONDS)
    assert [fake.field_asked(0, field_id) for field_id in dear] == [0] * len(dear)
    one_gpu(detail=True).at(0, 1)
    assert all(fake.field_asked(0, field_id) for field_id in dear)


def test_what_seldom_changes_is_read_every_15_seconds(fake: Any, one_gpu: OneGpu) -> None:
    """Limits and thresholds cost a driver call in 15 s, and are shown at each collection in between."""
    collector = one_gpu()
    fake.gpus[0].power_limit = 700000
    for now in range(15):
        assert collector.at(now).samples["power_limit_watts",] == 700
    assert fake.called("margin") == 1
    fake.gpus[0].power_limit = 350000
    assert collector.at(15).samples["power_limit_watts",] == 350
