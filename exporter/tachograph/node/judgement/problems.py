"""The problems of this node, worst first and in words.

These are facts that one node can see, for a person who is looking at it. Whether somebody is paged is for the rules,
which see the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tachograph.catalog.run import TOLD_REASONS
from tachograph.diagnosis import MEMORY_FULL_RATIO
from tachograph.findings.kinds import (
    DATA_STALL,
    LOSS_NOT_FINITE,
    RANK_DEAD,
    RANK_FAILED,
    RANK_FROZEN,
    RUN_HUNG,
    SPIKE_STAYS,
    STRAGGLER_RANK,
)
from tachograph.findings.words import SAID_SECONDS, data_wait
from tachograph.node.judgement.runs import RankJudgement, RunJudgement
from tachograph.node.ranks.coverage import UnrecordedProcesses
from tachograph.text.humanize import age, count, duration, gibibytes, listed, percent, plural
from tachograph.wire import MAX_NOTICE_BYTES, MAX_NOTICES

REASON_LENGTH = 160
RANKS_NAMED = 6
GPUS_NAMED = 8

(
    BROKEN_GPU, ENDED, SILENT, NOT_FINITE, HUNG, SPIKED, WARNING, OVERDUE, BLIND, SLOWED, LATE_RANK, DATA, MEMORY, WORN,
    MISUSED, UNRECORDED,
) = range(16)  # fmt: skip
"""The order of problems. What broke others comes before what it broke; from WARNING on nobody need hurry."""


class Problem(NamedTuple):
    """One thing that is wrong: its place in the order, a word for its kind, and a sentence.

    The sentence is `who`, the name of the run that it is about, if it is, and `text`. `remedy` is what usually helps,
    or where to look; `seconds` is for how long it has been so, None where that is not known.
    """

    order: int
    kind: str
    text: str
    run: str = ""
    who: str = ""
    remedy: str = ""
    seconds: float | None = None

    @property
    def urgent(self) -> bool:
        """Return whether something does not work, or will soon stop working."""
        return self.order < WARNING

    @property
    def sentence(self) -> str:
        """Return all of it in words."""
        return f"{self.who}{self.run}{self.text}"


def shortened(text: str, longest: int) -> str:
    """Return the beginning of a text that others chose."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def of_run(run: RunJudgement) -> Iterator[Problem]:
    """Yield the problems of one run's ranks on this node."""
    yield from _not_running(run)
    yield from _misused(run)
    yield from _lost(run)
    yield from _spiked(run)
    if run.sentence:
        is_hung = run.state == "hung"
        yield _problem(HUNG if is_hung else OVERDUE, "No step", f": {run.sentence}.", run)._replace(
            remedy=_look_at(run), seconds=run.seconds_without_step
        )
        return
    for rank in run.ranks:
        if "straggler" in rank.marks:
            wait, lag = rank.wait_ratio or 0.0, rank.lag_ratio or 0.0
            held = _for(rank.late_for_seconds)
            last = f"has arrived last{held}" if held else "arrives last"
            text = f" {last}: it waits {percent(wait)} of the time, the others here {percent(wait + lag)}"
            if rank.late_seconds is not None:
                text += f"; it spends {duration(rank.late_seconds)} more per step in phase {rank.late_phase}"
            text += f" (pid {rank.pid})." if rank.pid else "."
            remedy = "compare its phase, and the clocks and temperature of its GPU, with the others': "
            remedy += STRAGGLER_RANK.runbook
            yield _problem(LATE_RANK, "Late rank", text, run, [rank])._replace(
                remedy=remedy, seconds=rank.late_for_seconds
            )
    yield from _waits_for_data(run)


def _lost(run: RunJudgement) -> Iterator[Problem]:
    """Yield that the loss is not finite: since which step, on which rank first, and the last save from before it."""
    ranks = [rank for rank in run.ranks if rank.lost]
    lost = [rank for rank in ranks if rank.state == "running"] or ranks
    if not lost:
        return
    values = sorted({"infinite" if rank.loss is not None and math.isinf(rank.loss) else "NaN" for rank in lost})
    known = [rank for rank in lost if rank.nonfinite_step is not None]
    verb = "has been" if known else "is" if lost[0].state == "running" else "was"
    text, seconds = f": the loss {verb} {' or '.join(values)}", None
    if known:
        first = min(known, key=lambda rank: rank.nonfinite_step or 0.0)
        step = first.nonfinite_step or 0.0
        is_alone = 2 * sum(rank.lost_first for rank in known) <= len(lost)
        text += f" since step {count(step)}" + (f", on rank {first.rank} first" if is_alone else "")
        if run.step_seconds is not None and first.step is not None:
            seconds = max(first.step - step, 0.0) * run.step_seconds
        text += _saved_before(run)
    remedy = "restart from a checkpoint from before it, without that batch or with a lower rate: "
    remedy += LOSS_NOT_FINITE.runbook
    yield _problem(NOT_FINITE, "Loss", f"{text}.", run, lost)._replace(remedy=remedy, seconds=seconds)


def _spiked(run: RunJudgement) -> Iterator[Problem]:
    """Yield that the loss has spiked and does not recover, since which step, and the last save from before it."""
    if run.spiked_step is None:
        return
    text = f": the loss spiked at step {count(run.spiked_step)} and does not recover{_saved_before(run)}."
    remedy = (
        "go back to before it and skip its batches, if the gradient norm rose, too; otherwise look at those batches: "
    )
    yield _problem(SPIKED, "Loss", text, run)._replace(remedy=remedy + SPIKE_STAYS.runbook)


def _saved_before(run: RunJudgement) -> str:
    """Return which checkpoint is from before the trouble of the loss."""
    if run.checkpoint_step is not None:
        return f"; the last checkpoint from before it is of step {count(run.checkpoint_step)}"
    return "; no checkpoint from before it is known" if run.checkpoints else ""


def _look_at(run: RunJudgement) -> str:
    """Return how to see where a run without a step stands: the process of the rank that holds it up, else of one."""
    running = [rank for rank in run.ranks if rank.state == "running" and rank.pid]
    named = [rank for rank in running if rank.rank == run.culprit] or running[:1]
    return "".join(
        f"py-spy dump --pid {rank.pid} shows where rank {rank.rank} stands: {RUN_HUNG.runbook}" for rank in named
    )


def _waits_for_data(run: RunJudgement) -> Iterator[Problem]:
    """Yield that much of each step is a wait for data, and whether the loader has no workers."""
    if run.data_seconds is None or not run.step_seconds:
        return
    share = min(run.data_seconds / run.step_seconds, 1.0)
    if share <= run.data_limit:
        return
    none = {rank.data_workers for rank in run.ranks if rank.state == "running"} == {0.0}
    if none:
        remedy = "give the DataLoader worker processes: num_workers=4, or more"
    else:
        remedy = f"more workers in the DataLoader, or faster storage: {DATA_STALL.runbook}"
    text = f": {data_wait(run.data_seconds, run.step_seconds, run.data_for_seconds, workers=not none)}"
    yield _problem(DATA, "Data", text, run)._replace(remedy=remedy, seconds=run.data_for_seconds)


def _for(seconds: float | None) -> str:
    """Return for how long something has been so, once that is news."""
    return f" for {age(seconds)}" if seconds is not None and seconds >= SAID_SECONDS else ""


def of_memory(run: RunJudgement, sizes: Mapping[str, float]) -> Iterator[Problem]:
    """Yield the rank whose tensors took nearly all of its GPU's memory, given the bytes of each GPU by uuid."""
    shares = [
        (rank.memory_peak_bytes / sizes[rank.uuid], rank)
        for rank in run.ranks
        if rank.state == "running" and rank.memory_peak_bytes is not None and sizes.get(rank.uuid)
    ]
    share, fullest = max(shares, key=lambda one: one[0], default=(0.0, None))
    if fullest is not None and share >= MEMORY_FULL_RATIO:
        text = f": tensors took {percent(share)} of its GPU's {gibibytes(sizes[fullest.uuid])} GiB at most."
        remedy = "a longer sequence or a larger batch runs out of memory: lower one, or recompute activations"
        yield _problem(MEMORY, "Memory", text, run, [fullest])._replace(remedy=remedy)


def of_coverage(found: Iterable[UnrecordedProcesses]) -> Iterator[Problem]:
    """Yield whose processes use GPUs and are not recorded."""
    for one in found:
        owner = f" of {one.user}" if one.user else ""
        gpus = f"GPU{'' if len(one.gpus) == 1 else 's'} {listed(list(one.gpus), GPUS_NAMED)}"
        use, record = ("uses", "records") if one.processes == 1 else ("use", "record")
        text = f"{plural(one.processes, 'process', 'processes')}{owner} {use} {gpus} and {record} nothing."
        remedy = "`tachograph auto` records every training without an edit; inference has nothing to record"
        yield Problem(UNRECORDED, "Coverage", text, remedy=remedy)


def _not_running(run: RunJudgement) -> Iterator[Problem]:
    """Yield who died, failed, was asked to end or says nothing; of those that failed whoever did so by itself."""
    failed = [rank for rank in run.ranks if rank.state == "failed"]
    own = [rank for rank in failed if rank.end_reason not in TOLD_REASONS]
    dead = [rank for rank in run.ranks if rank.state == "dead"]
    yield from _ended(run, "Rank dead", "died", dead, _SEE_LOGS + RANK_DEAD.runbook)
    if own or not failed:
        yield from _ended(run, "Rank failed", "failed", own, _SEE_LOGS + RANK_FAILED.runbook)
    else:
        verb = f"{'was' if len(failed) == 1 else 'were'} asked to end"
        yield from _ended(run, "Ended", verb, failed, "its scheduler, launcher or user knows who sent the signal")
    if found := _longest_first(rank for rank in run.ranks if rank.state == "frozen"):
        first, seconds = found[0], seconds_in_state(found[0])
        remedy = f"py-spy dump --pid {first.pid} shows where it stands: {RANK_FROZEN.runbook}" if first.pid else ""
        text = (
            f" {'has' if len(found) == 1 else 'have'} sent nothing for {age(seconds)} over an open connection: "
            f"{_stuck(found)}."
        )
        yield _problem(SILENT, "Rank frozen", text, run, found)._replace(remedy=remedy, seconds=seconds)


_SEE_LOGS = "its log, and `tachograph logs` on all of them, have the cause: "


def _ended(run: RunJudgement, kind: str, verb: str, ranks: Sequence[RankJudgement], remedy: str) -> Iterator[Problem]:
    """Yield that ranks ended, in what words, when and why the first did, and what helps."""
    if not ranks:
        return
    found = _longest_first(ranks)
    first, seconds = found[0], seconds_in_state(found[0])
    text = f" {verb}{f', rank {first.rank} first,' * (len(found) > 1)} {age(seconds)} ago"
    if first.message:
        text += f": {shortened(first.message, REASON_LENGTH)}"
    else:
        text += " without giving a reason: see the kernel log." if first.state == "dead" else "."
    yield _problem(ENDED, kind, text, run, found)._replace(remedy=remedy, seconds=seconds)


def _longest_first(ranks: Iterable[RankJudgement]) -> list[RankJudgement]:
    return sorted(ranks, key=lambda rank: -seconds_in_state(rank))


def _stuck(ranks: Sequence[RankJudgement]) -> str:
    """Return in words what keeps silent ranks, as far as it is known of the first of them that left its stacks."""
    if (stuck := next((rank for rank in ranks if rank.where), None)) is not None:
        who = "" if len(ranks) == 1 else f"rank {stuck.rank}, "
        return f"{who}pid {stuck.pid}, keeps Python's lock at {stuck.where}"
    states = {rank.process for rank in ranks}
    state = f" (pid {ranks[0].pid}, {ranks[0].process})" if len(ranks) == 1 and ranks[0].process else ""
    return "stopped" + state if states == {"T (stopped)"} else f"stopped, or stuck in the kernel{state}"


def seconds_in_state(rank: RankJudgement) -> float:
    """Return for how long a rank has been dead, failed, finished or frozen."""
    return rank.silent_seconds if rank.ended_seconds is None else rank.ended_seconds


def _misused(run: RunJudgement) -> Iterator[Problem]:
    """Yield what the script of a run got wrong with the recorder, each once, with the ranks that say so."""
    texts = dict.fromkeys(text for rank in run.ranks for text in rank.notices)
    for text in list(texts)[:MAX_NOTICES]:
        ranks = [rank for rank in run.ranks if text in rank.notices]
        yield _problem(MISUSED, "Misuse", f": {shortened(text, MAX_NOTICE_BYTES)}", run, ranks)


def _problem(order: int, kind: str, text: str, run: RunJudgement, ranks: Sequence[RankJudgement] = ()) -> Problem:
    """Return a problem of `Rank 3 of run a`, `Ranks 0, 1 and 14 more of run a`, or `Run a`."""
    numbers = [str(rank.rank) for rank in sorted(ranks, key=lambda rank: rank.rank)]
    who = f"Rank{'' if len(numbers) == 1 else 's'} {listed(numbers, RANKS_NAMED)} of run " if numbers else "Run "
    return Problem(order, kind, text, run.run, who)
