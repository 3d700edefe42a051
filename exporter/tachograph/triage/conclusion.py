"""From the facts to what triage says: the finding, the answers of the tree, and what else fires."""

from __future__ import annotations

from tachograph.text import humanize
from tachograph.triage.facts import Facts
from tachograph.triage.findings import NONE, Triage, TriageFinding, all_named
from tachograph.triage.modes import MODES, WASTED
from tachograph.triage.questions import answered
from tachograph.triage.refinements import refined

LEAST_SHARE = 0.01
"""A smaller loss of speed is noise, and costs nothing worth a line."""


def conclude(facts: Facts) -> Triage:
    """Return what is wrong with a run, and the evidence for it."""
    first, *others = facts.firing or (None,)
    finding = refined(facts, first) if first else standing(facts)
    also = [
        f"{one.kind.alert} ({one.severity})" + (f": {all_named(one.labels)}" if one.named("rank") else "")
        for one in others
        if one is not None
    ]
    remarks = [f"{name} is pending, and no alert yet" for name in facts.named("pending", "alertname")]
    remarks += [f"not known: {one}" for one in facts.refused]
    size = int(facts.number("world_size") or 0)
    return Triage(
        facts.run, facts.at, finding, answered(facts), also, remarks=remarks, ranks=size,
        lost_share=_lost_share(facts, finding), unsaved_seconds=facts.figure("run:checkpoint_age_seconds:min"),
    )  # fmt: skip


def _lost_share(facts: Facts, finding: TriageFinding) -> float | None:
    """Return the share of the run's GPUs that is lost: all of them where it makes no step that counts."""
    if not finding.wrong:
        return None
    if finding.severity == "page" and (not facts.steps or finding.mode in WASTED):
        return 1.0
    losses = [one.value for one in facts.rows("speed_loss") if one.value > LEAST_SHARE]
    return max(losses, default=None)


def standing(facts: Facts) -> TriageFinding:
    """Return how a run stands of which no alert fires."""
    states = facts.by("states", "state")
    alive = states.get("running", 0) + states.get("frozen", 0)
    ended = facts.by("ended", "outcome")
    last = max(ended, key=ended.__getitem__, default="")
    if alive or facts.steps:
        if facts.figure("run:progress_age_seconds:min") is None:
            return _of("starting")
        return _of(NONE)
    if last == "finished":
        return _of("ended", f"it finished {humanize.age(facts.at - ended[last])} ago")
    if last:
        words = f"it was asked to end {humanize.age(facts.at - ended[last])} ago, and has not come back"
        return TriageFinding("info", "preemption", "preempted", words)
    if states.get("finished"):
        return _of("ended", f"{humanize.plural(states['finished'], 'rank')} finished, and none is left")
    return _of("ended") if states else _of("no_data")


def _of(mode: str, words: str = "") -> TriageFinding:
    return TriageFinding(NONE, NONE, mode, words or MODES[mode].title)
