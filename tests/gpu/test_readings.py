"""The real pynvml on the made-up library: what each reading gives, and what it costs when one fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog import CLOCK_EVENT_REASONS, GPU_INFO, GPU_PEAK_FLOPS, GPU_READINGS_FAILED, GPU_UP, gpu_metrics
from tachograph.node.readings import CALLS, FIELDS, RETRY_SECONDS, SLOW_SECONDS

LOST, RESET_REQUIRED, UNKNOWN, NO_PERMISSION, NOT_SUPPORTED = 15, 16, 999, 4, 3
Stepper = Callable[[Any], Any]


def test_every_gpu_row_of_the_catalog_is_read_once() -> None:
    """A catalog row without a reading, or a reading with labels that its row does not know, is a mistake."""
    values = [value for call in CALLS for value in call.values] + [field.value for field in FIELDS]
    assert {value.metric for value in values} | {GPU_INFO, GPU_UP, GPU_PEAK_FLOPS, GPU_READINGS_FAILED} == set(
        gpu_metrics()
    )
    assert max(Counter((value.metric, value.labels) for value in values).values()) == 1
    for value in values:
        assert len(value.labels) + 2 == len(value.metric.labels)
        assert not value.metric.values or value.labels[0] in value.metric.values


def test_every_reading_arrives_in_base_units(fake: Any, stepper: Stepper) -> None:
    """Milliwatts, megahertz, millijoules and percent become watts, hertz, joules and ratios; nothing is swapped."""
    gpu = fake.gpus[5]
    gpu.utilization[:] = 97, 41
    gpu.memory_total, gpu.memory_used, gpu.memory_reserved = 85520809984, 70000000001, 600000002
    gpu.temperature[:] = 61, 74
    gpu.thresholds[:] = 92, 89
    gpu.power, gpu.power_limit, gpu.energy = 612345, 700000, 9876543210123
    gpu.clocks[:] = 1, 1755, 2619, 2
    gpu.max_clocks[:] = 3, 1980, 2620, 4
    gpu.clock_events = 0x4 | 0x40
    for error in (0, 1):
        gpu.ecc[error][:] = 11 + 10 * error, 12 + 10 * error
    node = stepper(fake.environment()).at(0)
    assert node.ok, node.reason
    uuid = gpu.uuid.decode()
    assert node.line["gpus"][5] == ["5", uuid, "NVIDIA H100 80GB HBM3"]
    assert {key[2] for key in node.samples if key[1] == "5"} == {uuid}
    expected = {
        ("up",): 1,
        ("readings_failed",): 0,
        ("info", "NVIDIA H100 80GB HBM3", "00000000:BB:00.0", "550.54.15"): 1,
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
        ("power_watts",): 612.345,
        ("power_limit_watts",): 700,
        ("energy_joules_total",): 9876543210.123,
        ("clock_hertz", "sm"): 1755e6,
        ("clock_hertz", "memory"): 2619e6,
        ("clock_max_hertz", "sm"): 1980e6,
        ("clock_max_hertz", "memory"): 2620e6,
        ("ecc_errors_total", "corrected", "volatile"): 11,
        ("ecc_errors_total", "corrected", "aggregate"): 12,
        ("ecc_errors_total", "uncorrected", "volatile"): 21,
        ("ecc_errors_total", "uncorrected", "aggregate"): 22,
        ("peak_flops", "bf16"): 989e12,
        ("peak_flops", "fp16"): 989e12,
        ("peak_flops", "fp8"): 1979e12,
        **{("clock_event_active", reason): 0 for reason in CLOCK_EVENT_REASONS},
        ("clock_event_active", "sw_power_cap"): 1,
        ("clock_event_active", "hw_thermal_slowdown"): 1,
    }
    assert node.gpu(5) == pytest.approx(expected)
    assert len(expected) <= 60, "the budget of series for one GPU"


def test_zero_is_a_sample(fake: Any, stepper: Stepper) -> None:
    """An idle GPU reads 0, and 0 is shown."""
    gpu = fake.gpus[0]
    gpu.utilization[:] = 0, 0
    gpu.memory_used = gpu.memory_reserved = gpu.power = gpu.energy = gpu.clock_events = 0
    gpu.temperature[:] = 0, 0
    gpu.clocks[:] = 0, 0, 0, 0
    node = stepper(fake.environment()).at(0)
    whole, idle = node.gpu(1), node.gpu(0)
    assert {key for key in idle if key[0] != "info"} == {key for key in whole if key[0] != "info"}
    for name in ("utilization_ratio", "memory_used_bytes", "power_watts", "energy_joules_total"):
        assert idle[name,] == 0
    assert idle["temperature_celsius", "memory"] == 0
    assert idle["clock_hertz", "sm"] == 0


def test_what_a_part_does_not_have_is_absent_and_seldom_asked_again(fake: Any, stepper: Stepper) -> None:
    """NOT_SUPPORTED gives no sample and no failure, and is asked again after ten minutes, when it may have come."""
    for call in ("power", "memory_temperature"):
        fake.fail(call, NOT_SUPPORTED, 2)
    collector = stepper(fake.environment())
    node = collector.at(0)
    assert node.ok
    assert node.failures == {}
    assert {key for key in node.gpu(1).keys() - node.gpu(2).keys() if key[0] != "info"} == {
        ("power_watts",),
        ("temperature_celsius", "memory"),
    }
    for now in range(1, 60):
        collector.at(now)
    assert fake.called("power", 2) == fake.called("memory_temperature", 2) == 1
    fake.fail("power", 0)
    assert ("power_watts",) not in collector.at(RETRY_SECONDS - 1).gpu(2)
    assert ("power_watts",) in collector.at(RETRY_SECONDS).gpu(2)
    assert fake.called("memory_temperature", 2) == 2


def test_an_old_driver_without_some_functions_serves_the_rest(
    nvml_build: Any, stepper: Stepper, fake: Any, pytestconfig: pytest.Config
) -> None:
    """A symbol the driver lacks costs its reading, or is replaced by the older one, and nothing else."""
    old = nvml_build.build(
        pytestconfig.cache.mkdir("fake_nvml"),
        without=(
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetFieldValues",
            "nvmlDeviceGetMigMode",
        ),
    )
    fake.gpus[0].clock_events = 0x80
    whole = stepper(fake.environment()).at(0).gpu(0)
    node = stepper({**fake.environment(), "LD_LIBRARY_PATH": str(old)}).at(0)
    assert node.ok
    assert node.failures == {}
    served = node.gpu(0)
    assert {key[0] for key in whole.keys() - served.keys()} == {
        "memory_reserved_bytes",
        "energy_joules_total",
        "ecc_errors_total",
        "temperature_celsius",
    }
    assert served["clock_event_active", "hw_power_brake_slowdown"] == 1
    assert served["memory_used_bytes",] == fake.gpus[0].memory_used + fake.gpus[0].memory_reserved
    assert served["memory_free_bytes",] == whole["memory_free_bytes",]


@pytest.mark.parametrize("error", [LOST, RESET_REQUIRED, UNKNOWN])
def test_a_lost_gpu_costs_that_gpu_alone(fake: Any, stepper: Stepper, error: int) -> None:
    """One of eight gone: gpu_up 0 and not one old value for it, everything for the others, all back when it is back."""
    collector = stepper(fake.environment())
    before = collector.at(0)
    fake.gpus[3].error = error
    node = collector.at(1)
    assert node.ok
    assert node.gpu(3) == {("up",): 0}
    assert all(node.gpu(other) == before.gpu(other) for other in (0, 1, 2, 4, 5, 6, 7))
    assert list(node.failures) == [f"GPU 3 ({fake.gpus[3].uuid.decode()})"]
    fake.gpus[3].error = 0
    after = collector.at(2)
    assert after.gpu(3) == before.gpu(3)
    assert after.failures == {}


def test_a_lost_gpu_is_opened_again_seldom(fake: Any, stepper: Stepper) -> None:
    """A dead GPU is not re-opened at each collection, for the kernel logs each try."""
    collector = stepper(fake.environment())
    collector.at(0)
    fake.gpus[3].error = LOST
    for now in range(1, 32):
        collector.at(now)
    assert fake.called("handle", 3) == 1 + 2


def test_a_gpu_that_was_lost_before_the_start_is_shown_as_down(fake: Any, stepper: Stepper) -> None:
    """A GPU that never could be opened has an index and no UUID, and gets its name once it can be."""
    fake.gpus[3].error = LOST
    collector = stepper(fake.environment())
    node = collector.at(0)
    assert node.ok
    assert node.samples["up", "3", ""] == 0
    assert node.line["gpus"][3] == ["3", "", ""]
    fake.gpus[3].error = 0
    assert ("up", "3", "") in collector.at(1).samples
    assert collector.at(SLOW_SECONDS).samples["up", "3", fake.gpus[3].uuid.decode()] == 1


@pytest.mark.parametrize(("call", "error"), [("power", NO_PERMISSION), ("energy", UNKNOWN), ("fields", NO_PERMISSION)])
def test_a_reading_that_fails_is_absent_and_told(fake: Any, stepper: Stepper, call: str, error: int) -> None:
    """A failed reading of a healthy GPU is no sample and a failure with its name; its GPU stays up."""
    collector = stepper(fake.environment())
    before = collector.at(0)
    fake.fail(call, error, 4)
    node = collector.at(1)
    lost = before.gpu(4).keys() - node.gpu(4).keys()
    assert lost
    assert set(node.failures) == {f"tachograph_gpu_{key[0]} of GPU 4" for key in lost}
    assert node.gpu(4)["readings_failed",] == len(node.failures)
    assert node.gpu(4)["up",] == 1
    fake.fail(call, 0, 4)
    assert collector.at(2).gpu(4) == before.gpu(4)


def test_what_seldom_changes_is_read_every_15_seconds(fake: Any, stepper: Stepper) -> None:
    """Limits and thresholds cost a driver call in 15 s, and are shown at each collection in between."""
    collector = stepper(fake.environment())
    fake.gpus[0].power_limit = 700000
    for now in range(15):
        assert collector.at(now).gpu(0)["power_limit_watts",] == 700
    assert fake.called("power_limit") == 1
    assert fake.called("power") == 15
    fake.gpus[0].power_limit = 350000
    assert collector.at(15).gpu(0)["power_limit_watts",] == 350


def test_a_counter_reset_passes_through(fake: Any, stepper: Stepper) -> None:
    """A counter that the driver set back is shown as it is: Prometheus knows resets, and sums hide them."""
    collector = stepper(fake.environment())
    fake.gpus[0].energy, fake.gpus[0].ecc[1][0] = 5_000_000_000, 7
    collector.at(0)
    fake.gpus[0].energy, fake.gpus[0].ecc[1][0] = 12, 0
    node = collector.at(1)
    assert node.gpu(0)["energy_joules_total",] == pytest.approx(0.012)
    assert node.gpu(0)["ecc_errors_total", "uncorrected", "volatile"] == 0


def test_mig_and_unknown_devices_have_no_peak(fake: Any, stepper: Stepper) -> None:
    """No peak rather than a wrong one: a rank on a MIG slice must not be measured against the whole GPU."""
    fake.gpus[0].mig = 1
    fake.gpus[1].name = b"NVIDIA H99 ULTRA"
    node = stepper(fake.environment()).at(0)
    peaks = {key[1] for key in node.samples if key[0] == "peak_flops"}
    assert peaks == {"2", "3", "4", "5", "6", "7"}


def test_without_a_driver_the_reason_stands_and_back_off_grows(fake: Any, stepper: Stepper) -> None:
    """A node without a driver is tried after 1, 2, 4, … s, and served as soon as the driver is there."""
    fake.state.init_error = 9
    collector = stepper(fake.environment())
    for now in range(8):
        node = collector.at(now)
        assert (node.ok, node.samples, node.reason) == (False, {}, "the NVIDIA driver is not loaded")
    assert fake.state.init_calls == 4, "at 0, 1, 3 and 7 s"
    fake.state.init_error = 0
    assert not collector.at(14).ok
    node = collector.at(15)
    assert node.ok
    assert len(node.line["gpus"]) == 8


def test_back_off_ends_at_30_seconds(fake: Any, stepper: Stepper) -> None:
    """However long the driver is away, it is noticed within 30 s of its return."""
    fake.state.init_error = 9
    collector = stepper(fake.environment())
    for now in range(1000):
        collector.at(now)
    tries = fake.state.init_calls
    for now in range(1000, 1090):
        collector.at(now)
    assert fake.state.init_calls == tries + 3


def test_no_library_is_a_reason(stepper: Stepper, tmp_path: Path) -> None:
    """A machine without the driver's library is told in words."""
    (tmp_path / "libnvidia-ml.so.1").touch()  # found first and not loadable, also where a real driver is installed
    node = stepper({"LD_LIBRARY_PATH": str(tmp_path)}).at(0)
    assert (node.ok, node.reason) == (False, "no NVIDIA driver: libnvidia-ml.so.1 is not found")


def test_no_pynvml_is_a_reason_that_says_what_to_install(stepper: Stepper, tmp_path: Path) -> None:
    """The base install has no pynvml; the reason names the extra that brings it."""
    (tmp_path / "pynvml.py").write_text("raise ImportError\n")
    node = stepper({"PYTHONPATH": str(tmp_path)}).at(0)
    assert (node.ok, node.reason) == (False, "pynvml is not installed: pip install tachograph[exporter]")


def test_no_gpu_is_a_reason_and_one_that_comes_is_found(fake: Any, stepper: Stepper) -> None:
    """A driver without GPUs is not a success; GPUs that appear are found at the next slow round."""
    fake.state.count = 0
    collector = stepper(fake.environment())
    node = collector.at(0)
    assert (node.ok, node.reason) == (False, "the driver shows no GPU")
    fake.state.count = 2
    assert collector.at(SLOW_SECONDS).gpu(1)["up",] == 1


def test_a_reloaded_driver_is_opened_again(fake: Any, stepper: Stepper) -> None:
    """When every GPU fails, NVML is initialised afresh: after a driver reload old handles never work again."""
    collector = stepper(fake.environment())
    collector.at(0)
    fake.break_all(UNKNOWN)
    node = collector.at(1)
    assert not node.ok
    assert node.reason == "no GPU can be read: NVML reports an unknown error"
    assert {value for key, value in node.samples.items() if key[0] == "up"} == {0}
    fake.break_all(0)
    assert not collector.at(1.5).ok
    assert collector.at(2).ok
    assert fake.state.init_calls == 2


@pytest.mark.parametrize("at_init", [True, False])
def test_a_replaced_driver_asks_for_a_new_process(fake: Any, stepper: Stepper, at_init: bool) -> None:
    """The loaded library cannot speak to a newer kernel module: only a new process helps, and is asked for."""
    collector = stepper(fake.environment())
    if at_init:
        fake.state.init_error = 18
    else:
        collector.at(0)
        fake.break_all(18)
    assert "was replaced" in collector.mismatch(1)
