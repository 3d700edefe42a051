"""Samples in Prometheus' two text formats.

# HELP tachograph_rank_up 1 while the rank's process holds its connection, 0 once it died.
# TYPE tachograph_rank_up gauge
tachograph_rank_up{run="llama-7b",rank="5"} 1
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

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


@dataclass(frozen=True)
class Form:
    """One exposition format."""

    content_type: str
    media_types: tuple[str, ...]
    openmetrics: bool


TEXT = Form("text/plain; version=0.0.4; charset=utf-8", ("text/plain", "text/*", "*/*"), False)
OPENMETRICS = Form(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", ("application/openmetrics-text",), True
)


def negotiate(accept: str) -> Form:
    """Return the format that an `Accept` header prefers: OpenMetrics if it ranks at least as high as text."""
    text = openmetrics = 0.0
    for entry in accept.split(","):
        media, *parameters = (part.strip().lower() for part in entry.split(";"))
        quality = _quality(parameters)
        if media in OPENMETRICS.media_types:
            openmetrics = max(openmetrics, quality)
        elif media in TEXT.media_types:
            text = max(text, quality)
    return OPENMETRICS if openmetrics > 0 and openmetrics >= text else TEXT


def _quality(parameters: Iterable[str]) -> float:
    given = next((text[2:] for text in parameters if text.startswith("q=")), "1")
    try:
        return float(given)
    except ValueError:
        return 0.0


class Exposition:
    """Renders samples as text; headers, and the part of each line before its number, are cached between pages."""

    def __init__(self) -> None:
        self._prefixes: _Prefixes = {}
        self._headers: dict[tuple[str, bool], str] = {}

    def render(self, samples: Iterable[Sample | HistogramSample], form: Form) -> bytes:
        """Return the samples as text, families in catalog order; of two samples of one series the later one wins."""
        families: dict[str, dict[tuple[str, ...], Sample | HistogramSample]] = {}
        for sample in samples:
            try:
                families[sample.metric.name][sample.labels] = sample
            except KeyError:
                families[sample.metric.name] = {sample.labels: sample}
        # Only what this page uses stays cached: ranks come and go, and choose their names.
        for name in self._prefixes.keys() - families.keys():
            del self._prefixes[name]
        lines: list[str] = []
        ours = families.keys() & _ORDER.keys()
        for name in (*sorted(ours, key=_ORDER.__getitem__), *sorted(families.keys() - ours)):
            series = families[name]
            if (name, form.openmetrics) not in self._headers:
                self._headers[name, form.openmetrics] = _header(next(iter(series.values())).metric, form)
            lines.append(self._headers[name, form.openmetrics])
            known = self._prefixes.setdefault(name, {})
            starts: list[str] = []
            values: list[float] = []
            for labels, sample in series.items():
                names = sample.metric.labels
                found = known.get(labels)
                if found is None or found[0] != names:
                    found = known[labels] = names, _prefixes(sample)
                if isinstance(sample, HistogramSample):
                    lines.extend(map("".join, zip(found[1], _histogram(sample), strict=True)))
                else:
                    starts.append(found[1][0])
                    values.append(sample.value)
            if len(known) > len(series):
                self._prefixes[name] = {labels: known[labels] for labels in series}
            lines.extend(map(str.__add__, starts, _numbers(values)))
        if form.openmetrics:
            lines.append("# EOF")
        lines.append("")
        return "\n".join(lines).encode()


_Prefixes: TypeAlias = dict[str, dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]]]
"""For each family and each set of its label values: the label names, and the beginnings of its lines."""


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
