"""The histograms of a rank's process: what each frame adds to those of its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tachograph.catalog import index as catalog
from tachograph.node.histograms import Buckets, parse
from tachograph.node.ranks.saved_totals import SavedProcess

_NOTHING = Buckets()


class RankHistograms:
    """The histograms as last seen, by their keys in frames; faulty ones are counted in `drops`."""

    def __init__(self, drops: Counter[str]) -> None:
        self._drops = drops
        self._seen: dict[str, Buckets] = {}

    def take(self, histograms: Mapping[str, object], *, catching_up: bool) -> Iterator[tuple[str, Buckets, Buckets]]:
        """Yield each histogram of a state: its key, its present and its previous buckets; alike while `catching_up`."""
        for key, value in histograms.items():
            if key not in catalog.TRAIN_HISTOGRAMS:
                self._drops["unknown_metric"] += 1
                continue
            try:
                now = parse(value)
            except ValueError:
                self._drops["bad_histogram"] += 1
                continue
            before = now if catching_up else self._seen.get(key, _NOTHING)
            if now.fell_from(before):
                self._drops["counter_decrease"] += 1
            else:
                self._seen[key] = now
                yield key, now, before

    def resume(self, saved: SavedProcess) -> None:
        """Continue from what a previous exporter saw."""
        self._seen = {
            key: Buckets(saved.fine.get(key, counts), total, key in saved.fine)
            for key, (counts, total) in saved.observed.items()
        }

    def coarse(self) -> dict[str, tuple[dict[int, int], float]]:
        """Return counts at schema 3 and sum of each, as `SavedProcess.observed`."""
        return {key: (dict(seen.coarse()), seen.sum) for key, seen in self._seen.items()}

    def fine(self) -> dict[str, dict[int, int]]:
        """Return the counts of those that have fine ones, as `SavedProcess.fine`."""
        return {key: dict(seen.counts) for key, seen in self._seen.items() if seen.fine}
