"""What a metric is: one row of a catalog."""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "tachograph_"
TRAIN_PREFIX = "tachograph_train_"

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"

RANK = ("run", "rank")
GPU = ("gpu", "uuid")


class Dcgm(NamedTuple):
    """A field of dcgm-exporter with the same meaning: its number is ours times `scale`.

    `labels` are the values of our own labels (after gpu and uuid) that it stands for; `default` says whether
    dcgm-exporter shows it without being told to.
    """

    field: str
    scale: float = 1.0
    labels: tuple[str, ...] = ()
    default: bool = True


class Metric(NamedTuple):  # and not a dataclass: those cost `import tachograph` 4 ms and 1 MB
    """One metric family; `labels` are all its labels, `values` the label values that exist from the start."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str
    values: tuple[str, ...] = ()
    dcgm: tuple[Dcgm, ...] = ()

    @property
    def key(self) -> str:
        """The wire key of a training metric: its name without the common prefix."""
        return self.name[len(TRAIN_PREFIX) :]

    @property
    def own_label(self) -> str | None:
        """The one label a rank fills in itself, or None for a plain number."""
        own = [label for label in self.labels if label not in RANK]
        return own[0] if own else None

    @property
    def merged(self) -> bool:
        """Whether the exporter adds the ranks of a run up, so that the series has no label `rank`."""
        return "rank" not in self.labels


class Rows(list[Metric]):
    """The rows of one catalog, in the order in which they are exposed."""

    def add(  # noqa: PLR0917 - a table's columns
        self,
        name: str,
        kind: str,
        unit: str,
        labels: tuple[str, ...],
        text: str,
        values: tuple[str, ...] = (),
        dcgm: tuple[Dcgm, ...] = (),
    ) -> Metric:
        """Add a row and return it; the common prefix is put before its name."""
        row = Metric(PREFIX + name, kind, unit, labels, text, values, dcgm)
        self.append(row)
        return row
