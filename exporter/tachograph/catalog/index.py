"""Every metric Tachograph exposes, by name: the rows of a rank, a run, a GPU, a node and the exporter itself together.

Exposition, `docs/metrics.md`, and the contract tests of rules and dashboards read these; the client imports only
those of ranks, because the others would cost it import time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tachograph.catalog import exporter, gpu, learning, node, rank, run, train
from tachograph.catalog.exporter import *
from tachograph.catalog.gpu import *
from tachograph.catalog.learning import *
from tachograph.catalog.metric import *
from tachograph.catalog.node import *
from tachograph.catalog.rank import *
from tachograph.catalog.run import *
from tachograph.catalog.train import *

METRICS: tuple[Metric, ...] = (
    *rank.ROWS, *train.ROWS, *learning.ROWS, *run.ROWS, *gpu.ROWS, *node.ROWS, *exporter.ROWS,
)  # fmt: skip
BY_NAME: Mapping[str, Metric] = MappingProxyType({row.name: row for row in METRICS})


def gpu_metrics() -> Iterator[Metric]:
    """Yield the families that describe a GPU."""
    return (row for row in METRICS if row.labels[:2] == GPU)
