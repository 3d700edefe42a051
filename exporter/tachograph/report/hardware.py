"""Hardware events on the nodes of the run: Xids, memory errors, thermal slowdown, links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tachograph.findings.kinds import ECC_RISING, ROW_REMAP_PENDING
from tachograph.report.figure import Figure
from tachograph.report.markup import text
from tachograph.report.queries import SectionQueries, held
from tachograph.report.svg import PlotArea, span
from tachograph.report.timeline import BAR, LEFT, ROW, stretches
from tachograph.text.moments import iso

PER_KIND = 6
ROWS = 30

KINDS = (
    ("GPU lost", "node:gpu_lost:info"),
    ("driver call hanging", "node:gpu_hung:info"),
    ("fatal Xid", "node:gpu_xid_fatal_timestamp_seconds:max"),
    ("uncorrected ECC errors", "node:gpu_ecc_uncorrected:max"),
    ("repair pending", f'ALERTS{{alertname="{ROW_REMAP_PENDING.alert}",alertstate="firing"}}'),
    ("corrected ECC errors rising", f'ALERTS{{alertname="{ECC_RISING.alert}",alertstate="firing"}}'),
    ("thermal slowdown", "node:gpu_thermal_slowdown:ratio"),
    ("power brake slowdown", "node:gpu_power_braked:ratio"),
    ("slower than its peers", "node:gpu_clock_of_peers:ratio"),
    ("NVLink links down", "node:gpu_nvlink_links_down:count"),
    ("NIC errors", "node:nic_errors:rate2m"),
    ("NIC down", "node:nic_down_seconds:max"),
    ("node not visible", "node:unseen_seconds:max"),
)
"""An event, and the recorded series that is present only while it lasts."""


def hardware(queries: SectionQueries) -> Figure:
    """Return the timeline of hardware events, with a row for each component."""
    figure = Figure(
        "Hardware", "Events on the nodes of the run, including GPUs of other runs there. It should be empty.", queries
    )
    rows: list[tuple[str, Sequence[float]]] = []
    for words, name in KINDS:
        worst = f"topk({PER_KIND}, count_over_time({name}[$window] @ end()) and on (instance) $nodes)"
        for series in queries.range(f"{held(name)} and {worst}"):
            rows.append((f"{_where(series.labels)} {words}", [time for time, _ in series.samples]))
    rows += _xids(queries)
    if not rows:
        figure.nothing = "No hardware event was recorded."
        return figure
    if len(rows) > ROWS:
        figure.notes.append(f"{len(rows) - ROWS} more rows are not drawn.")
    rows = rows[:ROWS]
    step = queries.window.step
    area = PlotArea(queries.window, LEFT, 8, ROW * len(rows) + 4)
    parts = []
    for i, (words, times) in enumerate(rows):
        y = 10 + ROW * i
        parts.append(text(words[:38], LEFT - 8, y + BAR - 3, text_anchor="end", class_="row"))
        for event, start, end in stretches(dict.fromkeys(times, words), step):
            title = f"{event}: {iso(start)} to {iso(end)}"
            parts.append(span(area, (start, end), y, BAR, style="fill-hardware", title=title))
    figure.picture = area.picture("Hardware events: " + ", ".join(words for words, _ in rows), parts)
    return figure


def _xids(queries: SectionQueries) -> list[tuple[str, Sequence[float]]]:
    """Return each Xid of the window with the times at which it was reported."""
    xid, started = "tachograph_gpu_xid_timestamp_seconds", f"{queries.window.start:.0f}"
    last = f"max by (instance, gpu, xid) (last_over_time({xid}[$window] @ end())) > {started}"
    rows: list[tuple[str, Sequence[float]]] = []
    for series in queries.range(
        f"max by (instance, gpu, xid) ({xid}) > {started} and topk({PER_KIND}, {last} and on (instance) $nodes)"
    ):
        rows.append((f"{_where(series.labels)} reported", sorted({moment for _, moment in series.samples})))
    return rows


def _where(labels: Mapping[str, str]) -> str:
    """Return the component of a series: node, GPU or NIC, and Xid."""
    known = {"instance": "{}", "gpu": "GPU {}", "device": "{}", "xid": "Xid {}"}
    return " ".join(form.format(labels[name]) for name, form in known.items() if labels.get(name))
