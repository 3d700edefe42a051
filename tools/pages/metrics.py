"""`docs/metrics.md`, from the catalog."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from tachograph.catalog.index import METRICS, OPERATIONS, OWN_PHASES, PHASES
from tachograph.catalog.metric import ALL, FEW, GPU, HISTOGRAM, NATIVE_HISTOGRAM, RANK, TRAIN_PREFIX, Metric

_HEAD = f"""# Metrics

Every family of the exporter, made by `make docs` from `exporter/tachograph/catalog/`.

- Units are base units. A name ending in `_total` is a counter, which starts again with its process; one ending in
  `_info` is always 1; the others are gauges, except for one *histogram* and one *native histogram*, which only the
  [protobuf format](deploy/native-histograms.md) has.
- A reading of 0 is a sample of 0. What a device or run lacks, or does not have yet, has no sample. Nor does a reading
  that failed: then `tachograph_gpu_up` or `tachograph_exporter_collector_success` is 0.
- `phase` is one of `{"|".join(PHASES)}`, `op` one of
  `{"|".join(OPERATIONS)}`.
- Families that nothing of ours reads are listed by name; `/metrics` explains them.
- A renamed family keeps its old name for one release.
"""

_SECTIONS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        "What the exporter knows about a rank",
        ("tachograph_rank_",),
        RANK,
        "Labels: `run` and `rank`. ¹: shown at every `--rank.series`; ²: at `all` only; the others from `dashboards`\n"
        "upwards ([series of a rank](cost.md#series-of-a-rank)). The state of a rank that is not running is always\n"
        "shown.",
    ),
    (
        "What a rank reports",
        (TRAIN_PREFIX,),
        RANK,
        "The same labels and marks. ³: summed over the ranks of a run on its node, without `rank`, always shown. On\n"
        "the [wire](protocol.md), names have no `tachograph_train_`. Once a rank has ended, its counters, step and\n"
        "info families stay.",
    ),
    (
        "What the node concludes about a run",
        ("tachograph_run_",),
        ("run",),
        "Label: `run`. Each is about its ranks on one node; rules compare nodes.",
    ),
    (
        "What the supervisor of a run says",
        ("tachograph_supervisor_",),
        ("run",),
        "Label: `run`. Of [`tachograph supervise`](supervise.md) on this node.",
    ),
    (
        "A GPU",
        ("tachograph_gpu_",),
        GPU,
        "Labels: `gpu` and `uuid`. ¹: shown at every `--gpu.series`; ²: at `all` only; the others from `dashboards`\n"
        "upwards ([series of a GPU](cost.md#series-of-a-gpu)). [dcgm.yml](../prometheus/rules/dcgm.yml) has the DCGM\n"
        "fields with the same meaning.",
    ),
    (
        "A node",
        ("tachograph_node_",),
        (),
        "From the [kernel's log](kernel.md), and of its network ports (`device` and `port`, empty for Ethernet).",
    ),
    (
        "The exporter itself",
        ("tachograph_exporter_",),
        (),
        "Besides the usual `process_*` of its own process:",
    ),
)

_MARKS = {FEW: "¹", ALL: "²"}
_HIDDEN = _MARKS[ALL]
_SAID_ONCE = re.compile(r"[,;] summed over the ranks of the run on this node| of the run on this node| on this node")
_UNREAD = "Not read:"


def metrics_page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, prefixes, common, note in _SECTIONS:
        rows = [metric for metric in METRICS if metric.name.startswith(prefixes)]
        parts.append(f"## {title}\n\n{note}\n")
        parts.append(_list(rows, common))
    return "\n".join(parts)


def _list(rows: Sequence[Metric], common: tuple[str, ...]) -> str:
    """Return the rows that something reads, each with its labels beyond the common ones, and the names of the rest."""
    lines = [f"- {_name(row, common)}{_mark(row)}: {_meaning(row)}" for row in rows if not row.unread]
    if rest := [_name(row, common) for row in rows if row.unread]:
        unread = textwrap.fill(f"{_UNREAD} {', '.join(rest)}.", 120, break_on_hyphens=False, break_long_words=False)
        lines += ["", unread]
    return "\n".join(lines) + "\n"


def _name(row: Metric, common: tuple[str, ...]) -> str:
    """Return the name with its own labels, the last one with the values that it may have."""
    own = [label for label in row.labels if label not in common]
    if values := _values(row):
        own[-1] += f'="{"|".join(values)}"'
    return f"`{row.name}{{{','.join(own)}}}`" if own else f"`{row.name}`"


def _values(row: Metric) -> list[str]:
    """Return the values of the last label, hidden ones marked; none where the page has them at its beginning."""
    hidden = () if isinstance(row.detail, bool) else row.detail
    if row.unread or row.vocabulary in {PHASES, OWN_PHASES, OPERATIONS}:
        return []
    values = row.vocabulary or ("…", *hidden) if hidden else row.vocabulary
    return [value + _HIDDEN if value in hidden else value for value in values]


def _mark(row: Metric) -> str:
    if row.name.startswith(TRAIN_PREFIX) and row.merged:
        return "³"
    if row.labels[:2] == RANK and row.name.startswith((TRAIN_PREFIX, "tachograph_rank_")):
        return _MARKS.get(row.level, "")
    if row.labels[:2] == GPU:
        return _MARKS[FEW] if row.few else _HIDDEN if row.detail is True else ""
    return ""


def _meaning(row: Metric) -> str:
    """Return the help text without what the section says, and whether it is a histogram."""
    kind = f" *{row.kind.capitalize()}.*" if row.kind in (HISTOGRAM, NATIVE_HISTOGRAM) else ""
    return _SAID_ONCE.sub("", row.help) + kind
