"""The protocol between the worker that reads GPUs and the exporter: lines of JSON, and at last an exit status.

A collection is one line. The series of a GPU's values are sent in the first line that has them, and in later ones only
if they changed since. Two lines, shortened:

    {"gpus":[{"identity":{"index":"0","uuid":"GPU-…","name":"NVIDIA H100 80GB HBM3"},"word":"",
      "series":[["tachograph_gpu_power_watts",["0","GPU-…"]],…],"values":[612.3,…],"info":[…],"pids":[4242],
      "gpm":"","failures":{},"notes":{}}],"xid_series":[…],"xid_values":[…],
      "kernel_series":[…],"kernel_values":[…],
      "collectors":{"gpu":"","gpm":"","xid":"no_permission"},"duration":0.004,"reason":"","failures":{},"notes":{}}
    {"gpus":[{…,"series":null,"values":[614.1,…],…}],…}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tachograph.catalog.gpu import GPU_INFO, GPU_UNAVAILABLE, GPU_UP
from tachograph.catalog.index import BY_NAME
from tachograph.node.samples import GpuIdentity, Sample, Series

STALE_INTERVALS = 3
"""How many intervals a value may be shown after the moment at which a newer one was due."""

SPENT_STATUS = 75
"""Exit status that asks for a fresh process, which can load the new driver's library (EX_TEMPFAIL)."""

STARTING = "starting"


@dataclass(frozen=True)
class GpuReading:
    """One GPU in one collection: what was read of it, or why nothing was."""

    identity: GpuIdentity
    word: str = STARTING
    """Why it cannot be read, one of UNAVAILABLE_REASONS; "" if it can, STARTING until that is known."""
    series: tuple[Series, ...] = ()
    values: tuple[float, ...] = ()
    """The number of each series."""
    info: tuple[str, ...] = ()
    """All label values of its GPU_INFO; none if it was never opened."""
    pids: tuple[int, ...] = ()
    """The processes that compute on it."""
    gpm: str = ""
    """Why GPM is not read, one of COLLECTOR_REASONS; "" while it is, or while the GPU is not read at all."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The readings that failed, and why, by subject."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """The capabilities that this model or its driver lacks, a sentence for each subject."""

    def down(self, word: str, why: str = "") -> GpuReading:
        """Return its reading while it cannot be read; without `why` where the driver as a whole is the reason."""
        subject = f"GPU {self.identity.index} ({self.identity.uuid or 'never opened'})"
        return replace(self, word=word, series=(), values=(), pids=(), failures={subject: why} if why else {})

    def stale(self) -> GpuReading:
        """Return this reading once its values are too old to be shown."""
        return replace(self, series=(), values=())

    def samples(self) -> list[Sample]:
        """Return its samples: all of them if it can be read, else only who it is and why it cannot; none at first."""
        if self.word == STARTING:
            return []
        labels = (self.identity.index, self.identity.uuid)
        samples = [Sample(GPU_UP, labels, float(not self.word))]
        if self.word:
            samples.append(Sample(GPU_UNAVAILABLE, (*labels, self.word), 1.0))
        if self.info:
            samples.append(Sample(GPU_INFO, self.info, 1.0))
        return samples + samples_of(self.series, self.values)


@dataclass(frozen=True)
class NodeReading:
    """All GPUs of the node in one collection.

    `collectors` maps gpu, gpm and xid to "" or one of COLLECTOR_REASONS; `reason` is the gpu collector's in a sentence;
    `failures` and `notes` are those that belong to no single GPU.
    """

    gpus: tuple[GpuReading, ...]
    xid_series: tuple[Series, ...]
    xid_values: tuple[float, ...]
    collectors: Mapping[str, str]
    duration: float
    reason: str
    failures: Mapping[str, str]
    notes: Mapping[str, str]
    kernel_series: tuple[Series, ...] = ()
    kernel_values: tuple[float, ...] = ()
    """Of the events in the kernel's log that are no Xids."""

    @property
    def ok(self) -> bool:
        """Whether the collection as a whole succeeded."""
        return not self.collectors["gpu"]

    def all_failures(self) -> dict[str, str]:
        """Return every failed reading with its reason, by subject, those of single GPUs included."""
        parts: tuple[GpuReading | NodeReading, ...] = (*self.gpus, self)
        return {subject: why for each in parts for subject, why in each.failures.items()}

    def all_notes(self) -> dict[str, str]:
        """Return the notes to log once, by subject, those of single GPUs included."""
        parts: tuple[GpuReading | NodeReading, ...] = (*self.gpus, self)
        return {subject: note for each in parts for subject, note in each.notes.items()}

    def samples(self) -> list[Sample]:
        """Return the samples of all GPUs, of their Xids, and of the kernel's other events."""
        return [
            *(each for gpu in self.gpus for each in gpu.samples()),
            *samples_of(self.xid_series, self.xid_values),
            *samples_of(self.kernel_series, self.kernel_values),
        ]


def samples_of(series: Sequence[Series], values: Sequence[float]) -> list[Sample]:
    """Return the samples of these series."""
    make = tuple.__new__  # as Sample._make does, without a Python call for each of 850 a second
    return [make(Sample, (metric, labels, value)) for (metric, labels), value in zip(series, values, strict=True)]


class LineWriter:
    """Writes collections as lines; leaves out the series that the line before had already."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[Series, ...]] = {}

    def line(self, collection: NodeReading) -> str:
        """Return a collection's line."""
        fields = {**vars(collection), "gpus": [self._gpu(gpu) for gpu in collection.gpus]}
        for key in ("xid", "kernel"):
            fields[f"{key}_series"] = self._series(key, fields[f"{key}_series"])
        return json.dumps(fields, separators=(",", ":"))

    def _gpu(self, gpu: GpuReading) -> dict[str, object]:
        series = self._series(gpu.identity.index, gpu.series)
        return {**vars(gpu), "identity": vars(gpu.identity), "series": series}

    def _series(self, key: str, series: tuple[Series, ...]) -> list[tuple[str, tuple[str, ...]]] | None:
        if self._written.get(key) == series:
            return None
        self._written[key] = series
        return [(metric.name, labels) for metric, labels in series]


class LineReader:
    """Reads the lines of one LineWriter, each in its turn; `decode` parses JSON."""

    def __init__(self, decode: Callable[[str | bytes], Any] = json.loads) -> None:
        self._decode = decode
        self._known: dict[str, tuple[Series, ...]] = {}

    def read(self, line: str | bytes) -> NodeReading:
        """Return a line's collection; raise ValueError, KeyError, TypeError or AttributeError for any other text."""
        fields = self._decode(line)
        gpus = tuple(self._gpu(gpu) for gpu in fields["gpus"])
        for key in ("xid", "kernel"):
            fields[f"{key}_series"] = self._series(key, fields[f"{key}_series"])
            fields[f"{key}_values"] = tuple(fields[f"{key}_values"])
        return NodeReading(**{**fields, "gpus": gpus})

    def _gpu(self, fields: dict[str, Any]) -> GpuReading:
        identity = GpuIdentity(**fields["identity"])
        series = self._series(identity.index, fields["series"])
        lists = {name: tuple(fields[name]) for name in ("values", "info", "pids")}
        return GpuReading(**{**fields, **lists, "identity": identity, "series": series})

    def _series(self, key: str, fields: Sequence[tuple[str, Sequence[str]]] | None) -> tuple[Series, ...]:
        if fields is not None:
            self._known[key] = tuple((BY_NAME[name], tuple(labels)) for name, labels in fields)
        return self._known[key]
