"""`docs/metrics.md`, from the catalog."""

from __future__ import annotations

from collections.abc import Iterable

from tachograph.catalog.index import METRICS
from tachograph.catalog.metric import RANK, TRAIN_PREFIX, Metric

_HEAD = """# Metrics

Every family that the exporter shows, from `exporter/tachograph/catalog/`. Made by `make docs`: do not edit.

- A released name is a promise: it is renamed by adding, and kept for one release.
- Units are base units. What ends in `_total` is a counter; it starts again with the process it belongs to.
- A reading of 0 is a sample of 0. What a device or a run does not have is no sample. What could not be read is no
  sample either, and `tachograph_gpu_up` or `tachograph_exporter_collector_success` is 0.
- Scraped as OpenMetrics, a counter's family has no `_total`, and an `_info` family is of type info; the series are
  the same.
- *No reader* says why a family is there although no rule, panel, command, runbook or other page reads it.
- *Wire key* is the name of a training metric in a rank's [frames](protocol.md).
"""

_SECTIONS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "What the exporter knows of a rank",
        ("tachograph_rank_",),
        "*Level* is the lowest value of `--rank.series` at which a family is shown: see\n"
        "[series of a rank](cost.md#series-of-a-rank). Of a rank that does not\n"
        "run, state and heartbeat are shown at every level.",
    ),
    (
        "What a rank reports",
        (TRAIN_PREFIX,),
        "Of a rank that has ended, counters, `tachograph_train_step` and the info families stay; other gauges go.\n"
        "What has no label `rank` is added up by the exporter over the ranks of a run on its node, and shown at every\n"
        "level.",
    ),
    (
        "What the node concludes about a run",
        ("tachograph_run_",),
        "Of its own ranks, however many there are: rules compare the nodes.",
    ),
    (
        "A GPU",
        ("tachograph_gpu_",),
        "From NVML. *Detail* is shown with `--gpu.detail` only. *DCGM* is the field of dcgm-exporter with the same\n"
        "meaning: see [beside dcgm-exporter](dcgm.md).",
    ),
    (
        "A node",
        ("tachograph_node_",),
        "From the kernel's log: see [what it says](kernel.md).",
    ),
    (
        "The exporter itself",
        ("tachograph_exporter_",),
        "Beside these stand `process_*` of the exporter's own process, as every exporter names them.",
    ),
)


def metrics_page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, prefixes, note in _SECTIONS:
        rows = [metric for metric in METRICS if metric.name.startswith(prefixes)]
        parts.append(f"## {title}\n" + (f"\n{note}\n" if note else ""))
        parts.append(_table(rows))
    return "\n".join(parts)


def _table(rows: Iterable[Metric]) -> str:
    rows = tuple(rows)
    train = any(row.name.startswith(TRAIN_PREFIX) for row in rows)
    dcgm = any(row.dcgm for row in rows)
    ranks = any(row.labels[:2] == RANK for row in rows)
    columns = ["Metric", "Type", "Labels", *["Level"] * ranks, *["Wire key"] * train, *["DCGM"] * dcgm, "Meaning"]
    lines = [_line(columns), _line("---" for _ in columns)]
    for row in rows:
        words = f" Values: {_codes(row.values)}." if row.values else ""
        words += _detail(row) if row.labels[:2] != RANK else ""
        words += f" *No reader:* {row.unread}." if row.unread else ""
        lines.append(
            _line(
                [
                    f"`{row.name}`", row.kind, _codes(row.labels),
                    *[row.level if row.labels[:2] == RANK else ""] * ranks,
                    *[f"`{row.key}`" if row.kind != "info" and not row.concluded else ""] * train,
                    *[_twins(row)] * dcgm,
                    row.help + words,
                ]
            )
        )  # fmt: skip
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _detail(row: Metric) -> str:
    if isinstance(row.detail, bool):
        return " *Detail.*" if row.detail else ""
    return f" *Detail:* {_codes(sorted(row.detail))}."


def _twins(row: Metric) -> str:
    return "<br>".join(
        f"`{twin.field}`" + (f" ({', '.join(twin.labels)})" if twin.labels else "") + _scale(twin.scale)
        for twin in row.dcgm
    )


def _scale(scale: float) -> str:
    return "" if scale == 1 else f" = ours × {scale:.6g}"
