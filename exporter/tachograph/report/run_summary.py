"""The run in numbers: world size, steps, tokens, MFU, goodput, loss, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.diagnosis import step_parts
from tachograph.report.queries import SectionQueries
from tachograph.text import humanize

SAMPLE = 15
"""Seconds between the samples of a series that is summed; the rules record it at least as often."""

WEIGHT_UPDATES = 'vllm:rl_weight_update_operation_duration_seconds_count{$run,operation="finish"}'
"""Counted by vLLM's newer releases: how often an engine had all of its weights replaced."""


def run_summary(queries: SectionQueries) -> Iterator[tuple[str, str]]:
    """Yield names and values; a value that is not known is left out."""
    at = queries.number

    def total(series: str) -> float | None:
        found = at(f"sum_over_time({series}{{$run}}[$window:{SAMPLE}s])")
        return None if found is None else found * SAMPLE

    ranks, nodes = (at(f"max_over_time(run:{each}:count{{$run}}[$window])") for each in ("ranks", "nodes"))
    if ranks is not None:
        on = f" on {humanize.plural(nodes, 'node')}" if nodes is not None else ""
        yield "World size", humanize.plural(ranks, "rank") + on
    attempts = at("count(group by (attempt) (last_over_time(tachograph_run_restarts{$run}[$window])))")
    restarts = at("max_over_time(run:restarts:max{$run}[$window]) - min_over_time(run:restarts:max{$run}[$window])")
    if attempts is not None:
        again = (
            f", {humanize.plural(restarts, 'restart') if restarts else 'no restart'}" if restarts is not None else ""
        )
        yield "Attempts", humanize.count(attempts) + again
    first, last = (at(f"{edge}_over_time(run:train_step:max{{$run}}[$window])") for edge in ("min", "max"))
    if first is not None and last is not None:
        yield "Steps", f"{humanize.count(first)} to {humanize.count(last)}: {humanize.count(last - first)} completed"
        if updates := at(f"max(increase({WEIGHT_UPDATES}[$window]))"):
            often = humanize.significant((last - first) / updates, 2, zeros=False)
            yield "Weights of the engines", f"{humanize.plural(updates, 'update')}, one every {often} steps"
    if (tokens := total("run:tokens:rate1m")) is not None:
        yield "Tokens trained on", humanize.short(tokens)
    if (mfu := at("avg_over_time(run:mfu:ratio{$run}[$window])")) is not None:
        yield "MFU, mean over wall time", humanize.percent(mfu, 1)
    yield from _parts(queries)
    yield from _time(queries, total("run:ranks:count"))
    still = at("max_over_time(run:progress_age_seconds:min{$run}[$window])")
    if still is not None:
        yield "Longest time without a step", humanize.span(still)
    yield from _loss(queries)
    saved, age = at("run:checkpoint_step:max{$run}"), at("run:checkpoint_age_seconds:min{$run}")
    if saved is not None:
        old = f", {humanize.span(age)} old at the end" if age is not None else ""
        yield "Last restorable checkpoint", f"step {humanize.count(saved)}{old}"


def _parts(queries: SectionQueries) -> Iterator[tuple[str, str]]:
    """Yield what the steps of a loop that generates go into."""
    found = queries.at_end("avg by (phase) (avg_over_time(run:phase_seconds:median{$run}[$window]))")
    parts = step_parts({each.labels["phase"]: each.value for each in found})
    if whole := sum(parts.values()):
        shown = (f"{name} {humanize.duration(each)} ({humanize.percent(each / whole)})" for name, each in parts.items())
        yield "Time of a step", ", ".join(shown)


def _time(queries: SectionQueries, allocated: float | None) -> Iterator[tuple[str, str]]:
    total = f"[$window:{SAMPLE}s]) * {SAMPLE}"
    lost = queries.number(f"sum(sum_over_time(run:lost_seconds:rate2m{{$run}}{total})")
    productive, steps = (
        queries.number(f"sum_over_time(run:{each}_seconds:rate2m{{$run}}{total}")
        for each in ("productive", "new_steps")
    )
    if allocated:
        yield "GPU-hours allocated", humanize.hours(allocated)
    if lost is not None:
        yield "GPU-hours lost", humanize.hours(lost)
    if lost is not None and productive is not None and steps is not None and lost + productive > 0:
        yield "Goodput in this window", humanize.percent(steps / (productive + lost), 1)
        if steps > 0:
            yield "Lost inside its steps", humanize.percent(1 - productive / steps, 1)


def _loss(queries: SectionQueries) -> Iterator[tuple[str, str]]:
    lowest, highest = (queries.number(f"{edge}_over_time(run:loss:median{{$run}}[$window])") for edge in ("min", "max"))
    if lowest is not None and highest is not None:
        yield "Loss (median of ranks)", f"between {humanize.significant(lowest)} and {humanize.significant(highest)}"
