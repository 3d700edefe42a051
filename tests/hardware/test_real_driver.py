"""The real collector on the real driver; `make test-gpu`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

LOAD = Path(__file__).with_name("load.py")
# Dense bf16 FLOP per SM and clock of A100, H100 and B200: peak over SM count and boost clock.
FLOPS_PER_CLOCK = {(8, 0): 2048, (9, 0): 4096, (10, 0): 8192}

pytestmark = pytest.mark.hardware

# family -> (lowest, highest) that physics allows
BOUNDS = {
    "tachograph_gpu_utilization_ratio": (0, 1),
    "tachograph_gpu_memory_controller_ratio": (0, 1),
    "tachograph_gpu_temperature_celsius": (5, 110),
    "tachograph_gpu_temperature_margin_celsius": (-20, 110),
    "tachograph_gpu_power_watts": (5, 2000),
    "tachograph_gpu_power_limit_watts": (50, 2000),
    "tachograph_gpu_clock_hertz": (100e6, 12e9),
    "tachograph_gpu_clock_max_hertz": (500e6, 12e9),
    "tachograph_gpu_sm_active_ratio": (0, 1.02),
    "tachograph_gpu_sm_occupancy_ratio": (0, 1.02),
    "tachograph_gpu_tensor_active_ratio": (0, 1.02),
    "tachograph_gpu_dram_active_ratio": (0, 1.02),
    "tachograph_gpu_memory_total_bytes": (2e9, 1e12),
    "tachograph_gpu_pcie_link_generation": (1, 7),
    "tachograph_gpu_pcie_link_width": (1, 32),
    "tachograph_gpu_nvlink_links": (0, 36),
    "tachograph_gpu_ecc_errors_total": (0, 1e9),
}


def test_values_within_physical_bounds(exporter: Any) -> None:
    """No unit is wrong by a thousand, no reading is garbage, and the families every data-centre part has are there."""
    page = exporter.page()
    for family, (low, high) in BOUNDS.items():
        for labels, value in page.all(family):
            assert low <= value <= high, (family, labels, value)
    for family in ("utilization_ratio", "memory_used_bytes", "memory_total_bytes", "power_watts", "clock_hertz"):
        assert page.all(f"tachograph_gpu_{family}", gpu="0"), family
    assert page.value("tachograph_gpu_memory_used_bytes", gpu="0") < page.value(
        "tachograph_gpu_memory_total_bytes", gpu="0"
    )
    assert page.value("tachograph_gpu_clock_hertz", gpu="0", domain="sm") <= page.value(
        "tachograph_gpu_clock_max_hertz", gpu="0", domain="sm"
    )


def test_energy_is_the_integral_of_power(exporter: Any) -> None:
    """Over ten seconds the joules counted are the watts shown, within a tenth: both units are right."""
    first, watts = exporter.page(), []
    for _ in range(20):
        time.sleep(0.5)
        page = exporter.page()
        watts.append(page.value("tachograph_gpu_power_watts", gpu="0"))
    counted = page.value("tachograph_gpu_energy_joules_total", gpu="0") - first.value(
        "tachograph_gpu_energy_joules_total", gpu="0"
    )
    assert counted / (page.at - first.at) == pytest.approx(statistics.fmean(watts), rel=0.1)


def start_load(seconds: float, environment: dict[str, str], *, record: bool) -> subprocess.Popen[str]:
    command = [sys.executable, str(LOAD), str(seconds), *["record"] * record]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    loaded: dict[str, Any] = json.loads(out.splitlines()[-1])
    return loaded


@pytest.mark.usefixtures("cuda")
def test_activity_and_mfu_agree_with_a_known_load(exporter: Any) -> None:
    """MFU is within a tenth of what the measured FLOP rate makes it; tensor activity cannot be less than that.

    A cycle counts as active also where the tensor cores wait for operands: 12 % more on an H200 at its power limit.
    """
    load = start_load(25, exporter.environment, record=True)
    begin = exporter.wait("tachograph_train_flops_total", run="matmul")
    time.sleep(4)
    first = exporter.page()
    clocks, sampled = [], []
    while exporter.page().at - first.at < 12:
        time.sleep(1)
        page = exporter.page()
        clocks.append(page.value("tachograph_gpu_clock_hertz", gpu="0", domain="sm"))
        sampled.append(page.value("tachograph_gpu_tensor_active_ratio", gpu="0"))
    measured = result(load)["flops_per_second"]

    flops = page.value("tachograph_train_flops_total", run="matmul") - first.value(
        "tachograph_train_flops_total", run="matmul"
    )
    rate = flops / (page.at - first.at)
    assert rate == pytest.approx(measured, rel=0.1)
    peak = page.value("tachograph_rank_peak_flops", run="matmul")
    if peak is not None:  # None: a device that is not in the table
        print(f"MFU {rate / peak:.3f}, measured {measured / peak:.3f}")

    info = begin.all("tachograph_rank_info", run="matmul")[0][0]
    assert info["uuid"] == begin.all("tachograph_gpu_info", gpu="0")[0][0]["uuid"]

    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    if None in sampled or capability not in FLOPS_PER_CLOCK:
        pytest.skip("no GPM on this GPU: no tensor activity to compare")
    import torch

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    possible = FLOPS_PER_CLOCK[capability] * sms * statistics.fmean(clocks)
    print(f"tensor activity {statistics.fmean(sampled):.3f}, by FLOP rate {measured / possible:.3f}")
    assert 0.95 < statistics.fmean(sampled) / (measured / possible) < 1.25
    cycles = [p.value("tachograph_gpu_sm_cycles_total", gpu="0") for p in (first, page)]
    tensor = [p.value("tachograph_gpu_tensor_active_cycles_total", gpu="0") for p in (first, page)]
    if None not in (*cycles, *tensor):
        counted = (tensor[1] - tensor[0]) / (cycles[1] - cycles[0])
        print(f"tensor activity by cycles {counted:.3f}")
        assert counted == pytest.approx(statistics.fmean(sampled), rel=0.05)


@pytest.mark.usefixtures("cuda")
@pytest.mark.timeout(300)
def test_collecting_costs_the_load_nothing(start_exporter: Callable[[], Any]) -> None:
    """With the collector at 1 Hz the same load is less than 0.5 % slower; windows alternate against drift."""
    plain, watched = [], []
    for _ in range(5):
        plain += result(start_load(8, {**os.environ}, record=False))["samples"]
        exporter = start_exporter()
        watched += result(start_load(8, {**os.environ}, record=False))["samples"]
        exporter.close()
    cost = statistics.median(watched) / statistics.median(plain) - 1
    print(f"overhead of collection {100 * cost:+.2f} %")
    assert cost < 0.005


def test_capture(tmp_path: Path, gpu_name: str) -> None:
    """`tachograph capture` records this machine; the file is to be committed under tests/captures."""
    out = tmp_path / "capture.json"
    subprocess.run([sys.executable, "-m", "tachograph", "capture", "--out", str(out)], check=True, timeout=60)
    assert gpu_name in out.read_text()
