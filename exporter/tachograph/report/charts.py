"""Charts of the run over the window: loss, MFU, step time, lost time, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from tachograph.catalog.rank import LOST_CAUSES
from tachograph.findings.kinds import KINDS
from tachograph.report.alert_episodes import AlertEpisode
from tachograph.report.figure import HEIGHT, LEFT, Figure, Line, Mark, chart
from tachograph.report.queries import SectionQueries, stepping
from tachograph.report.svg import PlotArea, Point, stacked
from tachograph.text import humanize
from tachograph.text.moments import iso

LOSS_ALERTS = frozenset(kind.alert for kind in KINDS if kind.shown_with_loss)
MARKS_SHOWN = 80
ALERTS_SHOWN = 8

number = partial(humanize.significant, zeros=False)
percent = partial(humanize.percent, digits=1)


def loss(queries: SectionQueries, episodes: Sequence[AlertEpisode]) -> Figure:
    """Return the chart of the loss, with restarts, loss spikes and checkpoints."""
    figure = Figure(
        "Loss",
        "Median over ranks; the band is the lowest and highest median within each sample interval. It should fall; a "
        "gap while steps continue means that no rank had a finite loss.",
        queries,
    )
    low, mean, high = (queries.line("run:loss:median", edge) for edge in ("min", "avg", "max"))
    odd = queries.line("run:loss_nonfinite_ranks:count", "max")
    crosses = [(time, math.nan) for time, count in odd if count > 0]
    marks = [*_events(queries)]
    points = sorted([*mean, *crosses], key=lambda point: point[0])
    lines = [Line("median loss", "s0", points)]
    own = [each for each in episodes if each.alert in LOSS_ALERTS]
    figure.picture = chart(queries.window, "Loss", lines, number, zero=False, between=(low, high),
                           marks=marks[:MARKS_SHOWN], episodes=own)  # fmt: skip
    figure.legend = [("s0", "median loss")]
    figure.legend += [("cross", "loss not finite on some rank")] if crosses else []
    kinds = {mark.kind for mark in marks}
    words = {"restart": "restart", "spike": "loss spike began", "checkpoint": "checkpoint saved"}
    figure.legend += [(f"mark-{kind}", text) for kind, text in words.items() if kind in kinds]
    if len(marks) > MARKS_SHOWN:
        figure.notes.append(f"{len(marks) - MARKS_SHOWN} more events are not drawn.")
    return figure


def _events(queries: SectionQueries) -> Iterator[Mark]:
    """Yield restarts, loss spikes and checkpoints; checkpoints last, as there are most of them."""
    for time, before, after in _rises(queries.line("run:restarts:max", "max")):
        words = "restart" if after - before == 1 else "restarts up to"
        yield Mark(time, "restart", f"{words} {humanize.count(after)}")
    for time, before, after in _rises(queries.line("run:loss_spike_steps:median", "max")):
        if before == 0:
            yield Mark(time, "spike", f"loss spike, {humanize.plural(after, 'step')} by")
    for time, _, after in _rises(queries.line("run:checkpoint_step:max", "max")):
        yield Mark(time, "checkpoint", f"checkpoint of step {humanize.count(after)},")


def _rises(points: Sequence[Point]) -> Iterator[tuple[float, float, float]]:
    for (_, before), (time, after) in pairwise(points):
        if after > before:
            yield time, before, after


def mfu(queries: SectionQueries, episodes: Sequence[AlertEpisode]) -> Figure:
    """Return the chart of MFU, with the alerts that fired."""
    figure = Figure(
        "Model FLOPs utilization",
        "Over completed steps, over wall time, and the run's baseline. Over wall time it falls to 0 in a hang; over "
        "completed steps it has a gap then, and falls when steps slow down. The bars on top are alerts.",
        queries,
    )
    lines = [
        Line("over completed steps", "s0", queries.line("run:step_mfu:ratio", in_hangs=False)),
        Line("over wall time", "s1", queries.line("run:mfu:ratio")),
        Line("baseline", "s2", queries.line("run:step_mfu:baseline")),
    ]
    shown = [each for each in episodes if each.severity != "info"] or list(episodes)
    figure.picture = chart(queries.window, "MFU", lines, percent, most=1.0, episodes=_of_first_alerts(shown))
    figure.legend = [(each.style, each.words) for each in lines if each.points]
    return figure


def _of_first_alerts(episodes: Sequence[AlertEpisode]) -> list[AlertEpisode]:
    """Return the episodes of the first few alerts: each alert takes a row."""
    names = list(dict.fromkeys(each.alert for each in episodes))[:ALERTS_SHOWN]
    return [each for each in episodes if each.alert in names]


def step_time(queries: SectionQueries) -> Figure:
    """Return the chart of the step time."""
    figure = Figure(
        "Step time",
        "Wall time of ordinary steps: usual is the median rank's, the mean is that of all steps of a minute. A mean "
        "above the usual: some steps stall. A gap: a hang.",
        queries,
    )
    usual = queries.range(stepping("quantile(0.5, tachograph_train_recent_step_seconds{$run})"), coarse=True)
    lines = [
        Line("usual", "s0", [point for each in usual for point in each.samples], coarse=True),
        Line("mean", "s2", queries.line("run:step_seconds:mean1m", in_hangs=False)),
    ]
    figure.picture = chart(queries.window, "Step time", lines, humanize.span)
    figure.legend = [(each.style, each.words) for each in lines if each.points]
    return figure


def lost_time(queries: SectionQueries) -> Figure:
    """Return the chart of the lost time by cause, stacked."""
    figure = Figure(
        "Lost time",
        "Number of ranks whose time produced no new work, by cause, stacked. Only init and checkpoints are normal; one "
        "rank lost for an hour is a GPU-hour.",
        queries,
    )
    by_cause = {
        series.labels["cause"]: dict(series.samples) for series in queries.range("run:lost_seconds:rate2m{$run}")
    }
    causes = [cause for cause in LOST_CAUSES if cause in by_cause and max(by_cause[cause].values()) > 0]
    if not causes:
        figure.nothing = "No time was lost, or it was not recorded."
        return figure
    area = PlotArea(queries.window, LEFT, 8, HEIGHT)
    parts = stacked(area, [(cause, by_cause[cause]) for cause in causes], number, queries.window.step)
    lost = {cause: sum(by_cause[cause].values()) * queries.window.step for cause in causes}
    figure.picture = area.picture(
        "Lost time by cause: " + ", ".join(f"{each} {humanize.hours(lost[each])} GPU-hours" for each in causes), parts
    )
    figure.legend = [(cause, f"{cause}: {humanize.hours(lost[cause])} GPU-hours") for cause in causes]
    return figure


def checkpoints(queries: SectionQueries, episodes: Sequence[AlertEpisode]) -> Figure:
    """Return the chart of the age of the last checkpoint."""
    figure = Figure(
        "Checkpoints",
        "Age of the last saved checkpoint: the work that a failure at that time would have lost. It should be a "
        "regular sawtooth; a tooth that keeps growing is a save that failed or was not made.",
        queries,
    )
    age = queries.line("run:checkpoint_age_seconds:min", "max")
    took = queries.line("run:checkpoint_duration_seconds:max", "max")
    own = [each for each in episodes if each.alert.startswith("Checkpoint")]
    lines = [Line("age of the last checkpoint", "s0", age), Line("time the last one took", "s1", took)]
    figure.picture = chart(queries.window, "Checkpoints", lines, humanize.span, episodes=own)
    figure.legend = [(each.style, each.words) for each in lines if each.points]
    saved = [f"step {humanize.count(after)} by {iso(time)}" for time, _, after in
             _rises(queries.line("run:checkpoint_step:max", "max"))]  # fmt: skip
    if saved:
        figure.notes.append(f"Saved in this window: {', '.join(saved[-5:])}"
                            + (f", and {len(saved) - 5} before." if len(saved) > 5 else "."))  # fmt: skip
    return figure
