"""Readings that are missing, fail or are wrong, and drivers that are too old: only these are lost, and reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.gpu import RECOVERY_ACTIONS
from tachograph.node.driver.nvml import (
    ALL_LINKS,
    DriverAbsent,
    DriverMismatch,
    GpuFailed,
    GpuIsLost,
    NoPermission,
    Nvml,
    ResetRequired,
)
from tachograph.node.gpu.reading_table import RETRY_SECONDS, SLOW_SECONDS
from tachograph_lab.fake_nvml import library as fake_nvml

NOT_SUPPORTED, NO_PERMISSION, LOST, RESET_REQUIRED, UNKNOWN = 3, 4, 15, 16, 999
OneGpu = Callable[..., Any]


def test_what_a_part_does_not_have_is_absent_and_seldom_asked_again(fake: Any, one_gpu: OneGpu) -> None:
    """NOT_SUPPORTED gives no sample and no failure, and is asked again after ten minutes, when it may have come."""
    fake.fail("power", NOT_SUPPORTED, 2)
    fake.field_error(2, 82, NOT_SUPPORTED)
    fake.field_error(2, 138, NOT_SUPPORTED, ALL_LINKS)
    collector = one_gpu(2)
    told = collector.at(0)
    assert told.failures == {}
    lost = {
        ("power_watts",),
        ("power_instant_watts",),
        ("temperature_celsius", "memory"),
        ("nvlink_bytes_total", "transmit"),
    }
    assert one_gpu(1).at(0).samples.keys() - told.samples.keys() >= lost
    asked = {field_id: fake.field_asked(2, field_id) for field_id in (82, 138, 139)}
    collector.at(*range(1, 60))
    assert {field_id: fake.field_asked(2, field_id) - asked[field_id] for field_id in asked} == {82: 0, 138: 0, 139: 59}
    fake.fail("power", 0)
    assert ("power_watts",) not in collector.at(RETRY_SECONDS - 1).samples
    assert ("power_watts",) in collector.at(RETRY_SECONDS).samples
    assert fake.field_asked(2, 82) == asked[82] + 1


@pytest.mark.parametrize("call", ["power", "fields", "gpm_metrics", "nvlink", "processes", "sram_ecc"])
def test_a_reading_that_fails_is_absent_and_told(fake: Any, one_gpu: OneGpu, call: str) -> None:
    """A reading that fails for another reason than not being there is no sample, a failure, and back when it heals."""
    collector = one_gpu(4)
    before = collector.at(0, 1)
    fake.fail(call, 8, 4)  # NVML_ERROR_INSUFFICIENT_POWER: no class of its own
    told = collector.at(SLOW_SECONDS + 1)
    assert told.down == ""
    lost = {key[0] for key in before.samples.keys() - told.samples.keys()}
    if call == "processes":
        assert (lost, told.pids) == (set(), [])
        lost = {"processes"}
    if call == "gpm_metrics":
        assert told.gpm == "error"
        lost = set()
    assert {subject.removeprefix("tachograph_gpu_") for subject in told.failures} == {
        f"{name} of GPU 4" for name in lost
    }
    fake.fail(call, 0, 4)
    assert collector.at(2 * SLOW_SECONDS + 1).samples.keys() == before.samples.keys()


@pytest.mark.parametrize("call", ["power", "fields", "mig", "sram_ecc"])
def test_an_error_that_nobody_explains_costs_one_reading(fake: Any, one_gpu: OneGpu, call: str) -> None:
    """A broken sensor (nvidia-smi prints ERR! for it) does not take a GPU off the page, let alone wake anybody."""
    fake.fail(call, UNKNOWN, 4)
    told = one_gpu(4).at(0, 1)
    assert told.down == ""
    assert "NVML reports an unknown error" in told.failures.values()
    assert ("memory_used_bytes",) in told.samples


def test_a_slow_reading_that_failed_stays_told(fake: Any, one_gpu: OneGpu) -> None:
    """A reading that failed in the slow round is absent, and counted as failed, until the next one."""
    fake.fail("sram_ecc", NO_PERMISSION, 0)
    collector = one_gpu()
    for now in (0, 1, 14):
        assert collector.at(now).failures == {"tachograph_gpu_ecc_sram_threshold_exceeded of GPU 0": "no permission"}
    fake.fail("sram_ecc", 0)
    assert collector.at(15).failures == {}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_an_impossible_number_is_a_failure(fake: Any, one_gpu: OneGpu, number: float) -> None:
    """A counter below zero, or a value that is not a number, never reaches a page."""
    fake.field(0, 83, number)
    told = one_gpu().at(0)
    assert ("energy_joules_total",) not in told.samples
    assert list(told.failures) == ["tachograph_gpu_energy_joules_total of GPU 0"]


def test_a_value_of_an_unheard_of_type_is_absent(fake: Any, one_gpu: OneGpu) -> None:
    """A driver newer than pynvml may answer in an unknown type: no sample, and the GPU stays up."""
    fake.field(0, 83, 5, value_type=99)
    told = one_gpu().at(0)
    assert (told.down, told.failures) == ("", {})
    assert ("energy_joules_total",) not in told.samples


def test_an_old_driver_without_some_functions_serves_the_rest(
    fake: Any, one_gpu: OneGpu, pytestconfig: pytest.Config
) -> None:
    """A symbol the driver lacks costs its reading, or is replaced by the older one; one sentence tells all of it."""
    old = fake_nvml.build(
        pytestconfig.cache.mkdir("fake_nvml"),
        without=(
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetFieldValues",
            "nvmlDeviceGetMigMode",
            "nvmlDeviceGetMarginTemperature",
            "nvmlGpmQueryDeviceSupport",
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        ),
    )
    fake.gpus[0].clock_events = 0x80
    fake.gpus[0].process_id = 4242
    whole = one_gpu().at(0, 1)
    served = one_gpu(library=old).at(0, 1)
    assert served.failures == {}
    assert whole.notes == {}
    lost = {key[0] for key in whole.shown - served.shown}
    (note,) = served.notes.values()
    assert list(served.notes) == ["NVIDIA H100 80GB HBM3"]
    activity = {"sm_cycles_total", "sm_active_cycles_total", "tensor_active_cycles_total", "dram_active_ratio"}
    partly = {"temperature_celsius"}
    for name in lost - activity - partly:
        assert f"tachograph_gpu_{name}" in note
    assert note.endswith("with driver 580.95.05")
    assert served.gpm == "not_supported"
    assert ("memory_reserved_bytes",) not in served.samples
    assert served.samples["clock_event_active", "hw_power_brake_slowdown"] == 1
    assert served.samples["memory_used_bytes",] == fake.gpus[0].memory_used + fake.gpus[0].memory_reserved
    assert served.pids == [4242]


def test_an_action_that_nobody_knows_yet_is_a_failure(fake: Any, one_gpu: OneGpu) -> None:
    """A number beyond the table makes no sample with a wrong word, and is logged."""
    fake.field(0, 230, len(RECOVERY_ACTIONS))
    told = one_gpu().at(0)
    assert told.family("recovery_action") == {}
    assert list(told.failures) == ["tachograph_gpu_recovery_action of GPU 0"]


@pytest.mark.parametrize(("error", "word"), [(LOST, "lost"), (RESET_REQUIRED, "reset_required"), (UNKNOWN, "error")])
def test_a_gpu_that_fails_says_why(fake: Any, one_gpu: OneGpu, error: int, word: str) -> None:
    """A GPU that cannot be talked to has a word for it and no sample, is still known by name, and comes back whole."""
    collector = one_gpu(3)
    before = collector.at(0, 1)
    fake.gpus[3].error = error
    told = collector.at(2)
    info = {key: value for key, value in before.samples.items() if key[0] == "info"}
    assert info
    assert (told.down, told.samples) == (word, {("up",): 0, ("unavailable_info", word): 1, **info})
    assert list(told.failures) == [f"GPU 3 ({fake.gpus[3].uuid.decode()})"]
    fake.gpus[3].error = 0
    assert collector.at(3).samples.keys() == before.samples.keys()


def test_a_field_that_says_lost_takes_the_gpu_down(fake: Any, one_gpu: OneGpu) -> None:
    """A part that falls off the bus while its fields are read is lost, also where the call itself succeeds."""
    collector = one_gpu()
    collector.at(0)
    fake.field_error(0, 83, LOST)
    assert collector.at(1).down == "lost"


def test_after_a_loss_the_slow_readings_are_fresh(fake: Any, one_gpu: OneGpu) -> None:
    """Limits that were read before a GPU was lost are not shown after it has returned."""
    collector = one_gpu()
    collector.at(0)
    fake.gpus[0].error = LOST
    collector.at(1)
    fake.gpus[0].error, fake.gpus[0].power_limit = 0, 300000
    assert collector.at(2).samples["power_limit_watts",] == 300


def test_the_words_of_a_failure() -> None:
    """The classes of failure carry the reason that goes on the page."""
    assert [kind.word for kind in (GpuFailed, GpuIsLost, ResetRequired)] == ["error", "lost", "reset_required"]
    assert not issubclass(NoPermission, GpuFailed)


class _Pynvml:
    """Just enough of pynvml to be called."""

    NVMLError = NVMLLibraryMismatchError = RuntimeError

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    def nvmlWait(self) -> int:  # noqa: N802 - pynvml's spelling
        self.entered.set()
        assert self.leave.wait(60)
        return 7


def test_a_call_in_flight_can_be_seen_from_another_thread() -> None:
    """While a driver call does not return, others see its name and start; afterwards nothing is in flight."""
    nvml = Nvml.__new__(Nvml)
    nvml.pynvml, nvml._calling = _Pynvml(), {}
    before = time.monotonic()
    thread = threading.Thread(target=nvml.call, args=("nvmlWait",))
    thread.start()
    assert nvml.pynvml.entered.wait(60)
    assert thread.ident is not None
    calling = nvml.calling(thread.ident)
    assert calling is not None
    assert calling[0] == "nvmlWait"
    assert before <= calling[1] <= time.monotonic()
    assert nvml.calling(threading.get_ident()) is None
    nvml.pynvml.leave.set()
    thread.join(60)
    assert nvml.calling(thread.ident) is None


class _Refusing(Nvml):
    """An Nvml that is open, and whose every call fails."""

    def __init__(self, code: int) -> None:
        import pynvml

        self.pynvml, self._code = pynvml, code

    def call(self, name: str, *arguments: object) -> Any:
        raise self.failure(self._code)


@pytest.mark.parametrize("code", [2, 3, 4, 7, 8, 10, 13, 14, 15, 17, 999, 812])
def test_a_version_that_cannot_be_read_costs_no_gpu(code: int) -> None:
    """Neither the driver's nor CUDA's: both are texts, and empty."""
    nvml = _Refusing(code)
    assert (nvml.driver_version(), nvml.cuda_version()) == ("", "")


@pytest.mark.parametrize(("code", "error"), [(1, DriverAbsent), (9, DriverAbsent), (18, DriverMismatch)])
def test_a_driver_that_is_gone_has_no_version(code: int, error: type[Exception]) -> None:
    """It is not taken for one that does not report it."""
    for version in (_Refusing(code).driver_version, _Refusing(code).cuda_version):
        with pytest.raises(error):
            version()


def test_a_node_whose_driver_reports_no_version(fake: Any, stepper: Any) -> None:
    """All its GPUs are read, but for what has another id in each version."""
    fake.state.driver_version = b""
    told = stepper(fake.environment()).at(0)
    assert (told.ok, told.failures) == (True, {})
    assert [value for key, value in told.samples.items() if key[0] == "up"] == [1] * 8


def test_an_old_pynvml_without_a_function_costs_that_reading(fake: Any, tmp_path: Path, stepper: Any) -> None:
    """A pynvml older than a function is a part that does not have the reading, and no crash."""
    (tmp_path / "sitecustomize.py").write_text(
        "import pynvml\ndel pynvml.nvmlDeviceGetMarginTemperature, pynvml.nvmlDeviceGetTemperatureV\n"
    )
    node = stepper({**fake.environment(), "PYTHONPATH": str(tmp_path)}).at(0)
    assert node.ok
    assert node.failures == {}
    assert not [key for key in node.samples if key[0] == "temperature_margin_celsius"]
    assert ("temperature_celsius", "gpu") in node.gpu(0)
