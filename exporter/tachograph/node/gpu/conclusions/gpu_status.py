"""A GPU as of its last readings, and what is wrong with it, in a few words each, for whoever looks at the node."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from tachograph import diagnosis
from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tachograph.node.samples import GpuIdentity, GpuSnapshot
from tachograph.node.xid import xid_table
from tachograph.text.humanize import celsius, count, percent, plural

HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost", "sw_power_cap"})
"""Reasons for lower clocks that are not a problem: a power cap is normal at full load."""

ENDS_WORK = frozenset({"lost", "reset_required", "hung", "error", "unplugged"})
"""Reasons why a GPU cannot be read for which nothing on it goes on; of the others only we cannot read it."""
FATAL_XID_SECONDS = 600.0
"""Since a fatal Xid, after which it may have been mended, as in prometheus/src/gpu_faults.yml."""

BROKEN, SLOWED, WORN = "broken", "slowed", "worn"
Fault = tuple[str, str]
"""One of these three kinds, and what is wrong, in words."""


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

    def problems(self) -> Iterator[Fault]:
        """Yield what is wrong with it."""
        if self.value(catalog.GPU_UP) == 0:
            yield BROKEN, ": ".join(("cannot be read", *self.reasons()))
        yield from self.faults()

    def reasons(self) -> list[str]:
        """Return why it cannot be read."""
        return [reason.replace("_", " ") for (reason,) in self.labels(catalog.GPU_UNAVAILABLE)]

    def broken(self, wall: float) -> Iterator[str]:
        """Yield what ends the work on it, and pages: not what the work may outlast, nor what has been mended since."""
        yield from (
            reason.replace("_", " ") for (reason,) in self.labels(catalog.GPU_UNAVAILABLE) if reason in ENDS_WORK
        )
        for (action,) in self.labels(catalog.GPU_RECOVERY_ACTION):
            if action != "none" and not action.startswith("drain"):
                yield _recommended(action)
        for xid, action, meaning in self.labels(catalog.GPU_XID_INFO):
            if xid in _fatal_xids() and (self.value(catalog.GPU_XID_TIMESTAMP, xid) or 0.0) > wall - FATAL_XID_SECONDS:
                yield _had(xid, action, meaning)

    def faults(self) -> Iterator[Fault]:
        """Yield its problems other than that it cannot be read."""
        for (action,) in self.labels(catalog.GPU_RECOVERY_ACTION):
            if action != "none":
                yield BROKEN, _recommended(action)
        for xid, action, meaning in self.labels(catalog.GPU_XID_INFO):
            if action not in diagnosis.XID_OF_PROGRAM:
                yield BROKEN, _had(xid, action, meaning)
        yield from self._slowed()
        yield from self._worn()

    def _slowed(self) -> Iterator[Fault]:
        held = [reason for reason in self.held() if reason not in HARMLESS]
        if held:
            degrees = self.value(catalog.GPU_TEMPERATURE, "gpu")
            is_hot = diagnosis.THERMAL in map(diagnosis.slowdown_cause, held)
            heat = f" at {celsius(degrees)}" if degrees is not None and is_hot else ""
            yield SLOWED, f"throttled{heat}: {', '.join(held).replace('_', ' ')}"
        if down := self.value(catalog.GPU_NVLINKS_DOWN):
            links = self.value(catalog.GPU_NVLINK_LINKS)
            of_all = f" of {links:.0f}" if links is not None else ""
            yield SLOWED, f"{down:.0f}{of_all} NVLink links are down"
        for (error,) in self.labels(catalog.GPU_NVLINK_ERROR_RATE):
            yield SLOWED, f"NVLinks report more errors than usual ({error.replace('_', ' ')})"
        if (speed := self.value(catalog.GPU_PCIE_SPEED)) is not None:
            yield SLOWED, f"the PCIe link is left with {percent(speed)} of its speed"
        if (replays := self.value(catalog.GPU_PCIE_REPLAY_RATE)) is not None:
            yield SLOWED, f"the PCIe link resends {count(60 * replays)} packets a minute"

    def _worn(self) -> Iterator[Fault]:
        errors = self.value(catalog.GPU_ECC_ERRORS, "uncorrected", "volatile")
        if errors and math.isfinite(errors):
            yield WORN, f"{plural(errors, 'uncorrected ECC error')} since the driver was loaded"
        for metric, text in (
            (catalog.GPU_ROW_REMAP_FAILED, "a memory row could not be remapped: return the board"),
            (catalog.GPU_ROW_REMAP_PENDING, "a memory row will be remapped at the next reset"),
            (catalog.GPU_RETIREMENT_PENDING, "a memory page will be retired at the next reset"),
            (catalog.GPU_SRAM_THRESHOLD, "more SRAM errors than the vendor allows: return the board"),
        ):
            if self.value(metric):
                yield WORN, text


@cache
def _fatal_xids() -> frozenset[str]:
    """Return the Xids that page, as labels have them."""
    return frozenset(map(str, xid_table.load().paging))


def _recommended(action: str) -> str:
    return f"the driver recommends: {action.replace('_', ' ')}"


def _had(xid: str, action: str, meaning: str) -> str:
    return f"had Xid {xid} ({meaning}): {action}"


def stale_seconds(snapshot: GpuSnapshot, now: float) -> float | None:
    """Return how old readings are that say nothing about now any more; None of newer ones."""
    seconds = now - snapshot.monotonic
    return seconds if seconds > diagnosis.READINGS_STALE_SECONDS else None
