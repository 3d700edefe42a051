"""Samples in Prometheus' two text formats.

# HELP tachograph_rank_up 1 while the rank's process holds its connection, 0 once it died.
# TYPE tachograph_rank_up gauge
tachograph_rank_up{run="llama-7b",rank="5"} 1
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, TypeVar

from tachograph.catalog.index import METRICS
from tachograph.catalog.metric import COUNTER, GAUGE, INFO, Metric
from tachograph.node.histograms import BOUNDS, HistogramSample
from tachograph.node.samples import Sample

_ORDER = {metric.name: position for position, metric in enumerate(METRICS)}
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
_FAMILY_SUFFIX = {COUNTER: "_total", INFO: "_info"}
"""The suffix that OpenMetrics adds to a family's name in its samples."""
T = TypeVar("T")
Series = Mapping[tuple[str, ...], Sample | HistogramSample]
"""The series of one family by their label values."""


@dataclass(frozen=True)
class Form:
    """One exposition format."""

    content_type: str
    media_types: tuple[str, ...]
    openmetrics: bool
    parameters: frozenset[str] = frozenset()
    """Those without which an entry of `Accept` means another format."""


TEXT = Form("text/plain; version=0.0.4; charset=utf-8", ("text/plain", "text/*", "*/*"), False)
OPENMETRICS = Form(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", ("application/openmetrics-text",), True
)
PROTOBUF = Form(
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
    ("application/vnd.google.protobuf",),
    False,
    frozenset({"proto=io.prometheus.client.metricfamily", "encoding=delimited"}),
)


def negotiate(accept: str) -> Form:
    """Return the format that an `Accept` header prefers; of equals the protobuf one, then OpenMetrics, then text."""
    wanted = {PROTOBUF: 0.0, OPENMETRICS: 0.0, TEXT: 0.0}
    for entry in accept.split(","):
        media, *parameters = (part.strip().lower() for part in entry.split(";"))
        for form, quality in wanted.items():
            if media in form.media_types and set(parameters) >= form.parameters:
                wanted[form] = max(quality, _quality(parameters))
    form = max(wanted, key=wanted.__getitem__)
    return form if wanted[form] > 0 else TEXT


def _quality(parameters: Iterable[str]) -> float:
    given = next((text[2:] for text in parameters if text.startswith("q=")), "1")
    try:
        return float(given)
    except ValueError:
        return 0.0


def by_family(samples: Iterable[Sample | HistogramSample]) -> dict[str, Series]:
    """Return the series of each family, in catalog order; of two samples of one series the later one wins."""
    families: dict[str, dict[tuple[str, ...], Sample | HistogramSample]] = {}
    for sample in samples:
        try:
            families[sample.metric.name][sample.labels] = sample
        except KeyError:
            families[sample.metric.name] = {sample.labels: sample}
    ours = families.keys() & _ORDER.keys()
    return {name: families[name] for name in (*sorted(ours, key=_ORDER.__getitem__), *sorted(families.keys() - ours))}


class Beginnings(Generic[T]):
    """The part of each series before its number, kept from one page to the next."""

    def __init__(self, make: Callable[[Sample | HistogramSample], T]) -> None:
        self._make = make
        self._known: dict[str, dict[tuple[str, ...], tuple[tuple[str, ...], T]]] = {}

    def keep(self, families: Collection[str]) -> None:
        """Forget all other families: ranks come and go, and choose their names."""
        for name in self._known.keys() - families:
            del self._known[name]

    def of(self, name: str, series: Series) -> list[T]:
        """Return the beginning of each series of a family."""
        known = self._known.setdefault(name, {})
        beginnings: list[T] = []
        for labels, sample in series.items():
            names = sample.metric.labels
            found = known.get(labels)
            if found is None or found[0] != names:
                found = known[labels] = names, self._make(sample)
            beginnings.append(found[1])
        if len(known) > len(series):
            self._known[name] = {labels: known[labels] for labels in series}
        return beginnings


class Exposition:
    """Renders samples as text; headers, and the part of each line before its number, are cached between pages."""

    def __init__(self) -> None:
        self._beginnings = Beginnings(_prefixes)
        self._headers: dict[tuple[str, bool], str] = {}

    def render(self, samples: Iterable[Sample | HistogramSample], form: Form) -> bytes:
        """Return the samples as text, families in catalog order; of two samples of one series the later one wins."""
        families = by_family(samples)
        self._beginnings.keep(families.keys())
        lines: list[str] = []
        for name, series in families.items():
            if (name, form.openmetrics) not in self._headers:
                self._headers[name, form.openmetrics] = _header(next(iter(series.values())).metric, form)
            lines.append(self._headers[name, form.openmetrics])
            beginnings = self._beginnings.of(name, series)
            values = [sample.value for sample in series.values() if isinstance(sample, Sample)]
            if values:
                lines.extend(map(str.__add__, map(itemgetter(0), beginnings), _numbers(values)))
                continue
            for beginning, sample in zip(beginnings, series.values(), strict=True):
                if isinstance(sample, HistogramSample):
                    lines.extend(map("".join, zip(beginning, _histogram(sample), strict=True)))
        if form.openmetrics:
            lines.append("# EOF")
        lines.append("")
        return "\n".join(lines).encode()


def render(samples: Iterable[Sample | HistogramSample], form: Form) -> bytes:
    """Return one page of samples as text."""
    return Exposition().render(samples, form)


def _header(metric: Metric, form: Form) -> str:
    if not form.openmetrics:
        kind = GAUGE if metric.kind == INFO else metric.kind
        return f"# HELP {metric.name} {metric.help.translate(_HELP_ESCAPES)}\n# TYPE {metric.name} {kind}"
    suffix = _FAMILY_SUFFIX.get(metric.kind, "")
    family = metric.name.removesuffix(suffix)
    # A counter without the suffix _total, such as some of DCGM's, is not a counter in OpenMetrics.
    kind = metric.kind if metric.name.endswith(suffix) else "unknown"
    unit = f"# UNIT {family} {metric.unit}\n" if metric.unit and family.endswith(f"_{metric.unit}") else ""
    return f"# TYPE {family} {kind}\n{unit}# HELP {family} {metric.help.translate(_ESCAPES)}"


def _prefixes(sample: Sample | HistogramSample) -> tuple[str, ...]:
    name, names, values = sample.metric.name, sample.metric.labels, sample.labels
    plain = _labels(names, values)
    if not isinstance(sample, HistogramSample):
        return (f"{name}{plain} ",)
    # OpenMetrics wants a float as `le`; the same text in both formats keeps the series the same.
    edges = (*map(repr, BOUNDS), "+Inf")
    buckets = (f"{name}_bucket{_labels((*names, 'le'), (*values, edge))} " for edge in edges)
    return (*buckets, f"{name}_sum{plain} ", f"{name}_count{plain} ")


def _histogram(sample: HistogramSample) -> list[str]:
    return [*map(str, sample.cumulative), number(sample.sum), str(sample.cumulative[-1])]


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = [f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)]
    return "{" + ",".join(pairs) + "}"


def number(value: float) -> str:
    """Return a sample's value as text, alike in both formats."""
    return _numbers([value])[0]


def _numbers(values: Iterable[float]) -> list[str]:
    """Return many values as text at once: a call for each would cost more than the formatting."""
    return [
        str(int(value)) if value.is_integer() and -1e15 < value < 1e15 else _SPECIAL.get(text := repr(value), text)
        for value in map(float, values)
    ]
