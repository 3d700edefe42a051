"""The limit on the series of ranks on a page: users with most series lose first, none below a fair share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, compress

from tachograph.node.histograms import BOUNDS, HistogramSample
from tachograph.node.samples import Sample

Block = Sequence[Sample | HistogramSample]
"""The samples of one rank, the most important first; or the sums over a run."""
_LINES_OF_A_HISTOGRAM = len(BOUNDS) + 3
"""Its buckets, +Inf, sum and count."""


def fit(blocks: Sequence[tuple[int, Block]], most: int) -> tuple[list[Sample | HistogramSample], Counter[int]]:
    """Return the samples of all blocks, each with its user, cut to `most` series; and how many each user lost.

    Every user gets the same share, and every block of a user the same share of that; unused shares go to
    the others. A block is cut at its end.
    """
    sizes = [sum(_lines(block)) for _, block in blocks]
    total = sum(sizes)
    if total <= most:
        return [sample for _, block in blocks for sample in block], Counter()
    by_user: dict[int, list[int]] = {}
    for index, (user, _) in enumerate(blocks):
        by_user.setdefault(user, []).append(index)
    allowed = [0] * len(blocks)
    shares = fair_shares([sum(sizes[index] for index in own) for own in by_user.values()], most)
    for own, share in zip(by_user.values(), shares, strict=True):
        for index, part in zip(own, fair_shares([sizes[index] for index in own], share), strict=True):
            allowed[index] = part
    kept: list[Sample | HistogramSample] = []
    lost: Counter[int] = Counter()
    for (user, block), size, room in zip(blocks, sizes, allowed, strict=True):
        lines = _lines(block)
        shown = [fits <= room for fits in accumulate(lines)]
        kept += compress(block, shown)
        lost[user] += size - sum(compress(lines, shown))
    return kept, +lost


def fair_shares(wanted: Sequence[int], most: int) -> list[int]:
    """Return what each may have of `most`: all it wants, or as much as any other that gets less than it wants."""
    shares = [0] * len(wanted)
    left = most
    for served, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[index] = min(wanted[index], left // (len(wanted) - served))
        left -= shares[index]
    return shares


def _lines(block: Block) -> list[int]:
    return [1 if isinstance(sample, Sample) else _LINES_OF_A_HISTOGRAM for sample in block]
