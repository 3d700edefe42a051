"""Carries out the table of readings on one GPU that is open, and tells what it lacks from what failed."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import COUNTER
from tachograph.node.driver.nvml import WHOLE, Gpu, GpuFailed, NotSupported, Number, Nvml, NvmlFailure
from tachograph.node.gpu.gpm import Gpm, GpmWindow
from tachograph.node.gpu.mig import MigInstances
from tachograph.node.gpu.nvlink import link_call, link_fields
from tachograph.node.gpu.reading_table import ACTIVITIES, CALLS, FIELDS, Call, Field, Value, Version
from tachograph.node.gpu.readings import RETRY_SECONDS, SLOW_SECONDS, Unwrapped
from tachograph.node.peaks import achievable_of, peaks_of
from tachograph.node.samples import GpuIdentity, Row, believable

_PROCESSES = "processes"
_SUCCESSION = {
    catalog.GPU_RETIRED_PAGES.name: catalog.GPU_REMAPPED_ROWS.name,
    catalog.GPU_RETIREMENT_PENDING.name: catalog.GPU_REMAPPED_ROWS.name,
    catalog.GPU_REMAPPED_ROWS.name: catalog.GPU_RETIRED_PAGES.name,
    catalog.GPU_ROW_REMAP_PENDING.name: catalog.GPU_RETIRED_PAGES.name,
    catalog.GPU_ROW_REMAP_FAILED.name: catalog.GPU_RETIRED_PAGES.name,
}
"""Families that a part is not expected to have if it has the other: Ampere replaced retired pages by spare rows."""


class OpenGpu:
    """A GPU that is open; remembers what it does not have, what is read seldom, and how far its counters went."""

    def __init__(self, nvml: Nvml, gpu: Gpu, identity: GpuIdentity, driver: Version, detail: bool) -> None:
        self.gpm = Gpm(gpu)
        self.pids: tuple[int, ...] = ()
        self._gpu = gpu
        self._identity = identity
        self._detail = detail
        calls = [call for call in CALLS if detail or not call.spared]
        fields = [field for field in FIELDS if (detail or not field.spared) and _in_time(field, driver)]
        self._fast_calls = [call for call in calls if not call.slow]
        self._slow_calls = [call for call in calls if call.slow]
        self._fast_fields = [field for field in fields if not field.slow]
        self._slow_fields = [field for field in fields if field.slow]
        self._links = 0
        self._window = GpmWindow(nvml, gpu, ACTIVITIES)
        self._mig = MigInstances(nvml, gpu)
        self._mig_enabled = False
        self._slow_at = 0.0
        self._fast_rows: list[Row] = []
        self._slow_rows: list[Row] = []
        self._slow_failures: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        self._absent_until: dict[Call | Field | str, float] = {}
        self._unwrapped: dict[Field, Unwrapped] = {}

    def read(self, now: float, failures: dict[str, str]) -> list[Row]:
        """Return every sample; what failed goes to `failures` by subject. Raise GpuFailed if none is to be believed."""
        if now >= self._slow_at:  # first, for it finds out about MIG
            self._slow_at = now + SLOW_SECONDS
            self._slow_failures = {}
            self._slow_rows = self._read_slow(now, self._slow_failures)
        failures.update(self._slow_failures)
        self._failures = failures
        self._fast_rows = self._read_calls(self._fast_calls, now, failures)
        self._fast_rows += self._read_fields(self._fast_fields, now, failures)
        if failures and not self._fast_rows:  # each for a reason that is said of one reading only
            raise GpuFailed(next(iter(failures.values())))
        self._fast_rows += self._read_activity(now, failures)
        return self._fast_rows + self._slow_rows

    def forget(self) -> None:
        """Read everything afresh next time, for the GPU was gone."""
        self._slow_at = 0.0

    def lacks(self) -> list[str]:
        """Return the families shown to everybody of which this GPU gave nothing, and did not fail to."""
        given = {name for name, _, _ in (*self._fast_rows, *self._slow_rows)}
        values = [value for call in CALLS for value in call.values] + [field.value for field in FIELDS]
        names = dict.fromkeys(value.metric.name for value in values if not value.detail)
        absent = (name for name in names if name not in given and name not in self._failures)
        return [name for name in absent if _SUCCESSION.get(name) not in given]

    def close(self) -> None:
        """Give back what the driver holds for it."""
        self._window.close()
        self._mig.close()

    def _read_slow(self, now: float, failures: dict[str, str]) -> list[Row]:
        self._look_for_mig(failures)
        self._look_for_processes(now, failures)
        rows = self._read_calls(self._slow_calls, now, failures)
        rows += self._read_fields(self._slow_fields, now, failures)
        if self._detail:
            self._look_for_links(rows)
        if not self._mig_enabled:  # the peak is the whole GPU's, and a rank then computes on a slice of it
            for metric, figures in (
                (catalog.GPU_PEAK_FLOPS, peaks_of(self._identity.name)),
                (catalog.GPU_ACHIEVABLE_FLOPS, achievable_of(self._identity.name)),
            ):
                rows += [self._row(metric.name, (dtype,), flops) for dtype, flops in figures.items()]
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
        links = next((int(value) for name, _, value in rows if name == catalog.GPU_NVLINK_LINKS.name), 0)
        if links > self._links:
            self._links = links
            self._slow_calls.append(link_call(links))
            self._slow_fields += link_fields(links)
            self._slow_at = 0.0

    def _read_activity(self, now: float, failures: dict[str, str]) -> list[Row]:
        if not self._mig_enabled:
            numbers = self.gpm.read(self._window, now, failures)
            return [self._row(value.metric.name, value.labels, number * value.scale) for value, number in numbers]
        try:
            return [self._row(*own) for own in self._mig.read(self.gpm, now, failures)]
        except WHOLE:
            raise
        except NvmlFailure as failure:  # an instance was taken down meanwhile
            failures[catalog.MIG_INFO.name] = str(failure)
            self._slow_at = 0.0
            return []

    def _read_calls(self, calls: list[Call], now: float, failures: dict[str, str]) -> list[Row]:
        rows: list[Row] = []
        for call in calls:
            if self._absent_until.get(call, now) > now:
                continue
            try:
                numbers = call.read(self._gpu)
            except WHOLE:
                raise
            except NvmlFailure as failure:
                self._lack(call, [value.metric.name for value in call.values], failure, now, failures)
                continue
            for value, number in zip(call.values, numbers, strict=True):
                if number is not None:
                    rows += self._sample(value, number, failures)
        return rows

    def _read_fields(self, fields: list[Field], now: float, failures: dict[str, str]) -> list[Row]:
        asked = [field for field in fields if self._absent_until.get(field, now) <= now]
        if not asked:
            return []
        answers: list[Number | NvmlFailure]
        try:
            answers = self._gpu.fields([(field.id, field.scope) for field in asked])
        except WHOLE:
            raise
        except NvmlFailure as failure:
            answers = [failure] * len(asked)
        rows: list[Row] = []
        told = set()
        for field, answer in zip(asked, answers, strict=True):
            value = field.value
            if isinstance(answer, WHOLE):
                raise answer
            if isinstance(answer, NvmlFailure):
                self._lack(field, [value.metric.name], answer, now, failures)
            elif field.wide and answer.narrow:
                self._absent_until[field] = now + RETRY_SECONDS
            elif (value.metric.name, value.labels) not in told:
                told.add((value.metric.name, value.labels))
                rows += self._sample(value, self._whole(field, answer), failures)
        return rows

    def _whole(self, field: Field, answer: Number) -> float:
        if not answer.narrow or field.value.metric.kind != COUNTER:
            return answer.value
        return self._unwrapped.setdefault(field, Unwrapped()).take(answer.value)

    def _sample(self, value: Value, number: float, failures: dict[str, str]) -> Iterator[Row]:
        if value.words:
            if number in range(len(value.words)):
                yield self._row(value.metric.name, (value.words[int(number)],), 1.0)
            else:
                failures[value.metric.name] = f"{number:.0f} is none of {', '.join(value.words)}"
        elif believable(value.metric, number):
            yield self._row(value.metric.name, value.labels, number * value.scale)
        else:
            failures[value.metric.name] = "no number, or a count below zero"  # which one? each new text is a log line

    def _row(self, name: str, labels: tuple[str, ...], number: float) -> Row:
        return name, (self._identity.index, self._identity.uuid, *labels), number

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
