"""The samples shown for ranks: of each rank, of what is concluded about their runs, of their GPUs, and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import ALL
from tachograph.node.histograms import HistogramSample
from tachograph.node.ranks.conclusions.settings import tier_of
from tachograph.node.ranks.rank_samples import rank_samples
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.samples import Sample


class ShownRanks:
    """The samples of one table of ranks."""

    def __init__(self, table: RankTable) -> None:
        self._table = table

    def samples(self) -> list[Sample | HistogramSample]:
        """Return the samples of all ranks and of their GPUs, and the counts of frames and dropped series."""
        return [*(sample for _, block in self.blocks() for sample in block), *self.on_gpus(), *self.counts()]

    def blocks(self, level: str = ALL) -> Iterator[tuple[int, Sequence[Sample | HistogramSample]]]:
        """Yield the samples of each rank, at one of SERIES_LEVELS, and of each run's sums, with their owner."""
        table, kept = self._table, self._table.kept_sums
        for name, run in table.runs():
            view = table.view(name, run)
            for rank, state in view.states.items():
                if rank.named is not None:
                    peak_flops = table.gpus.peak_flops_of(rank)
                    yield (
                        rank.peer.uid,
                        rank_samples(rank, view.now, view.wall, state=state, peak_flops=peak_flops, level=level),
                    )
            if view.states and all(rank.named is None for rank in view.states):
                continue
            sums = run.sums(name) if kept is None else kept.get(name, [])
            if of_run := [*(run.conclusions.samples(view) if view.states else ()), *sums]:
                yield run.owner, of_run
        yield from table.of_supervisors()

    def on_gpus(self) -> Iterator[Sample]:
        """Yield the rank on each GPU, then how many GPUs compute for nobody that records."""
        table = self._table
        dev = {name for name, run in table.runs() if run.ranks and tier_of(run.ranks.values()) == "dev"}
        yield from table.gpus.samples(list(table.ranks()), dev)

    def counts(self) -> Iterator[Sample]:
        """Yield the counts of frames accepted and rejected, and of series dropped."""
        table = self._table
        yield Sample(catalog.FRAMES, (), table.frames)
        for metric, counts in ((catalog.FRAMES_REJECTED, table.rejected), (catalog.SERIES_DROPPED, table.dropped)):
            for reason, count in counts.items():
                yield Sample(metric, (reason,), count)
