"""The reports of supervisors of runs on this node (`tachograph supervise`), and for how long they are shown.

```text
tachograph_supervisor_look_age_seconds{run="llama-7b",mode="act"} 2.1
tachograph_supervisor_actions_total{run="llama-7b",action="restart",outcome="done"} 1
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tachograph.catalog import index as catalog
from tachograph.node.ranks.frames import FrameError, Question, Supervision
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.names import NamedRank
from tachograph.node.samples import Sample
from tachograph.text.humanize import count

ASKING_SECONDS = 60.0
"""After a supervisor was last heard, which speaks every 5 s, its questions are not shown any more: it may be gone."""

SUPERVISOR = -1
"""In the place of a rank, where a run's names are counted."""


@dataclass(frozen=True)
class _Supervisor:
    uid: int
    said: Supervision
    heard: float
    actions: Mapping[tuple[str, str], int]
    webhooks: Mapping[str, int]
    questions: Sequence[Question]


class Supervisors:
    """The supervisor of each run by the run's name as shown: one of the user whose it is, who has as many as ranks."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of: dict[str, _Supervisor] = {}

    def take(self, run: str, uid: int, said: Supervision, named: NamedRank, now: float) -> None:
        """Take a frame; raise FrameError if the run has another user's supervisor, or the user too many.

        `named` has the questions that are shown, as each becomes a new series.
        """
        old = self._of.get(run)
        if old is not None and old.uid != uid:
            raise FrameError("owner", f"run {run} has a supervisor of uid {old.uid}, you are uid {uid}")
        if old is None:
            own = sum(one.uid == uid for one in self._of.values())
            if own >= self._limits.ranks or len(self._of) >= self._limits.node_ranks:
                raise FrameError("rank_limit", f"you already have {own} supervisors on this node")
        asked = [one for one in said.questions if one.action in catalog.POLICY_ACTIONS and named.takes("ask", one.id)]
        self._of[run] = _Supervisor(
            uid, said, now, _counted(said.actions), _counts(said.webhooks, catalog.WEBHOOK_OUTCOMES), asked
        )  # fmt: skip

    def forget_old(self, now: float) -> None:
        """Forget those that ended, or fell silent, as long ago as ranks are forgotten that finished, or died."""
        for run, one in list(self._of.items()):
            kept = self._limits.retention_finished if one.said.ended else self._limits.retention
            if now - one.heard > kept:
                del self._of[run]

    def blocks(self, owners: Mapping[str, int], now: float) -> Iterator[tuple[int, Sequence[Sample]]]:
        """Yield the samples of each with its user, but for one that spoke of a run before its owner's ranks came."""
        for run, one in sorted(self._of.items()):
            if owners.get(run, one.uid) == one.uid:
                yield one.uid, _samples(run, one, now)


def _counted(actions: Mapping[str, object]) -> Mapping[tuple[str, str], int]:
    """Return the counts by action and outcome, without what is neither."""
    return {
        (action, outcome): number
        for action in catalog.POLICY_ACTIONS
        if isinstance(counts := actions.get(action), Mapping)
        for outcome, number in _counts(counts, catalog.SUPERVISOR_OUTCOMES).items()
    }


def _counts(said: Mapping[str, object], outcomes: Sequence[str]) -> Mapping[str, int]:
    """Return the counts by outcome, without what is neither."""
    return {
        outcome: number
        for outcome in outcomes
        if isinstance(number := said.get(outcome), int) and not isinstance(number, bool) and 0 < number <= 2**53
    }


def _samples(run: str, one: _Supervisor, now: float) -> list[Sample]:
    """Return the samples of a supervisor; one that has ended has counts alone."""
    said, samples = one.said, []
    if not said.ended:
        age = now - one.heard
        samples.append(Sample(catalog.SUPERVISOR_LOOK_AGE, (run, said.mode), age))
        blind = said.blind_seconds + age if said.blind_seconds else 0.0
        samples.append(Sample(catalog.SUPERVISOR_BLIND, (run,), blind))
        if said.restarts_left is not None:
            samples.append(Sample(catalog.SUPERVISOR_RESTARTS_LEFT, (run,), said.restarts_left))
        if age <= ASKING_SECONDS:
            samples += [
                Sample(catalog.SUPERVISOR_QUESTION, (run, asked.action, asked.id), asked.seconds + age)
                for asked in one.questions
            ]
        if said.skipped is not None:
            steps = f"{count(said.skipped.first)}-{count(said.skipped.last)}"
            samples.append(Sample(catalog.SUPERVISOR_SKIPS, (run, steps), said.skipped.times))
    samples += [Sample(catalog.SUPERVISOR_ACTIONS, (run, *what), number) for what, number in one.actions.items()]
    samples += [Sample(catalog.SUPERVISOR_WEBHOOKS, (run, what), number) for what, number in one.webhooks.items()]
    if said.recovery_seconds is not None:
        samples.append(Sample(catalog.SUPERVISOR_RECOVERY, (run,), said.recovery_seconds))
    samples.append(Sample(catalog.SUPERVISOR_LOST_STEPS, (run,), said.lost_steps))
    samples.append(Sample(catalog.SUPERVISOR_SAVED, (run,), said.saved_gpu_seconds))
    return samples
