"""The lines of a run over the window: loss, MFU, step time, lost time, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tachograph.catalog.rank import LOST_CAUSES
from tachograph.report.asking import Asking
from tachograph.report.figure import HEIGHT, LEFT, Figure, Line, Mark, chart
from tachograph.report.svg import Frame, Point, Scale, band
from tachograph.report.verdicts import Verdict
from tachograph.report.window import iso, length

LOSS_ALERTS = frozenset({"LossSpike", "LossSpikeNotRecovering", "LossDiverging", "LossNotFinite", "LossPlateau",
                         "GradientNormSpike", "GradientNormVanished"})  # fmt: skip
MARKS_SHOWN = 80


def ratio(value: float) -> str:
    """Return a share in percent."""
    return f"{value:.0%}" if abs(value) >= 0.1 or not value else f"{value:.1%}"


def plain(value: float) -> str:
    """Return a number in four digits."""
    return f"{value:.4g}"


def loss(asking: Asking, verdicts: Sequence[Verdict]) -> Figure:
    """Return the loss with what happened to the run."""
    figure = Figure(
        "Loss",
        "Median over ranks; the band is the lowest and highest median within a step of the picture. Falling is good; a "
        "gap while steps go on means that no rank had a finite loss.",
        asking,
    )
    low, mean, high = (asking.line("run:loss:median", edge) for edge in ("min", "avg", "max"))
    odd = asking.line("run:loss_nonfinite_ranks:count", "max")
    crosses = [(time, math.nan) for time, count in odd if count > 0]
    marks = [*_events(asking)]
    points = sorted([*mean, *crosses], key=lambda point: point[0])
    lines = [Line("median loss", "s0", points)]
    figure.picture = chart(asking, "Loss", lines, plain, zero=False, between=(low, high), marks=marks[:MARKS_SHOWN],
                           verdicts=[each for each in verdicts if each.alert in LOSS_ALERTS])  # fmt: skip
    figure.legend = [("s0", "median loss")]
    figure.legend += [("cross", "loss not finite on some rank")] if crosses else []
    kinds = {mark.kind for mark in marks}
    words = {"restart": "restart", "spike": "spike began", "checkpoint": "checkpoint saved"}
    figure.legend += [(f"mark-{kind}", text) for kind, text in words.items() if kind in kinds]
    if len(marks) > MARKS_SHOWN:
        figure.notes.append(f"{len(marks) - MARKS_SHOWN} more events are not drawn.")
    return figure


def _events(asking: Asking) -> Iterator[Mark]:
    """Yield restarts, spikes and checkpoints; checkpoints last, for there are most of them."""
    for time, before, after in _rises(asking.line("run:restarts:max", "max")):
        yield Mark(time, "restart", f"restart {after:.0f}" if after - before == 1 else f"restarts up to {after:.0f}")
    for time, before, after in _rises(asking.line("run:loss_spike_steps:median", "max")):
        if before == 0:
            yield Mark(time, "spike", f"spike, {after:.0f} steps by")
    for time, _, after in _rises(asking.line("run:checkpoint_step:max", "max")):
        yield Mark(time, "checkpoint", f"checkpoint of step {after:,.0f},")


def _rises(points: Sequence[Point]) -> Iterator[tuple[float, float, float]]:
    for (_, before), (time, after) in pairwise(points):
        if after > before:
            yield time, before, after


def mfu(asking: Asking, verdicts: Sequence[Verdict]) -> Figure:
    """Return MFU under all that fired."""
    figure = Figure("Model FLOPs utilization", "Of completed steps, by the clock, and what the run is used to. By the "
                    "clock falls to 0 in a hang; of completed steps falls when steps slow down. The strips are alerts.",
                    asking)  # fmt: skip
    lines = [
        Line("of completed steps", "s0", asking.line("run:step_mfu:ratio")),
        Line("by the clock", "s1", asking.line("run:mfu:ratio")),
        Line("baseline", "s2", asking.line("run:step_mfu:baseline")),
    ]
    shown = [each for each in verdicts if each.severity != "info"] or list(verdicts)
    figure.picture = chart(asking, "MFU", lines, ratio, most=1.0, verdicts=_first_names(shown, 8))
    figure.legend = [(each.style, each.words) for each in lines if each.points]
    return figure


def _first_names(verdicts: Sequence[Verdict], most: int) -> list[Verdict]:
    """Return the verdicts of the first few alerts: a strip for each name."""
    names = list(dict.fromkeys(each.alert for each in verdicts))[:most]
    return [each for each in verdicts if each.alert in names]


def step_time(asking: Asking) -> Figure:
    """Return how long a step takes."""
    figure = Figure("Step time", "Wall time of ordinary steps, all ranks together; quantiles come from buckets 41 % "
                    "apart, the highest is the upper edge of the last bucket with a step in it.", asking)  # fmt: skip
    buckets = "sum by (le) (rate(tachograph_train_step_seconds_bucket{$run}[$rated]))"
    quantiles = (("p50", "s0", "0.5"), ("p90", "s1", "0.9"), ("highest", "s3", "1"))
    lines = []
    for words, style, share in quantiles:
        found = asking.range(f"histogram_quantile({share}, {buckets})", coarse=True)
        points = [point for each in found for point in each.samples if not math.isnan(point[1])]
        lines.append(Line(words, style, points, coarse=True))
    lines.append(Line("mean", "s2", asking.line("run:step_seconds:mean1m")))
    figure.picture = chart(asking, "Step time", lines, length)
    figure.legend = [(each.style, each.words) for each in lines if each.points]
    return figure


def lost_time(asking: Asking) -> Figure:
    """Return what the run's time was lost to, stacked."""
    figure = Figure("Lost time", "Ranks' worth of time that brought no new work, by cause, one on the other. Nothing "
                    "but init and checkpoints is good; a rank lost for an hour is a GPU-hour.", asking)  # fmt: skip
    by_cause = {
        series.labels["cause"]: dict(series.samples) for series in asking.range("run:lost_seconds:rate2m{$run}")
    }
    causes = [cause for cause in LOST_CAUSES if cause in by_cause and max(by_cause[cause].values()) > 0]
    if not causes:
        figure.nothing = "Nothing was lost, or nothing is known of it."
        return figure
    times = sorted(set().union(*(by_cause[cause] for cause in causes)))
    floor, edges = dict.fromkeys(times, 0.0), []
    for cause in causes:
        top = {time: floor[time] + max(by_cause[cause].get(time, 0.0), 0.0) for time in times}
        edges.append((cause, list(floor.items()), list(top.items())))
        floor = top
    frame = Frame(asking.window, LEFT, 8, HEIGHT)
    scale = Scale.over(frame, floor.values(), zero=True)
    parts = [*scale.axis(plain)]
    parts += [band(scale, low, high, asking.window.step, f"fill-{cause}") for cause, low, high in edges]
    hours = {cause: sum(by_cause[cause].values()) * asking.window.step / 3600 for cause in causes}
    figure.picture = frame.picture(
        "Lost time by cause: " + ", ".join(f"{each} {hours[each]:.1f} GPU-hours" for each in causes), parts
    )
    figure.legend = [(cause, f"{cause}: {hours[cause]:,.1f} GPU-hours") for cause in causes]
    return figure


def checkpoints(asking: Asking, verdicts: Sequence[Verdict]) -> Figure:
    """Return how old the last checkpoint was at each moment."""
    figure = Figure(
        "Checkpoints",
        "Age of the last saved checkpoint: what a failure at that moment would have lost. A saw with even teeth is "
        "good; a tooth that grows is a save that fails or is not made.",
        asking,
    )
    age = asking.line("run:checkpoint_age_seconds:min", "max")
    took = asking.line("run:checkpoint_duration_seconds:max", "max")
    own = [each for each in verdicts if each.alert.startswith("Checkpoint")]
    lines = [Line("age of the last checkpoint", "s0", age), Line("time the last one took", "s1", took)]
    figure.picture = chart(asking, "Checkpoints", lines, length, verdicts=own)
    figure.legend = [(each.style, each.words) for each in lines if each.points]
    saved = [f"step {after:,.0f} by {iso(time)}" for time, _, after in
             _rises(asking.line("run:checkpoint_step:max", "max"))]  # fmt: skip
    if saved:
        figure.notes.append(f"Saved in this window: {', '.join(saved[-5:])}"
                            + (f", and {len(saved) - 5} before." if len(saved) > 5 else "."))  # fmt: skip
    return figure
