"""The GPUs on the status page: a row for each."""

from __future__ import annotations

from collections.abc import Sequence

from tachograph.catalog import index as catalog
from tachograph.node.api.problems import REASON_LENGTH
from tachograph.node.api.runs import RankAnswer
from tachograph.node.gpu.conclusions.gpu_status import HARMLESS, GpuStatus
from tachograph.node.status_page.html import ABSENT, Cell, bar, name, note, of, plain, shown, state
from tachograph.text.humanize import celsius, gibibytes, percent, watts

RANKS_NAMED = 8


def gpu_row(gpu: GpuStatus, ranks: Sequence[tuple[str, RankAnswer]]) -> list[Cell]:
    """Return the GPU's row of the table."""
    active, tensor = gpu.value(catalog.GPU_SM_ACTIVE), gpu.value(catalog.GPU_TENSOR_ACTIVE)
    kernels = gpu.value(catalog.GPU_UTILIZATION)
    activity = shown(active if active is not None else kernels, lambda share: f"{percent(share)}{bar(share)}")
    finer = [f"tensor {percent(tensor)}"] if tensor is not None else []
    finer += [f"kernels {percent(kernels)}"] if active is not None and kernels is not None else []
    used, total = gpu.value(catalog.GPU_MEMORY_USED), gpu.value(catalog.GPU_MEMORY_TOTAL)
    uuid = f'<span class="why uuid">{plain(gpu.identity.uuid)}</span>'
    memory = shown(used, _gib) + of(total, _gib)
    if used is not None and total:
        memory += bar(used / total)
    power, limit = gpu.value(catalog.GPU_POWER), gpu.value(catalog.GPU_POWER_LIMIT)
    heat = shown(gpu.value(catalog.GPU_TEMPERATURE, "gpu"), celsius)
    if (inner := gpu.value(catalog.GPU_TEMPERATURE, "memory")) is not None:
        heat += note(f"memory {celsius(inner)}")
    up = gpu.value(catalog.GPU_UP)
    look = ABSENT if up is None else state("good", "readable") if up else state("bad", "cannot be read")
    notes = [plain(text, REASON_LENGTH) for text in (*gpu.reasons(), *(fault for _, fault in gpu.faults()))]
    if harmless := [reason for reason in gpu.held() if reason in HARMLESS]:
        notes.append(f"clocks: {', '.join(harmless).replace('_', ' ')}")
    return [
        Cell("GPU", "n", plain(gpu.identity.index)),
        Cell("Name", "wide", plain(gpu.identity.name) + uuid),
        Cell("State", "", look + "".join(map(note, notes))),
        Cell("Rank", "ranks-of-gpu", _named(ranks)),
        Cell("Activity", "n", activity + "".join(map(note, finer))),
        Cell("Memory", "n", memory),
        Cell("Temperature", "n", heat),
        Cell("Power", "n", shown(power, watts) + of(limit, watts)),
    ]  # fmt: skip


def _gib(size: float) -> str:
    return f"{gibibytes(size)} GiB"


def _named(ranks: Sequence[tuple[str, RankAnswer]]) -> str:
    lines = [f"{name(run)} {rank.rank}" for run, rank in ranks[:RANKS_NAMED]]
    more = len(ranks) - RANKS_NAMED
    return "<br>".join(lines + ([f"and {more:,} more"] if more > 0 else [])) or ABSENT
