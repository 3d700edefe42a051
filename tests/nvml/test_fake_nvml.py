"""The made-up NVML library itself: layouts like nvidia-ml-py's, values that move, a state that a test steers."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

# struct -> (its ctypes class, its size on x86-64 and arm64 by nvml.h)
LAYOUTS = {
    "memory": ("c_nvmlMemory_t", 24),
    "memory_v2": ("c_nvmlMemory_v2_t", 40),
    "utilization": ("c_nvmlUtilization_t", 8),
    "pci": ("nvmlPciInfo_t", 68),
    "field": ("c_nvmlFieldValue_t", 40),
    "process": ("c_nvmlProcessInfo_v3_t", 24),
    "temperature": ("c_nvmlTemperature_v1_t", 12),
}


@pytest.fixture(scope="module")
def build() -> Any:
    """The module build.py beside this file."""
    spec = importlib.util.spec_from_file_location("fake_nvml_build", Path(__file__).with_name("build.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def library(build: Any, pytestconfig: pytest.Config) -> Path:
    """The folder of the built library."""
    folder: Path = build.build(pytestconfig.cache.mkdir("fake_nvml"))
    return folder


def ask(environment: dict[str, str], program: str) -> Any:
    """Return what a fresh process with the real pynvml prints as JSON."""
    prelude = "import json, time\nfrom pynvml import *\nnvmlInit()\ngpu = nvmlDeviceGetHandleByIndex(0)\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", LAYOUTS)
def test_structs_have_the_size_that_pynvml_expects(library: Path, name: str) -> None:
    """A struct of another size would be read shifted, or overwrite its neighbour."""
    size = ctypes.CDLL(str(library / "libnvidia-ml.so.1")).fake_nvml_size(name.encode())
    python_name, expected = LAYOUTS[name]
    assert size == ctypes.sizeof(getattr(pynvml, python_name)) == expected


def test_without_a_state_file_eight_busy_gpus_move(library: Path) -> None:
    """The demo's GPUs live: values swing within reason and energy is the integral of power."""
    seen = ask(
        {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": ""},
        """
def energy():
    return nvmlDeviceGetTotalEnergyConsumption(gpu), time.monotonic(), nvmlDeviceGetPowerUsage(gpu)
first = energy()
time.sleep(0.3)
print(json.dumps({
    "count": nvmlDeviceGetCount(),
    "names": list({nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(i)) for i in range(8)}),
    "power": sorted({nvmlDeviceGetPowerUsage(nvmlDeviceGetHandleByIndex(i)) for i in range(8)}),
    "first": first,
    "second": energy(),
}))""",
    )
    assert seen["count"] == 8
    assert seen["names"] == ["NVIDIA H100 80GB HBM3"]
    assert len(seen["power"]) > 1
    assert 500_000 < seen["power"][0] < seen["power"][-1] <= 705_000
    (joules, began, power), (later, ended, _) = seen["first"], seen["second"]
    assert (later - joules) / (ended - began) == pytest.approx(power, rel=0.05)


def test_both_kinds_of_memory_reading_agree(library: Path) -> None:
    """Version 1 counts the driver's reserve as used, version 2 apart; total and free are the same."""
    old, new = ask(
        {"LD_LIBRARY_PATH": str(library)},
        "print(json.dumps([{name: getattr(m, name) for name, *_ in m._fields_} for m in"
        " (nvmlDeviceGetMemoryInfo(gpu), nvmlDeviceGetMemoryInfo(gpu, nvmlMemory_v2))]))",
    )
    assert old["total"] == new["total"] == new["used"] + new["free"] + new["reserved"]
    assert old["used"] == pytest.approx(new["used"] + new["reserved"], abs=1 << 22)


def test_a_gpu_is_found_by_index_uuid_and_bus(library: Path) -> None:
    """The three ways to a handle lead to the same GPU."""
    assert ask(
        {"LD_LIBRARY_PATH": str(library)},
        "g = nvmlDeviceGetHandleByIndex(5)\n"
        "ways = g, nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(g)), "
        "nvmlDeviceGetHandleByPciBusId(nvmlDeviceGetPciInfo(g).busId)\n"
        "print(json.dumps([nvmlDeviceGetMinorNumber(way) for way in ways]))",
    ) == [5, 5, 5]


def test_the_calls_we_do_not_make_yet_answer_too(build: Any, library: Path, tmp_path: Path) -> None:
    """Processes, ECC by location, links and row remapping are there for other exporters and for what comes next."""
    fake = build.FakeNvml(library, tmp_path / "state")
    gpu = fake.gpus[0]
    gpu.process_id, gpu.process_memory, gpu.ecc[1][0] = 4242, 1 << 30, 3
    gpu.remapped[:] = 1, 2, 1, 0
    gpu.pcie[:] = 5, 16, 9
    assert ask(
        fake.environment(),
        "processes = [(p.pid, p.usedGpuMemory) for p in nvmlDeviceGetComputeRunningProcesses(gpu)]\n"
        "print(json.dumps([processes, nvmlDeviceGetTotalEccErrors(gpu, 1, 0), "
        "nvmlDeviceGetMemoryErrorCounter(gpu, 1, 0, 2), nvmlDeviceGetRemappedRows(gpu), "
        "nvmlDeviceGetCurrPcieLinkGeneration(gpu), nvmlDeviceGetCurrPcieLinkWidth(gpu), "
        "nvmlDeviceGetPcieReplayCounter(gpu), nvmlDeviceGetTemperatureV(gpu, 0), nvmlDeviceGetPersistenceMode(gpu), "
        "nvmlSystemGetCudaDriverVersion(), nvmlSystemGetNVMLVersion()]))",
    ) == [[[4242, 1 << 30]], 3, 3, [1, 2, 1, 0], 5, 16, 9, gpu.temperature[0], 1, 12040, "12.550.54.15"]


def test_a_build_is_made_once_for_each_choice(build: Any, tmp_path: Path) -> None:
    """The same source and options give the same folder without a compiler run; left-out functions another one."""
    first = build.build(tmp_path)
    made = (first / "libnvidia-ml.so.1").stat().st_mtime_ns
    assert build.build(tmp_path) == first
    assert (first / "libnvidia-ml.so.1").stat().st_mtime_ns == made
    old = build.build(tmp_path, without=("nvmlDeviceGetPowerUsage",))
    assert old != first
    assert hasattr(ctypes.CDLL(str(first / "libnvidia-ml.so.1")), "nvmlDeviceGetPowerUsage")
    assert not hasattr(ctypes.CDLL(str(old / "libnvidia-ml.so.1")), "nvmlDeviceGetPowerUsage")
