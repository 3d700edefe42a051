"""The conclusions of a node about its part of each run: who is late, whether a step is overdue, or the run hangs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from tachograph.catalog import index as catalog
from tachograph.catalog.rank import PAUSES
from tachograph.diagnosis import LAG_SECONDS, SPIKE_STEPS, STATES, stall_limit, step_parts
from tachograph.node.judgement.private import WITHHELD, MayRead
from tachograph.node.ranks.conclusions.lags import is_late, lags
from tachograph.node.ranks.conclusions.loss import first_to_lose, spike_began
from tachograph.node.ranks.conclusions.since import DATA, data_seconds, stragglers, waits_for_data
from tachograph.node.ranks.conclusions.suspects import culprits
from tachograph.node.ranks.conclusions.view import gauge
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.rank_table import RankTable
from tachograph.text.humanize import age, duration, plural
from tachograph.text.redact import redact

_JOB_ID = catalog.RANK_JOB_INFO.labels[2:].index("job_id")
_OF_LAYERS = (
    catalog.TRAIN_LAYER_GRAD_NORM,
    catalog.TRAIN_LAYER_GRAD_RATIO,
    catalog.TRAIN_LAYER_ACTIVATION_RMS,
    catalog.TRAIN_LAYER_ACTIVATION_ZERO,
    catalog.TRAIN_LAYER_MEMORY_PEAK,
)


@dataclass(frozen=True)
class RankJudgement:
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
class LayerJudgement:
    """A layer of the model, as the rank sends it that looks at them; None is what it does not send."""

    layer: str
    grad_norm: float | None
    grad_ratio: float | None
    activation_rms: float | None
    zero_ratio: float | None
    memory_peak_bytes: float | None


@dataclass(frozen=True)
class CheckpointJudgement:
    """A checkpoint: when it was last reported, by the day's clock, and where; whether all ranks have reported it.

    `suspect` is whether the loss spiked or was not finite any more when its step was made.
    """

    step: float
    time: float
    path: str
    durable: bool
    suspect: bool


@dataclass(frozen=True)
class RunJudgement:
    """The part of a run that is on this node; `state` is one of `diagnosis.STATES`.

    It is overdue without a step for longer than a hang takes where nobody pauses, and hung after `hang_limit_seconds`.
    `culprit` is the rank that holds it up then, `behind` by how many collectives; `sentence` says that in words, from
    10 s and ten usual steps on. `wait_seconds` and `data_seconds` are what the median rank waits for the others and for
    data in each step, `data_for_seconds` is for how long that has been too much, `parts_seconds` what a step goes into
    if the loop generates (`diagnosis.step_parts`), `saving_seconds` for how long a save has been under way,
    `checkpoint_step` that of the newest checkpoint that can be restored, which is as old as `checkpoint_seconds`;
    `spiked_step` is that at which the loss began to spike, once that does not recover. `layers` has the one furthest
    above its usual norm first.
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
    checkpoints: tuple[CheckpointJudgement, ...]
    spiked_step: float | None
    hang_limit_seconds: float
    culprit: int | None
    behind: float
    sentence: str
    layers: tuple[LayerJudgement, ...]
    ranks: tuple[RankJudgement, ...]


def judge_runs(table: RankTable, may_read: MayRead = lambda _: True) -> list[RunJudgement]:
    """Return what is concluded about each run with ranks here, by name; private texts only of whom `may_read` says."""
    groups = groupby(table.ranks(), key=lambda rank: rank.key[0])
    return [_Run(run, list(ranks), table).judged(may_read) for run, ranks in groups]


def _layers(ranks: Iterable[Rank]) -> list[LayerJudgement]:
    """Return the layers of the first rank that sends some."""
    for rank in ranks:
        norms, ratios, *others = (rank.series.gauges.get(one.key, {}) for one in _OF_LAYERS)
        names = dict.fromkeys(name for values in (norms, ratios, *others) for name in values)
        if names:
            found = [
                LayerJudgement(name, norms.get(name), ratios.get(name), *(values.get(name) for values in others))
                for name in names
            ]
            return sorted(found, key=_how_usual)
    return []


def _how_usual(layer: LayerJudgement) -> float:
    """Return the place of a layer: one that is not finite comes before all others, one without a past after them."""
    ratio = layer.grad_ratio
    return 1.0 if ratio is None else -ratio if math.isfinite(ratio) else -math.inf


class _Run:
    """The facts of a run that conclusions rest on, at one moment."""

    def __init__(self, run: str, ranks: Sequence[Rank], table: RankTable) -> None:
        self.run, self.ranks, self.table = run, ranks, table
        self.view, conclusions = table.concluded(run)
        self.saves = conclusions.saves
        self.since, self.overdue = conclusions.since, conclusions.without_step(self.view)
        self.now = self.view.now
        self.states, self.steps, self.waits = self.view.states, self.view.steps, self.view.waits
        self.running, self.step_seconds = self.view.running, self.view.step_seconds
        self.phases = {rank: rank.series.gauges.get(catalog.TRAIN_RECENT_PHASE.key, {}) for rank in self.running}
        self.without_step = self.view.without_step if self.running else None

    def judged(self, may_read: MayRead) -> RunJudgement:
        seconds, is_hung = self.without_step or 0.0, self.overdue.is_hung
        is_quiet = any(rank.phase in PAUSES for rank in self.running)
        is_overdue = is_hung or (self.overdue.seconds > 0 and not is_quiet)
        states = {*self.states.values(), *["hung"] * is_hung, *["overdue"] * is_overdue}
        saved = [rank.saved_at for rank in self.ranks if rank.saved_at is not None]
        restorable = self.saves.restorable
        saving = [rank.phase_seconds(self.now) or 0.0 for rank in self.running if rank.phase == "checkpoint"]
        has_stood = any(rank.stood_still for rank in self.running)
        is_stalled = is_overdue or (not is_quiet and self._is_stalled(seconds))
        culprit, behind = self._culprit() if is_stalled else (None, 0.0)
        mark = {culprit: "culprit" if is_hung else "behind"} if culprit is not None and is_overdue else {}
        if not is_hung and len(self.view.alive) == 1:
            mark = {}  # behind nobody
        return RunJudgement(
            run=self.run,
            state=min(states, key=STATES.index),
            world_size=max(rank.hello.world_size for rank in self.ranks),
            step_seconds=self.step_seconds,
            seconds_without_step=self.without_step,
            wait_seconds=median(self.waits.values()) if self.waits and not has_stood else None,
            data_seconds=data_seconds(self.view),
            data_limit=self.view.limit("data_stall_ratio"),
            data_for_seconds=self.since.seconds(DATA, self.now) if waits_for_data(self.view) else None,
            parts_seconds=self._parts(),
            saving_seconds=max(saving, default=None),
            checkpoint_seconds=None
            if not saved
            else max(0.0, self.now - (restorable.at if restorable else max(saved))),
            checkpoint_step=restorable.step if restorable else None,
            checkpoints=tuple(
                CheckpointJudgement(
                    save.step,
                    save.time,
                    save.path if not save.path or may_read(save.owner) else WITHHELD,
                    durable=save.is_durable,
                    suspect=save.is_suspect,
                )
                for save in self.saves.saves
            ),
            spiked_step=spike_began(self.view, SPIKE_STEPS),
            hang_limit_seconds=self.overdue.limit,
            culprit=None if culprit is None else culprit.hello.rank,
            behind=behind,
            sentence=self._sentence(culprit, behind) if is_stalled else "",
            layers=tuple(_layers(self.running)),
            ranks=tuple(self._ranks(mark, behind, may_read, is_stalled=is_stalled)),
        )

    def _parts(self) -> dict[str, float]:
        """Return what the median rank's step goes into, of a loop that generates."""
        names = dict.fromkeys(name for phases in self.phases.values() for name in phases)
        spent = {name: median(each.get(name, 0.0) for each in self.phases.values()) for name in names}
        return step_parts(spent | ({"collective": median(self.waits.values())} if self.waits else {}))

    def _is_stalled(self, seconds: float) -> bool:
        """Return whether a step is missing that whoever looks should hear of, though it is no hang yet."""
        return self.step_seconds is not None and seconds > stall_limit(self.step_seconds)

    def _late_in(self, rank: Rank) -> tuple[str, float | None]:
        """Return the phase in which a rank is busy longer than the others here, by their median, and by how much."""
        others = [phases for other, phases in self.phases.items() if other is not rank]
        longer = {
            phase: seconds - median(each.get(phase, 0.0) for each in others)
            for phase, seconds in self.phases.get(rank, {}).items()
            if others
        }
        phase = max(longer, key=longer.__getitem__, default="")
        return (phase, longer[phase]) if phase and longer[phase] > LAG_SECONDS else ("", None)

    def _ranks(
        self, marked: Mapping[Rank, str], behind: float, may_read: MayRead, *, is_stalled: bool
    ) -> Iterator[RankJudgement]:
        lag, mean_lag = lags(self.waits), lags(_mean_waits(self.ranks))
        slow = stragglers(self.view)
        lost_first, _ = first_to_lose([rank for rank in self.ranks if _has_lost(rank)])
        for rank in self.ranks:
            is_shown = may_read(rank.peer.uid)
            texts = (rank.why_failed(self.now), *rank.notices)
            reason, *notices = (redact(text) if is_shown or not text else WITHHELD for text in texts)
            loss = None if rank.outcome else rank.series.gauge(catalog.TRAIN_LOSS.key)
            late, wait, usual = lag.get(rank), self.waits.get(rank), self.steps.get(rank)
            ratio = late / usual if late is not None and usual else None
            share = wait / usual if wait is not None and usual else None
            late_in = self._late_in(rank) if rank in slow else ("", None)
            marks = {
                marked.get(rank, ""): True,
                "NaN loss": loss is not None and not math.isfinite(loss),
                "stalled": is_stalled and rank in self.running and rank not in marked,
                "straggler": rank in slow,
                "late": ratio is not None and late is not None and is_late(late, ratio),
            }
            yield RankJudgement(
                rank=rank.hello.rank,
                restarts=rank.restarts,
                state=self.states[rank],
                silent_seconds=self.now - rank.heard,
                ended_seconds=None if rank.ended is None else self.now - rank.ended,
                end_reason=rank.end_reason,
                message=reason or rank.end_note,
                step=rank.step,
                phase="" if rank.outcome else rank.phase or "",
                phase_seconds=rank.phase_seconds(self.now),
                pid="" if rank.outcome else rank.pid,
                own_pid="" if rank.outcome else rank.own_pid,
                process_started="" if rank.outcome else rank.process_started,
                job_id=rank.job[_JOB_ID],
                where="" if rank.outcome else rank.where,
                process=rank.process_state if self.states[rank] == "frozen" else "",
                progress_seconds=None if rank.progress is None else max(0.0, self.now - rank.progress),
                step_seconds=usual,
                wait_seconds=wait,
                wait_ratio=share,
                lag_seconds=late,
                lag_ratio=ratio,
                mean_lag_seconds=mean_lag.get(rank),
                late_phase=late_in[0],
                late_seconds=late_in[1],
                late_for_seconds=self.since.seconds(rank, self.now) if rank in slow else None,
                data_seconds=None if rank.stood_still else self.phases.get(rank, {}).get("data"),
                data_workers=gauge(rank, catalog.TRAIN_DATA_WORKERS.key),
                memory_peak_bytes=gauge(rank, catalog.TRAIN_MEMORY_PEAK.key),
                loss=loss,
                lost=_has_lost(rank),
                nonfinite_step=rank.series.gauges.get(catalog.TRAIN_NONFINITE_STEP.key, {}).get("loss"),
                lost_first=rank in lost_first,
                steps=rank.series.total(catalog.TRAIN_STEPS.key),
                tokens=rank.series.total(catalog.TRAIN_TOKENS.key),
                flops=rank.series.total(catalog.TRAIN_FLOPS.key),
                peak_flops=self.table.gpus.peak_flops_of(rank),
                gpu=rank.place[0],
                uuid=rank.place[1],
                coordinates=rank.coordinates,
                marks=tuple(mark for mark, holds in marks.items() if mark and holds),
                cause=f"{plural(behind, 'collective')} behind" if rank in marked and behind else "",
                notices=tuple(notices),
            )

    def _culprit(self) -> tuple[Rank | None, float]:
        """Return who holds the run up, as far as this node can tell, and by how many collectives it is behind."""
        return max(culprits(self.view).items(), key=lambda item: item[1], default=(None, 0.0))

    def _sentence(self, culprit: Rank | None, behind: float) -> str:
        usually = "" if self.step_seconds is None else f", usually {duration(self.step_seconds)}"
        sentence = f"no step for {age(self.without_step)}{usually}; "
        if culprit is not None and len(self.view.alive) > 1:
            what = f"{plural(behind, 'collective')} behind the others here" if behind else "not where the others are"
            return f"{sentence}rank {culprit.key[1]} is {what}{self._doing(culprit, ',')}"
        if len(self.running) == 1:
            sentence += f"rank {self.running[0].key[1]}{self._doing(self.running[0]) or ' is in no known phase'}"
        else:
            phases = {rank.phase for rank in self.running}
            sentence += "no rank here stands out"
            sentence += f", all are in {phases.pop()}" if len(phases) == 1 and None not in phases else ""
        whole = self.running[0].hello.world_size
        return sentence + ("; the cause may be on another node" if whole > len(self.ranks) else "")

    def _doing(self, rank: Rank, comma: str = "") -> str:
        seconds = rank.phase_seconds(self.now)
        at = f", at {rank.where} (pid {rank.pid})" if rank.where else ""
        return at if seconds is None else f"{comma} in {rank.phase} for {age(seconds)}{at}"


def _has_lost(rank: Rank) -> bool:
    loss = rank.series.gauge(catalog.TRAIN_LOSS.key)
    return loss is not None and not math.isfinite(loss)


def _mean_waits(ranks: Iterable[Rank]) -> dict[Rank, float]:
    """Return the mean wait for collectives per step of each rank whose waits are counted."""
    counted = (
        (rank, rank.series.total(catalog.TRAIN_COLLECTIVE_WAIT.key), rank.series.total(catalog.TRAIN_STEPS.key))
        for rank in ranks
    )
    return {rank: wait / steps for rank, wait, steps in counted if wait is not None and wait < math.inf and steps}
