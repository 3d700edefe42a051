"""Check `gpus`: count, health, pending repairs, clocks, links, power and thermal limits, through NVML."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tachograph.catalog.gpu import RECOVERY_ACTIONS
from tachograph.preflight import limited
from tachograph.preflight.finding import FAIL, WARN, Conclusion, Facts, PreflightFinding, skip
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.preflight.speeds import minority
from tachograph.text.humanize import gibibytes, listed, plural

Values: TypeAlias = Mapping[str, float]

IN_USE = 2**30
"""A GPU that nobody uses has less in use, beside what the driver reserves."""

PCI = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY = "0x10de", ("0x0300", "0x0302")
"""Vendor id, and the classes of VGA and 3D controllers."""

RESET = "drain the node and reset the GPU: nvidia-smi --gpu-reset -i N"
REPLACE = "drain the node and have the GPU replaced"
LOOK = "nvidia-smi -q on the node, and docs/gpus.md"


@dataclass(frozen=True)
class GpuRule:
    """A state that must not be: the text and what to do for a GPU whose readings make `broken` true.

    A reading that is missing is no fault: `broken` is asked only if all of `needs` are there.
    """

    needs: tuple[str, ...]
    broken: Callable[[Values], bool]
    what: Callable[[Values], str]
    then: str
    severity: str = FAIL


def _above(name: str, text: str, then: str, *, severity: str = FAIL) -> GpuRule:
    """Return the rule that a count or a flag is 0; `{}` in the text is the count."""
    return GpuRule(
        (name,), lambda values: values[name] > 0, lambda values: text.format(f"{values[name]:,.0f}"), then, severity
    )


def _held(reason: str, text: str) -> GpuRule:
    return _above(f"gpu_clock_event_active{{{reason}}}", f"it is throttled by {text}", LOOK)


RULES: tuple[GpuRule, ...] = (
    *(
        _above(f"gpu_recovery_action{{{action}}}", f"the driver asks for recovery: {action}", RESET)
        for action in RECOVERY_ACTIONS
        if action != "none"
    ),
    _above("gpu_row_remap_failed", "a memory row could not be replaced", REPLACE),
    _above("gpu_row_remap_pending", "a memory repair is pending", RESET),
    _above("gpu_retirement_pending", "a memory page waits to be retired", RESET),
    _above("gpu_ecc_sram_threshold_exceeded", "its SRAM has had more errors than the vendor allows", REPLACE),
    _above("gpu_ecc_errors_total{uncorrected,volatile}", "{} uncorrected memory errors since it started", RESET),
    GpuRule(
        ("gpu_fabric_ready",),
        lambda values: values["gpu_fabric_ready"] == 0,
        lambda _: "it is not registered with the NVLink fabric",
        "systemctl status nvidia-fabricmanager",
    ),
    GpuRule(
        ("gpu_pcie_link_width", "gpu_pcie_link_width_max"),
        lambda values: values["gpu_pcie_link_width"] < values["gpu_pcie_link_width_max"],
        lambda values: f"PCIe x{values['gpu_pcie_link_width']:.0f} instead of x{values['gpu_pcie_link_width_max']:.0f}",
        "reseat the board or its riser",
    ),
    _held("hw_thermal_slowdown", "heat (hardware slowdown)"),
    _held("sw_thermal_slowdown", "heat (software slowdown)"),
    _held("hw_power_brake_slowdown", "the power brake of the node"),
    GpuRule(
        ("gpu_temperature_celsius{gpu}", "gpu_temperature_threshold_celsius{slowdown}"),
        lambda values: values["gpu_temperature_celsius{gpu}"] >= values["gpu_temperature_threshold_celsius{slowdown}"],
        lambda values: f"{values['gpu_temperature_celsius{gpu}']:.0f} °C, where it slows down",
        "look at fans, airflow and coolant",
    ),
    GpuRule(
        ("gpu_power_limit_watts", "gpu_power_limit_bound_watts{default}"),
        lambda values: values["gpu_power_limit_watts"] < values["gpu_power_limit_bound_watts{default}"],
        lambda values: f"its power limit is {values['gpu_power_limit_watts']:.0f} W, by default "
        f"{values['gpu_power_limit_bound_watts{default}']:.0f} W",
        "nvidia-smi -pl, unless that is on purpose",
        WARN,
    ),
    _above(
        "gpu_clock_event_active{applications_clocks_setting}",
        "its clocks are limited by a setting",
        "nvidia-smi -rac and -rgc, unless that is on purpose",
        severity=WARN,
    ),
    GpuRule(
        ("gpu_mode_enabled{persistence}",),
        lambda values: values["gpu_mode_enabled{persistence}"] == 0,
        lambda _: "persistence mode is off: the driver is loaded again for each program",
        "systemctl enable --now nvidia-persistenced",
        WARN,
    ),
    GpuRule(
        ("gpu_memory_used_bytes",),
        lambda values: values["gpu_memory_used_bytes"] > IN_USE,
        lambda values: f"{gibibytes(values['gpu_memory_used_bytes'])} GiB of its memory are in use already",
        "nvidia-smi, and end what an earlier job left there",
    ),
)  # fmt: skip

ALIKE: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("gpu_memory_total_bytes", "memory", lambda value: f"{gibibytes(value)} GiB"),
    ("gpu_clock_max_hertz{sm}", "highest SM clock", lambda value: f"{value / 1e6:.0f} MHz"),
    ("gpu_clock_max_hertz{memory}", "highest memory clock", lambda value: f"{value / 1e6:.0f} MHz"),
    ("gpu_pcie_link_generation_max", "PCIe generation", lambda value: f"{value:.0f}"),
    ("gpu_nvlink_links_active", "NVLinks up", lambda value: f"{value:.0f}"),
    ("gpu_mode_enabled{ecc}", "ECC", lambda value: "on" if value else "off"),
    ("gpu_mode_enabled{mig}", "MIG", lambda value: "on" if value else "off"),
)
"""Readings that all GPUs of a run should share, their name, and how a person reads them.

NVLinks are among them because not every link of a part is wired: how many should be up, the other GPUs say.
"""

Gpu: TypeAlias = tuple[int, int]
"""A GPU: the rank that read it, and its index."""


def measure(site: PreflightSite) -> Facts:
    """Return what one process of each node reads from NVML, in a process of its own."""
    if site.local_rank:
        return {}
    try:
        found = limited.in_process("gpu_readings", {}, site.options.limit * 0.9)
    except limited.Late:
        found = {"late": True, "absent": "", "driver": "", "gpus": []}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found | {
        "on_pci": on_pci(),
        "visible": None if visible is None else len([part for part in visible.split(",") if part.strip()]),
        "ranks": site.local_world_size if site.under_launcher and site.device != "cpu" else 0,
    }


def on_pci() -> int:
    """Return how many NVIDIA GPUs are plugged in, whether or not a driver serves them."""
    count = 0
    for device in PCI.glob("*"):
        try:
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
            kind = (device / "class").read_text(encoding="ascii").strip()
        except OSError:
            continue
        count += vendor == NVIDIA and kind.startswith(DISPLAY)
    return count


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name each GPU with what is wrong with it, and each node that lacks some."""
    nodes = {rank: one for rank, one in facts.items() if one}
    if site.options.gpus is None and all(one["absent"] and not one["on_pci"] for one in nodes.values()):
        return skip("there is no NVIDIA driver and no NVIDIA GPU on PCI")
    findings = [finding for rank, one in nodes.items() for finding in _node(rank, one, site)]
    gpus: dict[Gpu, Mapping[str, Any]] = {
        (rank, gpu["index"]): gpu for rank, one in nodes.items() for gpu in one["gpus"] if not gpu["failure"]
    }
    findings += [finding for key, gpu in gpus.items() for finding in _one(key, gpu, site)]
    findings += _unlike(gpus, site)
    counts = sorted({len(one["gpus"]) for one in nodes.values()})
    names = sorted({gpu["name"] for gpu in gpus.values()})
    drivers = sorted({one["driver"] for one in nodes.values() if one["driver"]})
    plugged = max(one["on_pci"] for one in nodes.values())
    more = f" ({plugged} are plugged in)" if plugged > max(counts) else ""
    summary = f"{'-'.join(map(str, counts))} x {listed(names) or 'no GPU'}, driver {listed(drivers) or 'absent'}{more}"
    return Conclusion(summary, findings)


def _node(rank: int, one: Facts, site: PreflightSite) -> Iterator[PreflightFinding]:
    where, ranks = _where(rank, site), (rank,)
    count, expected = len(one["gpus"]), site.options.gpus
    if one.get("late"):
        yield PreflightFinding(
            FAIL, f"NVML does not answer on {where}", "dmesg there; a GPU or its driver hangs", ranks
        )
        return
    if one["absent"]:
        then = "load the driver, or give the container its GPUs: docker run --gpus all"
        severity = FAIL if expected is not None else WARN  # a container without GPUs sees those of its machine on PCI
        yield PreflightFinding(severity, f"no driver on {where}: {one['absent']}", then, ranks)
        return
    if one.get("failure"):
        yield PreflightFinding(FAIL, f"the GPUs of {where} cannot be listed: {one['failure']}", LOOK, ranks)
        return
    for gpu in one["gpus"]:
        if gpu["failure"]:
            yield PreflightFinding(FAIL, f"GPU {gpu['index']} of {where}: {gpu['failure']}", RESET, ranks)
    if expected is not None and count < expected:
        yield PreflightFinding(
            FAIL, f"{where} has {count} of {plural(expected, 'GPU')}", "dmesg | grep -i nvrm there", ranks
        )
    visible = one["visible"]
    shown = count if visible in (None, 1) else min(count, visible)  # 1: the scheduler shows each rank its own
    if one["ranks"] > shown > 0:
        what = f"{where} has {plural(one['ranks'], 'rank')} for {plural(shown, 'GPU')} that they may use"
        yield PreflightFinding(FAIL, what, "start fewer ranks, or look at CUDA_VISIBLE_DEVICES", ranks)


def _where(rank: int, site: PreflightSite) -> str:
    return f"node {site.node_of.get(rank, site.node)}"


def _one(key: Gpu, gpu: Mapping[str, Any], site: PreflightSite) -> Iterator[PreflightFinding]:
    values: Values = gpu["values"]
    for rule in RULES:
        if all(name in values for name in rule.needs) and rule.broken(values):
            what = f"GPU {key[1]} of {_where(key[0], site)}: {rule.what(values)}"
            if rule.needs == ("gpu_memory_used_bytes",) and gpu["pids"]:
                what += f" by {plural(len(gpu['pids']), 'process', 'processes')}: {listed(list(map(str, gpu['pids'])))}"
            yield PreflightFinding(rule.severity, what, rule.then.replace("-i N", f"-i {key[1]}"), (key[0],))


def _unlike(gpus: Mapping[Gpu, Mapping[str, Any]], site: PreflightSite) -> Iterator[PreflightFinding]:
    readings: Sequence[tuple[str, dict[Gpu, str]]] = [
        ("product", {key: gpu["name"] for key, gpu in gpus.items()}),
        ("VBIOS", {key: gpu["vbios"] for key, gpu in gpus.items() if gpu.get("vbios")}),
        *(
            (word, {key: shown(gpu["values"][name]) for key, gpu in gpus.items() if name in gpu["values"]})
            for name, word, shown in ALIKE
        ),
    ]
    for word, values in readings:
        odd = minority(values)
        usual = sorted(set(values.values()) - set(odd))
        for value, keys in sorted(odd.items()):
            where = listed([f"GPU {index} of {_where(rank, site)}" for rank, index in keys])
            others = f", the others {usual[0]}" if usual else ""
            severity = WARN if word == "VBIOS" else FAIL
            what = f"{where}: {word} {value}{others}"
            ranks = tuple(sorted({rank for rank, _ in keys}))
            yield PreflightFinding(severity, what, "make them alike, or leave the node out", ranks)


CHECK = PreflightCheck("gpus", "GPUs through NVML", measure, conclude)
