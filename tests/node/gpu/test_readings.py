"""The real pynvml on the made-up library: what each reading gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.catalog.gpu import CLOCK_EVENT_REASONS, RECOVERY_ACTIONS
from tachograph.catalog.index import gpu_metrics
from tachograph.node.driver.nvml import ALL_LINKS, Narrow
from tachograph.node.gpu.nvlink import link_call, link_fields
from tachograph.node.gpu.possible import DriverCounter, Impossible
from tachograph.node.gpu.reading_table import CALLS, FIELDS, RETRY_SECONDS, SLOW_SECONDS, Field, every_value

NOT_SUPPORTED, NO_PERMISSION = 3, 4
UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
OneGpu = Callable[..., Any]

# What is no row of the table: told by the collectors of a GPU and of the node, by Xids, peaks, MIG and job files, or
# concluded of readings.
ELSEWHERE = {
    catalog.GPU_INFO, catalog.GPU_UP, catalog.GPU_UNAVAILABLE, catalog.GPU_READINGS_FAILED, catalog.GPU_JOB_INFO,
    catalog.GPU_XID_ERRORS, catalog.GPU_XID_NONFATAL, catalog.GPU_XID_TIMESTAMP, catalog.GPU_XID_INFO,
    catalog.GPU_PEAK_FLOPS, catalog.GPU_ACHIEVABLE_FLOPS,
    catalog.MIG_INFO, catalog.GPU_SLOWDOWN, catalog.GPU_NVLINKS_DOWN, catalog.GPU_NVLINK_ERROR_RATE,
    catalog.GPU_PCIE_SPEED, catalog.GPU_PCIE_REPLAY_RATE, catalog.GPU_MEMORY_FULL,
}  # fmt: skip


def test_every_gpu_row_of_the_catalog_is_read() -> None:
    """A catalog row without a reading, or a reading with labels that its row does not know, is a mistake."""
    values = [*every_value(), *link_call(1).values, *(field.value for field in link_fields(1))]
    assert {value.metric for value in values} | ELSEWHERE == set(gpu_metrics())
    assert not {value.metric for value in values} & ELSEWHERE
    for value in values:
        own = value.metric.labels[2:]
        told = own[1:] if "mig" in own or value.words else own
        assert len(value.labels) == len(told), value
    for metric in {value.metric for value in values if value.metric.values}:
        read = {value.labels[-1] for value in values if value.metric is metric}
        assert read == set(metric.values), metric.name


def test_only_another_generation_or_driver_gives_the_same_sample() -> None:
    """Two rows for one sample are two ids of the same thing, and never on the same driver if the id has moved."""
    calls = Counter((value.metric.name, value.labels) for call in CALLS for value in call.values)
    assert max(calls.values()) == 1
    by_sample: dict[tuple[str, tuple[str, ...]], list[Field]] = {}
    for field in FIELDS:
        by_sample.setdefault((field.value.metric.name, field.value.labels), []).append(field)
    assert not by_sample.keys() & calls.keys()
    twice = {key: fields for key, fields in by_sample.items() if len(fields) > 1}
    assert {key[0] for key in twice} == {
        "tachograph_gpu_clock_event_seconds_total",
        "tachograph_gpu_nvlink_bytes_total",
        "tachograph_gpu_nvlink_errors_total",
    }
    for fields in twice.values():
        assert len({(field.id, field.scope) for field in fields}) == len(fields)


def test_every_reading_arrives_in_base_units(fake: Any, one_gpu: OneGpu) -> None:
    """Milliwatts, megahertz, millijoules, nanoseconds, kibibytes and percent become base units; nothing is swapped."""
    gpu = fake.gpus[5]
    gpu.serial, gpu.vbios = b"1650123", b"96.00.AA"
    gpu.utilization[:] = 97, 41
    gpu.memory_total, gpu.memory_used, gpu.memory_reserved = 85520809984, 70000000001, 600000002
    gpu.temperature[:] = 61, 74
    gpu.thresholds[:] = 92, 89, 95, 87
    gpu.power_limit = 700000
    gpu.power = 612345
    gpu.clocks[:] = 1, 1755, 2619, 2
    gpu.max_clocks[:] = 3, 1980, 2620, 4
    gpu.clock_events = 0x4 | 0x40 | 0x400
    gpu.performance_state, gpu.persistence, gpu.sram_threshold = 2, 1, 1
    gpu.banks[:] = 600, 30, 7, 2, 1
    gpu.pcie[:2], gpu.pcie_max[:] = (4, 8), (5, 16)
    events = ["sw_power_cap", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability"]
    places = ["l1", "l2", "device_memory", "register_file", "texture_memory"]
    ids = {1: 1, 3: 11, 4: 12, 5: 13, 6: 14, 29: 21, 30: 22, 31: 1, 38: 31, 45: 32, 52: 33, 59: 34}
    ids |= {74 + i: (i + 1) * 1_500_000_000 for i in range(6)} | {269 + i: (i + 7) * 1_500_000_000 for i in range(3)}
    ids |= {7 + i: 100 + i for i in range(11)} | {18 + i: 200 + i for i in range(11)}
    ids |= {83: 9876543210123, 94: 41, 142: 51, 143: 52, 144: 1, 145: 1, 186: 598765, 230: 2}
    ids |= {173 + i: 300 + i for i in range(11)} | {187: 200000, 188: 750000, 189: 710000, 192: 690000}
    ids |= {197: 5_000_000_000_001, 198: 6_000_000_000_002, 214: 35, 219: 36}
    for field_id, value in ids.items():
        fake.field(5, field_id, value, scope=ALL_LINKS if field_id > 200 and field_id < 230 else 0)
    fake.field(5, 138, 3_000_000_001, ALL_LINKS)
    fake.field(5, 139, 4_000_000_002, ALL_LINKS)
    fake.field(5, 165, 0, scope=4)
    fake.fail("retired_pages", 0, 5)  # what no H100 has, and older parts do
    told = one_gpu(5, detail=True).at(0)
    assert told.failures == {}
    uuid = gpu.uuid.decode()
    assert {tuple(labels[:2]) for _, labels, _ in told.answer["rows"]} == {("5", uuid)}
    expected = {
        ("info", "NVIDIA H100 80GB HBM3", "00000000:BB:00.0", "1650123", "96.00.AA", "580.95.05", "13.0"): 1,
        ("utilization_ratio",): 0.97,
        ("memory_controller_ratio",): 0.41,
        ("memory_total_bytes",): 85520809984,
        ("memory_used_bytes",): 70000000001,
        ("memory_reserved_bytes",): 600000002,
        ("memory_free_bytes",): 85520809984 - 70000000001 - 600000002,
        ("temperature_celsius", "gpu"): 61,
        ("temperature_celsius", "memory"): 74,
        ("temperature_threshold_celsius", "slowdown"): 89,
        ("temperature_threshold_celsius", "shutdown"): 92,
        ("temperature_margin_celsius",): told.samples["temperature_margin_celsius",],
        ("power_watts",): 612.345,
        ("power_instant_watts",): 598.765,
        ("power_limit_watts",): 700,
        ("power_limit_bound_watts", "min"): 200,
        ("power_limit_bound_watts", "max"): 750,
        ("power_limit_bound_watts", "default"): 710,
        ("power_limit_bound_watts", "requested"): 690,
        ("energy_joules_total",): 9876543210.123,
        ("clock_hertz", "sm"): 1755e6,
        ("clock_hertz", "memory"): 2619e6,
        ("clock_max_hertz", "sm"): 1980e6,
        ("clock_max_hertz", "memory"): 2620e6,
        **{("clock_event_active", reason): 0 for reason in CLOCK_EVENT_REASONS},
        ("clock_event_active", "sw_power_cap"): 1,
        ("clock_event_active", "hw_thermal_slowdown"): 1,
        ("clock_event_active", "reliability"): 1,
        **{("clock_event_seconds_total", event): 1.5 * (i + 1) for i, event in enumerate(events)},
        ("clock_event_seconds_total", "sw_thermal_slowdown"): 10.5,
        ("clock_event_seconds_total", "hw_thermal_slowdown"): 12,
        ("clock_event_seconds_total", "hw_power_brake_slowdown"): 13.5,
        ("performance_state",): 2,
        ("mode_enabled", "persistence"): 1,
        ("mode_enabled", "ecc"): 1,
        ("mode_enabled", "mig"): 0,
        ("ecc_errors_total", "corrected", "volatile"): 11,
        ("ecc_errors_total", "uncorrected", "volatile"): 12,
        ("ecc_errors_total", "corrected", "aggregate"): 13,
        ("ecc_errors_total", "uncorrected", "aggregate"): 14,
        **{("ecc_location_errors_total", "corrected", "volatile", at): 100 + 2 * i for i, at in enumerate(places)},
        **{("ecc_location_errors_total", "uncorrected", "volatile", at): 101 + 2 * i for i, at in enumerate(places)},
        **{("ecc_location_errors_total", "corrected", "aggregate", at): 200 + 2 * i for i, at in enumerate(places)},
        **{("ecc_location_errors_total", "uncorrected", "aggregate", at): 201 + 2 * i for i, at in enumerate(places)},
        ("ecc_location_errors_total", "uncorrected", "volatile", "cbu"): 110,
        ("ecc_location_errors_total", "uncorrected", "aggregate", "cbu"): 210,
        ("ecc_sram_threshold_exceeded",): 1,
        ("retired_pages_total", "corrected"): 21,
        ("retired_pages_total", "uncorrected"): 22,
        ("page_retirement_pending",): 1,
        ("remapped_rows_total", "corrected"): 51,
        ("remapped_rows_total", "uncorrected"): 52,
        ("row_remap_pending",): 1,
        ("row_remap_failed",): 1,
        ("row_remap_banks", "max"): 600,
        ("row_remap_banks", "high"): 30,
        ("row_remap_banks", "partial"): 7,
        ("row_remap_banks", "low"): 2,
        ("row_remap_banks", "none"): 1,
        ("recovery_action", "node_reboot"): 1,
        ("pcie_link_generation",): 4,
        ("pcie_link_generation_max",): 5,
        ("pcie_link_width",): 8,
        ("pcie_link_width_max",): 16,
        ("pcie_replays_total",): 41,
        **{("pcie_errors_total", error): 300 + i for i, error in enumerate(catalog.GPU_PCIE_ERRORS.values)},
        ("pcie_bytes_total", "transmit"): 5_000_000_000_001,
        ("pcie_bytes_total", "receive"): 6_000_000_000_002,
        ("nvlink_links",): 18,
        ("nvlink_links_active",): 17,
        ("nvlink_bytes_total", "transmit"): 3_000_000_001 * 1024,
        ("nvlink_bytes_total", "receive"): 4_000_000_002 * 1024,
        ("nvlink_errors_total", "crc_flit"): 31,
        ("nvlink_errors_total", "crc_data"): 32,
        ("nvlink_errors_total", "replay"): 33,
        ("nvlink_errors_total", "recovery"): 34,
        ("nvlink_errors_total", "recovery_failed"): 35,
        ("nvlink_errors_total", "effective"): 36,
        ("fabric_ready",): 1,
        ("up",): 1,
        ("readings_failed",): 0,
        ("peak_flops", "bf16"): 989e12,
        ("peak_flops", "fp16"): 989e12,
        ("peak_flops", "fp8"): 1979e12,
        ("achievable_flops", "bf16"): 794.5e12,
        ("achievable_flops", "fp8"): 1402.6e12,
    }  # fmt: skip
    assert told.samples.keys() == expected.keys()
    assert told.samples == pytest.approx(expected)
    assert {type(value) for value in told.samples.values()} <= {int, float}


def test_margin_is_what_the_part_says(fake: Any, one_gpu: OneGpu) -> None:
    """The margin is the driver's own word, never a subtraction of ours: it is absent where the driver has no word."""
    collector = one_gpu()
    margin = collector.at(0).samples["temperature_margin_celsius",]
    fake.gpus[0].temperature[0] += 5
    assert collector.at(SLOW_SECONDS).samples["temperature_margin_celsius",] == margin - 5
    fake.fail("margin", NOT_SUPPORTED)
    assert ("temperature_margin_celsius",) not in collector.at(2 * SLOW_SECONDS).samples


def test_zero_is_a_sample(fake: Any, one_gpu: OneGpu) -> None:
    """An idle GPU reads 0, and 0 is shown."""
    gpu = fake.gpus[0]
    gpu.utilization[:] = 0, 0
    gpu.memory_used = gpu.memory_reserved = gpu.power = gpu.energy = gpu.clock_events = 0
    gpu.temperature[:] = 0, 0
    gpu.clocks[:] = 0, 0, 0, 0
    for metric in (2, 5, 10):
        fake.gpm(0, metric, 0.0)
    idle, whole = one_gpu(0).at(0, 1).samples, one_gpu(1).at(0, 1).samples
    assert {key for key in idle if key[0] != "info"} == {key for key in whole if key[0] != "info"}
    for name in ("utilization_ratio", "memory_used_bytes", "power_watts", "energy_joules_total", "dram_active_ratio"):
        assert idle[name,] == 0
    assert idle["temperature_celsius", "memory"] == 0
    assert idle["clock_hertz", "sm"] == 0


@pytest.mark.parametrize(
    ("driver", "first"),
    [
        ("550.54.15", None),
        ("570.172.08", None),
        ("575.51.03", 251),
        ("580.65.06", 251),
        ("580.82.07", 269),
        ("615.71", 269),
    ],
)
def test_a_field_id_is_read_as_the_driver_means_it(fake: Any, one_gpu: OneGpu, driver: str, first: int | None) -> None:
    """Driver 580's second release gave the ids of the newest clock-event counters another meaning, and new ids."""
    fake.state.driver_version = driver.encode()
    for position in range(3):
        fake.field(0, 251 + position, (position + 1) * 10**9)
        fake.field(0, 269 + position, (position + 4) * 10**9)
    seconds = one_gpu().at(0).family("clock_event_seconds_total")
    latest = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    expected = {251: [1.0, 2.0, 3.0], 269: [4.0, 5.0, 6.0], None: [None] * 3}[first]
    assert [seconds.get((reason,)) for reason in latest] == pytest.approx(expected)
    assert fake.field_asked(0, 269 if first == 251 else 251) == 0


@pytest.mark.parametrize("number", range(len(RECOVERY_ACTIONS)))
def test_only_the_action_that_is_asked_for_is_present(fake: Any, one_gpu: OneGpu, number: int) -> None:
    """The driver's recovery action is one sample of 1 with its word."""
    fake.field(0, 230, number)
    assert one_gpu().at(0).family("recovery_action") == {(RECOVERY_ACTIONS[number],): 1}


def test_a_counter_reset_passes_through(fake: Any, one_gpu: OneGpu) -> None:
    """A counter that the driver set back is shown as it is once it is sure: Prometheus knows resets, sums hide them."""
    collector = one_gpu()
    fake.gpus[0].energy = 5_000_000_000_000
    fake.field(0, 4, 7)
    collector.at(0)
    fake.gpus[0].energy = 12
    fake.field(0, 4, 0)
    told = collector.at(1)
    assert not {("energy_joules_total",), ("ecc_errors_total", "uncorrected", "volatile")} & told.samples.keys()
    told = collector.at(2)
    assert told.failures == {}
    assert told.samples["energy_joules_total",] == pytest.approx(0.012)
    assert told.samples["ecc_errors_total", "uncorrected", "volatile"] == 0


def test_a_counter_of_32_bits_goes_on_after_it_wraps(fake: Any, one_gpu: OneGpu) -> None:
    """A wrap of 32 bits adds 2^32 and a reset is passed on, so that rate() is right across both."""
    collector = one_gpu()
    shown_values = []
    numbers = (2**32 - 6, 4, 2**31 + 9, 2**32 - 2, 0, 3, 0, 1)
    for now, number in enumerate(numbers):
        fake.field(0, 38, number, value_type=UNSIGNED_INT)
        shown_values.append(collector.at(now * SLOW_SECONDS).samples.get(("nvlink_errors_total", "crc_flit")))
    wraps = [0, 1, 1, 1, 2, 2, None, 0]
    assert shown_values == [
        None if wrap is None else number + 2**32 * wrap for number, wrap in zip(numbers, wraps, strict=True)
    ]
    fake.field(0, 38, 2**33, value_type=UNSIGNED_LONG_LONG)
    assert collector.at(8 * SLOW_SECONDS).samples["nvlink_errors_total", "crc_flit"] == 2**33


def test_no_wrap_is_seen_in_a_fall_within_a_half() -> None:
    """A driver reload sets a counter to 0 from anywhere; only from the upper half is that a wrap."""
    counter = DriverCounter()
    for number, shown in {2**31 - 1: 2**31 - 1, 0: None, 1: 1, 2**31: 2**31, 5: 2**32 + 5}.items():
        assert _taken(counter, number) == shown
    for number, shown in {2**32 - 1: 2**33 - 1, 2**31: None, 2**31 + 1: 2**31 + 1, 1: 2**32 + 1}.items():
        assert _taken(counter, number) == shown


def _taken(counter: DriverCounter, number: int) -> float | None:
    try:
        return counter.take(Narrow(number), 0)
    except Impossible:
        return None


def test_bytes_counted_in_32_bits_are_not_believed(fake: Any, one_gpu: OneGpu) -> None:
    """PCIe can move 2^32 bytes between two readings, and then no arithmetic tells how many: rather no sample."""
    fake.field(0, 197, 4_000_000_000, value_type=UNSIGNED_INT)
    told = one_gpu(detail=True).at(0)
    assert list(told.family("pcie_bytes_total")) == [("receive",)]
    assert told.failures == {}


def test_who_computes_is_told_behind_mps_too(fake: Any, one_gpu: OneGpu) -> None:
    """The pids of a GPU are those with a compute context, each once, and gone with the process."""
    collector = one_gpu()
    assert collector.at(0).pids == []
    fake.gpus[0].process_ids[:3] = 300, 200, 300
    assert collector.at(SLOW_SECONDS).pids == [200, 300]
    fake.gpus[0].process_ids[0] = 0
    assert collector.at(2 * SLOW_SECONDS).pids == []


def test_a_part_that_tells_no_serial_has_an_empty_one(fake: Any, one_gpu: OneGpu) -> None:
    """Consumer boards have no serial number; the label is empty and gpu_info is there."""
    fake.fail("serial", NOT_SUPPORTED)
    fake.fail("vbios", NO_PERMISSION)
    told = one_gpu().at(0)
    assert told.family("info") == {("NVIDIA H100 80GB HBM3", "00000000:1B:00.0", "", "", "580.95.05", "13.0"): 1}


@pytest.mark.parametrize("code", [2, 6, 7, 8, 10, 13, 14, 17, 999, 812])
@pytest.mark.parametrize("call", ["serial", "vbios", "name", "pci"])
def test_a_label_that_cannot_be_read_costs_nothing_else(fake: Any, one_gpu: OneGpu, call: str, code: int) -> None:
    """Whatever the driver says against it, as a corrupted infoROM (14) does: the label is empty, the GPU is read."""
    before = one_gpu(3).at(0)
    fake.fail(call, code, 3)
    told = one_gpu(3).at(0)
    (shown,), (usual,) = told.family("info"), before.family("info")
    place = {"name": 0, "pci": 1, "serial": 2, "vbios": 3}[call]
    assert shown == (*usual[:place], "", *usual[place + 1 :])
    of_the_model = {"info", "peak_flops", "achievable_flops"}
    assert {key[0] for key in before.samples.keys() - told.samples.keys()} <= of_the_model
    assert (told.down, told.failures, told.notes) == ("", {}, before.notes)


@pytest.mark.parametrize("call", ["serial", "vbios", "name", "pci"])
@pytest.mark.parametrize(("code", "word"), [(15, "lost"), (16, "reset_required")])
def test_a_gpu_that_is_lost_when_its_labels_are_read(
    fake: Any, one_gpu: OneGpu, call: str, code: int, word: str
) -> None:
    """What says that the GPU itself is gone is believed of any call."""
    fake.fail(call, code, 3)
    assert one_gpu(3).at(0).down == word


def test_a_name_that_could_not_be_read_is_asked_for_again(fake: Any, one_gpu: OneGpu) -> None:
    """After ten minutes, for its peak goes by it; and a GPU lost meanwhile is opened again as soon as any other."""
    fake.fail("name", 999, 3)
    collector = one_gpu(3)
    assert not collector.at(0).family("peak_flops")
    fake.fail("name", 0, 3)
    assert not collector.at(RETRY_SECONDS - 1).family("peak_flops")
    assert collector.at(RETRY_SECONDS).family("peak_flops")
    fake.fail("name", 999, 4)
    other = one_gpu(4)
    other.at(0)
    fake.fail("power", 15, 4)
    assert other.at(1).down == "lost"
    fake.fail("name", 0, 4)
    fake.fail("power", 0, 4)
    assert other.at(SLOW_SECONDS + 1).family("peak_flops")


def test_an_unknown_device_is_told_where_to_enter_it(fake: Any, one_gpu: OneGpu) -> None:
    """A device without a peak has no sample, and one sentence says what to do about it."""
    fake.gpus[1].name = b"NVIDIA H99 ULTRA"
    told = one_gpu(1).at(0)
    assert not told.family("peak_flops")
    assert "Recorder(peak_flops=…)" in told.notes["peak of NVIDIA H99 ULTRA"]
