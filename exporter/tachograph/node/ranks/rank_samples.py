"""The samples of one rank: what the exporter knows of it, and what it says of itself."""

from __future__ import annotations

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import ALL, SERIES_LEVELS
from tachograph.node.ranks.rank import Rank
from tachograph.node.samples import Sample

_HIDDEN = {
    level: frozenset(row.name for row in catalog.METRICS if not row.is_shown_at(level)) for level in SERIES_LEVELS
}
"""Level -> names of the families that it does not show."""


def rank_samples(
    rank: Rank, now: float, wall: float, *, state: str, peak_flops: float | None, level: str = ALL
) -> list[Sample]:
    """Return the samples of a rank at one of SERIES_LEVELS, given its state and the peak FLOP/s of its device.

    `wall` is the time of the day, by which its end is shown.
    """
    hidden = _HIDDEN[level]
    if state != "running":  # of one that runs, neither is needed
        hidden -= {catalog.RANK_STATE.name, catalog.RANK_HEARTBEAT.name}
    known = _known(rank, now, wall, state=state, peak_flops=peak_flops, level=level)
    shown = [sample for sample in known if sample.metric.name not in hidden]
    if rank.seq < 0:
        return shown  # zeros before the first state would look like counters that fell
    return shown + rank.series.samples(rank.key, alive=not rank.outcome, level=level)


def _known(rank: Rank, now: float, wall: float, *, state: str, peak_flops: float | None, level: str) -> list[Sample]:
    """Return what the exporter knows of the rank, at any level but for what is dropped."""
    key, hello = rank.key, rank.hello
    numbers = (str(hello.local_rank), str(hello.world_size), str(hello.attempt))
    shown = [Sample(catalog.RANK_INFO, (*key, *numbers, *rank.place, str(rank.peer.uid)), 1)]
    if rank.coordinates:
        dimensions = (str(rank.coordinates.get(dimension, "")) for dimension in catalog.DIMENSIONS)
        shown.append(Sample(catalog.RANK_COORDINATES, (*key, *dimensions, rank.written_coordinates), 1))
    if any(rank.job):
        shown.append(Sample(catalog.RANK_JOB_INFO, (*key, *rank.job), 1))
    shown.append(Sample(catalog.RANK_UP, key, state not in ("dead", "failed")))
    for each in catalog.STATES:
        if each == state or each in rank.states:  # others are not shown: four series less of a healthy rank
            shown.append(Sample(catalog.RANK_STATE, (*key, each), each == state))
    shown += [
        Sample(catalog.RANK_HEARTBEAT, key, rank.heartbeat),
        Sample(catalog.TRAIN_CONFIG_INFO, (*key, *rank.config), 1),
        Sample(catalog.TRAIN_RESTARTS, key, rank.restarts),
    ]
    if (end := rank.last_end(now)) is not None:
        shown.append(Sample(catalog.RANK_ENDED, (*key, end[1]), wall_of(end[0], now, wall)))
    if rank.seq < 0:
        return shown
    if rank.started is not None and not rank.outcome:
        shown.append(Sample(catalog.RANK_START, key, rank.started_wall))
    if rank.progressed.wall is not None:
        shown.append(Sample(catalog.RANK_PROGRESS, key, rank.progressed.wall))
    if rank.phase is not None and (seconds := rank.phase_seconds(now)) is not None:
        shown.append(Sample(catalog.RANK_PHASE, (*key, rank.phase), seconds))
    if peak_flops is not None and not rank.outcome:
        shown.append(Sample(catalog.RANK_PEAK_FLOPS, key, peak_flops))
    if rank.dropped or level == ALL:
        shown.append(Sample(catalog.CLIENT_DROPPED, key, rank.dropped))
    return shown


def wall_of(moment: float, now: float, wall: float) -> float:
    """Return the Unix time of a moment of the monotonic clock, given both clocks' present, to the millisecond."""
    return round(wall - (now - moment), 3)
