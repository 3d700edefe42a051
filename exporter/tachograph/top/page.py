"""A page of our own exporter, read: names, labels, values."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tachograph.catalog.metric import PREFIX, Metric

_LINE = re.compile(r'(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)(?: \S+)?')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}


class Sample(NamedTuple):
    """One line of a page."""

    labels: Mapping[str, str]
    value: float


class Page:
    """The samples of a page by family; histograms and what is not ours are left out."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Raise ValueError for a line that is none of the text format."""
        self._samples: dict[str, list[Sample]] = defaultdict(list)
        for line in lines:
            if line.startswith("#") or not line.strip():
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"not a line of the text format: {line[:60]!r}")
            name, labels, value = match.groups()
            if name.startswith(PREFIX) and not name.endswith("_bucket"):
                found = {key: _plain(text) for key, text in _LABEL.findall(labels or "")}
                self._samples[name].append(Sample(found, float(value)))

    def of(self, metric: Metric) -> list[Sample]:
        """Return the samples of a family."""
        return self._samples.get(metric.name, [])


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text) if "\\" in text else text
