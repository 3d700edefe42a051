"""`docs/metrics.md`, from the catalog."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from tachograph.catalog.index import METRICS, PHASES
from tachograph.catalog.metric import DASHBOARDS, GPU, HISTOGRAM, RANK, TRAIN_PREFIX, Metric

RUN_PREFIX = "tachograph_run_"
_UNREAD = "Read by no rule, panel, command or runbook of ours; their HELP text on `/metrics` says what they are:"

_HEAD = """# Metrics

Every family that the exporter shows, from `exporter/tachograph/catalog/`. Made by `make docs`: do not edit.

- A released name is a promise: it is renamed by adding, and kept for one release.
- Units are base units. A name ending in `_total` is a counter, which starts again with the process it belongs to; one
  ending in `_info` is always 1; any other is a gauge, unless it says *Histogram*.
- A reading of 0 is a sample of 0. What a device or a run does not have is no sample. What could not be read is no
  sample either, and `tachograph_gpu_up` or `tachograph_exporter_collector_success` is 0.
- Scraped as OpenMetrics, a counter's family has no `_total`, and an `_info` family is of type info.
"""

_SECTIONS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        "What the exporter knows of a rank",
        ("tachograph_rank_",),
        RANK,
        "All have the labels `run` and `rank`. *few*: shown at every `--rank.series`; *all*: at `all` only; the\n"
        "others from `dashboards` on ([series of a rank](cost.md#series-of-a-rank)). Of a rank that does not run,\n"
        "state and heartbeat are shown at every level.",
    ),
    (
        "What a rank reports",
        (TRAIN_PREFIX,),
        RANK,
        "All have the labels `run` and `rank`, except those *of the run*, which the exporter adds up over the ranks\n"
        "of a run on its node and shows at every level. A rank sends a metric by its name without `tachograph_train_`\n"
        "([protocol](protocol.md)). Of a rank that has ended, counters, the step and the info families stay; other\n"
        "gauges go.",
    ),
    (
        "What the node concludes about a run",
        (RUN_PREFIX,),
        ("run",),
        "Of its own ranks, however many there are: what is said of the run is said of its part on the node, and rules\n"
        "compare the nodes. All have the label `run`.",
    ),
    (
        "A GPU",
        ("tachograph_gpu_",),
        GPU,
        "From NVML. All have the labels `gpu` and `uuid`. *Detail* is shown with `--gpu.detail` only. *DCGM* is the\n"
        "field of dcgm-exporter with the same meaning ([beside dcgm-exporter](dcgm.md)).",
    ),
    (
        "A node",
        ("tachograph_node_",),
        (),
        "From the [kernel's log](kernel.md).",
    ),
    (
        "The exporter itself",
        ("tachograph_exporter_",),
        (),
        "In addition there are the usual `process_*` of the exporter's own process.",
    ),
)


def metrics_page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, prefixes, common, note in _SECTIONS:
        rows = [metric for metric in METRICS if metric.name.startswith(prefixes)]
        parts.append(f"## {title}\n\n{note}\n")
        parts.append(_table(rows, common))
    return "\n".join(parts)


def _table(rows: Sequence[Metric], common: tuple[str, ...]) -> str:
    """Return the rows that something reads, each with its labels beyond the common ones, and the names of the rest."""
    lines = [_line(["Metric", "Meaning"]), _line(["---"] * 2)]
    lines += (_line([_name(row, common), " ".join(_meaning(row))]) for row in rows if not row.unread)
    if rest := [_name(row, common) for row in rows if row.unread]:
        lines += [
            "",
            textwrap.fill(f"{_UNREAD} {', '.join(rest)}.", 120, break_on_hyphens=False, break_long_words=False),
        ]
    return "\n".join(lines) + "\n"


def _name(row: Metric, common: tuple[str, ...]) -> str:
    own = ",".join(label for label in row.labels if label not in common)
    return f"`{row.name}{{{own}}}`" if own else f"`{row.name}`"


def _meaning(row: Metric) -> Iterator[str]:
    """Yield the help text and what the page adds to it."""
    concluded = row.name.startswith(RUN_PREFIX)
    yield re.sub(" of the run on this node| on this node", "", row.help) if concluded else row.help
    if row.values and row.values != PHASES:
        yield f"Values: {', '.join(f'`{value}`' for value in row.values)}."
    if row.kind == HISTOGRAM:
        yield "*Histogram.*"
    if row.labels[:2] == RANK and not concluded:
        if row.level != DASHBOARDS:
            yield f"*{row.level}*"
    elif row.name.startswith(TRAIN_PREFIX):
        yield "*of the run*"
    elif isinstance(row.detail, tuple):
        yield f"*Detail:* {', '.join(f'`{value}`' for value in sorted(row.detail))}."
    elif row.detail:
        yield "*Detail.*"
    if row.dcgm:
        yield f"*DCGM:* {_twins(row)}."


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _twins(row: Metric) -> str:
    return ", ".join(
        f"`{twin.field}`" + (f" ({', '.join(twin.labels)})" if twin.labels else "") + _scale(twin.scale)
        for twin in row.dcgm
    )


def _scale(scale: float) -> str:
    return "" if scale == 1 else f" = ours × {scale:.6g}"
