"""The branches below an alert: the figures beside it say where its cause lies, in place of the row's own category.

A function for each failure mode that has several causes. It gets the facts, the alert and the finding so far, and
returns the finding with a category, perhaps another mode, and a sentence. The evidence stands in its first line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tachograph.catalog.rank import CATEGORY_OF_REASON
from tachograph.findings.kinds import NORM_VANISHED, RANK_DEAD, RANK_FAILED, RESTART_LOOP, RUN_DOWN
from tachograph.text import humanize
from tachograph.triage.facts import Facts, FiringKind
from tachograph.triage.findings import MOST_NAMED, TriageFinding, all_named, found_by, named
from tachograph.triage.modes import MODES

KERNEL_KINDS: Mapping[str, tuple[str, str]] = {
    "oom_kill": ("out_of_memory", "out_of_memory"),
    "nfs": ("storage", ""),
    "lustre": ("storage", ""),
    "filesystem": ("storage", ""),
    "disk": ("hardware", ""),
    "memory_failure": ("hardware", ""),
    "gpu_init": ("hardware", "gpu_fault"),
    "nvswitch": ("hardware", "gpu_fault"),
    "mlx5": ("network", ""),
    "hung_task": ("storage", ""),
    "lockup": ("hardware", ""),
}
"""The cause behind a message of the kernel: a category, and a mode where it is another one (docs/kernel.md)."""

STALLED_IN: Mapping[str, str] = {"data": "data", "checkpoint": "storage", "init": "configuration"}
"""Where the cause of a hang lies, by the phase of the rank that holds it up."""

HELD_BACK: Mapping[str, str] = {
    "node:gpu_thermal_slowdown:ratio": "by heat",
    "node:gpu_power_braked:ratio": "by the power brake",
    "node:gpu_clock_of_peers:ratio": "below its peers' clock",
    "node:gpu_nvlink_links_down:count": "by an NVLink that is down",
    "node:gpu_pcie_speed:ratio": "by its PCIe link",
}


def stall(ranks: float) -> str:
    """Return what a run without a step of so many ranks does: a rank that is alone waits for nobody."""
    return "communication stall" if ranks > 1 else "stands still"


def refined(facts: Facts, firing: FiringKind) -> TriageFinding:
    """Return the finding of an alert with the nearest cause that the figures show."""
    plain = found_by(firing)
    branch = BRANCHES.get(plain.mode)
    finding = branch(facts, firing, plain) if branch else plain
    return finding if finding.words else replace(finding, words=_plain_words(firing, finding))


def _plain_words(firing: FiringKind, finding: TriageFinding) -> str:
    title = MODES[finding.mode].title if finding.mode != "other" else firing.kind.alert
    if finding.ranks:
        return f"{title}: {all_named(firing.labels)}"
    return title + (f": {humanize.listed(finding.nodes, MOST_NAMED)}" if finding.nodes else "")


def _ended(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """A rank died or failed, or all did: by the kernel's word, then by its own reason, then by how many went."""
    own = [one for one in facts.first_ends if one.labels.get("rank") in finding.ranks] or list(facts.first_ends)
    reasons = list(dict.fromkeys(one.labels.get("reason", "") for one in own))
    ranks, nodes, mode, category, said = finding.ranks, finding.nodes, finding.mode, finding.category, ""
    categories = [CATEGORY_OF_REASON[one] for one in reasons if one in CATEGORY_OF_REASON]
    category = next((one for one in categories if one != "software"), category)
    if category == "out_of_memory" and mode != "restart_loop":
        mode = "out_of_memory"
    said_there = [one for one in facts.rows("kernel") if not nodes or one.labels.get("instance") in nodes]
    for message in said_there if firing.kind is not RANK_FAILED else ():
        category, other = KERNEL_KINDS.get(message.labels.get("kind", ""), (category, ""))
        mode, said = other or mode, f"; kernel of {message.labels.get('instance')}: {message.labels.get('text')}"
    if not ranks and firing.kind is RANK_DEAD:
        return replace(finding, category="preemption", mode="killed_together")
    title = MODES[mode].title if ranks or firing.kind is not RANK_FAILED else "ranks ended with an error at once"
    who = all_named(firing.labels) if ranks else ""
    if own and firing.kind in (RUN_DOWN, RESTART_LOOP):
        who = f"{named(own[0].labels)} ended first"
        ranks, nodes = (own[0].labels.get("rank", ""),), (own[0].labels.get("instance", ""),)
    why = f" ({humanize.listed([one for one in reasons if one], 2)})" if any(reasons) else ""
    words = title + (f": {who}" if who else "") + why + said
    return replace(finding, category=category, mode=mode, words=words, ranks=ranks, nodes=nodes)


def _frozen(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """A rank sends nothing: stopped, in the kernel, or behind Python's lock; or all were suspended."""
    if not finding.ranks:
        return replace(finding, category="preemption", mode="suspended")
    detail = next((one.labels for one in facts.rows("frozen") if one.labels.get("rank") in finding.ranks), {})
    state = detail.get("process", "")
    category = "storage" if state.startswith("D") else finding.category
    where = f", at {detail['where']}" if detail.get("where") else ""
    phase = f", in phase {detail['phase']}" if detail.get("phase") else ""
    words = f"frozen: {all_named(firing.labels)}{phase}{where}" + (f", process state {state}" if state else "")
    return replace(finding, category=category, words=words, pid=detail.get("pid", ""))


def _stalled(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """The run hangs: by the phase of who holds it up; else by who is missing; else the network that all share."""
    phases = facts.by("phase_ranks", "phase")
    waiting = f"ranks by phase: {', '.join(f'{count:,.0f} in {phase}' for phase, count in phases.items()) or 'unknown'}"
    if finding.ranks:
        detail = next((one.labels for one in facts.rows("stalled") if one.labels.get("rank") in finding.ranks), {})
        phase, where = detail.get("phase", ""), detail.get("where", "")
        category = STALLED_IN.get(phase, "software")
        gone = "which has left" if facts.by("states", "state").get("finished") else "of which nothing is known"
        place = f"in phase {phase}" if phase else gone
        what = stall(sum(phases.values()))
        words = f"{what}: {all_named(firing.labels)}, {place}{f', at {where}' if where else ''}; {waiting}"
        return replace(finding, category=category, words=words, pid=detail.get("pid", ""))
    missing = facts.figure("run:ranks_missing:count")
    unseen = facts.named("of_nodes_unseen", "instance")
    if missing:
        words = f"communication stall: {humanize.plural(missing, 'rank')} not there, and the others wait; {waiting}"
        category = "monitoring" if unseen else "software"
        return replace(finding, category=category, words=words, nodes=unseen or finding.nodes)
    words = f"communication stall: no single rank stands out; {waiting}"
    return replace(finding, words=words)


def _straggler(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """Somebody is late: because its GPU is held back, its loader is slow, or it computes for longer; or all in turn."""
    if not finding.nodes:
        phase = next(iter(facts.by("turns", "phase")), "")
        if not phase:
            return replace(finding, words="straggler: more than eight ranks are late; look for what they share")
        words = f"{MODES['uneven_work'].title}, in phase {phase}"
        return replace(finding, category="data" if phase == "data" else "compute", mode="uneven_work", words=words)
    gpus = set(firing.named("uuid"))
    held = [
        one for one in facts.rows("of_gpus")
        if one.labels["__name__"] in HELD_BACK
        and (one.labels.get("uuid") in gpus or (not gpus and one.labels.get("instance") in finding.nodes))
    ]  # fmt: skip
    who = all_named(firing.labels) if finding.ranks else f"node {humanize.listed(finding.nodes, MOST_NAMED)}"
    if held:
        how = humanize.listed(list(dict.fromkeys(HELD_BACK[one.labels["__name__"]] for one in held)), 3)
        words = f"straggler: {who}, whose GPU is held back {how}"
        return replace(finding, category="hardware", mode="gpu_straggler", words=words)
    phase = next((one.labels.get("phase", "") for one in facts.rows("late_phase")), "")
    if phase == "data":
        return replace(finding, category="data", mode="data_straggler", words=f"straggler: {who}, whose loader is slow")
    return replace(finding, words=f"straggler: {who}" + (f", late in phase {phase}" if phase else ""))


def _slow(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """Every rank is slower: by the part of the step that grew, and by the nodes that stand out in it."""
    cause = next(iter(facts.named("slow_cause", "cause")), "")
    nodes = facts.named("slow_nodes", "instance")
    turns = facts.by("turns_grown", "phase")
    if turns and cause != "communication":
        phase = next(iter(turns))
        words = f"{MODES['uneven_work'].title}, in phase {phase}"
        return replace(finding, category="data" if phase == "data" else "compute", mode="uneven_work", words=words)
    if cause == "communication":
        errors = [node for node in facts.named("nic_error_rate", "instance") if node in nodes]
        kinds = humanize.listed([kind.replace("_", " ") for kind in facts.named("nic_errors", "error")], 3)
        words = "network: collectives are slow"
        if nodes:
            words += (
                f", {humanize.plural(len(nodes), 'node')} behind what they share: {humanize.listed(nodes, MOST_NAMED)}"
            )
        if errors:
            words += f"; NIC errors rising on {len(errors)} of them ({kinds})"
        return replace(finding, category="network", mode="slow_collectives", words=words, nodes=nodes)
    if cause == "data":
        return replace(finding, category="data", mode="data_stall")
    return replace(
        finding, words=f"{MODES[finding.mode].title}; " + (f"{cause} grew" if cause else "no part of the step grew")
    )


def _fault(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """A GPU is broken: what it reports."""
    said = []
    for one in firing.labels[:MOST_NAMED]:
        xids = [
            row.labels["xid"]
            for row in facts.rows("of_gpus")
            if row.labels.get("xid") and row.labels.get("uuid") == one.get("uuid")
        ]
        who = f", under rank {one['rank']}" if one.get("rank") else ""
        said.append(
            f"GPU {one.get('gpu', '?')} of {one.get('instance', '?')}{who}" + "".join(f", Xid {xid}" for xid in xids)
        )
    return replace(finding, words=f"a GPU is broken ({firing.kind.alert}): {humanize.listed(said, MOST_NAMED)}")


def _missing(facts: Facts, _: FiringKind, finding: TriageFinding) -> TriageFinding:
    """Ranks are not visible: they have not come, they have left, or Prometheus does not see their node."""
    count = humanize.plural(facts.figure("run:ranks_missing:count") or 0, "rank")
    if facts.figure("run:start_stalled_seconds:min") is not None:
        return replace(
            finding, category="software", words=f"{count} never came, and the others wait for them in the start"
        )
    if "finished" in facts.named("ended", "outcome"):
        return replace(
            finding, category="software", mode="rank_left", words=f"{count} finished, and the others train on"
        )
    return replace(finding, words=f"{count} not visible, and the run goes on")


def _differs(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """Ranks do not hold the same: in which of the numbers."""
    names = humanize.listed(facts.named("differing", "name"), 3)
    who = f": {all_named(firing.labels)}" if finding.ranks else "; no single rank differs: is the global batch right?"
    return replace(finding, words=f"{MODES[finding.mode].title}{who}" + (f", in {names}" if names else ""))


def _learning(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """The loss is where it should not be: with the gradient norm, or without it."""
    loss, norm = facts.figure("run:loss:median"), facts.number("grad_norm")
    words = MODES[finding.mode].title + (f", at {humanize.significant(loss)}" if loss is not None else "")
    if norm is not None:
        confirms = "which confirms it" if norm > 2 else "so look at the data first"
        words += f"; the gradient norm is at {norm:.1f} times the usual" + (
            f", {confirms}" if finding.mode == "divergence" else ""
        )
    return replace(finding, words=words)


def _plateau(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """The loss does not move because nothing is learnt: a rate that is 0 or stands still, a gradient that vanished."""
    rate = facts.figure("run:learning_rate:max")
    because = "the gradient has vanished" if firing.kind is NORM_VANISHED else "the schedule stands still"
    words = f"the loss cannot move: {because}" + (f", learning rate {rate:.3g}" if rate is not None else "")
    return replace(finding, words=words)


def _blind(facts: Facts, firing: FiringKind, finding: TriageFinding) -> TriageFinding:
    """Part of the run is not visible: the nodes of which nothing is heard."""
    nodes = finding.nodes or facts.named("of_nodes_unseen", "instance")
    return replace(finding, nodes=nodes, words=f"{MODES[finding.mode].title}: {humanize.listed(nodes, MOST_NAMED)}")


def _storage(facts: Facts, _: FiringKind, finding: TriageFinding) -> TriageFinding:
    """Several runs wait for data since the same time."""
    runs = facts.number("shared_stall")
    return replace(finding, words=MODES[finding.mode].title + (f": {runs:.0f} runs wait for data" if runs else ""))


Branch = Callable[[Facts, FiringKind, TriageFinding], TriageFinding]

BRANCHES: Mapping[str, Branch] = {
    "rank_died": _ended,
    "rank_failed": _ended,
    "run_down": _ended,
    "restart_loop": _ended,
    "frozen": _frozen,
    "communication_stall": _stalled,
    "straggler": _straggler,
    "slow_steps": _slow,
    "gpu_fault": _fault,
    "ranks_missing": _missing,
    "ranks_differ": _differs,
    "silent_corruption": _differs,
    "divergence": _learning,
    "loss_spike": _learning,
    "plateau": _plateau,
    "storage_slow": _storage,
    "blind": _blind,
}
