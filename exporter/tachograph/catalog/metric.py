"""A metric: one row of a catalog, with every fact about it as a column."""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "tachograph_"
TRAIN_PREFIX = "tachograph_train_"

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"
NATIVE_HISTOGRAM = "native histogram"
"""Of Prometheus: one series with all its buckets, which the text formats cannot show."""

RANK = ("run", "rank")
GPU = ("gpu", "uuid")

FEW, DASHBOARDS, ALL = "few", "dashboards", "all"
SERIES_LEVELS = (FEW, DASHBOARDS, ALL)
"""How much of a rank, or of a GPU, is shown (`--rank.series`, `--gpu.series`): each level what the one before it does,
and more."""


class Dcgm(NamedTuple):
    """A field of dcgm-exporter with the same meaning: its number is ours times `scale`.

    `labels` are the values of our own labels (after gpu and uuid) that it stands for; `default` says whether
    dcgm-exporter exports it by default.
    """

    field: str
    scale: float = 1.0
    labels: tuple[str, ...] = ()
    default: bool = True


class Metric(NamedTuple):  # and not a dataclass: those cost `import tachograph` 4 ms and 1 MB
    """One metric family: all its `labels`, and in `values` the values of the last one that exist from the start."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str
    values: tuple[str, ...] = ()
    dcgm: tuple[Dcgm, ...] = ()
    vocabulary: tuple[str, ...] = ()
    """The only values that the last label may have; empty: any."""
    detail: bool | tuple[str, ...] = False
    """Hidden unless the user asks for all: the whole family, or these values of its last label."""
    few: bool = False
    """For a rank's or a GPU's family: shown even with the fewest series, because a rule or an alert's text needs it."""
    normal: float | str | None = None
    """For a GPU's family: the value, or the value of its last label, that says that nothing is amiss. With the fewest
    series it is not shown."""
    rare: bool = False
    """For a rank's counter whose increase no rule uses: while it is 0, it is shown only at the level `all`."""
    unread: str = ""
    """Why it exists although no rule, panel, command, runbook or other page reads it; empty if something does."""
    loggable: bool = False
    """Whether a training loop reports it with `step.log`: a gauge by its key, a counter by what a step adds to it.
    Other training metrics are measured, or have their own call."""
    lasts: bool = False
    """Whether a gauge of a rank stays true after the rank has ended, and so stays on the page."""
    concluded: bool = False
    """Whether the exporter works it out itself, and accepts it from no rank."""
    key: str = ""
    """The wire key of a training metric: its name without the common prefix."""
    own_label: str | None = None
    """The label that a rank fills in itself, None for a plain number."""
    merged: bool = False
    """Whether the exporter adds up the ranks of a run, so that the series has no label `rank`."""

    @property
    def level(self) -> str:
        """The lowest of SERIES_LEVELS at which a rank's family is shown."""
        return FEW if self.few else ALL if self.detail else DASHBOARDS

    def is_shown_at(self, level: str) -> bool:
        """Return whether a rank's family is shown at this one of SERIES_LEVELS."""
        return SERIES_LEVELS.index(self.level) <= SERIES_LEVELS.index(level)

    def is_detail(self, labels: tuple[str, ...]) -> bool:
        """Return whether the series with these label values is hidden unless the user asks for all."""
        return self.detail if isinstance(self.detail, bool) else labels[-1] in self.detail


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
        *,
        vocabulary: tuple[str, ...] = (),
        detail: bool | tuple[str, ...] = False,
        few: bool = False,
        normal: float | str | None = None,
        rare: bool = False,
        unread: str = "",
        loggable: bool = False,
        lasts: bool = False,
        concluded: bool = False,
    ) -> Metric:
        """Add a row and return it; the common prefix is put before its name."""
        row = Metric(
            PREFIX + name, kind, unit, labels, text, values, dcgm,
            vocabulary or values, detail, few, normal, rare, unread, loggable, lasts, concluded,
            name[6:] if name.startswith("train_") else "",
            labels[-1] if labels and labels[-1] not in RANK else None,
            "rank" not in labels,
        )  # fmt: skip
        self.append(row)
        return row
