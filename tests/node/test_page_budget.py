"""The budget of the page: only a user who takes too much loses series."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog import index as catalog
from tachograph.node.histograms import BOUNDS, HistogramSample
from tachograph.node.page_budget import fair_shares, fit
from tachograph.node.samples import Sample

HISTOGRAM = HistogramSample(catalog.TRAIN_HISTOGRAMS["step_seconds"], ("r",), (0,) * (len(BOUNDS) + 1), 0.0)


def block(size: int, run: str = "r") -> list[Sample | HistogramSample]:
    return [Sample(catalog.TRAIN_LOSS, (run, "0"), float(i)) for i in range(size)]


def test_what_fits_is_all_there() -> None:
    """Up to the limit, nothing is left out and nothing moved."""
    blocks = [(1, block(3)), (2, block(4))]
    assert fit(blocks, 7) == ([*blocks[0][1], *blocks[1][1]], {})


def test_the_hoarder_gives_way() -> None:
    """A user with 64 ranks of 100 series loses of them; another's 45 series, and his run's sums, are whole."""
    mine = block(45, "mine")
    kept, withheld = fit([*((1, block(100, f"{i}")) for i in range(64)), (2, mine), (2, [HISTOGRAM])], 1000)
    assert [sample for sample in kept if sample.labels[0] == "mine"] == mine
    assert HISTOGRAM in kept
    of_the_hoarder = [sum(sample.labels[0] == f"{i}" for sample in kept) for i in range(64)]
    assert max(of_the_hoarder) - min(of_the_hoarder) <= 1
    assert sum(of_the_hoarder) + 45 + len(BOUNDS) + 3 == 1000
    assert withheld == {1: 6400 - sum(of_the_hoarder)}


def test_a_block_is_cut_at_its_end() -> None:
    """A block is cut at its end, where the least important series are; a histogram is shown whole or not at all."""
    kept, _ = fit([(1, [*block(2), HISTOGRAM, *block(5)])], 10)
    assert [sample.value for sample in kept if isinstance(sample, Sample)] == [0.0, 1.0]


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(0, 5000))
def test_shares_are_fair(wanted: list[int], most: int) -> None:
    """No share exceeds its demand, their sum does not exceed the total, and an unmet demand has the largest share."""
    shares = fair_shares(wanted, most)
    assert all(share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(sum(wanted), most)
    cut = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    assert not cut or min(cut) >= max(shares) - 1
