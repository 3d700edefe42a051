"""The fake node as controlled by a test: values, errors, hangs, GPUs that disappear and return, growing counters."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from tests.waiting import until

NOT_SUPPORTED, INVALID_ARGUMENT, NO_PERMISSION, UNINITIALIZED, GPU_IS_LOST, UNKNOWN = 3, 2, 4, 1, 15, 999
FAILED = [-NOT_SUPPORTED]


def test_a_field_value_is_what_the_test_says(fake: Any, ask: Any) -> None:
    """By id and scope, with a value or an error, for one GPU; also ids that no H100 has, and zero."""
    everything = "fields(gpu(0), [(138, ALL), (138, 3), (138, 4), 82, 185, 202, 300])".replace("ALL", str(2**32 - 1))
    *_, before, by_default, unknown = ask(everything)
    assert (before, by_default, unknown) == (620000, FAILED, FAILED)
    fake.field(0, 138, 123, scope=0xFFFFFFFF)
    fake.field(0, 138, 7, scope=3)
    fake.field_error(0, 82, UNKNOWN)
    fake.field(0, 185, 0)
    fake.field(0, 202, 2**63 + 1)
    fake.field(0, 300, 0.25)
    total, third, fourth, temperature, power, new, real = ask(everything)
    assert (total, third, temperature, power, new, real) == (123, 7, [-UNKNOWN], 0, 2**63 + 1, 0.25)
    assert fourth > 1000
    assert ask("fields(gpu(1), [82, 185])") == [71, 624000]
    fake.field(0, 82, 60)
    assert ask("fields(gpu(0), [82])") == [60]


def test_what_was_set_can_be_forgotten(fake: Any, ask: Any, build: Any) -> None:
    """Error 0 removes the setting of a field or metric, any number of times, and leaves the others alone."""
    fake.field(0, 74, 11)
    for _ in range(build.SETTINGS + 1):
        fake.field_error(0, 82, NOT_SUPPORTED)
        fake.field_error(0, 82, 0)
        fake.field(0, 138, 5, scope=3)
        fake.field_error(0, 138, 0, scope=3)
    fake.gpm_error(0, 2, UNKNOWN)
    fake.gpm_error(0, 2, 0)
    temperature, capped, sent = ask("fields(gpu(0), [82, 74, (138, 3)])")
    assert (temperature, capped) == (70, 11)
    assert sent > 5
    assert ask("sample('a', gpu(0)), sample('b', gpu(0)), gpm('a', 'b', [2])")[2] == [90]


def test_a_field_value_has_the_type_that_the_driver_gives_it(fake: Any, ask: Any) -> None:
    """32 bits wrap as 32 bits, limits below zero stay below zero, and a test may choose another type."""
    assert ask("fields(gpu(0), [193, 194, 196])") == [-5, -2, 0]
    fake.field(0, 194, -3)
    fake.field(0, 94, 2**32 + 5)
    fake.field(0, 74, 2**32 + 5)
    fake.field(0, 197, 2**32 + 6, value_type=1)
    assert ask("fields(gpu(0), [194, 94, 74, 197])") == [-3, 5, 2**32 + 5, 6]


def test_a_field_of_a_link_that_is_not_there_is_refused(fake: Any, ask: Any) -> None:
    """Link 18 of 18 is an invalid argument, as is any link of a part with fewer."""
    assert ask("fields(gpu(0), [(165, 17), (165, 18)])") == [1, [-INVALID_ARGUMENT]]
    fake.gpus[0].links = 4
    assert ask("fields(gpu(0), [91, (165, 3), (165, 4)])") == [4, 1, [-INVALID_ARGUMENT]]
    assert ask.code("nvmlDeviceGetNvLinkState(gpu(0), 4)") == INVALID_ARGUMENT


def test_directions_are_not_swapped(fake: Any, ask: Any) -> None:
    """Bytes received and sent over NVLink and PCIe are where NVML has them, for one link or for all."""
    gpu = fake.gpus[0]
    gpu.nvlink_bytes[:] = 18 * 102400, 18 * 204800
    gpu.since_boot[7:9] = 11, 12
    sent, received, raw, one_sent, one_received = ask(
        f"fields(gpu(0), [*((number, {2**32 - 1}) for number in (138, 139, 140)), (138, 3), (139, 3)])"
    )
    assert (sent, received, one_sent, one_received) == (18 * 200, 18 * 100, 200, 100)
    assert raw > sent
    ask("sample('a', gpu(0)), sample('b', gpu(0))")
    assert ask("gpm('a', 'b', [261, 262, 255, 256])") == [102400, 204800, 11, 12]
    assert ask("fields(gpu(0), [197, 198])") == [11, 12]


def test_a_link_that_is_down_is_down_in_both_calls(fake: Any, ask: Any) -> None:
    """The call nvmlDeviceGetNvLinkState and its field agree."""
    fake.field(0, 165, 0, scope=3)
    assert ask("[nvmlDeviceGetNvLinkState(gpu(0), link) for link in (2, 3)], fields(gpu(0), [(165, 3)])") == [
        [1, 0],
        [0],
    ]


def test_a_call_that_fails_fails_its_fields(fake: Any, ask: Any) -> None:
    """`fail` removes a reading, however it is read, and restores it."""
    fake.fail("energy", NO_PERMISSION, 0)
    fake.fail("nvlink_errors", NOT_SUPPORTED)
    assert ask("fields(gpu(0), [83, 82, 38, 101])") == [[-NO_PERMISSION], 70, FAILED, FAILED]
    assert ask.code("nvmlDeviceGetTotalEnergyConsumption(gpu(0))") == NO_PERMISSION
    assert ask.code("nvmlDeviceGetTotalEnergyConsumption(gpu(1))") == 0
    fake.fail("energy", 0)
    assert ask.code("nvmlDeviceGetTotalEnergyConsumption(gpu(0))") == 0


def test_every_question_is_counted(fake: Any, ask: Any) -> None:
    """Calls by name, field values and GPM metrics by id, each for its own GPU; failed ones count too."""
    fake.field_error(0, 75, NOT_SUPPORTED)
    ask("fields(gpu(0), [74, 75, 75])")
    ask("sample('a', gpu(0)), sample('b', gpu(0)), gpm('a', 'b', [2, 5])")
    assert [fake.field_asked(0, number) for number in (74, 75, 76)] == [1, 2, 0]
    assert [fake.gpm_asked(0, number) for number in (2, 3, 5)] == [1, 0, 1]
    assert [fake.called(name) for name in ("fields", "gpm_sample", "gpm_metrics")] == [1, 2, 1]
    assert (fake.field_asked(1, 74), fake.called("fields", 1)) == (0, 0)


def test_gpm_needs_two_samples(fake: Any, ask: Any) -> None:
    """Metrics come from two different samples of one GPU; each metric has its own error; nothing else is written."""
    for name, index in (("a", 0), ("b", 0), ("other", 1)):
        ask(f"sample({name!r}, gpu({index}))")
    ids = [1, 2, 3, 5, 7, 10, 60, 62, 97, 98, 248, 249, 250, 260, 261, 296, 297, 476]
    answers = dict(zip(ids, ask(f"gpm('a', 'b', {ids})"), strict=True))
    assert [answers[number] for number in (2, 5, 10, 60)] == [90, 45, 50, 60000]
    assert answers[62] == answers[97] == pytest.approx(60000 / 18)
    assert [answers[number] for number in (98, 297, 476)] == [FAILED] * 3
    assert answers[249] / answers[248] == pytest.approx(0.9)
    assert answers[250] / answers[248] == pytest.approx(0.45)
    assert answers[261] == answers[296] > 1e12
    for wrong in ("'a', 'a', [2]", "'a', 'other', [2]", "'a', 'b', []", "'a', 'b', [2], count=478"):
        assert ask.code(f"gpm({wrong})") == INVALID_ARGUMENT
    assert ask.code("gpm('a', 'b', [2], version=2)") == 25


def test_a_gpm_metric_is_what_the_test_says(fake: Any, ask: Any) -> None:
    """A value, NaN, zero, or an error of its own, for one GPU."""
    fake.gpm(0, 2, 12.5)
    fake.gpm(0, 5, 0)
    fake.gpm(0, 10, math.nan)
    fake.gpm(0, 248, 2.0**60)
    fake.gpm_error(0, 3, UNKNOWN)
    ask("sample('a', gpu(0)), sample('b', gpu(0)), sample('c', gpu(1)), sample('d', gpu(1))")
    active, tensor, memory, cycles, occupancy = ask("gpm('a', 'b', [2, 5, 10, 248, 3])")
    assert (active, tensor, cycles, occupancy) == (12.5, 0, 2.0**60, [-UNKNOWN])
    assert math.isnan(memory)
    assert ask("gpm('c', 'd', [2, 3])") == [90, 35]


def test_gpm_of_an_older_gpu_is_not_supported(fake: Any, ask: Any) -> None:
    """A GPU before Hopper reports no support, to the query and to a sample."""
    fake.gpus[0].gpm = 0
    assert ask("nvmlGpmQueryDeviceSupport(gpu(0)).isSupportedDevice") == 0
    assert ask.code("sample('a', gpu(0))") == NOT_SUPPORTED


def test_gpm_of_a_mig_instance_is_its_own(fake: Any, ask: Any) -> None:
    """An instance has its values and its share of the cycles; without MIG there are no instances."""
    assert ask.code("sample('a', gpu(0), 1)") == NOT_SUPPORTED
    fake.add_mig(0, 1, slices=3)
    fake.gpm(0, 2, 5, instance=1)
    ask("sample('a', gpu(0), 1), sample('b', gpu(0), 1), sample('c', gpu(0)), sample('d', gpu(0))")
    active, cycles = ask("gpm('a', 'b', [2, 248])")
    whole_active, whole_cycles = ask("gpm('c', 'd', [2, 248])")
    assert (active, whole_active) == (5, 90)
    assert cycles / whole_cycles == pytest.approx(48 / 132)
    assert ask.code("gpm('a', 'd', [2])") == INVALID_ARGUMENT
    assert ask.code("sample('e', gpu(0), 2)") == 6


def test_an_unplugged_gpu_leaves_the_list(fake: Any, ask: Any) -> None:
    """Its handle is lost, later GPUs move up and keep their UUIDs, the count drops; plugged in, all is as before."""
    before = ask("uuids()")
    assert ask("nvmlDeviceGetMinorNumber(gpu(3))") == 3
    fake.unplug(3)
    assert ask("uuids()") == before[:3] + before[4:]
    assert ask("nvmlDeviceGetCount()") == 7
    assert ask.code("nvmlDeviceGetPowerUsage(gpu(3))") == GPU_IS_LOST
    assert ask.code(f"nvmlDeviceGetHandleByUUID({before[3]!r})") == 6
    assert ask("nvmlDeviceGetIndex(gpu(4)), nvmlDeviceGetMinorNumber(gpu(4))") == [4, 5]
    fake.plug(3)
    assert ask("uuids()") == before
    assert ask.code("nvmlDeviceGetPowerUsage(gpu(3))") == 0


def test_more_gpus_may_come(fake: Any, ask: Any) -> None:
    """There may be up to sixteen GPUs, each with a name of its own."""
    fake.state.count = 16
    assert len(set(ask("uuids()"))) == 16


def test_a_hung_gpu_blocks_its_own_calls_alone(fake: Any, ask: Any) -> None:
    """One thread waits in the driver for as long as the test wants; the others get answers meanwhile."""
    ask("[nvmlDeviceGetPowerUsage(gpu(index)) for index in range(8)]")
    fake.hang(3)
    ask("begin('hung', 'nvmlDeviceGetPowerUsage(gpu(3))')")
    until(lambda: fake.called("power", 3) == 2)
    assert len(ask("[nvmlDeviceGetPowerUsage(gpu(index)) for index in (0, 1, 2, 4, 5, 6, 7)]")) == 7
    assert ask("later") == {}
    fake.heal(3)
    assert ask.later("hung") == {"value": 632000}


def test_threads_are_counted_exactly(fake: Any, ask: Any) -> None:
    """No call of eight concurrent threads is lost from the counts, even on the same GPU."""
    for index in range(8):
        ask(f"begin('thread {index}', '[nvmlDeviceGetPowerUsage(gpu(0)) for _ in range(2000)][-1]')")
    for index in range(8):
        ask.later(f"thread {index}")
    assert fake.called("power", 0) == 16000


def test_initialisation_may_hang_or_fail(fake: Any, ask: Any, build: Any) -> None:
    """A call of nvmlInit waits or fails as the test says, and is counted; other threads continue."""
    fake.state.init_block_ms = build.FOREVER
    ask("begin('init', 'nvmlInit()')")
    until(lambda: fake.state.init_calls == 2)
    assert ask("nvmlDeviceGetPowerUsage(gpu(0))") == 620000
    fake.state.init_block_ms = 0
    ask.later("init")
    fake.state.init_error = build.DRIVER_NOT_LOADED
    assert ask.code("nvmlInit()") == build.DRIVER_NOT_LOADED
    ask("nvmlShutdown(), nvmlShutdown()")
    assert ask.code("nvmlDeviceGetCount()") == UNINITIALIZED
    fake.state.init_error = 0
    ask("nvmlInit()")
    assert ask("nvmlDeviceGetCount()") == 8


COUNTERS = """fields(gpu(0), [74, 83, 197, 198, (138, 4294967295), (139, 4294967295), (139, 5)]) + [
    sample('a', gpu(0)), sample('b', gpu(0)), *gpm('a', 'b', [*range(248, 251), 255, 256, 261, 262])][2:]"""


def test_live_counters_only_grow(fake: Any, asked: Any, ask: Any) -> None:
    """Read by two processes in turn, no counter ever decreases, and each grows at the rate that the gauges show."""
    fake.state.live = 1
    fake.gpus[0].clock_events = 0x4
    readers = (ask, asked())
    timed = f"time.monotonic(), {COUNTERS}, time.monotonic()"
    began, before, answered = readers[0](timed)
    last, asked_again, ended = before, began, began
    while asked_again < began + 0.4:
        for reader in readers:
            asked_again, now, ended = reader(timed)
            assert all(one <= other for one, other in zip(last, now, strict=True))
            last = now
    least, most = asked_again - answered, ended - began  # between the readings, however long each took
    capped, energy, *_, sent, _, _, cycles, active, tensor, _, _, _, _ = (
        one - other for one, other in zip(last, before, strict=True)
    )
    for grown, rate in ((capped, 1e9), (energy, 620000), (sent * 1024, 60000 * 2**20), (cycles, 1755e6 * 132)):
        assert 0.8 * rate * least <= grown <= 1.2 * rate * most
    assert active / cycles == pytest.approx(0.9, rel=0.05)
    assert tensor / cycles == pytest.approx(0.45, rel=0.05)
    fake.gpm(0, 2, 10)
    began_at = ask("[sample('a', gpu(0)), sample('b', gpu(0)), gpm('a', 'b', [248, 249])][-1]")
    time.sleep(0.1)
    ended_at = ask("[sample('a', gpu(0)), sample('b', gpu(0)), gpm('a', 'b', [248, 249])][-1]")
    assert (ended_at[1] - began_at[1]) / (ended_at[0] - began_at[0]) == pytest.approx(0.1, rel=0.01)


def test_values_stand_still_unless_live(ask: Any) -> None:
    """A golden scrape is the same twice."""
    first = ask(COUNTERS)
    time.sleep(0.02)
    assert ask(COUNTERS) == first


def test_a_driver_that_is_loaded_anew_counts_from_zero(fake: Any, ask: Any) -> None:
    """Everything counted since the driver was loaded is reset to 0; lifetime counts stay."""
    fake.gpus[0].ecc[1][:] = 3, 5
    fake.gpus[0].pcie[2] = 9
    assert all(ask(COUNTERS))
    fake.reload_driver()
    assert not any(ask(COUNTERS))
    assert ask("fields(gpu(0), [4, 6, 94])") == [0, 5, 0]


def test_without_a_state_file_eight_busy_gpus_move(library: Any, asked: Any) -> None:
    """The demo's GPUs are live: values vary within reason and energy is the integral of power."""
    ask = asked({"LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": ""})
    assert ask("nvmlDeviceGetCount(), nvmlDeviceGetName(gpu(7))") == [8, "NVIDIA H100 80GB HBM3"]
    power = ask("sorted({nvmlDeviceGetPowerUsage(gpu(index)) for index in range(8)})")
    assert len(power) > 1
    assert 500_000 < power[0] < power[-1] <= 705_000
    energy = "time.monotonic(), nvmlDeviceGetTotalEnergyConsumption(gpu(0)), time.monotonic()"
    began, joules, answered = ask(energy)
    time.sleep(0.3)
    asked_again, later, ended = ask(energy)
    power = ask("nvmlDeviceGetPowerUsage(gpu(0))")
    assert 0.7 * power * (asked_again - answered) <= later - joules <= 1.3 * power * (ended - began)
    assert 90 <= ask("nvmlDeviceGetUtilizationRates(gpu(0)).gpu") <= 100
