"""The runs of `/api/node`, with their ranks, checkpoints and layers, as docs/web.md describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.catalog import index as catalog
from tachograph.node.ranks.conclusions import figures
from tachograph.node.ranks.conclusions.figures import Layer
from tachograph.node.ranks.conclusions.findings import RunPart
from tachograph.node.ranks.conclusions.saves import RunSave
from tachograph.node.ranks.conclusions.since import DATA, data_seconds, waits_for_data
from tachograph.node.ranks.conclusions.view import gauge
from tachograph.node.ranks.rank import Rank
from tachograph.node.web.private import WITHHELD, MayRead
from tachograph.text.humanize import age, duration, plural
from tachograph.text.redact import redact

_JOB_ID = catalog.RANK_JOB_INFO.labels[2:].index("job_id")


@dataclass(frozen=True)
class RankAnswer:
    """A rank; None is what is not known. Times are in seconds, `step_seconds`, wait and lag per ordinary step.

    `marks` say what is wrong with it, in the words of `tachograph top`. `mean_lag_seconds` is over all its steps.
    `pid` is its process as the node numbers it, `own_pid` as it does itself, in a container; `process_started` is when
    that began, in clock ticks since boot: together they name it in either. `message` and `notices` are withheld where
    the reader may not see them. `where` is the line at which it stands
    still, `process` the state of one that is frozen. `data_seconds` is its wait for data per step, `data_workers` the
    number of its loader's processes. `lost` is whether its last loss was NaN or infinite, also of one that has
    ended, `nonfinite_step` the first step at which it was, `lost_first` whether it may have been before all others;
    `late_phase` is where a rank that is late spends more time than the others, by `late_seconds` per step, and
    `late_for_seconds` for how long it has held the run up.
    """

    rank: int
    restarts: int
    state: str
    silent_seconds: float
    ended_seconds: float | None
    end_reason: str
    message: str
    step: int | None
    phase: str
    phase_seconds: float | None
    pid: str
    own_pid: str
    process_started: str
    job_id: str
    where: str
    process: str
    progress_seconds: float | None
    step_seconds: float | None
    wait_seconds: float | None
    wait_ratio: float | None
    lag_seconds: float | None
    lag_ratio: float | None
    mean_lag_seconds: float | None
    late_phase: str
    late_seconds: float | None
    late_for_seconds: float | None
    data_seconds: float | None
    data_workers: float | None
    memory_peak_bytes: float | None
    loss: float | None
    lost: bool
    nonfinite_step: float | None
    lost_first: bool
    steps: float | None
    tokens: float | None
    flops: float | None
    peak_flops: float | None
    gpu: str
    uuid: str
    coordinates: Mapping[str, int]
    marks: tuple[str, ...]
    cause: str
    notices: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointAnswer:
    """A checkpoint: when it was last reported, by the day's clock, and where; whether all ranks have reported it.

    `suspect` is whether the loss spiked or was not finite any more when its step was made.
    """

    step: float
    time: float
    path: str
    durable: bool
    suspect: bool


@dataclass(frozen=True)
class RunAnswer:
    """The part of a run that is on this node; `state` is one of `diagnosis.STATES`.

    It hangs after `hang_limit_seconds`, which is that of a pause of the kind `hang_limit_of` (`catalog.PAUSE_LIMITS`),
    or of none. `culprit` is the rank that holds it up (`conclusions/standing.py`), `behind` by how many collectives;
    `sentence` says that in words, from 10 s and ten usual steps on. `wait_seconds` and
    `data_seconds` are what the median rank waits for the others and for data in each step, `data_for_seconds` is for
    how long that has been too much, `parts_seconds` what a step goes into if the loop generates
    (`diagnosis.step_parts`), `saving_seconds` for how long a save has been under way, `checkpoint_step` that of the
    newest checkpoint that can be restored, which is as old as `checkpoint_seconds`; `spiked_step` is that at which the
    loss began to spike, once that does not recover. `layers` has the one furthest above its usual norm first.
    """

    run: str
    state: str
    world_size: int
    step_seconds: float | None
    seconds_without_step: float | None
    wait_seconds: float | None
    data_seconds: float | None
    data_limit: float
    data_for_seconds: float | None
    parts_seconds: Mapping[str, float]
    saving_seconds: float | None
    checkpoint_seconds: float | None
    checkpoint_step: float | None
    checkpoints: tuple[CheckpointAnswer, ...]
    spiked_step: float | None
    hang_limit_seconds: float
    hang_limit_of: str
    culprit: int | None
    behind: float
    sentence: str
    layers: tuple[Layer, ...]
    ranks: tuple[RankAnswer, ...]


def run_answer(part: RunPart, may_read: MayRead) -> RunAnswer:
    """Return what is answered of a run; private texts only of the ranks of whom `may_read` says so."""
    view, now = part.view, part.standing
    restorable = part.saves.restorable
    return RunAnswer(
        run=view.run,
        state=now.state,
        world_size=max(rank.hello.world_size for rank in view.states),
        step_seconds=view.step_seconds,
        seconds_without_step=now.seconds,
        wait_seconds=figures.wait_seconds(view),
        data_seconds=data_seconds(view),
        data_limit=view.limit("data_stall_ratio"),
        data_for_seconds=part.since.seconds(DATA, view.now) if waits_for_data(view) else None,
        parts_seconds=figures.parts_seconds(view),
        saving_seconds=figures.saving_seconds(view),
        checkpoint_seconds=figures.checkpoint_seconds(view, part.saves),
        checkpoint_step=restorable.step if restorable else None,
        checkpoints=tuple(_checkpoint(save, may_read) for save in part.saves.saves),
        spiked_step=part.spiked_step,
        hang_limit_seconds=part.without_step.limit,
        hang_limit_of=part.without_step.of,
        culprit=None if now.culprit is None else now.culprit.hello.rank,
        behind=now.behind,
        sentence=_sentence(part) if now.is_stalled else "",
        layers=tuple(figures.layers(view)),
        ranks=tuple(_rank(rank, part, may_read) for rank in view.states),
    )


def _checkpoint(save: RunSave, may_read: MayRead) -> CheckpointAnswer:
    path = save.path if not save.path or may_read(save.owner) else WITHHELD
    return CheckpointAnswer(save.step, save.time, path, durable=save.is_durable, suspect=save.is_suspect)


def _rank(rank: Rank, part: RunPart, may_read: MayRead) -> RankAnswer:
    view, late, state = part.view, part.lateness[rank], part.view.states[rank]
    is_shown = may_read(rank.peer.uid)
    texts = (rank.why_failed(view.now), *rank.notices)
    reason, *notices = (redact(text) if is_shown or not text else WITHHELD for text in texts)
    lives, behind = not rank.outcome, part.standing.behind
    is_marked = rank is part.standing.culprit and part.standing.marked
    phases = rank.series.gauges.get(catalog.TRAIN_RECENT_PHASE.key, {}) if state == "running" else {}
    return RankAnswer(
        rank=rank.hello.rank,
        restarts=rank.restarts,
        state=state,
        silent_seconds=view.now - rank.heard,
        ended_seconds=None if rank.ended is None else view.now - rank.ended,
        end_reason=rank.end_reason,
        message=reason or rank.end_note,
        step=rank.step,
        phase=(rank.phase or "") if lives else "",
        phase_seconds=rank.phase_seconds(view.now),
        pid=rank.pid if lives else "",
        own_pid=rank.own_pid if lives else "",
        process_started=rank.process_started if lives else "",
        job_id=rank.job[_JOB_ID],
        where=rank.where if lives else "",
        process=rank.process_state if state == "frozen" else "",
        progress_seconds=None if rank.progress is None else max(0.0, view.now - rank.progress),
        step_seconds=view.steps.get(rank),
        wait_seconds=late.wait_seconds,
        wait_ratio=late.wait_ratio,
        lag_seconds=late.lag_seconds,
        lag_ratio=late.lag_ratio,
        mean_lag_seconds=late.mean_lag_seconds,
        late_phase=late.phase,
        late_seconds=late.phase_seconds,
        late_for_seconds=part.since.seconds(rank, view.now) if late.is_straggler else None,
        data_seconds=None if rank.stood_still else phases.get("data"),
        data_workers=gauge(rank, catalog.TRAIN_DATA_WORKERS.key),
        memory_peak_bytes=gauge(rank, catalog.TRAIN_MEMORY_PEAK.key),
        loss=rank.series.gauge(catalog.TRAIN_LOSS.key) if lives else None,
        lost=rank in part.lost,
        nonfinite_step=rank.series.gauges.get(catalog.TRAIN_NONFINITE_STEP.key, {}).get("loss"),
        lost_first=rank in part.lost_first,
        steps=rank.series.total(catalog.TRAIN_STEPS.key),
        tokens=rank.series.total(catalog.TRAIN_TOKENS.key),
        flops=rank.series.total(catalog.TRAIN_FLOPS.key),
        peak_flops=view.peak_flops(rank),
        gpu=rank.place[0],
        uuid=rank.place[1],
        coordinates=rank.coordinates,
        marks=part.marks(rank),
        cause=f"{plural(behind, 'collective')} behind" if is_marked and behind else "",
        notices=tuple(notices),
    )


def _sentence(part: RunPart) -> str:
    """Return in words that a step is missing, and who holds the run up."""
    view, now = part.view, part.standing
    usually = "" if view.step_seconds is None else f", usually {duration(view.step_seconds)}"
    sentence = f"no step {'so far' if now.seconds is None else f'for {age(now.seconds)}'}{usually}; "
    if now.culprit is not None and now.is_shared:
        behind = f"{plural(now.behind, 'collective')} behind the others here" if now.behind else ""
        what = behind or "not where the others are"
        return f"{sentence}rank {now.culprit.key[1]} is {what}{_doing(now.culprit, view.now, ',')}"
    if len(view.running) == 1:
        alone = view.running[0]
        sentence += f"rank {alone.key[1]}{_doing(alone, view.now) or ' is in no known phase'}"
    else:
        phases = {rank.phase for rank in view.running}
        sentence += "no rank here stands out"
        sentence += f", all are in {phases.pop()}" if len(phases) == 1 and None not in phases else ""
    whole = view.alive[0].hello.world_size
    return sentence + ("; the cause may be on another node" if whole > len(view.states) else "")


def _doing(rank: Rank, now: float, comma: str = "") -> str:
    seconds = rank.phase_seconds(now)
    at = f", at {rank.where} (pid {rank.pid})" if rank.where else ""
    return at if seconds is None else f"{comma} in {rank.phase} for {age(seconds)}{at}"
