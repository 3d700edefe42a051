"""The problems of `/api/node` and the status page, worst first: what was found, in words, and what usually helps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tachograph.catalog import index as catalog
from tachograph.findings.kinds import (
    DATA_STALL,
    LOSS_NOT_FINITE,
    NIC_DOWN,
    NIC_ERRORS,
    NIC_SLOW,
    RANK_DEAD,
    RANK_FAILED,
    RANK_FROZEN,
    RUN_HUNG,
    SPIKE_STAYS,
    STRAGGLER_RANK,
)
from tachograph.findings.words import SAID_SECONDS, data_wait
from tachograph.node.api.runs import RankAnswer, RunAnswer
from tachograph.node.gpu.conclusions import gpu_status
from tachograph.node.gpu.conclusions.gpu_status import GpuStatus, stale_seconds
from tachograph.node.ranks.conclusions import findings
from tachograph.node.ranks.conclusions.findings import NodeFinding
from tachograph.node.ranks.coverage import UnrecordedProcesses
from tachograph.node.samples import GpuSnapshot, Sample
from tachograph.text.humanize import age, count, duration, gibibytes, listed, percent, plural
from tachograph.wire import MAX_NOTICE_BYTES, MAX_NOTICES

REASON_LENGTH = 160
RANKS_NAMED = 6
GPUS_NAMED = 8

(
    BROKEN_GPU, BROKEN_PORT, ENDED, SILENT, NOT_FINITE, HUNG, SPIKED, WARNING, OVERDUE, BLIND, SLOWED, LATE_RANK, DATA,
    MEMORY, WORN, MISUSED, UNRECORDED,
) = range(17)  # fmt: skip
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


def of_run(run: RunAnswer, found: Iterable[NodeFinding], sizes: Mapping[str, float]) -> Iterator[Problem]:
    """Yield what was found of a run's part on this node, and what it misused; `sizes` are bytes of GPUs by uuid."""
    for each in found:
        if each.kind in _ENDED:
            yield _ended(run, each)
        elif each.kind == findings.FULL_MEMORY:
            yield _full(run, each, sizes)
        else:
            yield _WORDS[each.kind](run, each)
    yield from _misused(run)


def _ranks(run: RunAnswer, found: NodeFinding) -> list[RankAnswer]:
    """Return the ranks that a finding is about, in its order."""
    by_number = {rank.rank: rank for rank in run.ranks}
    return [by_number[number] for number in found.ranks]


def _ended(run: RunAnswer, found: NodeFinding) -> Problem:
    """Say that ranks ended, in what words, when and why the first did, and what helps."""
    kind, verb, remedy = _ENDED[found.kind]
    ranks = _ranks(run, found)
    first = ranks[0]
    if found.kind == findings.TOLD:
        verb = f"{'was' if len(ranks) == 1 else 'were'} {verb}"
    text = f" {verb}{f', rank {first.rank} first,' * (len(ranks) > 1)} {age(found.seconds)} ago"
    if first.message:
        text += f": {shortened(first.message, REASON_LENGTH)}"
    else:
        text += " without giving a reason: see the kernel log." if first.state == "dead" else "."
    return _problem(ENDED, kind, text, run, ranks, remedy=remedy, seconds=found.seconds)


_SEE_LOGS = "its log, and `tachograph logs` on all of them, have the cause: "
_ENDED = {
    findings.DIED: ("Rank dead", "died", _SEE_LOGS + RANK_DEAD.runbook),
    findings.FAILED: ("Rank failed", "failed", _SEE_LOGS + RANK_FAILED.runbook),
    findings.TOLD: ("Ended", "asked to end", "its scheduler, launcher or user knows who sent the signal"),
}
"""For each kind of end: its name, its verb, and what helps."""


def _frozen(run: RunAnswer, found: NodeFinding) -> Problem:
    ranks = _ranks(run, found)
    first, has = ranks[0], "has" if len(ranks) == 1 else "have"
    text = f" {has} sent nothing for {age(found.seconds)} over an open connection: {_stuck(ranks)}."
    remedy = f"py-spy dump --pid {first.pid} shows where it stands: {RANK_FROZEN.runbook}" if first.pid else ""
    return _problem(SILENT, "Rank frozen", text, run, ranks, remedy=remedy, seconds=found.seconds)


def _stuck(ranks: Sequence[RankAnswer]) -> str:
    """Return in words what keeps silent ranks, as far as it is known of the first of them that left its stacks."""
    if (stuck := next((rank for rank in ranks if rank.where), None)) is not None:
        who = "" if len(ranks) == 1 else f"rank {stuck.rank}, "
        return f"{who}pid {stuck.pid}, keeps Python's lock at {stuck.where}"
    states = {rank.process for rank in ranks}
    state = f" (pid {ranks[0].pid}, {ranks[0].process})" if len(ranks) == 1 and ranks[0].process else ""
    return "stopped" + state if states == {"T (stopped)"} else f"stopped, or stuck in the kernel{state}"


def _lost(run: RunAnswer, found: NodeFinding) -> Problem:
    """Say that the loss is not finite: since which step, on which rank first, and the last save from before it."""
    ranks = _ranks(run, found)
    values = sorted({"infinite" if rank.loss is not None and math.isinf(rank.loss) else "NaN" for rank in ranks})
    text = f": the loss {'is' if ranks[0].state == 'running' else 'was'} {' or '.join(values)}"
    if found.since_step is not None:
        text = f": the loss has been {' or '.join(values)} since step {count(found.since_step)}"
        text += "" if found.first is None else f", on rank {found.first} first"
        text += _saved_before(run)
    remedy = "restart from a checkpoint from before it, without that batch or with a lower rate: "
    remedy += LOSS_NOT_FINITE.runbook
    return _problem(NOT_FINITE, "Loss", f"{text}.", run, ranks, remedy=remedy, seconds=found.seconds)


def _spiked(run: RunAnswer, found: NodeFinding) -> Problem:
    """Say that the loss has spiked and does not recover, since which step, and the last save from before it."""
    text = f": the loss spiked at step {count(found.since_step)} and does not recover{_saved_before(run)}."
    remedy = (
        "go back to before it and skip its batches, if the gradient norm rose, too; otherwise look at those batches: "
    )
    return _problem(SPIKED, "Loss", text, run, remedy=remedy + SPIKE_STAYS.runbook)


def _saved_before(run: RunAnswer) -> str:
    """Return which checkpoint is from before the trouble of the loss."""
    if run.checkpoint_step is not None:
        return f"; the last checkpoint from before it is from step {count(run.checkpoint_step)}"
    return "; no checkpoint from before it is known" if run.checkpoints else ""


def _no_step(run: RunAnswer, found: NodeFinding) -> Problem:
    order = HUNG if found.kind == findings.HUNG else OVERDUE
    return _problem(order, "No step", f": {run.sentence}.", run, remedy=_look_at(run), seconds=found.seconds)


def _look_at(run: RunAnswer) -> str:
    """Return how to see where a run without a step stands: the process of the rank that holds it up, else of one."""
    running = [rank for rank in run.ranks if rank.state == "running" and rank.pid]
    named = [rank for rank in running if rank.rank == run.culprit] or running[:1]
    return "".join(
        f"py-spy dump --pid {rank.pid} shows where rank {rank.rank} stands: {RUN_HUNG.runbook}" for rank in named
    )


def _late(run: RunAnswer, found: NodeFinding) -> Problem:
    (rank,) = _ranks(run, found)
    wait, lag = rank.wait_ratio or 0.0, rank.lag_ratio or 0.0
    is_news = found.seconds is not None and found.seconds >= SAID_SECONDS
    last = f"has arrived last for {age(found.seconds)}" if is_news else "arrives last"
    text = f" {last}: it waits {percent(wait)} of the time, the others here {percent(wait + lag)}"
    if rank.late_seconds is not None:
        text += f"; it spends {duration(rank.late_seconds)} more per step in phase {rank.late_phase}"
    text += f" (pid {rank.pid})." if rank.pid else "."
    remedy = "compare its phase, and the clocks and temperature of its GPU, with the others': "
    remedy += STRAGGLER_RANK.runbook
    return _problem(LATE_RANK, "Late rank", text, run, [rank], remedy=remedy, seconds=found.seconds)


def _waits_for_data(run: RunAnswer, found: NodeFinding) -> Problem:
    """Say that much of each step is a wait for data, and whether the loader has no workers."""
    none = {rank.data_workers for rank in run.ranks if rank.state == "running"} == {0.0}
    if none:
        remedy = "give the DataLoader worker processes: num_workers=4, or more"
    else:
        remedy = f"more workers in the DataLoader, or faster storage: {DATA_STALL.runbook}"
    wait, step = run.data_seconds or 0.0, run.step_seconds or 0.0
    text = f": {data_wait(wait, step, found.seconds, workers=not none)}"
    return _problem(DATA, "Data", text, run, remedy=remedy, seconds=found.seconds)


def _full(run: RunAnswer, found: NodeFinding, sizes: Mapping[str, float]) -> Problem:
    (rank,) = _ranks(run, found)
    size = gibibytes(sizes[rank.uuid])
    text = f": tensors took {percent(found.share or 0.0)} of its GPU's {size} GiB at most."
    remedy = "a longer sequence or a larger batch runs out of memory: lower one, or recompute activations"
    return _problem(MEMORY, "Memory", text, run, [rank], remedy=remedy)


_WORDS: Mapping[str, Callable[[RunAnswer, NodeFinding], Problem]] = {
    findings.FROZEN: _frozen,
    findings.NOT_FINITE: _lost,
    findings.SPIKED: _spiked,
    findings.HUNG: _no_step,
    findings.OVERDUE: _no_step,
    findings.STRAGGLER: _late,
    findings.WAITS_FOR_DATA: _waits_for_data,
}


def of_coverage(found: Iterable[UnrecordedProcesses]) -> Iterator[Problem]:
    """Yield whose processes use GPUs and are not recorded."""
    for one in found:
        owner = f" of {one.user}" if one.user else ""
        gpus = f"GPU{'' if len(one.gpus) == 1 else 's'} {listed(list(one.gpus), GPUS_NAMED)}"
        use, record = ("uses", "records") if one.processes == 1 else ("use", "record")
        text = f"{plural(one.processes, 'process', 'processes')}{owner} {use} {gpus} and {record} nothing."
        remedy = "`tachograph auto` records every training without an edit; inference has nothing to record"
        yield Problem(UNRECORDED, "Coverage", text, remedy=remedy)


_OF_GPU = {gpu_status.BROKEN: BROKEN_GPU, gpu_status.SLOWED: SLOWED, gpu_status.WORN: WORN}


def of_gpus(gpus: Sequence[GpuStatus], snapshot: GpuSnapshot | None, now: float) -> Iterator[Problem]:
    """Yield the problems of GPUs and of reading them; each names its GPU."""
    if snapshot is not None and gpus:
        if not snapshot.ok:
            yield Problem(BLIND, "GPUs", f"No readings: {shortened(snapshot.reason, REASON_LENGTH)}")
        elif (seconds := stale_seconds(snapshot, now)) is not None:
            yield Problem(BLIND, "GPUs", f"The readings below are {age(seconds)} old: a driver call has not returned.")
    for gpu in gpus:
        for kind, text in gpu.problems():
            sentence = f"{text[:1].upper()}{shortened(text[1:], REASON_LENGTH)}."
            yield Problem(_OF_GPU[kind], f"GPU {gpu.identity.index}", sentence)


def of_ports(found: Iterable[Sample]) -> Iterator[Problem]:
    """Yield what the node has concluded of its network ports; one that was never up is none."""
    for metric, labels, value in found:
        if metric is catalog.PORT_DOWN:
            text = f"Down for {age(value)}, although it was in use."
            yield _of_port(BROKEN_PORT, labels, text, NIC_DOWN.runbook, seconds=value)
        elif metric is catalog.PORT_SPEED:
            text = f"Left with {percent(value)} of what it had within a day, or equal adapters have."
            yield _of_port(SLOWED, labels, text, NIC_SLOW.runbook)
        elif metric is catalog.PORT_ERROR_RATE:
            yield _of_port(SLOWED, labels, f"Corrupts {count(60 * value)} packets a minute.", NIC_ERRORS.runbook)


def _of_port(order: int, labels: Sequence[str], text: str, runbook: str, *, seconds: float | None = None) -> Problem:
    device, port = labels
    remedy = f"look at cable, transceiver and switch port: {runbook}"
    return Problem(order, f"Port {device}{port and '/'}{port}", text, remedy=remedy, seconds=seconds)


def _misused(run: RunAnswer) -> Iterator[Problem]:
    """Yield what the script of a run got wrong with the recorder, each once, with the ranks that say so."""
    texts = dict.fromkeys(text for rank in run.ranks for text in rank.notices)
    for text in list(texts)[:MAX_NOTICES]:
        ranks = [rank for rank in run.ranks if text in rank.notices]
        yield _problem(MISUSED, "Misuse", f": {shortened(text, MAX_NOTICE_BYTES)}", run, ranks)


def _problem(
    order: int,
    kind: str,
    text: str,
    run: RunAnswer,
    ranks: Sequence[RankAnswer] = (),
    *,
    remedy: str = "",
    seconds: float | None = None,
) -> Problem:
    """Return a problem of `Rank 3 of run a`, `Ranks 0, 1 and 14 more of run a`, or `Run a`."""
    numbers = [str(rank.rank) for rank in sorted(ranks, key=lambda rank: rank.rank)]
    who = f"Rank{'' if len(numbers) == 1 else 's'} {listed(numbers, RANKS_NAMED)} of run " if numbers else "Run "
    return Problem(order, kind, text, run.run, who, remedy, seconds)
