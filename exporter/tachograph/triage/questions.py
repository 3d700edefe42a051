"""The tree: the questions in the order in which they are asked, and the evidence for the answer to each.

A question is answered no if an alert of its rows (findings/kinds.py) fires, yes if there is evidence and none does, and
unknown if there is nothing to judge by. The evidence is what a person would look up: the figures, now and as they
usually are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tachograph.findings import kinds
from tachograph.text import humanize
from tachograph.triage.facts import Facts
from tachograph.triage.findings import MOST_NAMED, QuestionAnswer, all_named

Evidence = Callable[[Facts], Iterator[str]]

PLATEAU_RATIO = 0.001
"""The loss stands still if its lowest of an hour is not lower than that of the two hours before by this share."""


class TriageQuestion(NamedTuple):
    """A question that is answered with yes while all is well."""

    name: str
    words: str
    evidence: Evidence


def _alive(facts: Facts) -> Iterator[str]:
    states = facts.by("states", "state")
    size = facts.figure("run:ranks:count") or facts.number("world_size")
    if states:
        shown = ", ".join(f"{count:,.0f} {state}" for state, count in sorted(states.items()) if count)
        yield f"of {humanize.count(size)} ranks: {shown or 'none in sight'}"
    restarts = facts.figure("run:restarts:max")
    if restarts:
        yield humanize.plural(restarts, "restart")
    for one in facts.first_ends[:2] if states.keys() & {"dead", "failed"} else []:
        ago = humanize.age(facts.at - one.value)
        yield f"{all_named([one.labels])} ended {ago} ago ({one.labels.get('reason') or one.labels.get('kind')})"
    for one in facts.rows("kernel"):
        yield f"kernel of {one.labels.get('instance')}, {humanize.age(one.value)} ago: {one.labels.get('text')}"


def _started(facts: Facts) -> Iterator[str]:
    step = facts.figure("run:train_step:max")
    stalled = facts.figure("run:start_stalled_seconds:min")
    if stalled is not None:
        yield f"no step yet; nothing has moved for {humanize.age(stalled)}"
    elif step is not None:
        yield f"it is at step {humanize.count(step)}"


def _progress(facts: Facts) -> Iterator[str]:
    age, usual = facts.figure("run:progress_age_seconds:min"), facts.figure("run:step_interval_seconds:p50")
    if age is not None:
        yield f"last step {humanize.age(age)} ago" + (
            f", a usual one takes {humanize.duration(usual)}" if usual else ""
        )
    if (overdue := facts.figure("run:overdue_seconds:min")) is not None:
        phases = ", ".join(f"{count:,.0f} in {phase}" for phase, count in facts.by("phase_ranks", "phase").items())
        yield f"overdue, {humanize.age(overdue)} without a step; ranks by phase: {phases or 'unknown'}"
    if roles := facts.named("waits_for", "run"):
        yield f"it waits for {humanize.listed(roles, MOST_NAMED)}, which hangs"
    for one in facts.rows("stalled"):
        where = f" at {one.labels['where']}" if one.labels.get("where") else ""
        phase = one.labels.get("phase", "")
        yield f"{all_named([one.labels])} in phase {phase} for {humanize.age(one.value)}{where}"


def _numbers(facts: Facts) -> Iterator[str]:
    lost = facts.figure("run:loss_nonfinite_ranks:count")
    if lost:
        yield f"the loss is not finite on {humanize.plural(lost, 'rank')}"
    elif facts.figure("run:loss:median") is not None:
        yield "the loss is finite on all ranks"
    if first := facts.rows("not_finite"):
        who = all_named([one.labels for one in first])
        yield f"it was lost first on {who}, at step {humanize.count(first[0].value)}"
    if differing := facts.rows("differing"):
        what = humanize.listed(facts.named("differing", "name"), 3)
        yield f"{what} differs on {all_named([one.labels for one in differing])}"
    if skipped := facts.figure("run:amp_skipped_steps:ratio5m"):
        yield f"mixed precision skipped {humanize.percent(skipped, 1)} of the steps of 5 minutes"


def _learning(facts: Facts) -> Iterator[str]:
    loss, before = facts.figure("run:loss:median"), facts.number("loss_before")
    if loss is None:
        return
    yield f"loss {humanize.significant(loss)}" + (
        f", {humanize.significant(before)} half an hour ago" if before is not None else ""
    )
    if (norm := facts.number("grad_norm")) is not None:
        yield f"gradient norm {norm:.2f} times the usual"
    lowest, earlier = facts.number("loss_lowest"), facts.number("loss_lowest_before")
    if lowest is not None and earlier is not None and lowest > earlier * (1 - PLATEAU_RATIO):
        yield f"its lowest of this hour, {humanize.significant(lowest)}, is not below that of the two hours before"
        yield from _plateau(facts)


def _plateau(facts: Facts) -> Iterator[str]:
    rate, highest = facts.figure("run:learning_rate:max"), facts.number("rate_before")
    if rate is not None and highest:
        yield f"learning rate {rate:.3g}, {humanize.percent(rate / highest)} of the highest within a day"
    yield "a plateau? usual reasons: a rate that decayed, clipping, data that repeat, optimizer state lost in a resume"


def _speed(facts: Facts) -> Iterator[str]:
    if not facts.steps:
        return
    mfu, usual = facts.figure("run:step_mfu:ratio"), facts.figure("run:step_mfu:baseline")
    if mfu is not None:
        yield f"MFU {humanize.percent(mfu, 1)}" + (
            f", usually {humanize.percent(usual, 1)}" if usual is not None else ""
        )
    for unit, loss in facts.by("speed_loss", "unit").items():
        if loss > 0.01:
            yield f"{humanize.percent(loss)} slower than usual, by {'MFU' if unit == 'mfu' else unit}"
    for lost_to, share in facts.by("lost", "cause").items():
        yield f"{humanize.percent(share)} of the last half hour was lost to {lost_to}"
    phases, before = facts.by("phases", "phase"), facts.by("phases_before", "phase")
    if phases:
        parts = (
            f"{phase} {humanize.duration(seconds)}"
            + (f" (was {humanize.duration(before[phase])})" if _grew(seconds, before.get(phase), phases) else "")
            for phase, seconds in sorted(phases.items(), key=lambda pair: -pair[1])
            if seconds > 0.0005
        )
        yield "a step on the median rank: " + ", ".join(parts)
    late = facts.rows("late")
    if (cause := facts.named("slow_cause", "cause")) and not (late and cause[0] == "communication"):
        yield f"the part that grew: {cause[0]}"
    if nodes := facts.named("slow_nodes", "instance"):
        yield f"{humanize.plural(len(nodes), 'node')} stand out: {humanize.listed(nodes, MOST_NAMED)}"
    for one in late:
        who = all_named([one.labels]) if one.labels.get("rank") else f"the median rank of {one.labels.get('instance')}"
        yield f"{who} is late by {humanize.percent(one.value)} of the step, and the others wait for it"
    for phase in facts.by("turns", "phase") if not late else ():
        yield f"ranks take turns being late, in phase {phase}"


def _grew(now: float, before: float | None, phases: dict[str, float]) -> bool:
    """Return whether a phase changed by more than a twentieth of the step."""
    return before is not None and abs(now - before) > 0.05 * sum(phases.values())


def _data(facts: Facts) -> Iterator[str]:
    wait, usual = facts.figure("run:data_wait:median"), facts.figure("run:data_wait:baseline")
    if wait is not None and facts.steps:
        yield f"waits for data {humanize.percent(wait, 1)} of the step" + (
            f", usually {humanize.percent(usual, 1)}" if usual is not None else ""
        )
    if (ready := facts.number("queue")) is not None:
        yield f"{humanize.plural(ready, 'batch', 'batches')} ready on the median rank"
    if (runs := facts.number("shared_stall")) is not None:
        yield f"{humanize.plural(runs, 'run')} wait for data since the same time"


def _network(facts: Facts) -> Iterator[str]:
    if (share := facts.number("bandwidth")) is not None:
        yield f"collectives move {humanize.percent(share)} of their usual bytes a second"
    for one in facts.rows("nic_down"):
        yield f"{one.labels.get('device')} of {one.labels.get('instance')} is down for {humanize.age(one.value)}"
    errors = facts.rows("nic_errors")
    for one in errors[:MOST_NAMED]:
        kind = one.labels.get("error", "").replace("_", " ")
        port = f"{one.labels.get('instance')} {one.labels.get('device')}"
        yield f"{port}: {humanize.count(one.value)} {kind} errors within an hour"
    if rising := facts.named("nic_error_rate", "instance"):
        yield f"errors rise now on {humanize.listed(rising, MOST_NAMED)}"
    elif not errors and facts.rows("nodes"):
        yield "no port of its nodes counts errors"


def _memory(facts: Facts) -> Iterator[str]:
    if (peak := facts.number("memory_peak")) is not None:
        yield f"live tensors fill {humanize.percent(peak)} of what the fullest rank holds"
    for one in facts.rows("memory_full"):
        yield f"{all_named([one.labels])}: {one.labels.get('memory')} memory is full in {humanize.age(one.value)}"


def _checkpoints(facts: Facts) -> Iterator[str]:
    age, step = facts.figure("run:checkpoint_age_seconds:min"), facts.figure("run:checkpoint_step:max")
    every = facts.figure("run:checkpoint_interval_seconds:mean1d")
    if age is not None:
        yield (
            f"last restorable save {humanize.age(age)} ago"
            + (f", step {humanize.count(step)}" if step is not None else "")
            + (f", usually every {humanize.age(every)}" if every else "")
        )
    took, usual = facts.figure("run:checkpoint_duration_seconds:max"), facts.number("usual_save")
    if took is not None:
        yield f"it took {humanize.duration(took)}" + (
            f", usually {humanize.duration(usual)}" if usual is not None else ""
        )
    if (free := facts.number("disk_free")) is not None and free < 0.1:
        yield f"{humanize.percent(free)} of the disk is free"


WORDS_OF_GPUS = {
    "node:gpu_lost:info": "is lost",
    "node:gpu_hung:info": "hangs",
    "node:gpu_xid_fatal_timestamp_seconds:max": "had a fatal Xid",
    "node:gpu_ecc_uncorrected:max": "has uncorrected memory errors",
    "node:gpu_thermal_slowdown:ratio": "is throttled by heat",
    "node:gpu_power_braked:ratio": "is held back by the power brake",
    "node:gpu_clock_of_peers:ratio": "is clocked below its peers",
    "node:gpu_nvlink_links_down:count": "has NVLinks down",
    "node:gpu_pcie_speed:ratio": "has a slow PCIe link",
}


def _hardware(facts: Facts) -> Iterator[str]:
    ranks = {
        (one.labels.get("instance"), one.labels.get("uuid")): one.labels.get("rank") for one in facts.rows("gpu_ranks")
    }
    for one in facts.rows("of_gpus")[:MOST_NAMED]:
        labels, name = one.labels, one.labels["__name__"]
        xid = f" ({labels['xid']})" if labels.get("xid") else ""
        share = f" ({humanize.percent(one.value)})" if name.endswith(":ratio") else ""
        rank = ranks.get((labels.get("instance"), labels.get("uuid")))
        under = f", under rank {rank}" if rank else ""
        yield f"GPU {labels.get('gpu')} of {labels.get('instance')} {WORDS_OF_GPUS[name]}{xid}{share}{under}"
    if not facts.rows("of_gpus") and facts.rows("nodes"):
        yield "no GPU of its nodes is lost, hangs, throttles or counts errors"


def _watched(facts: Facts) -> Iterator[str]:
    nodes = facts.named("nodes", "instance")
    answering = facts.number("answering")
    if nodes:
        yield f"{humanize.count(answering or 0)} of {humanize.plural(len(nodes), 'exporter')} answer"
    for one in facts.rows("of_nodes_unseen")[:MOST_NAMED]:
        yield f"nothing from {one.labels.get('instance')} for {humanize.age(one.value)}"
    if missing := facts.figure("run:ranks_missing:count"):
        yield f"{humanize.plural(missing, 'rank')} not visible"


QUESTIONS = (
    TriageQuestion(kinds.ALIVE, "Are all of its ranks alive?", _alive),
    TriageQuestion(kinds.STARTED, "Did it ever start?", _started),
    TriageQuestion(kinds.PROGRESS, "Does it make steps?", _progress),
    TriageQuestion(kinds.NUMBERS, "Are its numbers finite, and equal where they must be?", _numbers),
    TriageQuestion(kinds.LEARNING, "Does the loss move as it should?", _learning),
    TriageQuestion(kinds.SPEED, "Are steps as fast as they were?", _speed),
    TriageQuestion(kinds.DATA, "Does its data arrive in time?", _data),
    TriageQuestion(kinds.NETWORK, "Do links and collectives carry what they should?", _network),
    TriageQuestion(kinds.MEMORY, "Does memory suffice?", _memory),
    TriageQuestion(kinds.CHECKPOINTS, "Are checkpoints fresh?", _checkpoints),
    TriageQuestion(kinds.HARDWARE, "Is the hardware sound?", _hardware),
    TriageQuestion(kinds.WATCHED, "Is all of it watched?", _watched),
)


def answered(facts: Facts) -> tuple[QuestionAnswer, ...]:
    """Return the answer to every question, in order."""
    answers = []
    for name, words, evidence in QUESTIONS:
        against = [one for one in facts.firing if one.kind.question == name and one.severity != "info"]
        lines = tuple(evidence(facts))
        stands = name == kinds.PROGRESS and facts.stalled
        answer = "no" if against or stands else "yes" if lines else "unknown"
        answers.append(QuestionAnswer(name, words, answer, lines, tuple(one.kind.alert for one in against)))
    return tuple(answers)
