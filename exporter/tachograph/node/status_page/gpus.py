"""The GPUs on the status page: a row for each, and their problems."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tachograph.humanize import age, celsius, gibibytes, percent, plural, watts
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import GpuIdentity, GpuSnapshot
from tachograph.node.status_page.html import ABSENT, Cell, bar, name, note, of, plain, shown, state
from tachograph.node.status_page.problems import BLIND, BROKEN_GPU, SLOWED, WORN, NodeProblem

HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost", "sw_power_cap"})
"""Reasons for lower clocks that are not a problem: a power cap is normal at full load."""
RANKS_NAMED = 8


class GpuStatus:
    """A GPU with the readings of the last collection."""

    def __init__(self, identity: GpuIdentity, snapshot: GpuSnapshot | None) -> None:
        self.identity = identity
        samples = snapshot.samples if snapshot is not None else ()
        self._own = [sample for sample in samples if sample.labels[:2] == (identity.index, identity.uuid)]
        self._values = {(sample.metric.name, *sample.labels[2:]): sample.value for sample in self._own}

    def value(self, metric: Metric, *own: str) -> float | None:
        """Return a reading, given its label values after gpu and uuid."""
        return self._values.get((metric.name, *own))

    def labels(self, metric: Metric) -> Iterator[tuple[str, ...]]:
        """Yield the label values after gpu and uuid of each of its samples of a family."""
        return (sample.labels[2:] for sample in self._own if sample.metric is metric)

    def held(self) -> list[str]:
        """Return why its clocks are held down, the harmless reasons too."""
        return [reason for reason in catalog.CLOCK_EVENT_REASONS if self.value(catalog.GPU_CLOCK_EVENT, reason)]

    def problems(self) -> Iterator[NodeProblem]:
        """Yield what is wrong with it, in a few words each."""
        if self.value(catalog.GPU_UP) == 0:
            yield NodeProblem(BROKEN_GPU, "GPU", ": ".join(("cannot be read", *self._reasons())))
        yield from self._faults()

    def _reasons(self) -> list[str]:
        return [plain(reason.replace("_", " ")) for (reason,) in self.labels(catalog.GPU_UNAVAILABLE)]

    def _faults(self) -> Iterator[NodeProblem]:
        """Yield its problems other than that it cannot be read."""
        for (action,) in self.labels(catalog.GPU_RECOVERY_ACTION):
            if action != "none":
                yield NodeProblem(BROKEN_GPU, "GPU", f"the driver recommends: {plain(action.replace('_', ' '))}")
        for xid, action, meaning in self.labels(catalog.GPU_XID_INFO):
            if action not in diagnosis.XID_OF_PROGRAM:
                yield NodeProblem(BROKEN_GPU, "GPU", f"had Xid {plain(xid)} ({plain(meaning)}): {plain(action)}")
        yield from self._slowed()
        yield from self._worn()

    def _slowed(self) -> Iterator[NodeProblem]:
        held = [reason for reason in self.held() if reason not in HARMLESS]
        if held:
            degrees = self.value(catalog.GPU_TEMPERATURE, "gpu")
            is_hot = diagnosis.THERMAL in map(diagnosis.slowdown_cause, held)
            heat = f" at {celsius(degrees)}" if degrees is not None and is_hot else ""
            yield NodeProblem(SLOWED, "GPU", f"clocks held down{heat}: {', '.join(held).replace('_', ' ')}")
        links, active = self.value(catalog.GPU_NVLINK_LINKS), self.value(catalog.GPU_NVLINK_LINKS_ACTIVE)
        if links is not None and active is not None and 0 < active < links:
            yield NodeProblem(SLOWED, "GPU", f"{links - active:.0f} of {links:.0f} NVLink links are down")

    def _worn(self) -> Iterator[NodeProblem]:
        errors = self.value(catalog.GPU_ECC_ERRORS, "uncorrected", "volatile")
        if errors and math.isfinite(errors):
            yield NodeProblem(WORN, "GPU", f"{plural(errors, 'uncorrected ECC error')} since the driver was loaded")
        for metric, text in (
            (catalog.GPU_ROW_REMAP_FAILED, "a memory row could not be remapped: return the board"),
            (catalog.GPU_ROW_REMAP_PENDING, "a memory row will be remapped at the next reset"),
            (catalog.GPU_RETIREMENT_PENDING, "a memory page will be retired at the next reset"),
            (catalog.GPU_SRAM_THRESHOLD, "more SRAM errors than the vendor allows: return the board"),
        ):
            if self.value(metric):
                yield NodeProblem(WORN, "GPU", text)

    def row(self, ranks: Sequence[Rank]) -> list[Cell]:
        """Return the GPU's row of the table."""
        active, tensor = self.value(catalog.GPU_SM_ACTIVE), self.value(catalog.GPU_TENSOR_ACTIVE)
        kernels = self.value(catalog.GPU_UTILIZATION)
        activity = shown(active if active is not None else kernels, lambda share: f"{percent(share)}{bar(share)}")
        finer = [f"tensor {percent(tensor)}"] if tensor is not None else []
        finer += [f"kernels {percent(kernels)}"] if active is not None and kernels is not None else []
        used, total = self.value(catalog.GPU_MEMORY_USED), self.value(catalog.GPU_MEMORY_TOTAL)
        uuid = f'<span class="why uuid">{plain(self.identity.uuid)}</span>'
        memory = shown(used, _gib) + of(total, _gib)
        if used is not None and total:
            memory += bar(used / total)
        power, limit = self.value(catalog.GPU_POWER), self.value(catalog.GPU_POWER_LIMIT)
        heat = shown(self.value(catalog.GPU_TEMPERATURE, "gpu"), celsius)
        if (inner := self.value(catalog.GPU_TEMPERATURE, "memory")) is not None:
            heat += note(f"memory {celsius(inner)}")
        up = self.value(catalog.GPU_UP)
        look = ABSENT if up is None else state("good", "readable") if up else state("bad", "cannot be read")
        notes = self._reasons() + [problem.html for problem in self._faults()]
        if harmless := [reason for reason in self.held() if reason in HARMLESS]:
            notes.append(f"clocks: {', '.join(harmless).replace('_', ' ')}")
        return [
            Cell("GPU", "n", plain(self.identity.index)),
            Cell("Name", "wide", plain(self.identity.name) + uuid),
            Cell("State", "", look + "".join(map(note, notes))),
            Cell("Rank", "ranks-of-gpu", _named(ranks)),
            Cell("Activity", "n", activity + "".join(map(note, finer))),
            Cell("Memory", "n", memory),
            Cell("Temperature", "n", heat),
            Cell("Power", "n", shown(power, watts) + of(limit, watts)),
        ]  # fmt: skip


def _gib(size: float) -> str:
    return f"{gibibytes(size)} GiB"


def _named(ranks: Sequence[Rank]) -> str:
    lines = [f"{name(rank.key[0])} {rank.key[1]}" for rank in ranks[:RANKS_NAMED]]
    more = len(ranks) - RANKS_NAMED
    return "<br>".join(lines + ([f"and {more:,} more"] if more > 0 else [])) or ABSENT


def of_gpus(gpus: Sequence[GpuStatus], snapshot: GpuSnapshot | None, now: float) -> Iterator[NodeProblem]:
    """Yield the problems of GPUs and of reading them; each names its GPU."""
    if snapshot is not None and gpus:
        seconds = now - snapshot.monotonic
        if not snapshot.ok:
            yield NodeProblem(BLIND, "GPUs", f"No readings: {plain(snapshot.reason, 160)}")
        elif seconds > diagnosis.READINGS_STALE_SECONDS:
            yield NodeProblem(
                BLIND, "GPUs", f"The readings below are {age(seconds)} old: a driver call has not returned."
            )
    for gpu in gpus:
        for order, kind, html in gpu.problems():
            yield NodeProblem(order, f"{kind} {plain(gpu.identity.index)}", f"{html[:1].upper()}{html[1:]}.")
