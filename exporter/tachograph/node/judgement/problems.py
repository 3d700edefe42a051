"""The problems of this node, worst first and in words.

These are facts that one node can see, for a person who is looking at it. Whether somebody is paged is for the rules,
which see the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tachograph.humanize import age, listed, percent
from tachograph.node.judgement.runs import RankJudgement, RunJudgement
from tachograph.wire import MAX_NOTICE_BYTES, MAX_NOTICES

REASON_LENGTH = 160
RANKS_NAMED = 6

BROKEN_GPU, ENDED, SILENT, NOT_FINITE, HUNG, WARNING, OVERDUE, BLIND, SLOWED, LATE_RANK, WORN, MISUSED = range(12)
"""The order of problems. What broke others comes before what it broke; from WARNING on nobody need hurry."""


class Problem(NamedTuple):
    """One thing that is wrong: its place in the order, a word for its kind, and a sentence.

    The sentence is `who`, the name of the run that it is about, if it is, and `text`.
    """

    order: int
    kind: str
    text: str
    run: str = ""
    who: str = ""

    @property
    def urgent(self) -> bool:
        """Return whether something does not work, or will not for long."""
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
    if lost := [rank for rank in run.ranks if rank.state == "running" and "NaN loss" in rank.marks]:
        values = sorted({"NaN" if math.isnan(rank.loss or 0.0) else "infinite" for rank in lost})
        yield _problem(NOT_FINITE, "Loss", f": the loss is {' or '.join(values)}.", run, lost)
    if run.sentence:
        is_hung = run.state == "hung"
        yield _problem(HUNG if is_hung else OVERDUE, "No step", f": {run.sentence}.", run)
        return
    for rank in run.ranks:
        if "straggler" in rank.marks:
            wait, lag = rank.wait_ratio or 0.0, rank.lag_ratio or 0.0
            text = f" arrives last: it waits {percent(wait)} of the time, the others here {percent(wait + lag)}."
            yield _problem(LATE_RANK, "Late rank", text, run, [rank])


def _not_running(run: RunJudgement) -> Iterator[Problem]:
    for state, order, verb in (("dead", ENDED, "died"), ("failed", ENDED, "failed"), ("frozen", SILENT, "")):
        found = sorted((rank for rank in run.ranks if rank.state == state), key=lambda rank: -seconds_in_state(rank))
        if not found:
            continue
        first, seconds = found[0], age(seconds_in_state(found[0]))
        if state == "frozen":
            text = (
                f" {'has' if len(found) == 1 else 'have'} sent nothing for {seconds} over an open connection: "
                f"{_stuck(found)}."
            )
        else:
            text = f" {verb}{f', rank {first.rank} first,' * (len(found) > 1)} {seconds} ago"
            if first.message:
                text += f": {shortened(first.message, REASON_LENGTH)}"
            else:
                text += " without giving a reason: see the kernel log." if state == "dead" else "."
        yield _problem(order, f"Rank {state}", text, run, found)


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
