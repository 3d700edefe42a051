"""A GPU that is open: reads everything in the table of readings, and tells missing features from failures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import COUNTER, Metric
from tachograph.node.driver.nvml import WHOLE, GpuFailed, Narrow, NotSupported, Nvml, NvmlFailure, NvmlGpu
from tachograph.node.gpu.gpm import Gpm, GpmWindow
from tachograph.node.gpu.mig import MigInstances
from tachograph.node.gpu.nvlink import link_call, link_fields
from tachograph.node.gpu.possible import Belief, Impossible
from tachograph.node.gpu.reading_table import (
    ACTIVITIES,
    CALLS,
    FIELDS,
    RETRY_SECONDS,
    SLOW_SECONDS,
    Call,
    Field,
    Value,
    Version,
)
from tachograph.node.peaks import achievable_of, peaks_of
from tachograph.node.samples import GpuIdentity, Row, Series

_PROCESSES = "processes"
_SHOWN = dict.fromkeys(
    value.metric.name
    for value in (*(value for call in CALLS for value in call.values), *(field.value for field in FIELDS))
    if not value.metric.is_detail(value.labels) and value.metric is not catalog.GPU_FABRIC_DEGRADED  # only while it is
)
"""The families of which every user sees something."""

_SUCCESSION = {
    catalog.GPU_RETIRED_PAGES.name: catalog.GPU_REMAPPED_ROWS.name,
    catalog.GPU_RETIREMENT_PENDING.name: catalog.GPU_REMAPPED_ROWS.name,
    catalog.GPU_REMAPPED_ROWS.name: catalog.GPU_RETIRED_PAGES.name,
    catalog.GPU_ROW_REMAP_PENDING.name: catalog.GPU_RETIRED_PAGES.name,
    catalog.GPU_ROW_REMAP_FAILED.name: catalog.GPU_RETIRED_PAGES.name,
}
"""Families that a part is not expected to have if it has the other: Ampere replaced retired pages by spare rows."""

_Slot: TypeAlias = tuple[Value, Series]
"""A number of the table, and the series that it is on this GPU."""


class OpenGpu:
    """A GPU that is open; remembers the readings it lacks, values that are seldom read, and what it believes."""

    def __init__(self, nvml: Nvml, gpu: NvmlGpu, identity: GpuIdentity, driver: Version, detail: bool) -> None:
        self.gpm = Gpm(gpu)
        self.pids: tuple[int, ...] = ()
        self.lacks: list[str] = []
        """The families shown to everybody of which this GPU gave nothing, and did not fail to, as of the slow round."""
        self._gpu = gpu
        self._own = (identity.index, identity.uuid)
        self._detail = detail
        self._slots: dict[tuple[str, tuple[str, ...]], Series] = {}
        calls = [call for call in CALLS if detail or not call.spared]
        fields = [field for field in FIELDS if (detail or not field.spared) and _in_time(field, driver)]
        self._fast_calls = [self._call(call) for call in calls if not call.slow]
        self._slow_calls = [self._call(call) for call in calls if call.slow]
        self._fast_fields = [self._field(field) for field in fields if not field.slow]
        self._slow_fields = [self._field(field) for field in fields if field.slow]
        self._links = 0
        self._window = GpmWindow(nvml, gpu, ACTIVITIES)
        self._active = {each.value: self._series(each.value.metric, each.value.labels) for each in ACTIVITIES}
        self._mig = MigInstances(nvml, gpu)
        self._mig_enabled = False
        peaks = peaks_of(identity.name)
        self.has_peak = bool(peaks)
        self._peaks: list[Row] = [
            (self._series(metric, (dtype,)), flops)
            for metric, figures in (
                (catalog.GPU_PEAK_FLOPS, peaks),
                (catalog.GPU_ACHIEVABLE_FLOPS, achievable_of(identity.name)),
            )
            for dtype, flops in figures.items()
        ]
        self._failed = self._series(catalog.GPU_READINGS_FAILED, ())
        self._slow_at = 0.0
        self._slow_rows: list[Row] = []
        self._slow_failures: dict[str, str] = {}
        self._absent_until: dict[Call | Field | str, float] = {}
        self._belief = Belief()
        self._answers = False  # whether the driver gave any number, believed or not

    def read(self, now: float, failures: dict[str, str]) -> list[Row]:
        """Return every row; failed readings go to `failures` by subject. Raise GpuFailed if no row can be trusted."""
        slow = now >= self._slow_at
        if slow:  # first, for it finds out about MIG
            self._slow_at = now + SLOW_SECONDS
            self._slow_failures = {}
            self._slow_rows = self._read_slow(now, self._slow_failures)
        failures.update(self._slow_failures)
        self._answers = False
        rows = self._read_calls(self._fast_calls, now, failures)
        rows += self._read_fields(self._fast_fields, now, failures)
        if failures and not self._answers:  # each for a reason that concerns one reading only
            raise GpuFailed(next(iter(failures.values())))
        rows += self._read_activity(now, failures)
        rows += self._slow_rows
        if slow:
            given = {metric.name for (metric, _), _ in rows}
            absent = (name for name in _SHOWN if name not in given and name not in failures)
            self.lacks = [name for name in absent if _SUCCESSION.get(name) not in given]
        rows.append((self._failed, float(len(failures))))
        return rows

    def forget(self) -> None:
        """Read everything again next time, because the GPU was gone."""
        self._slow_at = 0.0

    def close(self) -> None:
        """Release the driver's resources for this GPU."""
        self._window.close()
        self._mig.close()

    def _series(self, metric: Metric, labels: tuple[str, ...]) -> Series:
        """Return a series of this GPU, the same object each time: they are made once, and compared each second."""
        return self._slots.setdefault((metric.name, labels), (metric, (*self._own, *labels)))

    def _call(self, call: Call) -> tuple[Call, list[_Slot]]:
        return call, [(value, self._series(value.metric, value.labels)) for value in call.values]

    def _field(self, field: Field) -> tuple[Field, _Slot]:
        return field, (field.value, self._series(field.value.metric, field.value.labels))

    def _read_slow(self, now: float, failures: dict[str, str]) -> list[Row]:
        self._look_for_mig(failures)
        self._look_for_processes(now, failures)
        rows = self._read_calls(self._slow_calls, now, failures)
        rows += self._read_fields(self._slow_fields, now, failures)
        if self._detail:
            self._look_for_links(rows)
        if not self._mig_enabled:  # the peak is the whole GPU's, and a rank then computes on a slice of it
            rows += self._peaks
        return rows

    def _look_for_mig(self, failures: dict[str, str]) -> None:
        try:
            enabled = self._gpu.mig_enabled()
            if enabled != self._mig_enabled:
                self._mig_enabled = enabled
                self.gpm = Gpm(self._gpu)  # what was refused to the GPU may be granted to its instances
                self._window.close()
                self._mig.close()
            if enabled:
                self._mig.find()
        except WHOLE:
            raise
        except NvmlFailure as failure:
            failures[catalog.MIG_INFO.name] = str(failure)

    def _look_for_processes(self, now: float, failures: dict[str, str]) -> None:
        self.pids = ()
        if self._absent_until.get(_PROCESSES, now) > now:
            return
        try:
            self.pids = self._gpu.processes()
        except WHOLE:
            raise
        except NvmlFailure as failure:
            self._lack(_PROCESSES, [_PROCESSES], failure, now, failures)

    def _look_for_links(self, rows: list[Row]) -> None:
        """Read each link by itself from the next time on."""
        links = next((int(value) for (metric, _), value in rows if metric is catalog.GPU_NVLINK_LINKS), 0)
        if links > self._links:
            self._links = links
            self._slow_calls.append(self._call(link_call(links)))
            self._slow_fields += map(self._field, link_fields(links))
            self._slow_at = 0.0

    def _read_activity(self, now: float, failures: dict[str, str]) -> list[Row]:
        if not self._mig_enabled:
            numbers = self.gpm.read(self._window, now, failures)
            return self._rows((((value, self._active[value]), number) for value, number in numbers), now, failures)
        try:
            rows: list[Row] = [(self._series(catalog.MIG_INFO, labels), 1.0) for labels in self._mig.infos()]
            given = [
                ((value, self._series(value.metric, labels)), number)
                for value, labels, number in self._mig.read(self.gpm, now, failures)
            ]
            return rows + self._rows(given, now, failures)
        except WHOLE:
            raise
        except NvmlFailure as failure:  # an instance was taken down meanwhile
            failures[catalog.MIG_INFO.name] = str(failure)
            self._slow_at = 0.0
            return []

    def _read_calls(self, calls: Iterable[tuple[Call, list[_Slot]]], now: float, failures: dict[str, str]) -> list[Row]:
        rows: list[Row] = []
        for call, slots in calls:
            if self._absent_until.get(call, now) > now:
                continue
            try:
                numbers = call.read(self._gpu)
            except WHOLE:
                raise
            except NvmlFailure as failure:
                self._lack(call, [value.metric.name for value, _ in slots], failure, now, failures)
                continue
            rows += self._rows(zip(slots, numbers, strict=True), now, failures)
        return rows

    def _read_fields(self, fields: Iterable[tuple[Field, _Slot]], now: float, failures: dict[str, str]) -> list[Row]:
        absent_until = self._absent_until
        asked = [each for each in fields if absent_until.get(each[0], now) <= now]
        if not asked:
            return []
        answers: list[float | NvmlFailure]
        try:
            answers = self._gpu.fields([(field.id, field.scope) for field, _ in asked])
        except WHOLE:
            raise
        except NvmlFailure as failure:
            answers = [failure] * len(asked)
        given: dict[int, tuple[_Slot, float]] = {}  # by id() of the series, which is the same object each time
        for (field, slot), answer in zip(asked, answers, strict=True):
            if isinstance(answer, NvmlFailure):
                if isinstance(answer, WHOLE):
                    raise answer
                self._lack(field, [field.value.metric.name], answer, now, failures)
            elif field.wide and isinstance(answer, Narrow):
                absent_until[field] = now + RETRY_SECONDS
            elif id(slot[1]) not in given:
                given[id(slot[1])] = slot, answer
        return self._rows(given.values(), now, failures)

    def _rows(self, given: Iterable[tuple[_Slot, float | None]], now: float, failures: dict[str, str]) -> list[Row]:
        """Return the rows of what the driver gave and what can be."""
        belief = self._belief
        rows: list[Row] = []
        for (value, series), raw in given:
            if raw is None:
                continue
            self._answers = True
            try:
                if value.metric.kind == COUNTER:
                    rows.append((series, belief.count(value, value.possible, raw, value.scale, now)))
                    continue
                number = belief.number(value, value.possible, raw, value.scale)
            except Impossible as impossible:
                failures[value.metric.name] = str(impossible)
                continue
            if value.words:
                rows.append((self._series(value.metric, (value.words[int(number)],)), 1.0))
            else:
                rows.append((series, number))
        return rows

    def _lack(
        self,
        reading: Call | Field | str,
        subjects: list[str],
        failure: NvmlFailure,
        now: float,
        failures: dict[str, str],
    ) -> None:
        """Remember a reading the part does not have; report any other that failed."""
        if isinstance(failure, NotSupported):
            self._absent_until[reading] = now + RETRY_SECONDS
        else:
            failures.update(dict.fromkeys(subjects, str(failure)))


def _in_time(field: Field, driver: Version) -> bool:
    return field.since <= driver and not (field.before and driver >= field.before)
