"""What the machines went through: Xids, memory errors, heat, links, on the nodes of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tachograph.report.asking import Asking, held
from tachograph.report.figure import Figure
from tachograph.report.markup import text
from tachograph.report.svg import Frame, span
from tachograph.report.timeline import BAR, LEFT, ROW
from tachograph.report.window import iso

PER_KIND = 6
ROWS = 30

KINDS = (
    ("GPU lost", "node:gpu_lost:info"),
    ("driver call hangs", "node:gpu_hung:info"),
    ("fatal Xid", "node:gpu_xid_fatal_timestamp_seconds:max"),
    ("uncorrected ECC errors", "node:gpu_ecc_uncorrected:max"),
    ("repair pending", "node:gpu_repair_pending:max"),
    ("corrected ECC errors rise", "node:gpu_ecc_corrected_rising:increase1h"),
    ("slowed by heat", "node:gpu_thermal_slowdown:ratio"),
    ("slowed by power brake", "node:gpu_power_braked:ratio"),
    ("slower than its peers", "node:gpu_slow:info"),
    ("NVLink links down", "node:gpu_nvlink_links_down:count"),
    ("NIC errors", "node:nic_errors:rate2m"),
    ("NIC down", "node:nic_down_seconds:max"),
    ("node out of sight", "node:unseen_seconds:max"),
)
"""What may have happened, in words, and the recorded series that is present only while it does."""


def hardware(asking: Asking) -> Figure:
    """Return what happened to the hardware over time, a row for each part that it happened to."""
    figure = Figure(
        "Hardware", "Events on the nodes of the run, also on GPUs of other runs there. Nothing is good.", asking
    )
    rows: list[tuple[str, Sequence[float]]] = []
    for words, name in KINDS:
        worst = f"topk({PER_KIND}, count_over_time({name}[$window] @ end()) and on (instance) $nodes)"
        for series in asking.range(f"{held(name)} and {worst}"):
            rows.append((f"{_where(series.labels)} {words}", [time for time, _ in series.samples]))
    rows += _xids(asking)
    if not rows:
        figure.nothing = "Nothing of the kind was seen."
        return figure
    if len(rows) > ROWS:
        figure.notes.append(f"{len(rows) - ROWS} more rows are not drawn.")
    rows = rows[:ROWS]
    step = asking.window.step
    frame = Frame(asking.window, LEFT, 8, ROW * len(rows) + 4)
    parts = []
    for i, (words, times) in enumerate(rows):
        y = 10 + ROW * i
        parts.append(text(words[:38], LEFT - 8, y + BAR - 3, text_anchor="end", class_="row"))
        for start, end in _stretches(times, step):
            title = f"{words}: {iso(start)} to {iso(end)}"
            parts.append(span(frame, (start, end), y, BAR, style="fill-hardware", title=title))
    figure.picture = frame.picture("Hardware events: " + ", ".join(words for words, _ in rows), parts)
    return figure


def _xids(asking: Asking) -> list[tuple[str, Sequence[float]]]:
    """Return each Xid of the window at the moments it was reported."""
    xid, started = "tachograph_gpu_xid_timestamp_seconds", f"{asking.window.start:.0f}"
    last = f"max by (instance, gpu, xid) (last_over_time({xid}[$window] @ end())) > {started}"
    rows: list[tuple[str, Sequence[float]]] = []
    for series in asking.range(
        f"max by (instance, gpu, xid) ({xid}) > {started} and topk({PER_KIND}, {last} and on (instance) $nodes)"
    ):
        rows.append((f"{_where(series.labels)} reported", sorted({moment for _, moment in series.samples})))
    return rows


def _where(labels: Mapping[str, str]) -> str:
    """Return what a series is about: node, GPU or NIC, and Xid."""
    known = {"instance": "{}", "gpu": "GPU {}", "device": "{}", "xid": "Xid {}"}
    return " ".join(form.format(labels[name]) for name, form in known.items() if labels.get(name))


def _stretches(times: Sequence[float], step: int) -> list[tuple[float, float]]:
    stretches: list[tuple[float, float]] = []
    for time in times:
        if stretches and time - stretches[-1][1] <= 1.5 * step:
            stretches[-1] = (stretches[-1][0], time)
        else:
            stretches.append((time - step, time))
    return stretches
