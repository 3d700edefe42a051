"""Check `memory-bandwidth`: how fast each device copies its own memory, against its peers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from tachograph.preflight.compute import named, slow_peers
from tachograph.preflight.devices import device_name, fastest
from tachograph.preflight.finding import FAIL, Conclusion, Facts, Measurement, PreflightFinding
from tachograph.preflight.site import CPU, PreflightCheck, PreflightSite
from tachograph.preflight.speeds import usual
from tachograph.text.humanize import percent

SIZE, CPU_SIZE = 2**30, 2**26
SAMPLE_SECONDS = 0.1


def measure(site: PreflightSite) -> Facts:
    """Return for each device its name and the bytes per second that a copy reads and writes, and those compared.

    Of a CPU those of its own seconds are compared: what others take of it says nothing about memory.
    """
    import torch

    found = {}
    for device in site.devices:
        size = CPU_SIZE if device == CPU else SIZE
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        copy = partial(torch.empty_like(source).copy_, source)
        bandwidth = compared = 2 * size / fastest(copy, device, least_seconds=SAMPLE_SECONDS)
        if device == CPU:
            compared = 2 * size / fastest(copy, device, least_seconds=SAMPLE_SECONDS, clock=time.process_time)
        found[device] = {"name": device_name(device), "bandwidth": bandwidth, "compared": compared}
    return {"devices": found}


def better(first: Facts, second: Facts) -> Facts:
    """Return the faster of two measurements for each device."""
    devices = first["devices"], second["devices"]
    best = {
        name: {key: max(of[name][key] for of in devices) for key in ("bandwidth", "compared")} for name in devices[0]
    }
    return {"devices": {name: devices[0][name] | one for name, one in best.items()}}


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name the devices whose memory is slower than their peers', but for those that compute slowly anyway."""
    found = {(rank, device): one for rank, of in facts.items() for device, one in of["devices"].items()}
    speeds = {key: one["bandwidth"] for key, one in found.items()}
    compared = {key: one["compared"] for key, one in found.items()}
    late = slow_peers(compared, {key: one["name"] for key, one in found.items()}, site)
    findings = [
        PreflightFinding(
            FAIL,
            f"{named(rank, device, site)} copies its memory at {percent(part)} of its peers' speed",
            "look at its memory clock and at ECC errors; on a CPU at NUMA placement and what else runs",
            (rank,),
        )
        for (rank, device), part in late.items()
    ]
    measured = [
        Measurement("memory_bandwidth_bytes_per_second", value, rank, (("device", device),))
        for (rank, device), value in speeds.items()
    ]
    summary = f"{usual(speeds) / 1e9:,.1f} GB/s, worst {min(speeds.values()) / 1e9:,.1f} GB/s"
    return Conclusion(summary, findings, measured, slow_ranks=frozenset(rank for rank, _ in late))


CHECK = PreflightCheck(
    "memory-bandwidth",
    "memory bandwidth of the devices",
    measure,
    conclude,
    needs_torch=True,
    turns=True,
    better=better,
)
