"""Check `memory`: whether the model fits a device, and which term does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tachograph.preflight import limited
from tachograph.preflight.finding import FAIL, WARN, Conclusion, Facts, PreflightFinding, skip
from tachograph.preflight.model_memory import RESERVE, MemoryTerm, budget, planned_model
from tachograph.preflight.options import PreflightOptions
from tachograph.preflight.site import CPU, PreflightCheck, PreflightSite
from tachograph.text.humanize import gibibytes

TIGHT = 0.9
"""Above this share fragmentation alone makes a run end sooner or later."""

CGROUPS = Path("/sys/fs/cgroup")


def _missing(options: PreflightOptions) -> str:
    named = options.model_config, options.parameters, options.layers, options.hidden, options.heads, options.vocabulary
    return "" if any(named) else "give the model: --model-config FILE, its shape, or --parameters"


def measure(site: PreflightSite) -> Facts:
    """Return the bytes of this rank's device, of all GPUs the smallest: a GPU's memory, or its share of the host's."""
    if site.options.device_memory is not None:
        return {"capacity": site.options.device_memory, "of": "as given"}
    if site.device != CPU:
        import torch

        sizes = [torch.cuda.get_device_properties(device).total_memory for device in site.devices]
        return {"capacity": min(sizes), "of": "of the GPU"}
    if site.torch_problem and (of_gpus := _of_gpus(site)):
        return {"capacity": min(of_gpus), "of": "of the GPU"}
    return {"capacity": host_memory() / site.local_world_size, "of": "of the host, for each rank"}


def _of_gpus(site: PreflightSite) -> list[float]:
    try:
        found = limited.in_process("gpu_readings", {}, site.options.limit / 2)
    except (limited.Late, RuntimeError):
        return []
    return [
        one["values"]["gpu_memory_total_bytes"] for one in found["gpus"] if "gpu_memory_total_bytes" in one["values"]
    ]


def host_memory() -> float:
    """Return the bytes that this process may still take: what is available, and what its cgroup leaves."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([available, *_left_by_cgroups()])


def _left_by_cgroups() -> list[int]:
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()[-1].partition("::")[2].strip("/")
    except (OSError, IndexError):
        return []
    left = []
    folder = CGROUPS / own
    for place in [folder, *folder.parents]:
        if not place.is_relative_to(CGROUPS):
            break
        try:
            most = (place / "memory.max").read_text(encoding="ascii").strip()
            used = int((place / "memory.current").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if most.isdecimal():
            left.append(max(int(most) - used, 0))
    return left


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Say whether the budget fits the smallest device, and if not which term is too much."""
    options = site.options
    smallest = min(facts, key=lambda rank: facts[rank]["capacity"])
    capacity = facts[smallest]["capacity"]
    on_host = facts[smallest]["of"].startswith("of the host")
    reserve = options.reserve if options.reserve is not None else 0.0 if on_host else float(RESERVE)
    try:
        model = planned_model(options)
        terms = budget(model, options, site.world_size, reserve) if model is not None else []
    except ValueError as error:
        return Conclusion("", [PreflightFinding(FAIL, str(error), "see tachograph preflight --help")])
    if not terms:
        return skip("give the model: --model-config FILE, its shape, or --parameters")
    total = sum(term.size for term in terms)
    summary = f"{listing(terms)}: {gibibytes(total)} of {gibibytes(capacity)} GiB {facts[smallest]['of']}"
    where = f" on {site.who([smallest])}" if len({one["capacity"] for one in facts.values()}) > 1 else ""
    before = 0.0
    for term in terms:
        if before + term.size > capacity:
            what = (
                f"the model does not fit{where}: {term.name} take {gibibytes(term.size)} GiB, and "
                f"{gibibytes(max(capacity - before, 0))} of {gibibytes(capacity)} GiB are left for them"
            )
            return Conclusion(summary, [PreflightFinding(FAIL, what, term.remedy)])
        before += term.size
    if total > TIGHT * capacity:
        largest = max(terms, key=lambda term: term.size)
        what = f"the model takes {total / capacity:.0%} of the memory{where}, most of it {largest.name}"
        return Conclusion(summary, [PreflightFinding(WARN, what, largest.remedy)])
    return Conclusion(summary)


def listing(terms: Sequence[MemoryTerm]) -> str:
    """Return the terms with their sizes in GiB."""
    return " + ".join(f"{term.name} {gibibytes(term.size)}" for term in terms)


CHECK = PreflightCheck("memory", "memory that the model needs", measure, conclude, _missing)
