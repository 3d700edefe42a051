"""The fake NVML library itself: layouts like nvidia-ml-py's, and every call through the real pynvml."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tachograph_lab.fake_nvml.library import FOLDER

NOT_SUPPORTED, INVALID_ARGUMENT, FUNCTION_NOT_FOUND, VERSION_MISMATCH = 3, 2, 13, 25

# struct -> (its ctypes class, its size on x86-64 and arm64 by nvml.h)
LAYOUTS = {
    "memory": ("c_nvmlMemory_t", 24),
    "memory_v2": ("c_nvmlMemory_v2_t", 40),
    "bar1": ("c_nvmlBAR1Memory_t", 24),
    "utilization": ("c_nvmlUtilization_t", 8),
    "pci": ("nvmlPciInfo_t", 68),
    "field": ("c_nvmlFieldValue_t", 40),
    "process": ("c_nvmlProcessInfo_v3_t", 24),
    "process_utilization": ("c_nvmlProcessUtilizationSample_t", 32),
    "temperature": ("c_nvmlTemperature_v1_t", 12),
    "margin": ("c_nvmlMarginTemperature_v1_t", 8),
    "sram_ecc": ("c_nvmlEccSramErrorStatus_v1_t", 104),
    "row_histogram": ("c_nvmlRowRemapperHistogramValues", 20),
    "fabric": ("c_nvmlGpuFabricInfo_t", 28),
    "fabric_v2": ("c_nvmlGpuFabricInfo_v2_t", 36),
    "fabric_v3": ("c_nvmlGpuFabricInfo_v3_t", 40),
    "attributes": ("c_nvmlDeviceAttributes", 40),
    "event_data": ("c_nvmlEventData_t", 32),
    "gpm_support": ("c_nvmlGpmSupport_t", 8),
    "gpm_metric": ("c_nvmlGpmMetric_t", 40),
    "gpm_metrics": ("c_nvmlGpmMetricsGet_t", 19104),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_structs_have_the_size_that_pynvml_expects(library: Path, name: str) -> None:
    """A struct of the wrong size would be read at wrong offsets, or overwrite its neighbour."""
    size = ctypes.CDLL(str(library / "libnvidia-ml.so.1")).fake_nvml_size(name.encode())
    python_name, expected = LAYOUTS[name]
    assert size == ctypes.sizeof(getattr(pynvml, python_name)) == expected


def test_every_struct_of_the_library_is_compared() -> None:
    """A layout that is added to layouts.h without a row above would not be checked."""
    header = (FOLDER / "layouts.h").read_text()
    assert set(re.findall(r"^struct (\w+) \{", header, re.MULTILINE)) == LAYOUTS.keys()


def test_the_limits_are_pynvmls(build: Any) -> None:
    """All ids known to nvidia-ml-py fit into the tables that count reads by id."""
    assert build.FIELD_IDS == pynvml.NVML_FI_MAX
    assert build.GPM_IDS == pynvml.NVML_GPM_METRIC_MAX
    assert pynvml.nvmlEventTypeXidCriticalError == build.XID_EVENT


# call -> what a healthy H100 answers
HEALTHY = {
    "nvmlSystemGetDriverVersion()": "580.95.05",
    "nvmlSystemGetCudaDriverVersion()": 13000,
    "nvmlSystemGetNVMLVersion()": "13.580.95.05",
    "nvmlDeviceGetCount()": 8,
    "nvmlDeviceGetName(gpu(0))": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetSerial(gpu(7))": "1650000000007",
    "nvmlDeviceGetVbiosVersion(gpu(0))": "96.00.89.00.01",
    "nvmlDeviceGetCudaComputeCapability(gpu(0))": [9, 0],
    "nvmlDeviceGetPersistenceMode(gpu(0))": 1,
    "nvmlDeviceGetPerformanceState(gpu(0))": 0,
    "nvmlDeviceGetEccMode(gpu(0))": [1, 1],
    "nvmlDeviceGetMigMode(gpu(0))": [0, 0],
    "nvmlDeviceGetMaxMigDeviceCount(gpu(0))": 7,
    "nvmlDeviceGetCurrPcieLinkGeneration(gpu(0))": 5,
    "nvmlDeviceGetMaxPcieLinkGeneration(gpu(0))": 5,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu(0))": 5,
    "nvmlDeviceGetMaxPcieLinkWidth(gpu(0))": 16,
    "nvmlDeviceGetPowerManagementLimitConstraints(gpu(0))": [200000, 700000],
    "nvmlDeviceGetPowerManagementDefaultLimit(gpu(0))": 700000,
    "nvmlDeviceGetEncoderUtilization(gpu(0))[0]": 0,
    "nvmlDeviceGetDecoderUtilization(gpu(0))[0]": 0,
    "nvmlDeviceGetTemperatureV(gpu(0), 0)": 58,
    "nvmlDeviceGetMarginTemperature(gpu(0))": 87 - 58,
    "[nvmlDeviceGetTemperatureThreshold(gpu(0), kind) for kind in range(4)]": [92, 89, 95, 87],
    "nvmlDeviceGetRemappedRows(gpu(0))": [0, 0, 0, 0],
    "members(nvmlDeviceGetRowRemapperHistogram(gpu(0)))": {"max": 2560, "high": 0, "partial": 0, "low": 0, "none": 0},
    "members(nvmlDeviceGetBAR1MemoryInfo(gpu(0)))": {
        "bar1Total": 128 << 30,
        "bar1Used": 6 << 20,
        "bar1Free": (128 << 30) - (6 << 20),
    },
    "[nvmlDeviceGetNvLinkState(gpu(0), link) for link in range(18)]": [1] * 18,
    "nvmlDeviceGetNvLinkErrorCounter(gpu(0), 17, 0)": 0,
    "nvmlDeviceGetSupportedEventTypes(gpu(0)) & nvmlEventTypeXidCriticalError": 8,
    "nvmlGpmQueryDeviceSupport(gpu(0)).isSupportedDevice": 1,
    "nvmlDeviceIsMigDeviceHandle(gpu(0)).value": 0,
    "nvmlDeviceGetComputeRunningProcesses(gpu(0))": [],
    "nvmlDeviceGetGraphicsRunningProcesses(gpu(0))": [],
    "nvmlDeviceGetMPSComputeRunningProcesses(gpu(0))": [],
    "structure('nvmlDeviceGetGpuFabricInfo', 'c_nvmlGpuFabricInfo_t', gpu(0))": {
        "state": 3,
        "status": 0,
        "cliqueId": 0,
    },
    "structure('nvmlDeviceGetGpuFabricInfoV', 'c_nvmlGpuFabricInfo_v2_t', gpu(0))": {
        "version": 0x2000024,
        "state": 3,
        "status": 0,
        "cliqueId": 0,
        "healthMask": 2,
    },
    "structure('nvmlDeviceGetGpuFabricInfoV', 'c_nvmlGpuFabricInfo_v3_t', gpu(0))['healthSummary']": 1,
    "structure('nvmlDeviceGetSramEccErrorStatus', 'c_nvmlEccSramErrorStatus_v1_t', gpu(0))['bThresholdExceeded']": 0,
    "nvmlDeviceGetTotalEnergyConsumption(gpu(0))": 62000000000,
}

REFUSED = {
    "nvmlDeviceGetFanSpeed(gpu(0))": NOT_SUPPORTED,
    "nvmlDeviceGetNumFans(gpu(0))": NOT_SUPPORTED,
    "nvmlDeviceGetRetiredPages(gpu(0), 0)": NOT_SUPPORTED,
    "nvmlDeviceGetRetiredPagesPendingStatus(gpu(0))": NOT_SUPPORTED,
    "nvmlDeviceGetDisplayMode(gpu(0))": NOT_SUPPORTED,
    "nvmlDeviceGetConfComputeMemSizeInfo(gpu(0))": NOT_SUPPORTED,
    "nvmlDeviceGetRunningProcessDetailList(gpu(0), nvmlProcessDetailList_v1, 0)": NOT_SUPPORTED,
    "nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 0)": NOT_SUPPORTED,
    "nvmlDeviceGetNvLinkState(gpu(0), 18)": INVALID_ARGUMENT,
    "nvmlDeviceGetGpuInstanceId(gpu(0))": INVALID_ARGUMENT,
    "nvmlDeviceGetHandleByIndex(8)": INVALID_ARGUMENT,
    "structure('nvmlDeviceGetGpuFabricInfoV', 'c_nvmlGpuFabricInfo_t', gpu(0))": VERSION_MISMATCH,
    "nvmlDeviceGetRepairStatus(gpu(0))": FUNCTION_NOT_FOUND,
}


def test_a_healthy_h100_answers_every_call(ask: Any) -> None:
    """A fully featured GPU has every value through the real pynvml, and reports nothing alarming."""
    assert {call: ask(call) for call in HEALTHY} == HEALTHY


def test_what_an_h100_does_not_have_is_refused(ask: Any) -> None:
    """A value that a real GPU or driver does not have is an error, not zero."""
    assert {call: ask.code(call) for call in REFUSED} == REFUSED


def test_what_a_test_sets_is_answered(fake: Any, ask: Any) -> None:
    """Processes, ECC, retired pages, row remapping, SRAM threshold and fabric are read from the shared state."""
    gpu = fake.gpus[0]
    gpu.process_ids[:3] = 4242, 4243, 4244
    gpu.process_memory, gpu.ecc[1][0], gpu.sram_threshold = 1 << 30, 3, 1
    gpu.remapped[:] = 1, 2, 1, 0
    gpu.banks[:] = 2550, 9, 0, 0, 1
    gpu.pcie[:] = 4, 8, 9
    gpu.fabric[:2] = 2, 999
    gpu.retired[:] = 2, 1, 1
    fake.fail("retired_pages", 0)
    assert gpu.process_id == 4242
    processes = "[[p.pid, p.usedGpuMemory] for p in nvmlDeviceGetComputeRunningProcesses(gpu(0))]"
    assert ask(processes) == [[4242, 1 << 30], [4243, 1 << 30], [4244, 1 << 30]]
    assert [sample["pid"] for sample in ask("[members(p) for p in nvmlDeviceGetProcessUtilization(gpu(0), 0)]")] == [
        4242,
        4243,
        4244,
    ]
    assert ask("nvmlDeviceGetTotalEccErrors(gpu(0), 1, 0), nvmlDeviceGetMemoryErrorCounter(gpu(0), 1, 0, 2)") == [3, 3]
    assert ask("structure('nvmlDeviceGetSramEccErrorStatus', 'c_nvmlEccSramErrorStatus_v1_t', gpu(0))")[
        "bThresholdExceeded"
    ]
    assert ask("nvmlDeviceGetRemappedRows(gpu(0))") == [1, 2, 1, 0]
    assert ask("members(nvmlDeviceGetRowRemapperHistogram(gpu(0)))")["none"] == 1
    assert ask("len(nvmlDeviceGetRetiredPages(gpu(0), 0)), len(nvmlDeviceGetRetiredPages_v2(gpu(0), 1))") == [2, 1]
    assert ask("nvmlDeviceGetRetiredPagesPendingStatus(gpu(0)), fields(gpu(0), [29, 30, 31])") == [1, [2, 1, 1]]
    assert ask("nvmlDeviceGetCurrPcieLinkWidth(gpu(0)), nvmlDeviceGetPcieReplayCounter(gpu(0))") == [8, 9]
    info = ask("structure('nvmlDeviceGetGpuFabricInfoV', 'c_nvmlGpuFabricInfo_v2_t', gpu(0))")
    assert (info["state"], info["status"]) == (2, 999)


def test_slow_calls_are_slow_and_counted(fake: Any, ask: Any) -> None:
    """A test can assert that nobody makes the calls that block for 20 ms, or reads a fan."""
    seconds, _ = ask("timed('nvmlDeviceGetPcieThroughput(gpu(0), 1)')")
    assert seconds >= 0.02
    ask.code("nvmlDeviceGetFanSpeed(gpu(0))")
    assert (fake.called("pcie_throughput"), fake.called("fan"), fake.called("pcie_throughput", 1)) == (1, 1, 0)


def test_both_kinds_of_memory_reading_agree(ask: Any) -> None:
    """Version 1 counts the driver's reserve as used, version 2 apart; total and free are the same."""
    old, new = ask(
        "[members(memory) for memory in (nvmlDeviceGetMemoryInfo(gpu(0)), "
        "nvmlDeviceGetMemoryInfo(gpu(0), nvmlMemory_v2))]"
    )
    assert old["total"] == new["total"] == new["used"] + new["free"] + new["reserved"]
    assert old["used"] == new["used"] + new["reserved"]


def test_a_gpu_is_found_by_index_uuid_and_bus(ask: Any) -> None:
    """The three ways to a handle lead to the same GPU."""
    assert ask(
        "[nvmlDeviceGetMinorNumber(way) for way in (gpu(5), nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(gpu(5))),"
        "nvmlDeviceGetHandleByPciBusId(nvmlDeviceGetPciInfo(gpu(5)).busId))]"
    ) == [5, 5, 5]


def test_mig_devices_have_handles_of_their_own(fake: Any, ask: Any) -> None:
    """A MIG device has name, UUID, instances, memory and parent; there is no utilization of the whole GPU."""
    fake.add_mig(3, 2)
    mig = fake.add_mig(3, 5, 1, slices=3)
    own = "nvmlDeviceGetMigDeviceHandleByIndex(gpu(3), 1)"
    assert ask("nvmlDeviceGetMigMode(gpu(3))") == [1, 1]
    assert ask(f"nvmlDeviceGetName({own})") == "NVIDIA H100 80GB HBM3 MIG 3g.30gb"
    assert ask(f"nvmlDeviceGetUUID({own})") == mig.uuid.decode()
    assert ask(f"nvmlDeviceGetGpuInstanceId({own}), nvmlDeviceGetComputeInstanceId({own})") == [5, 1]
    assert ask(f"nvmlDeviceGetMinorNumber(nvmlDeviceGetDeviceHandleFromMigDeviceHandle({own}))") == 3
    assert ask(f"nvmlDeviceIsMigDeviceHandle({own}).value") == 1
    assert ask(f"nvmlDeviceGetGpuInstanceId(nvmlDeviceGetHandleByUUID({mig.uuid.decode()!r}))") == 5
    assert ask(f"nvmlDeviceGetMemoryInfo({own}, nvmlMemory_v2).total") == mig.memory_total
    attributes = ask(f"members(nvmlDeviceGetAttributes_v2({own}))")
    assert (attributes["multiprocessorCount"], attributes["memorySizeMB"]) == (48, 30 * 1024)
    assert ask.code("nvmlDeviceGetMigDeviceHandleByIndex(gpu(3), 2)") == pynvml.NVML_ERROR_NOT_FOUND
    assert ask.code(f"nvmlDeviceGetPowerUsage({own})") == INVALID_ARGUMENT
    assert ask.code("nvmlDeviceGetUtilizationRates(gpu(3))") == NOT_SUPPORTED
    assert ask("nvmlDeviceGetUtilizationRates(gpu(2)).gpu") == 96


def test_a_build_is_made_once_for_each_choice(
    build: Any, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sources and options give the same folder without compiling again; different ones give another folder."""
    first = tmp_path / library.name
    shutil.copytree(library, first)
    made = (first / "libnvidia-ml.so.1").stat().st_mtime_ns
    with monkeypatch.context() as patched:
        patched.setattr(build, "_compile", None)
        assert build.build(tmp_path) == first
    assert (first / "libnvidia-ml.so.1").stat().st_mtime_ns == made
    old = build.build(library.parent, without=("nvmlDeviceGetPowerUsage",))
    assert old != library
    assert hasattr(ctypes.CDLL(str(first / "libnvidia-ml.so.1")), "nvmlDeviceGetPowerUsage")
    assert not hasattr(ctypes.CDLL(str(old / "libnvidia-ml.so.1")), "nvmlDeviceGetPowerUsage")
    changed = shutil.copytree(build.FOLDER, tmp_path / "changed", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    with (changed / "layouts.h").open("a") as header:
        header.write("/* changed */\n")
    monkeypatch.setattr(build, "FOLDER", changed)
    monkeypatch.setattr(build, "_compile", lambda command, texts, folder: (folder / "made").touch())
    assert (build.build(tmp_path) / "made").exists()


def test_a_library_without_functions_is_an_old_driver(
    build: Any, fake: Any, asked: Callable[..., Any], pytestconfig: pytest.Config
) -> None:
    """An omitted function is "function not found" to pynvml, and everything else works."""
    gone = ("nvmlGpmQueryDeviceSupport", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetFieldValues")
    old = build.build(pytestconfig.cache.mkdir("fake_nvml"), without=gone)
    ask = asked({**fake.environment(), "LD_LIBRARY_PATH": str(old)})
    assert ask.code("nvmlGpmQueryDeviceSupport(gpu(0))") == FUNCTION_NOT_FOUND
    assert ask.code("fields(gpu(0), [83])") == FUNCTION_NOT_FOUND
    assert ask.code("structure('nvmlDeviceGetGpuFabricInfoV', 'c_nvmlGpuFabricInfo_v2_t', gpu(0))") == 13
    assert ask("nvmlDeviceGetPowerUsage(gpu(0))") == 620000
    assert ask("structure('nvmlDeviceGetGpuFabricInfo', 'c_nvmlGpuFabricInfo_t', gpu(0))")["state"] == 3


def test_a_mirror_out_of_step_is_noticed(build: Any, library: Path, tmp_path: Path) -> None:
    """A state file whose size differs from the Python structures is refused before anything is read."""
    other = tmp_path / "other"
    other.mkdir()
    (other / build.CALL_NAMES).write_text((library / build.CALL_NAMES).read_text())
    (other / build.FRESH_STATE).write_bytes((library / build.FRESH_STATE).read_bytes() + bytes(8))
    with pytest.raises(RuntimeError, match=r"state\.h and the structures"):
        build.FakeNvml(other, tmp_path / "state")
