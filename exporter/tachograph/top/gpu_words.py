"""What is wrong with a GPU, in words."""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.catalog import index as c

THERMAL, POWER_BRAKE, POWER_CAP = "thermal", "power brake", "power cap"


def cause(reason: str) -> str:
    """Return what an NVML reason for low clocks comes to, as prometheus/rules/gpu.yml sorts it; empty: no slowdown."""
    if "thermal" in reason:
        return THERMAL
    return POWER_CAP if reason == "sw_power_cap" else POWER_BRAKE if reason.startswith("hw_power_") else ""


def trouble(name: str, labels: Mapping[str, str], value: float) -> str:
    """Return what a sample says is wrong: it cannot be read, the driver asks for something, an Xid of its own."""
    if name == c.GPU_UNAVAILABLE.name:
        return labels["reason"].replace("_", " ")
    if name == c.GPU_RECOVERY_ACTION.name and value == 1 and labels["action"] != "none":
        return f"needs {labels['action'].replace('_', ' ')}"
    if name == c.GPU_XID_INFO.name and labels["action"] not in {"application", "ignore"}:
        return f"Xid {labels['xid']}"
    return ""
