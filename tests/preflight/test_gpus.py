"""GPUs through NVML: each fault of the simulated library is named, on its GPU, and a healthy node has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.preflight import gpus
from tachograph.preflight.site import PreflightSite
from tachograph.processes.own_process import own_process
from tachograph_lab.fake_nvml.library import GPU_IS_LOST, FakeNvml

MakeSite = Callable[..., PreflightSite]


def read(fake: FakeNvml) -> dict[str, Any]:
    """Return what a process of its own reads from this node."""
    command = own_process("tachograph.preflight.gpu_readings")
    done = subprocess.run(
        command, input="{}", capture_output=True, text=True, check=True, env=os.environ | fake.environment()
    )
    return {"on_pci": 0, "visible": None, "ranks": 0, **json.loads(done.stdout)}


def idle(fake: FakeNvml, count: int = 8) -> None:
    fake.state.count = count
    for gpu in fake.gpus:
        gpu.memory_used = 0


def test_healthy_gpus_have_no_finding(fake: FakeNvml, site: MakeSite) -> None:
    """Eight H100s that nobody uses."""
    idle(fake)
    found = gpus.conclude({0: read(fake)}, site(1, gpus=8))
    assert found.findings == []
    assert found.summary.startswith("8 x NVIDIA H100 80GB HBM3, driver ")


REPLAYED = """
import json, sys
from pathlib import Path
from tachograph_lab.fake_nvml import capture_replay
capture_replay.stand_in(Path(sys.argv[1]))
from tachograph.preflight.gpu_readings import readings
json.dump(readings(), sys.stdout)
"""


def test_a_real_gpu_that_idles_has_no_finding(site: MakeSite) -> None:
    """What an H200 answered, with its driver."""
    capture = Path(__file__).parents[1] / "captures/nvidia-h200__580.159.04.json"
    command = [sys.executable, "-c", REPLAYED, capture]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = gpus.conclude({0: {"on_pci": 1, "visible": None, "ranks": 0, **json.loads(done.stdout)}}, site(1))
    assert found.summary == "1 x NVIDIA H200, driver 580.159.04"
    assert [(one.severity, one.what) for one in found.findings] == []


def test_each_fault_is_named_on_its_gpu(fake: FakeNvml, site: MakeSite) -> None:
    """One for each GPU; the last two are in order."""
    idle(fake, 16)
    fake.gpus[13].clock_events = 1 << 1
    texts = {
        0: "the driver asks for recovery: gpu_reset",
        1: "a memory row could not be replaced",
        2: "a memory repair is pending",
        3: "its SRAM has had more errors than the vendor allows",
        4: "3 uncorrected memory errors since it started",
        5: "NVLinks up 17, the others 18",
        6: "PCIe x8 instead of x16",
        7: "it is throttled by heat (hardware slowdown)",
        8: "it is throttled by the power brake of the node",
        9: "95 °C, where it slows down",
        10: "its power limit is 400 W, by default 700 W",
        11: "40.0 GiB of its memory are in use already by 1 process: 4242",
        12: "GPU is lost",
        13: "its clocks are limited by a setting",
    }
    fake.gpus[0].recovery_action = 1
    fake.field(1, 145, 1)
    fake.field(2, 144, 1)
    fake.gpus[3].sram_threshold = 1
    fake.field(4, 4, 3)
    fake.field(5, 165, 0, scope=7)
    fake.gpus[6].pcie[1] = 8
    fake.gpus[7].clock_events = 1 << 6
    fake.gpus[8].clock_events = 1 << 7
    fake.gpus[9].temperature[0] = 95
    fake.gpus[10].power_limit = 400_000
    fake.gpus[11].memory_used = 40 << 30
    fake.gpus[11].process_id = 4242
    fake.gpus[12].error = GPU_IS_LOST
    found = gpus.conclude({0: read(fake)}, site(1))
    named = {one.what.partition(": ")[0]: one for one in found.findings}
    assert {gpu: one.what.partition(": ")[2] for gpu, one in named.items()} == {
        f"GPU {index} of node a": text for index, text in texts.items()
    }
    assert len(found.findings) == len(texts)
    assert {gpu for gpu, one in named.items() if one.severity == "warn"} == {"GPU 10 of node a", "GPU 13 of node a"}
    assert named["GPU 2 of node a"].then == "drain the node and reset the GPU: nvidia-smi --gpu-reset -i 2"


def test_a_gpu_that_is_not_like_the_others_is_named(fake: FakeNvml, site: MakeSite) -> None:
    """Its product and its clocks, among those of two nodes."""
    idle(fake)
    right = read(fake)
    fake.gpus[3].name = b"NVIDIA H100 PCIe"
    fake.gpus[3].max_clocks[1] = 1755
    found = gpus.conclude({0: right, 4: read(fake)}, site(8)).findings
    assert [one.what for one in found] == [
        "GPU 3 of node b: product NVIDIA H100 PCIe, the others NVIDIA H100 80GB HBM3",
        "GPU 3 of node b: highest SM clock 1755 MHz, the others 1980 MHz",
    ]
    assert {one.ranks for one in found} == {(4,)}


@pytest.mark.parametrize(
    ("given", "options", "what"),
    [
        ({"count": 7}, {"gpus": 8}, "node a has 7 of 8 GPUs"),
        ({"ranks": 8, "visible": 1, "count": 4}, {}, "node a has 8 ranks for 4 GPUs that they may use"),
        ({"ranks": 8, "visible": 4, "count": 8}, {}, "node a has 8 ranks for 4 GPUs that they may use"),
        ({"absent": "no NVIDIA driver", "count": 0, "on_pci": 8}, {}, "no driver on node a: no NVIDIA driver"),
        ({"absent": "no NVIDIA driver", "count": 0}, {"gpus": 8}, "no driver on node a: no NVIDIA driver"),
        ({"late": True, "count": 0, "on_pci": 8}, {}, "NVML does not answer on node a"),
    ],
)
def test_what_is_wrong_with_the_node(site: MakeSite, given: dict[str, Any], options: dict[str, Any], what: str) -> None:
    """Too few GPUs, no driver, too many ranks."""
    one = {"index": 0, "name": "H100", "failure": "", "values": {}, "pids": []}
    facts = {"absent": "", "driver": "580", "on_pci": 0, "visible": None, "ranks": 0, **given}
    facts["gpus"] = [one | {"index": index} for index in range(facts.pop("count"))]
    assert [finding.what for finding in gpus.conclude({0: facts}, site(1, **options)).findings] == [what]


def test_gpus_of_the_machine_that_a_container_was_not_given_are_no_fault(site: MakeSite) -> None:
    """PCI shows them all; where there is no driver at all it is worth a warning."""
    one = {"index": 0, "name": "H100", "failure": "", "values": {}, "pids": []}
    facts = {"absent": "", "driver": "580", "gpus": [one], "on_pci": 8, "visible": None, "ranks": 0}
    found = gpus.conclude({0: facts}, site(1))
    assert (found.findings, found.summary) == ([], "1 x H100, driver 580 (8 are plugged in)")
    found = gpus.conclude({0: facts | {"absent": "no NVIDIA driver", "gpus": []}}, site(1))
    assert [one.severity for one in found.findings] == ["warn"]


def test_a_machine_without_gpus_is_skipped(site: MakeSite) -> None:
    """Unless GPUs are asked for."""
    facts = {"absent": "no NVIDIA driver", "driver": "", "gpus": [], "on_pci": 0, "visible": None, "ranks": 0}
    assert gpus.conclude({0: facts}, site(1)).skipped == "there is no NVIDIA driver and no NVIDIA GPU on PCI"
