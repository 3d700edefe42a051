"""A scraped page: the metrics that are read, with the target's labels, and the ends of series."""

from __future__ import annotations

import math

import numpy as np

from tachograph.catalog import index as catalog
from tachograph.node.histograms import BOUNDS, HistogramSample
from tachograph.node.samples import Sample
from tachograph_lab.replay.scraped import MISSING, STALE, Target, is_a


def words(values: np.ndarray) -> list[object]:
    """Return the values with the two markers as words."""
    return [
        "_" if missing else "stale" if stale else value
        for value, missing, stale in zip(values.tolist(), is_a(MISSING, values), is_a(STALE, values), strict=True)
    ]


def test_absent_stale_zero_and_nan_are_four_things() -> None:
    """A series ends once, at the first scrape without it, and may start again."""
    target = Target("node", "n1", {"a", "b"})
    for page in ([("a", {}, 0.0)], [("b", {}, math.nan)], None, [("a", {}, 1.0), ("c", {}, 1.0)]):
        target.scrape(page)
    found = {one.name: words(one.values) for one in target.series()}
    assert found["a"] == [0.0, "stale", "_", 1.0]
    assert [str(value) for value in found["b"]] == ["_", "nan", "stale", "_"]
    assert found["up"] == [1.0, 1.0, 0.0, 1.0]
    assert "c" not in found


def test_samples_and_histograms_of_our_exporter() -> None:
    """As in Prometheus, empty labels are absent, and a histogram is its buckets, sum and count."""
    name = catalog.TRAIN_STEP_SECONDS.name
    target = Target("tachograph", "n1", {f"{name}_bucket", f"{name}_count", catalog.RANK_UP.name})
    counts = tuple(range(len(BOUNDS) + 1))
    target.scrape_exporter([
        Sample(catalog.RANK_UP, ("r", ""), 1),
        HistogramSample(catalog.TRAIN_STEP_SECONDS, ("r",), counts, 9.5),
    ])  # fmt: skip
    found = {(one.name, one.labels.get("le")): one for one in target.series()}
    assert found[catalog.RANK_UP.name, None].labels == {"run": "r", "job": "tachograph", "instance": "n1"}
    assert found[f"{name}_bucket", "+Inf"].values.tolist() == [counts[-1]]
    assert found[f"{name}_bucket", "1.0"].values.tolist() == [BOUNDS.index(1.0)]
    assert (f"{name}_sum", None) not in found
    assert found[f"{name}_count", None].values.tolist() == [counts[-1]]
