"""The GPUs on the landing page: a row for each, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import GpuIdentity, GpuSnapshot
from tachograph.node.status_page.html import (
    ABSENT,
    Cell,
    ago,
    bar,
    celsius,
    counted,
    gib,
    name,
    of,
    plain,
    shown,
    state,
    watts,
    why,
)
from tachograph.node.status_page.problems import BLIND, BROKEN_GPU, SLOWED, WORN, Trouble

HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost", "sw_power_cap"})
"""Reasons for lower clocks that are no trouble: a power cap is normal at full load."""
STALE_SECONDS = 60.0
RANKS_NAMED = 8


class Gpu:
    """A GPU with what the last collection says of it."""

    def __init__(self, identity: GpuIdentity, snapshot: GpuSnapshot | None) -> None:
        self.identity = identity
        samples = snapshot.samples if snapshot is not None else ()
        self._own = [sample for sample in samples if sample.labels[:2] == (identity.index, identity.uuid)]
        self._values = {(sample.metric.name, *sample.labels[2:]): sample.value for sample in self._own}

    def value(self, metric: Metric, *own: str) -> float | None:
        """Return a reading, given its label values after gpu and uuid."""
        return self._values.get((metric.name, *own))

    def labels(self, metric: Metric) -> Iterator[tuple[str, ...]]:
        """Yield the label values after gpu and uuid of all that the GPU has of a family."""
        return (sample.labels[2:] for sample in self._own if sample.metric is metric)

    def held(self) -> list[str]:
        """Return why its clocks are held down, the harmless reasons too."""
        return [reason for reason in catalog.CLOCK_EVENT_REASONS if self.value(catalog.GPU_CLOCK_EVENT, reason)]

    def troubles(self) -> Iterator[Trouble]:
        """Yield what is wrong with it, in a few words each."""
        if self.value(catalog.GPU_UP) == 0:
            yield Trouble(BROKEN_GPU, "GPU", ": ".join(("cannot be read", *self._reasons())))
        yield from self._ills()

    def _reasons(self) -> list[str]:
        return [plain(reason.replace("_", " ")) for (reason,) in self.labels(catalog.GPU_UNAVAILABLE)]

    def _ills(self) -> Iterator[Trouble]:
        """Yield what is wrong with it beside that it cannot be read."""
        for (action,) in self.labels(catalog.GPU_RECOVERY_ACTION):
            if action != "none":
                yield Trouble(BROKEN_GPU, "GPU", f"the driver asks for: {plain(action.replace('_', ' '))}")
        for xid, action, meaning in self.labels(catalog.GPU_XID_INFO):
            if action not in {"application", "ignore"}:
                yield Trouble(BROKEN_GPU, "GPU", f"had Xid {plain(xid)} ({plain(meaning)}): {plain(action)}")
        yield from self._slowed()
        yield from self._worn()

    def _slowed(self) -> Iterator[Trouble]:
        held = [reason for reason in self.held() if reason not in HARMLESS]
        if held:
            degrees = self.value(catalog.GPU_TEMPERATURE, "gpu")
            hot = f" at {degrees:.0f} °C" if degrees is not None and any("thermal" in reason for reason in held) else ""
            yield Trouble(SLOWED, "GPU", f"clocks held down{hot}: {', '.join(held).replace('_', ' ')}")
        links, active = self.value(catalog.GPU_NVLINK_LINKS), self.value(catalog.GPU_NVLINK_LINKS_ACTIVE)
        if links is not None and active is not None and 0 < active < links:
            yield Trouble(SLOWED, "GPU", f"{links - active:.0f} of {links:.0f} NVLink links are down")

    def _worn(self) -> Iterator[Trouble]:
        errors = self.value(catalog.GPU_ECC_ERRORS, "uncorrected", "volatile")
        if errors and math.isfinite(errors):
            yield Trouble(WORN, "GPU", f"{counted(int(errors), 'uncorrected ECC error')} since the driver was loaded")
        for metric, words in (
            (catalog.GPU_ROW_REMAP_FAILED, "a memory row could not be replaced: return the board"),
            (catalog.GPU_ROW_REMAP_PENDING, "a memory row waits for a reset to be replaced"),
            (catalog.GPU_RETIREMENT_PENDING, "a memory page waits for a reset to be retired"),
            (catalog.GPU_SRAM_THRESHOLD, "more SRAM errors than the vendor allows: return the board"),
        ):
            if self.value(metric):
                yield Trouble(WORN, "GPU", words)

    def row(self, ranks: Sequence[Rank]) -> list[Cell]:
        """Return the GPU's row of the table."""
        active, tensor = self.value(catalog.GPU_SM_ACTIVE), self.value(catalog.GPU_TENSOR_ACTIVE)
        kernels = self.value(catalog.GPU_UTILIZATION)
        activity = shown(active if active is not None else kernels, lambda share: f"{share:.0%}{bar(share)}")
        finer = [f"tensor {tensor:.0%}"] if tensor is not None else []
        finer += [f"kernels {kernels:.0%}"] if active is not None and kernels is not None else []
        used, total = self.value(catalog.GPU_MEMORY_USED), self.value(catalog.GPU_MEMORY_TOTAL)
        uuid = f'<span class="why uuid">{plain(self.identity.uuid)}</span>'
        memory = shown(used, gib) + of(total, gib)
        if used is not None and total:
            memory += bar(used / total)
        power, limit = self.value(catalog.GPU_POWER), self.value(catalog.GPU_POWER_LIMIT)
        heat = shown(self.value(catalog.GPU_TEMPERATURE, "gpu"), celsius)
        if (inner := self.value(catalog.GPU_TEMPERATURE, "memory")) is not None:
            heat += why(f"memory {celsius(inner)}")
        up = self.value(catalog.GPU_UP)
        look = ABSENT if up is None else state("good", "readable") if up else state("bad", "cannot be read")
        notes = self._reasons() + [trouble.html for trouble in self._ills()]
        if harmless := [reason for reason in self.held() if reason in HARMLESS]:
            notes.append(f"clocks: {', '.join(harmless).replace('_', ' ')}")
        return [
            Cell("GPU", "n", plain(self.identity.index)),
            Cell("Name", "wide", plain(self.identity.name) + uuid),
            Cell("State", "", look + "".join(map(why, notes))),
            Cell("Rank", "seat", _seated(ranks)),
            Cell("Activity", "n", activity + "".join(map(why, finer))),
            Cell("Memory", "n", memory),
            Cell("Temperature", "n", heat),
            Cell("Power", "n", shown(power, watts) + of(limit, watts)),
        ]  # fmt: skip


def _seated(ranks: Sequence[Rank]) -> str:
    lines = [f"{name(rank.key[0])} {rank.key[1]}" for rank in ranks[:RANKS_NAMED]]
    more = len(ranks) - RANKS_NAMED
    return "<br>".join(lines + ([f"and {more:,} more"] if more > 0 else [])) or ABSENT


def of_gpus(gpus: Sequence[Gpu], snapshot: GpuSnapshot | None, now: float) -> Iterator[Trouble]:
    """Yield what is wrong with GPUs and with reading them; each says which GPU it is."""
    if snapshot is not None and gpus:
        age = now - snapshot.monotonic
        if not snapshot.ok:
            yield Trouble(BLIND, "GPUs", f"No readings: {plain(snapshot.reason, 160)}")
        elif age > STALE_SECONDS:
            yield Trouble(BLIND, "GPUs", f"The readings below are {ago(age)} old: a driver call does not return.")
    for gpu in gpus:
        for weight, kind, html in gpu.troubles():
            yield Trouble(weight, f"{kind} {plain(gpu.identity.index)}", f"{html[:1].upper()}{html[1:]}.")
