"""A rank's process as the state file has it, and a rank that ended before this exporter started, from there."""

from __future__ import annotations

from collections import Counter

from tachograph.catalog import index as catalog
from tachograph.node.ranks.frames import Hello, Peer
from tachograph.node.ranks.gpu_placement import GpuPlacement
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.saved_totals import SavedEnd, SavedProcess
from tachograph.node.samples import GpuIdentity


def saved_process(rank: Rank) -> SavedProcess:
    """Return what `Rank.resume` and `ended_before` need."""
    return SavedProcess(
        rank=rank.hello.rank,
        uid=rank.peer.uid,
        pid=rank.peer.pid,
        hello_pid=rank.hello.pid,
        attempt=rank.hello.attempt,
        restarts=rank.restarts,
        seq=rank.seq,
        step=rank.step,
        heartbeat=rank.heartbeat,
        finished=rank.outcome == "finished",
        merged={key: dict(values) for key, values in rank.series.merged.items()},
        observed=rank.histograms.coarse(),
        fine=rank.histograms.fine(),
        heard=rank.heard,
        steps=rank.progressed.steps,
        progress=rank.progressed.at,
        progress_told=rank.progressed.told,
        began=rank.began,
        started=rank.started,
        started_wall=rank.started_wall,
        end=None if rank.ended is None else _saved_end(rank, rank.ended),
    )


def _saved_end(rank: Rank, ended: float) -> SavedEnd:
    gpu, said = rank.placement.gpu, rank.last_words(ended)
    return SavedEnd(
        outcome=rank.outcome,  # type: ignore[arg-type]
        reason=rank.end_reason,
        ended=ended,
        at=rank.ended_at,
        category=said.category,
        line=said.line,
        note=rank.end_note,
        world_size=rank.hello.world_size,
        local_rank=rank.hello.local_rank,
        config=list(rank.config),
        gpu=("", "", "") if gpu is None else (gpu.index, gpu.uuid, gpu.name),
        confirmed=rank.placement.confirmed,
    )


def ended_before(
    run: str, saved: SavedProcess, end: SavedEnd, limits: Limits, drops: Counter[str], *, role: str = ""
) -> Rank:
    """Return a rank whose process ended while a previous exporter ran, as that saved it."""
    facts = dict(zip(catalog.TRAIN_CONFIG_INFO.labels[2:], end.config, strict=False))
    said = Hello(
        v=1, run="-", rank=saved.rank, local_rank=end.local_rank, world_size=end.world_size, attempt=saved.attempt,
        pid=saved.hello_pid, uuid=end.gpu[1] or None, facts=facts, role=role,
    ).shown_as(run)  # fmt: skip
    rank = Rank(said, Peer(saved.uid, saved.pid), None, limits, drops, restarts=saved.restarts, first=False)
    rank.resume(saved)
    rank.heartbeat, rank.heard = saved.heartbeat, end.ended if saved.heard is None else saved.heard
    rank.end_as(end)
    if end.gpu[1]:
        rank.placement = GpuPlacement(GpuIdentity(*end.gpu), confirmed=end.confirmed)
    return rank
