"""Readings that cannot be: no sample, a reading that failed, a line in the log; and no real one is lost."""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import COUNTER
from tachograph.node.driver.nvml import ALL_LINKS, Narrow
from tachograph.node.gpu.nvlink import link_call, link_fields
from tachograph.node.gpu.possible import GRACE_SECONDS, LEAP_SECONDS, Belief, DriverCounter, Impossible, Range
from tachograph.node.gpu.reading_table import (
    CALLS,
    ENERGY,
    FIELDS,
    MIG_ACTIVITIES,
    MIG_MEMORY,
    POWER,
    SLOW_SECONDS,
    every_value,
)

NOT_SUPPORTED = 3
UNSIGNED_INT, UNSIGNED_LONG_LONG, SIGNED_LONG_LONG, SIGNED_INT = 1, 3, 4, 5
ALL_ONES, ALL_ONES_64 = 2**32 - 1, 2**64 - 1
DCGM_BLANK, DCGM_BLANK_64 = 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0
OneGpu = Callable[..., Any]


def failed(told: Any) -> set[str]:
    """The families of which a reading failed."""
    return {subject.removeprefix("tachograph_gpu_").partition(" ")[0] for subject in told.failures}


def test_every_reading_has_a_range_in_which_it_can_be() -> None:
    """Finite, in base units; a counter also has the most by which it can grow, so that no leap is believed."""
    values = [*every_value(), *link_call(1).values, *(field.value for field in link_fields(1))]
    assert len(values) > 150
    for value in values:
        assert -math.inf < value.possible.least < value.possible.most < math.inf, value
        assert (value.possible.fastest < math.inf) == (value.metric.kind == COUNTER), value
        assert value.possible.least < 0 or value.metric is not catalog.GPU_TEMPERATURE_MARGIN


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [(ALL_ONES, ALL_ONES_64), (DCGM_BLANK, DCGM_BLANK_64), (DCGM_BLANK + 2, DCGM_BLANK_64 + 3), (ALL_ONES, ALL_ONES)],
)
def test_no_blank_value_is_believed(fake: Any, one_gpu: OneGpu, narrow: int, wide: int) -> None:
    """Whatever reading gives a blank has no sample and counts as failed; the GPU is up, and all are back after it."""
    fake.fail("retired_pages", 0, 3)  # which no H100 has
    collector = one_gpu(3, detail=True)
    before = collector.at(0, 1)
    gpu = fake.gpus[3]
    kept = bytes(gpu)
    for name in ("utilization", "temperature", "thresholds", "power_limits", "clocks", "max_clocks", "banks",
                 "pcie", "pcie_max"):  # fmt: skip
        getattr(gpu, name)[:] = [narrow] * len(getattr(gpu, name))
    gpu.power = gpu.power_limit = gpu.performance_state = gpu.persistence = gpu.sram_threshold = narrow
    gpu.links = gpu.fabric[0] = narrow
    gpu.memory_total = gpu.memory_used = gpu.memory_reserved = gpu.clock_events = wide
    fields = [field for field in FIELDS if field.since <= (580, 95) and not field.before]
    for field in fields:
        fake.field(3, field.id, wide, field.scope, UNSIGNED_LONG_LONG)
    told = collector.at(SLOW_SECONDS + 1)
    elsewhere = {
        "mode_enabled",
        "memory_free_bytes",
        "temperature_margin_celsius",
    }  # the library subtracts two of these
    read = {value.metric.name.removeprefix("tachograph_gpu_") for call in CALLS for value in call.values}
    read |= {field.value.metric.name.removeprefix("tachograph_gpu_") for field in fields}
    assert told.down == ""
    assert {key[0] for key in told.samples} & read <= elsewhere
    assert failed(told) >= {key[0] for key in before.samples} & read - elsewhere
    assert told.samples["readings_failed",] == len(told.failures) > 30
    assert told.samples.keys() >= {("sm_active_ratio",), ("sm_cycles_total",)}, "GPM is read as before"
    for name, _ in gpu._fields_:
        setattr(gpu, name, getattr(type(gpu).from_buffer_copy(kept), name))
    healed = collector.at(2 * SLOW_SECONDS + 1)
    assert (healed.failures, healed.samples.keys()) == ({}, before.samples.keys())


@pytest.mark.parametrize(
    ("reading", "member", "number"),
    [
        (("utilization_ratio",), "utilization", 4294967295),
        (("utilization_ratio",), "utilization", 2619),
        (("utilization_ratio",), "utilization", 101),
        (("power_watts",), "power", 4294967295),
        (("power_watts",), "power", 21_000_000),
        (("power_watts",), "power", 2_200_000),
        (("power_limit_watts",), "power_limit", 4294967295),
        (("temperature_celsius", "gpu"), "temperature", 4294967295),
        (("temperature_celsius", "gpu"), "temperature", 201),
        (("temperature_threshold_celsius", "shutdown"), "thresholds", 0),
        (("clock_hertz", "sm"), "clocks", 99_999),
        (("memory_used_bytes",), "memory_used", 2**63),
        (("memory_used_bytes",), "memory_used", (80 << 30) + (1 << 20)),
        (("performance_state",), "performance_state", 31),
        (("row_remap_banks", "max"), "banks", 2**31),
        (("ecc_sram_threshold_exceeded",), "sram_threshold", 2),
    ],
)
def test_one_impossible_number_costs_its_own_reading(
    fake: Any, one_gpu: OneGpu, reading: tuple[str, ...], member: str, number: int
) -> None:
    """By physics or by the GPU's own limits: beyond them no sample and a failure, while all else is read."""
    gpu = fake.gpus[0]
    gpu.memory_total = 80 << 30
    collector = one_gpu(detail=True)
    before = collector.at(0, 1)
    if isinstance(getattr(gpu, member), int):
        setattr(gpu, member, number)
    else:
        getattr(gpu, member)[:] = [number] * len(getattr(gpu, member))
    told = collector.at(SLOW_SECONDS + 1)
    assert told.down == ""
    assert reading in before.samples.keys() - told.samples.keys()
    assert {key[0] for key in before.samples.keys() - told.samples.keys()} <= failed(told) | {"clock_max_hertz"}
    assert reading[0] in failed(told)
    assert told.samples["readings_failed",] == len(told.failures)


@pytest.mark.parametrize(
    "given",
    [
        (82, 0, UNSIGNED_INT, ALL_ONES), (82, 0, SIGNED_INT, -1), (83, 0, UNSIGNED_LONG_LONG, ALL_ONES_64),
        (83, 0, SIGNED_LONG_LONG, -1), (3, 0, UNSIGNED_LONG_LONG, ALL_ONES), (4, 0, UNSIGNED_LONG_LONG, 2**60),
        (94, 0, UNSIGNED_INT, ALL_ONES), (138, ALL_LINKS, UNSIGNED_LONG_LONG, DCGM_BLANK_64),
        (144, 0, UNSIGNED_INT, DCGM_BLANK), (186, 0, UNSIGNED_INT, ALL_ONES), (188, 0, UNSIGNED_INT, ALL_ONES),
        (230, 0, UNSIGNED_INT, ALL_ONES), (74, 0, UNSIGNED_LONG_LONG, ALL_ONES_64),
    ],
)  # fmt: skip
def test_an_impossible_field_costs_its_own_reading(
    fake: Any, one_gpu: OneGpu, given: tuple[int, int, int, int]
) -> None:
    """Fields of any type: blank, all bits set, below zero, or beyond what there can be."""
    field, scope, kind, number = given
    collector = one_gpu()
    before = collector.at(0)
    fake.field(0, field, number, scope, kind)
    told = collector.at(SLOW_SECONDS)
    (lost,) = before.samples.keys() - told.samples.keys()
    assert failed(told) == {lost[0]}
    assert told.samples["readings_failed",] == 1


def test_impossible_activity_costs_its_own_reading(fake: Any, one_gpu: OneGpu) -> None:
    """GPM's shares are at most 1, and a little more between two samples; a rate is at most what a link carries."""
    for metric, number in {2: 2619.0, 5: float(ALL_ONES), 10: 104.0, 20: 1e9, 248: float(DCGM_BLANK_64)}.items():
        fake.gpm(0, metric, number)
    told = one_gpu(detail=True).at(0, 1)
    expected = {"sm_active_ratio", "tensor_active_ratio", "pcie_rate_bytes_per_second", "sm_cycles_total"}
    assert failed(told) == expected
    assert {key[0] for key in told.samples} & expected == {"pcie_rate_bytes_per_second"}, "the other direction's"
    assert told.samples["dram_active_ratio",] == pytest.approx(1.04)


def test_impossible_numbers_of_a_mig_instance(fake: Any, one_gpu: OneGpu) -> None:
    """An instance has no more memory than its GPU; its activity is judged as the GPU's is."""
    small, large = fake.add_mig(0, 1), fake.add_mig(0, 2)
    small.memory_used, large.memory_total = ALL_ONES_64, 2**45
    fake.gpm(0, 2, 2619.0, instance=1)
    told = one_gpu().at(0, 1)
    names = {value.metric.name.removeprefix("tachograph_gpu_") for value in MIG_MEMORY}
    names |= {row.value.metric.name.removeprefix("tachograph_gpu_") for row in MIG_ACTIVITIES}
    shown = {key[:2] for key in told.samples if key[0] in names}
    everything = {(name, label) for name in names for label in ("1/0", "2/0")}
    assert everything - shown == {
        ("mig_memory_used_bytes", "1/0"), ("mig_memory_total_bytes", "2/0"), ("mig_sm_active_ratio", "1/0"),
    }  # fmt: skip
    assert failed(told) == {"mig_memory_used_bytes", "mig_memory_total_bytes", "mig_sm_active_ratio"}
    assert [key[3] for key in sorted(told.samples) if key[0] == "mig_info"] == ["1g.10gb", ""]


def test_a_number_of_links_that_cannot_be_is_not_counted_up_to(fake: Any, one_gpu: OneGpu) -> None:
    """Four billion links would be asked for one by one; and no process has such a number."""
    collector = one_gpu(detail=True)
    collector.at(0)
    fake.gpus[0].links = ALL_ONES
    fake.gpus[0].process_ids[:2] = 4242, ALL_ONES
    told = collector.at(SLOW_SECONDS)
    assert {"nvlink_links", "nvlink_links_active"} <= failed(told)
    assert told.down == ""
    assert told.pids == [4242]


def test_a_gpu_that_gives_nothing_to_believe_is_not_lost(fake: Any, one_gpu: OneGpu) -> None:
    """All readings of each second impossible: none is shown, and nobody is woken for a GPU that answers."""
    gpu = fake.gpus[0]
    gpu.utilization[:] = gpu.temperature[:] = [ALL_ONES] * 2
    gpu.clocks[:] = [ALL_ONES] * 4
    gpu.power, gpu.clock_events = ALL_ONES, ALL_ONES_64
    for call in ("memory", "memory_v2"):
        fake.fail(call, NOT_SUPPORTED)
    for field in FIELDS:
        fake.field(0, field.id, ALL_ONES_64, field.scope, UNSIGNED_LONG_LONG)
    told = one_gpu().at(0, 1)
    assert told.samples["up",] == 1
    assert told.samples["readings_failed",] > 15


def test_a_counter_that_leaps_is_not_believed(fake: Any, one_gpu: OneGpu) -> None:
    """No GPU uses a day's energy in a second: no sample while it stands there, and the right one after."""
    collector = one_gpu()
    fake.field(0, 83, 5_000_000_000)
    assert collector.at(0).samples["energy_joules_total",] == 5e6
    fake.field(0, 83, 65_000_000_000)
    told = collector.at(1)
    assert ("energy_joules_total",) not in told.samples
    assert failed(told) == {"energy_joules_total"}
    fake.field(0, 83, 5_000_001_400)
    told = collector.at(2)
    assert told.samples["energy_joules_total",] == pytest.approx(5_000_001.4)
    assert told.failures == {}


def test_a_blank_between_two_readings_is_no_wrap(fake: Any, one_gpu: OneGpu) -> None:
    """A counter of 32 bits that gave a blank goes on where it was, not four billion higher."""
    fake.field_error(0, 213, NOT_SUPPORTED, ALL_LINKS)
    collector = one_gpu()
    for turn, (number, shown) in enumerate(
        [(7, 7), (ALL_ONES, None), (8, 8), (ALL_ONES - 40, ALL_ONES - 40), (9, 2**32 + 9)]
    ):
        fake.field(0, 38, number, value_type=UNSIGNED_INT)
        assert collector.at(turn * SLOW_SECONDS).samples.get(("nvlink_errors_total", "crc_flit")) == shown


@pytest.mark.parametrize("number", [2**32 - 2, 0xBADF1100, 10**9, 2 * 10**8])
@pytest.mark.parametrize(
    ("field", "reading"),
    [
        (3, ("ecc_errors_total", "corrected", "volatile")),
        (4, ("ecc_errors_total", "uncorrected", "volatile")),
        (6, ("ecc_errors_total", "uncorrected", "aggregate")),
        (18, ("ecc_location_errors_total", "corrected", "aggregate", "l1")),
        (30, ("retired_pages_total", "uncorrected")),
        (143, ("remapped_rows_total", "uncorrected")),
        (94, ("pcie_replays_total",)),
    ],
)
def test_no_gpu_has_a_billion_faults_at_once(
    fake: Any, one_gpu: OneGpu, field: int, reading: tuple[str, ...], number: int
) -> None:
    """What a register gives that cannot be read is no count of errors, though it is no blank."""
    fake.fail("retired_pages", 0)
    collector = one_gpu(detail=True)
    fake.field(0, field, 2)
    before = collector.at(0, 1)
    assert before.samples[reading] == 2
    fake.field(0, field, number)
    told = collector.at(SLOW_SECONDS + 1)
    assert reading not in told.samples
    assert failed(told) == {reading[0]}
    fake.field(0, field, 3)
    assert collector.at(2 * SLOW_SECONDS + 1).samples[reading] == 3


@pytest.mark.parametrize("mode", [2, 77, ALL_ONES])
def test_a_mig_mode_that_is_none_changes_nothing(fake: Any, one_gpu: OneGpu, mode: int) -> None:
    """A GPU is not taken for one that is cut into instances: its activity is read, and the reading failed."""
    collector = one_gpu(detail=True)
    before = collector.at(0, 1)
    fake.gpus[0].mig = mode
    told = collector.at(SLOW_SECONDS + 1)
    of_the_whole_gpu = {("utilization_ratio",), ("memory_controller_ratio",)}  # which the library leaves out under MIG
    assert before.samples.keys() - told.samples.keys() == {("mode_enabled", "mig"), *of_the_whole_gpu}
    assert failed(told) == {"mig_info", "mode_enabled"}


def test_a_leap_that_stands_counts_for_nothing() -> None:
    """What was shown before may have been wrong: after ten minutes in which it only grows, the count goes on."""
    counter = DriverCounter()
    assert counter.take(7, 0, 100) == 7
    for now in range(1, int(LEAP_SECONDS) + 1, 60):
        with pytest.raises(Impossible):
            counter.take(10**9 + now, now, 100)
    assert counter.take(10**9 + 700, LEAP_SECONDS + 1, 100) == 7
    assert counter.take(10**9 + 705, LEAP_SECONDS + 2, 100) == 12
    for now in range(1000, 3000, 10):  # one that leaps to and fro is never believed
        with pytest.raises(Impossible):
            counter.take(10**12 * (1 + now % 20), now, 100)
    assert counter.take(10**9 + 706, 3000, 100) == 13
    assert shown_by(counter, [(3001, 3), (3002, 3)]) == [None, 3], "a reset"


def shown_by(
    counter: DriverCounter, numbers: Iterable[tuple[float, float]], fastest: float = 100
) -> list[float | None]:
    """What a counter shows of numbers at times, None where it believes none."""
    shown: list[float | None] = []
    for now, number in numbers:
        try:
            shown.append(counter.take(number, now, fastest))
        except Impossible:
            shown.append(None)
    return shown


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("dip", [0, 5, 10**9])
@pytest.mark.parametrize("count", [20, 2**31 + 10**9])
def test_a_counter_that_dips_for_a_moment_adds_nothing(count: int, dip: int, narrow: bool) -> None:
    """Whatever it dips to, one reading is missing, and what comes back after it is not new."""
    kind = Narrow if narrow else int
    numbers = [(now, kind(dip if now == 100 and dip < count else count + now)) for now in range(0, 2000, 10)]
    shown = shown_by(DriverCounter(), numbers)
    assert shown == [None if now == 100 and dip < count else count + now for now in range(0, 2000, 10)]


def test_a_fall_is_believed_when_the_next_reading_confirms_it() -> None:
    """A reset costs one reading, and none of what was counted; one that falls to and fro is never believed."""
    assert shown_by(DriverCounter(), [(0, 500), (1, 0), (2, 0)]) == [500, None, 0]
    assert shown_by(DriverCounter(), [(0, 500), (1, 0), (2, 7), (3, 9)]) == [500, None, 7, 9]
    assert shown_by(DriverCounter(), [(0, 500), (1, 9), (2, 3), (3, 4)]) == [500, None, None, 4]
    assert shown_by(DriverCounter(), [(0, 10**6), (1, 3), (2, 9 * 10**5), (3, 10**6)]) == [10**6, None, None, 10**6]
    assert shown_by(DriverCounter(), [(0, 500), (1, 3), (2, 10**9), (3, 3), (4, 500)]) == [500, None, None, None, 500]


def test_a_reload_of_a_narrow_counter_is_no_wrap() -> None:
    """From 3,000,000,000 to 3 it would have counted a billion in a second."""
    numbers = [(0, Narrow(3 * 10**9)), (1, Narrow(3)), (2, Narrow(4))]
    assert shown_by(DriverCounter(), numbers) == [3 * 10**9, None, 4]


def test_a_counter_may_grow_as_fast_as_it_can() -> None:
    """Also after a pause, and if the driver brings it up to date seldom; a reset is no leap, nor is a wrap."""
    counter = DriverCounter()
    numbers = [(0, 5.0), (1, 105.0), (100, 10_000.0), (101, 10_000.0 + 100 * GRACE_SECONDS)]
    assert shown_by(counter, numbers) == [number for _, number in numbers]
    assert shown_by(counter, [(102, 3.0), (103, 103.0)]) == [None, 103.0]
    wrapping = DriverCounter()
    assert [wrapping.take(Narrow(number), now, 100) for now, number in ((0, 2**32 - 6), (1, 4))] == [
        2**32 - 6,
        2**32 + 4,
    ]


@pytest.mark.parametrize("watts", [0, 60, 700, 1400, 2100, 2099.9])
def test_a_real_power_is_believed(watts: float) -> None:
    """A GB300 under its limit of 1,400 W, an instant's peak above it, an idle one; also where no limit is known."""
    belief = Belief()
    assert belief.number("power", POWER, watts * 1000, 1e-3) == pytest.approx(watts)
    belief.number("limit", Range(0, 20e3, sets="power limit"), 1_400_000, 1e-3)
    assert belief.number("power", POWER, watts * 1000, 1e-3) == pytest.approx(watts)
    belief.number("limit", Range(0, 20e3, sets="power limit"), 0, 1e-3)
    assert belief.number("power", POWER, watts * 1000, 1e-3) == pytest.approx(watts), "a limit of 0 is none"


@pytest.mark.parametrize(
    ("set_up", "shown"),
    [
        ({"clocks": [1, 1965, 3996, 2], "max_clocks": [3, 1965, 3996, 4]}, {("clock_hertz", "memory"): 3.996e9}),
        ({"clocks": [1, 2820, 14001, 2], "max_clocks": [3, 3090, 14001, 4]}, {("clock_hertz", "memory"): 14.001e9}),
        ({"memory_total": 288 << 30, "memory_used": 280 << 30, "memory_reserved": 1 << 30},
         {("memory_used_bytes",): 280 << 30}),
        ({"temperature": [95, 109]}, {("temperature_celsius", "memory"): 109}),
        ({"power": 1_450_000, "power_limit": 1_400_000, "power_limits": [200_000, 1_400_000, 1_400_000]},
         {("power_watts",): 1450, ("power_limit_watts",): 1400}),
        ({"power": 320_000, "power_limit": 100_000, "power_limits": [100_000, 350_000, 350_000]},
         {("power_watts",): 320}),
    ],
    ids=["B200", "RTX 5090", "GB300's memory", "hot memory", "GB300's power", "just throttled"],
)  # fmt: skip
def test_real_parts_lose_nothing(fake: Any, one_gpu: OneGpu, set_up: Any, shown: Any) -> None:
    """The clocks, memory, heat and power of parts that there are."""
    for name, value in set_up.items():
        if isinstance(value, list):
            getattr(fake.gpus[0], name)[:] = value
        else:
            setattr(fake.gpus[0], name, value)
    told = one_gpu(detail=True).at(0, 1)
    assert told.failures == {}
    assert {key: told.samples[key] for key in shown} == pytest.approx(shown)


def test_all_that_a_real_gpu_showed_is_believed() -> None:
    """An H200 in four minutes of four runs, scraped every 5 s: each number lies in its range, no counter leaps."""
    pages = Path(__file__).parents[2] / "captures/nvidia-h200-four-runs.pages.xz"
    values = {(value.metric.name, value.labels): value for value in every_value() if not value.words}
    belief, believed = Belief(), set()
    for page in lzma.decompress(pages.read_bytes()).decode().split("## ")[1:]:
        at, text = page.split("\n", 1)
        for sample in (one for family in text_string_to_metric_families(text) for one in family.samples):
            labels = {name: label for name, label in sample.labels.items() if name not in {"gpu", "uuid"}}
            if (value := values.get((sample.name, tuple(labels.values())))) is None:
                continue
            believed.add(value)
            if value.metric.kind == COUNTER:
                assert belief.count(value, value.possible, sample.value, 1.0, float(at)) == sample.value
            else:
                assert belief.number(value, value.possible, sample.value, 1.0) == sample.value
    assert len(believed) > 25


def test_energy_of_years_is_believed() -> None:
    """A GPU at 1,400 W for ten years without a reload of its driver."""
    assert ENERGY.most > 10 * 1400 * 10 * 365 * 86400


def test_a_reading_that_cannot_be_is_logged_once(node: Any, a_source: Any, logged: Any) -> None:
    """One line when it begins, whatever the number is then, and one when it is over."""
    source = a_source()

    async def check() -> None:
        await source.until(source.all_up)
        for number in (ALL_ONES, 2619, 70_000, 101):
            node.gpus[1].utilization[0] = number
            asked = node.called("utilization", 1)
            await source.until(lambda asked=asked: node.called("utilization", 1) > asked + 2)
        node.gpus[1].utilization[0] = 50
        await source.until(lambda: any("readable again" in line for line in logged()))

    source.while_running(check)
    about = [line for line in logged() if "utilization_ratio of GPU 1" in line]
    assert about == [
        "tachograph_gpu_utilization_ratio of GPU 1: not possible: it is not within 0 and 1",
        "tachograph_gpu_utilization_ratio of GPU 1: readable again",
    ]
