"""The problems of a run as a whole, in the words of its nodes, from what Prometheus has recorded of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tachograph.findings.kinds import (
    DATA_STALL,
    LOSS_NOT_FINITE,
    RANK_DEAD,
    RANK_FAILED,
    RUN_HUNG,
    STRAGGLER_RANK,
)
from tachograph.findings.words import data_wait
from tachograph.text.humanize import age, duration, plural
from tachograph.top.overview import FiringAlert, RankRow, RunSummary, Trouble


def run_problems(run: RunSummary, ranks: Sequence[RankRow], alerts: Sequence[FiringAlert] = ()) -> Iterator[Trouble]:
    """Yield what is wrong with a run, the worst first, given its worst ranks, and the alerts that say since when."""
    yield from _ended(run, ranks)
    if run.nonfinite_ranks:
        first = next((f", {_who(rank)} first" for rank in ranks if "NaN first" in rank.marks), "")
        text = f"Run {run.name}: the loss is NaN or infinite on {plural(run.nonfinite_ranks, 'rank')}{first}."
        remedy = "restart from a checkpoint from before it, without that batch or with a lower rate: "
        remedy += LOSS_NOT_FINITE.runbook
        yield Trouble("Loss", text, run.name, urgent=True, remedy=remedy)
    if run.state == "hung":
        yield _hung(run, ranks)
        return
    for rank in ranks:
        if "straggler" in rank.marks:
            by = "" if rank.lag_seconds is None else f", {duration(rank.lag_seconds)} after the others in each step"
            where = f"; it is busy longest in {rank.cause}" if rank.cause else ""
            remedy = "compare its phase, and the clocks and temperature of its GPU, with the others': "
            remedy += STRAGGLER_RANK.runbook
            seconds = max((one.seconds for one in alerts if _is_of(one, rank)), default=None)
            last = "arrives last" if seconds is None else f"has arrived last for {age(seconds)}"
            text = f"{_who(rank, 'Rank')} of run {run.name} {last}{by}{where}."
            yield Trouble("Late rank", text, run.name, seconds=seconds, remedy=remedy)
    if run.data_seconds is not None and run.step_seconds:
        share = run.data_seconds / run.step_seconds
        if share > run.data_limit:
            seconds = max((one.seconds for one in alerts if one.name == DATA_STALL.alert), default=None)
            text = f"Run {run.name}: {data_wait(run.data_seconds, run.step_seconds, seconds)}"
            remedy = f"more workers in the DataLoader, or faster storage: {DATA_STALL.runbook}"
            yield Trouble("Data", text, run.name, seconds=seconds, remedy=remedy)


def _is_of(alert: FiringAlert, rank: RankRow) -> bool:
    return alert.name == STRAGGLER_RANK.alert and alert.rank == str(rank.rank) and alert.node in {"", rank.node}


def _ended(run: RunSummary, ranks: Sequence[RankRow]) -> Iterator[Trouble]:
    for state, verb, kind in (("dead", "died", RANK_DEAD), ("failed", "failed", RANK_FAILED)):
        count = run.ranks.get(state, 0)
        if not count:
            continue
        first = next((f", {_who(rank)} first" for rank in ranks if f"{verb} first" in rank.marks), "")
        remedy = f"its log, and `tachograph logs` on all of them, have the cause: {kind.runbook}"
        text = f"Run {run.name}: {plural(count, 'rank')} {verb}{first}."
        yield Trouble(f"Rank {state}", text, run.name, urgent=True, remedy=remedy)


def _hung(run: RunSummary, ranks: Sequence[RankRow]) -> Trouble:
    usually = "" if run.step_seconds is None else f", usually {duration(run.step_seconds)}"
    text, remedy = f"Run {run.name}: no step for {age(run.state_seconds)}{usually}", RUN_HUNG.runbook
    culprit = next((rank for rank in ranks if "culprit" in rank.marks or "behind" in rank.marks), None)
    if culprit is None:
        text += "; no rank stands out"
    else:
        doing = f", in {culprit.phase} for {age(culprit.phase_seconds)}" if culprit.phase else ""
        at = f", at {culprit.where}" if culprit.where else ""
        pid = f" (pid {culprit.pid})" if culprit.pid else ""
        cause = f" is {culprit.cause}" if culprit.cause else ""
        text += f"; {_who(culprit)}{cause}{doing}{at}{pid}"
        node = culprit.node or "its node"
        looks = [f"py-spy dump --pid {culprit.pid} on {node} shows where it stands"] if culprit.pid else []
        looks += [f"`tachograph top --exporter {culprit.node}` has more"] if culprit.node else []
        remedy = ": ".join(filter(None, ["; ".join(looks), RUN_HUNG.runbook]))
    return Trouble("No step", f"{text}.", run.name, urgent=True, seconds=run.state_seconds, remedy=remedy)


def _who(rank: RankRow, word: str = "rank") -> str:
    return f"{word} {rank.rank}" + (f" on {rank.node}" if rank.node else "")
