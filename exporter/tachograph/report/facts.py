"""The facts of a run in a window, in numbers."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.report.asking import Asking
from tachograph.report.charts import plain, ratio
from tachograph.report.window import length

SAMPLE = 15
"""Seconds between the samples of what is added up; the rules record it as often or more often."""

Fact = tuple[str, str]


def facts(asking: Asking) -> Iterator[Fact]:
    """Yield what is known, in words; what is not known is left out."""

    def at(question: str) -> float | None:
        return asking.number(question)

    def added(series: str) -> float | None:
        found = at(f"sum_over_time({series}{{$run}}[$window:{SAMPLE}s])")
        return None if found is None else found * SAMPLE

    ranks, nodes = (
        at("max_over_time(run:ranks:count{$run}[$window])"),
        at("max_over_time(run:nodes:count{$run}[$window])"),
    )
    if ranks is not None:
        where = f" on {nodes:,.0f} node{'s' * (nodes != 1)}" if nodes is not None else ""
        yield "World size", f"{ranks:,.0f} rank{'s' * (ranks != 1)}{where}"
    attempts = at("count(group by (attempt) (last_over_time(run:attempt:info{$run}[$window])))")
    restarts = at("max_over_time(run:restarts:max{$run}[$window]) - min_over_time(run:restarts:max{$run}[$window])")
    if attempts is not None:
        again = f", {restarts:.0f} restart{'s' * (restarts != 1)}" if restarts else ", no restart"
        yield "Attempts", f"{attempts:.0f}{again if restarts is not None else ''}"
    first, last = (at(f"{edge}_over_time(run:train_step:max{{$run}}[$window])") for edge in ("min", "max"))
    if first is not None and last is not None:
        yield "Steps", f"{first:,.0f} to {last:,.0f}: {last - first:,.0f} made"
    if (tokens := added("run:tokens:rate1m")) is not None:
        yield "Tokens trained on", f"{tokens:.3g}"
    if (mfu := at("avg_over_time(run:mfu:ratio{$run}[$window])")) is not None:
        yield "MFU, mean by the clock", ratio(mfu)
    yield from _time(asking, added("run:ranks:count"))
    still = at("max_over_time(run:progress_age_seconds:min{$run}[$window])")
    if still is not None:
        yield "Longest without a step", length(still)
    yield from _learning(asking)
    saved, age = at("run:checkpoint_step:max{$run}"), at("run:checkpoint_age_seconds:min{$run}")
    if saved is not None:
        yield "Last checkpoint", f"step {saved:,.0f}" + (f", {length(age)} old at the end" if age is not None else "")


def _time(asking: Asking, allotted: float | None) -> Iterator[Fact]:
    total = f"[$window:{SAMPLE}s]) * {SAMPLE} / 3600"
    lost = asking.number(f"sum(sum_over_time(run:lost_seconds:rate2m{{$run}}{total})")
    productive = asking.number(f"sum_over_time(run:productive_seconds:rate2m{{$run}}{total}")
    if allotted:
        yield "GPU-hours allotted", f"{allotted / 3600:,.1f}"
    if lost is not None:
        yield "GPU-hours lost", f"{lost:,.1f}"
    if lost is not None and productive is not None and lost + productive > 0:
        yield "Goodput in this window", ratio(productive / (productive + lost))


def _learning(asking: Asking) -> Iterator[Fact]:
    lowest, highest = (asking.number(f"{edge}_over_time(run:loss:median{{$run}}[$window])") for edge in ("min", "max"))
    if lowest is not None and highest is not None:
        yield "Loss (median of ranks)", f"{plain(lowest)} to {plain(highest)}"
